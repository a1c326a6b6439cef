#!/usr/bin/env python3
"""A program on two hosts: hosts_test.py PROGRAM ARGUMENT..

Two of its ranks run on one, the third on the other; see ../support/hosts.py. They must end with status
0, print one result, and leave nothing.
"""

import os
import pathlib
import subprocess
import sys

from run_test import is_picture
from watched_run import WatchedRun

sys.path.append(str(pathlib.Path(__file__).parent.parent / "support"))
import hosts

PORT = 29500  # the hosts are the test's own
PLACES = (hosts.HERE, hosts.HERE, hosts.THERE)  # by rank


def start(command, rank, place):
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(PLACES)),
                       MASTER_ADDR=hosts.HERE, MASTER_PORT=str(PORT), OMP_NUM_THREADS="1")
    other = hosts.there() if place == hosts.THERE else []
    return subprocess.Popen([*other, *command], env=environment)


def run_ranks(command):
    ranks = [start(command, rank, place) for rank, place in enumerate(PLACES)]
    return max(abs(rank.wait()) for rank in ranks)


def main():
    program, *arguments = sys.argv[1:]
    watched = WatchedRun(hosts.between_hosts(sys.executable, "-B", __file__, "--ranks",
                                             os.path.abspath(program), *arguments))
    status, out, err = watched.watch_to_its_end(200)
    print(err + out)
    if status == hosts.SKIPPED:
        return status
    assert status == 0, f"it ended with status {status}"
    assert out.count(f"Data parallel, {len(PLACES)} ranks") == 1, "not one result of all ranks"
    left = watched.left_over(5, lambda path: is_picture(path) or path.is_dir())
    assert not left, f"it left {left}"
    return 0


if __name__ == "__main__":
    sys.exit(run_ranks(sys.argv[2:]) if sys.argv[1] == "--ranks" else main())
