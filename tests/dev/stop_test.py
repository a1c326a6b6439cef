#!/usr/bin/env python3
"""A signal ends `./dev` and all that it has started, within 5 s: stop_test.py REPOSITORY"""

import fcntl
import os
import pathlib
import signal
import sys
import tempfile
import time

from clone import Clones
from watched_run import WatchedRun

LIMIT = 5  # seconds


def until(condition, run):
    deadline = time.monotonic() + 60
    while not condition():
        assert run.process.poll() is None and time.monotonic() < deadline, "it never came so far"
        time.sleep(0.02)


def end(run, number):
    """Sends the signal to ./dev alone, which must take all else with it."""
    begun = time.monotonic()
    os.kill(run.process.pid, number)
    status, out, err = run.finish(LIMIT)
    left = run.left_over(0.5, lambda path: False)  # the system may be slow to bury
    took = time.monotonic() - begun
    print(f"  {signal.Signals(number).name}: {took:.2f} s", flush=True)
    assert status == 130, f"it ended with status {status}: {out}{err}"
    assert "dev: stopped" in err, err
    assert not left, f"it left {left}"
    assert took < LIMIT, f"it took {took:.1f} s"


def a_build_is_ended(clones, number, programs):
    run = WatchedRun([str(clones.clone("clone") / "dev"), "build"],
                     variables=dict(clones.variables(programs), LIBTORCH_ROOT=str(clones.folder)))
    until(clones.cmake_log.exists, run)
    assert len(run.look()) > 2, "there is nothing to end"
    end(run, number)
    obeyed = pathlib.Path(f"{clones.cmake_log}.obeyed").exists()
    assert obeyed == (programs == "obedient"), "what can end by itself must be let"


def installing_packages_is_ended_and_begins_again(clones, number):
    root, slow = clones.clone("clone"), pathlib.Path(f"{clones.apt_log}.slow")
    slow.touch()
    run = WatchedRun([str(root / "dev"), "setup"], variables=clones.variables())
    until(lambda: clones.apt_log.exists() and "install" in clones.apt_log.read_text(), run)
    end(run, number)
    status, out, _ = WatchedRun([str(root / "dev"), "setup"], variables=clones.variables()).finish(60)
    calls = [" ".join(line.split()[:2]) for line in clones.apt_log.read_text().splitlines()]
    # What was interrupted is set in order before anything else.
    assert status == 0 and calls == 2 * ["dpkg --configure", "apt-get update", "apt-get install"], (out, calls)


def a_download_is_ended_and_begins_again(clones, number):
    root, slow = clones.clone("clone"), pathlib.Path(f"{clones.downloads}.slow")
    slow.touch()
    run = WatchedRun([str(root / "dev"), "setup"], variables=clones.variables())
    until(clones.count_downloads, run)
    end(run, number)
    slow.unlink()
    status, out, _ = WatchedRun([str(root / "dev"), "setup"], variables=clones.variables()).finish(60)
    assert status == 0 and clones.count_downloads() == 2, out


def waiting_for_another_clone_is_ended(clones, number):
    root, cache = clones.clone("clone"), clones.folder / "cache"
    # Takes the lock that ./dev has made.
    WatchedRun([str(root / "dev"), "setup"], variables=clones.variables()).finish(60)
    (lock,) = (cache / "farspan").glob("*.lock")
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = WatchedRun([str(root / "dev"), "setup"], variables=clones.variables())
        until(lambda: len(run.look()) > 1 and b"flock\x009\x00" in b"".join(map(command_of, run.look())), run)
        end(run, number)


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main():
    cases = [(a_build_is_ended, signal.SIGINT, "obedient"),
             (a_build_is_ended, signal.SIGINT, "stubborn"),
             (a_build_is_ended, signal.SIGTERM, "obedient"),
             (installing_packages_is_ended_and_begins_again, signal.SIGINT),
             (a_download_is_ended_and_begins_again, signal.SIGINT),
             (waiting_for_another_clone_is_ended, signal.SIGTERM)]
    for case, *arguments in cases:
        print(case.__name__, *map(str, arguments), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            case(Clones(pathlib.Path(sys.argv[1]), folder), *arguments)


if __name__ == "__main__":
    main()
