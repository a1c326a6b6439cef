#!/usr/bin/env python3
"""Runs a test program as several ranks on this host: mpirun.py RANKS SECONDS PROGRAM [ARGUMENTS ..]

Ends as mpirun does, or with 124 after so many seconds; nothing that it has started is left then.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
ENVIRONMENT = {
    # Containers often are root's, and know no ssh, which would be for other hosts.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_plm": "isolated",
    # Shared memory alone, without reading other processes' memory, which containers may forbid.
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    # More ranks than cores.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def main():
    ranks, seconds, *program = sys.argv[1:]
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        needed = os.environ.get("FARSPAN_NEED_ALL")
        print(f"{'FARSPAN_NEED_ALL is set' if needed else 'skipped'}: no mpirun (openmpi-bin)")
        return 1 if needed else 0
    process = subprocess.Popen(
        [mpirun, "--oversubscribe", "--bind-to", "none", "-n", ranks, *program],
        env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
    try:
        return process.wait(float(seconds))
    except subprocess.TimeoutExpired:
        print(f"mpirun.py: not at its end after {seconds} s", file=sys.stderr)
        return 124
    finally:
        if process.poll() is None:
            process.terminate()  # mpirun ends its ranks first
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
