"""Processes that are gone at the end, with all that they have started."""

import contextlib
import os
import signal
import subprocess


class Failure(Exception):
    """What went wrong with one program, in words for the person who runs this."""


@contextlib.contextmanager
def process_group(command, stdin=subprocess.DEVNULL):
    """A process in a group of its own; the whole group is gone at the end, whatever happens."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TP_TRANSPORT", "TP_CHANNEL"):
        environment.pop(name, None)
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # somebody left the group
            process.communicate(timeout=5)
