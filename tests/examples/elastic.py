"""What the tests of restarts share: torchrun under watch, and the lines that a run has written."""

import atexit
import contextlib
import os
import pathlib
import re
import sys
import tempfile
import time

from launched_test import free_port
from watched_run import PROC, WatchedRun

SKIPPED = 77
LIMIT = 120  # seconds, for what hangs


def find_torchrun(path):
    if not os.path.exists(path):
        print("there is no torchrun here")
        sys.exit(1 if os.environ.get("FARSPAN_NEED_ALL") else SKIPPED)
    return path


def places():
    """How the processes of one torchrun meet: in the agent's store, and in one that it makes anew."""
    return {"static": ["--master-addr=127.0.0.1", f"--master-port={free_port()}"],
            "c10d": ["--standalone"]}


def watch(command, variables):
    run = WatchedRun(command, variables={"OMP_NUM_THREADS": "1", **variables})
    atexit.register(run.kill)  # also where the test fails
    return run


def start(torchrun, options, command, variables=None):
    program = os.path.abspath(command[0])
    return watch([torchrun, "--no-python", *options, program, *command[1:]], variables or {})


def may_stay(path):
    """torchrun leaves its folder for logs, and a failed rank's error file in there."""
    return path.is_dir() or path.name in ("error.json", "ddp.svg", "checkpoint")


def variables_of(pid):
    text = (PROC / str(pid) / "environ").read_bytes().decode()
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def pid_of_rank(run, rank):
    """The process that has this rank now, or None."""
    for pid in run.look():
        try:
            if variables_of(pid).get("RANK") == str(rank):
                return pid
        except OSError:
            continue
    return None


def listening_ports(pid):
    """The TCP ports at which this process listens."""
    own, found = set(), set()
    for link in (PROC / str(pid) / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # just closed
            own.add(os.readlink(link))
    for table in ("tcp", "tcp6"):
        for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
            _, address, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                found.add(int(address.rsplit(":", 1)[1], 16))
    return found


class CountingRun:
    """The files of one run of elastic_training."""

    def __init__(self, limit):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.log = self.path / "log"
        self.allow(limit)
        self.seen = 0  # lines of the log

    def arguments(self):
        return [str(self.path / name) for name in ("checkpoint", "limit", "log")]

    def allow(self, steps):
        """Lets it train until so many steps are done."""
        part = self.path / "limit.part"
        part.write_text(str(steps))
        part.rename(self.path / "limit")

    def lines(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, pattern, runs):
        """The next line that matches, while all of `runs` go on."""
        deadline = time.monotonic() + LIMIT
        while True:
            ended = [run for run in runs if run.process.poll() is not None]
            lines = self.lines()
            while self.seen < len(lines):
                self.seen += 1
                found = re.match(pattern, lines[self.seen - 1])
                if found:
                    return found
            if ended or time.monotonic() > deadline:
                for run in runs:
                    run.kill()
                    print(*run.finish(1), sep="\n")
                raise AssertionError(f"there is no line like '{pattern}' in {lines}")
            for run in runs:
                run.look()
            time.sleep(0.02)

    def clean_up(self):
        names = {path.name for path in self.path.iterdir()}
        self.folder.cleanup()
        assert names <= {"checkpoint", "limit", "log"}, f"it left {names}"


def end_well(runs):
    """Waits for their ends, which must be good ones.

    returns: standard output and error of all
    """
    text = ""
    for run in runs:
        status, out, err = run.finish(LIMIT)
        text += out + err
        assert status == 0, f"it ended with status {status}:\n{out}{err}"
    for run in runs:
        left = run.left_over(5, may_stay)
        assert not left, f"it left {left}"
    return text
