#!/usr/bin/env python3
"""Runs a program between two hosts, which are network namespaces: hosts.py PROGRAM ARGUMENT..

It starts on the one, HERE, and finds in FARSPAN_OTHER_HOST the path of the other's namespace, whose
address is THERE; only a cable joins them. Ends as the program does; with status 77 and without the
program where no namespaces can be made (1 with FARSPAN_NEED_ALL). When this script is killed, the program is, too.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys

SKIPPED = 77
PR_SET_PDEATHSIG = 1
HERE, THERE = "10.77.0.1", "10.77.0.2"
# Whoever is not root becomes it there.
NEW_HOST = [shutil.which("unshare") or "unshare", "--net",
            *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def between_hosts(*command):
    """The command that runs `command` between two hosts."""
    return [sys.executable, "-B", os.path.abspath(__file__), *command]


def there():
    """What comes before a command that is to run on the other host."""
    return ["nsenter", f"--net={os.environ['FARSPAN_OTHER_HOST']}"]


def can_make_hosts():
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    probe = [*NEW_HOST, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "other"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def status_of(*command):
    status = subprocess.run(command, preexec_fn=end_with_parent).returncode
    return status if status >= 0 else 128 - status


def run(*command):
    subprocess.run(command, check=True)


def lay_cable(other):
    """Between this network namespace and that of process `other`."""
    os.environ["FARSPAN_OTHER_HOST"] = f"/proc/{other}/ns/net"
    run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(other))
    for place, address in (((), HERE), (there(), THERE)):
        run(*place, "ip", "address", "add", f"{address}/24", "dev", "cable")
        for device in ("lo", "cable"):
            run(*place, "ip", "link", "set", device, "up")


def run_here(command):
    """In a network namespace of its own, this process is one of the hosts."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, preexec_fn=end_with_parent)
    holder.stdin.write(b"ready\n")
    holder.stdin.flush()
    holder.stdout.readline()  # from now on it is in its namespace
    try:
        lay_cable(holder.pid)
        return status_of(*command)
    finally:
        holder.stdin.close()
        holder.wait()


def main():
    if sys.argv[1] == "--here":
        return run_here(sys.argv[2:])
    if not can_make_hosts():
        needed = os.environ.get("FARSPAN_NEED_ALL")
        print(("FARSPAN_NEED_ALL is set: " if needed else "") +
              "no network namespaces can be made here, or iproute2 is missing")
        return 1 if needed else SKIPPED
    return status_of(*NEW_HOST, *between_hosts("--here", *sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
