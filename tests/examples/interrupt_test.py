#!/usr/bin/env python3
"""Ends an example of three workers at many moments: interrupt_test.py MOMENTS PROGRAM ARGUMENT..

Ctrl-C, SIGTERM, SIGHUP, a killed process: within 5 s nothing is left, the last line says what
happened, and the status is not 0.
"""

import os
import random
import signal
import sys
import time

from run_test import is_picture
from watched_run import WatchedRun

LIMIT = 5  # seconds
COPIES = 3  # processes that the program starts


def terminal_sends(number):
    return lambda run, pids: os.killpg(run.process.pid, number)


def first_process_gets(number):
    return lambda run, pids: os.kill(run.process.pid, number)


def a_copy_gets(number):
    def send(_, pids):
        os.kill(random.choice(pids[1:]), number)
    return send


def stopped_by(name):
    number = getattr(signal, "SIG" + name)

    def check(status, last, had_copies):
        assert status == -number, f"it ended with status {status}"
        # Before there are copies, the signal does what it always does.
        assert last.startswith(f"stopped by SIG{name}: all ") or not had_copies and not last, last
    return check


def was_killed(status, last, had_copies):
    assert status == -signal.SIGKILL, f"it ended with status {status}"


def lost_a_copy(how):
    def check(status, last, had_copies):
        assert status == 1, f"it ended with status {status}"
        assert last.startswith("REMOTE: spawn: rank ") and last.endswith(how), last
    return check


WAYS = {
    "Ctrl-C": (terminal_sends(signal.SIGINT), stopped_by("INT")),
    "SIGINT": (first_process_gets(signal.SIGINT), stopped_by("INT")),
    "SIGTERM": (first_process_gets(signal.SIGTERM), stopped_by("TERM")),
    "SIGHUP of all": (terminal_sends(signal.SIGHUP), stopped_by("HUP")),
    "SIGKILL": (first_process_gets(signal.SIGKILL), was_killed),
    "SIGKILL of a copy": (a_copy_gets(signal.SIGKILL), lost_a_copy("signal: Killed")),
    "SIGTERM of a copy": (a_copy_gets(signal.SIGTERM), lost_a_copy("signal: Terminated")),
}


def last_line(text):
    return text.rstrip().rsplit("\n", 1)[-1]


def end_at(command, moment, way, closing):
    """closing: how the last line of the whole output begins

    returns: whether it still ran at that moment, how long it took to end, and how long it runs when
    left alone, if that was seen
    """
    send, check = WAYS[way]
    run = WatchedRun(command)
    run.wait_until(moment)
    lasted = time.monotonic() - run.begun if run.process.poll() is not None else float("inf")
    pids = run.look()
    of_a_copy = way.endswith("copy")
    if run.process.poll() is not None or (of_a_copy and len(pids) < 2):
        run.kill()  # too late, or too early
        run.finish(LIMIT)
        return False, 0, lasted
    begun = time.monotonic()
    try:
        send(run, pids)
    except ProcessLookupError:
        pass  # it has just ended by itself
    status, out, err = run.finish(LIMIT)
    left = run.left_over(LIMIT, is_picture)
    took = time.monotonic() - begun
    assert not left, f"it left {left}"
    assert took < LIMIT, f"it took {took:.1f} s"
    done = last_line(out).startswith(closing)
    if status == 0 or (done and status < 0 and not last_line(err).startswith("stopped")):
        return False, took, lasted  # all was done and said, and its copies had ended
    try:
        check(status, last_line(err), len(pids) > 1)
    except AssertionError:
        print(err)
        raise
    return True, took, lasted


def press_control_c(command, closing):
    """The same through a terminal, as a person does it, when all processes are there.

    returns: whether its processes were there, and it had not said its last line by then
    """
    run = WatchedRun(command, terminal=True)
    deadline = time.monotonic() + 60
    while len(run.look()) < COPIES + 1 and run.process.poll() is None:
        assert time.monotonic() < deadline, "its processes do not come up"
    text = run.read_terminal()
    came_in_time = len(run.pids()) == COPIES + 1  # the looks above may have taken long
    os.write(run.terminal, b"\x03")
    deadline = time.monotonic() + LIMIT
    while run.process.poll() is None and time.monotonic() < deadline:
        text += run.read_terminal()  # or it would wait for us
        time.sleep(0.01)
    text += run.read_terminal()
    status = run.process.poll()
    left = run.left_over(LIMIT, is_picture)
    assert not left, f"it left {left}"
    lines = text.replace("\r", "\n").splitlines()
    if not came_in_time or any(line.startswith(closing) for line in lines):
        return False
    stopped_by("INT")(status, last_line("\n".join(lines)), True)
    return True


def main():
    moments, command = int(sys.argv[1]), sys.argv[2:]
    whole = float("inf")
    for _ in range(2):  # the first may have had to read the program from the disk
        run = WatchedRun(command)
        status, out, err = run.finish(120)
        whole = min(whole, time.monotonic() - run.begun)
        assert status == 0, err
        assert not run.left_over(LIMIT, is_picture)
    closing = last_line(out).split()[0]
    assert any(press_control_c(command, closing) for _ in range(10)), "it always came too late"

    ways, hit, tries, slowest = list(WAYS), 0, 0, 0
    while hit < moments:
        assert tries < 5 * moments, f"it was running in {hit} of {tries} tries: the moments prove nothing"
        # Each in its part of the run; where that was too early or too late, in any.
        part = (hit + random.random()) / moments if tries == hit else random.random()
        way, moment = ways[hit % len(ways)], whole * part
        tries += 1
        try:
            ran, took, lasted = end_at(command, moment, way, closing)
        except AssertionError:
            print(f"{way} after {moment:.2f} s of {whole:.2f}:")
            raise
        hit, slowest = hit + ran, max(slowest, took)
        whole = min(whole, lasted)  # other programs may have slowed down the first two
    print(f"ended {hit} times within {whole:.1f} s of work, in {tries} tries; slowest {slowest:.2f} s")


if __name__ == "__main__":
    main()
