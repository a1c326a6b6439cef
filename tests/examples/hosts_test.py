#!/usr/bin/env python3
"""A program on two hosts, which are network namespaces: hosts_test.py PROGRAM ARGUMENT..

Two of its ranks run on one, the third on the other; only a cable joins them. They must end with status
0, print one result, and leave nothing. Skipped, with status 77, where no namespaces can be made.
"""

import os
import shutil
import subprocess
import sys

from run_test import is_picture
from watched_run import WatchedRun

SKIPPED = 77
HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 29500  # the namespaces are the test's own
HOSTS = (HERE, HERE, THERE)  # by rank
# Whoever is not root becomes it there.
NEW_HOST = [shutil.which("unshare") or "unshare", "--net",
            *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def run(*command):
    subprocess.run(command, check=True)


def lay_cable(other):
    """Between this network namespace and that of process `other`. Returns what runs commands there."""
    there = ["nsenter", f"--net=/proc/{other}/ns/net"]
    run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(other))
    for place, address in (((), HERE), (there, THERE)):
        run(*place, "ip", "address", "add", f"{address}/24", "dev", "cable")
        for device in ("lo", "cable"):
            run(*place, "ip", "link", "set", device, "up")
    return there


def start(command, rank, place):
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(HOSTS)), MASTER_ADDR=HERE,
                       MASTER_PORT=str(PORT), OMP_NUM_THREADS="1")
    return subprocess.Popen([*place, *command], env=environment)


def run_on_both(command):
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    holder.stdin.write(b"ready\n")
    holder.stdin.flush()
    holder.stdout.readline()  # from now on it is in its namespace
    there = lay_cable(holder.pid)
    ranks = [start(command, rank, there if host == THERE else [])
             for rank, host in enumerate(HOSTS)]
    ends = [rank.wait() for rank in ranks]
    holder.stdin.close()
    holder.wait()
    return max(abs(end) for end in ends)


def can_make_hosts():
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    probe = [*NEW_HOST, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "other"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0


def main():
    program, *arguments = sys.argv[1:]
    if not can_make_hosts():
        print("no network namespaces can be made here, or iproute2 is missing")
        return SKIPPED
    watched = WatchedRun([*NEW_HOST, sys.executable, "-B", __file__, "--inside",
                          os.path.abspath(program), *arguments])
    status, out, err = watched.watch_to_its_end(200)
    print(err + out)
    assert status == 0, f"it ended with status {status}"
    assert out.count(f"Data parallel, {len(HOSTS)} ranks") == 1, "not one result of all ranks"
    left = watched.left_over(5, lambda path: is_picture(path) or path.is_dir())
    assert not left, f"it left {left}"
    return 0


if __name__ == "__main__":
    sys.exit(run_on_both(sys.argv[2:]) if sys.argv[1] == "--inside" else main())
