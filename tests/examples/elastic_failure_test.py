#!/usr/bin/env python3
"""What is said of ranks that fail: elastic_failure_test.py ELASTIC_TRAINING TORCHRUN [RUNS]

torchrun's own table names the rank that has failed first, and why, though the others fail because of
it. Ranks that nobody watches over end by themselves.
"""

import os
import re
import signal
import sys
import time

import elastic
from launched_test import free_port

RANKS = 3
STEP = 5  # of the failure
ALL_STEPS = 10**9
ENDED_IN = 10  # seconds: 2 for the collectives, the rest for processes on a busy machine

WAYS = {
    "throw": f"std::runtime_error: no data for step {STEP}",
    "kill": r"Signal 9 \(SIGKILL\) received by PID \d+",
}


def table_of(torchrun, training, way, victim):
    run = elastic.CountingRun(limit=ALL_STEPS)
    # So long a pause lets the other ranks fail before torchrun looks, most of the time.
    launched = elastic.start(
        torchrun, [f"--nproc-per-node={RANKS}", "--monitor-interval=1", *elastic.places()["static"]],
        [training, *run.arguments(), way, str(victim), str(STEP)])
    status, out, err = launched.finish(elastic.LIMIT)
    assert status == 1, f"it ended with status {status}: {err}"
    left = launched.left_over(5, elastic.may_stay)
    assert not left, f"it left {left}"
    run.clean_up()
    return err


def check_table(text, way, victim):
    others, root = text.split("Root Cause (first observed failure):")
    assert re.search(rf"rank +: {victim} \(local_rank: {victim}\)", root), text
    assert re.search(WAYS[way], root), text
    # The others have failed because of it, and say so, unless torchrun was faster.
    failures = re.findall(r"exitcode +: (-?\d+) .*\n.*\n +traceback : (.*)", others)
    assert len(failures) == RANKS - 1, text
    for exit_code, traceback in failures:
        follows = re.match(rf"DISCONNECTED: .*'rank {victim} .* (is gone|has left the group)", traceback)
        assert exit_code == "-15" or exit_code == "1" and follows, text


def lose_a_rank_of_nobody(training, victim):
    """No launcher sees to it that the other ranks end."""
    run = elastic.CountingRun(limit=STEP)
    port = free_port()
    ranks = [elastic.watch([training, *run.arguments()], {
        "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port)}) for rank in range(RANKS)]
    run.wait_for(rf"held at step {STEP} with {RANKS} ranks", ranks)
    lost = ranks.pop(victim)
    os.kill(lost.process.pid, signal.SIGKILL)
    begun = time.monotonic()
    for rank in ranks:
        status, out, err = rank.finish(ENDED_IN)
        assert status == 1 and err.startswith("DISCONNECTED: ") and err.count("\n") == 1, err
    took = time.monotonic() - begun
    for rank in [lost, *ranks]:
        left = rank.left_over(5, elastic.may_stay)
        assert not left, f"it left {left}"
    run.clean_up()
    return took


def main():
    training, torchrun = os.path.abspath(sys.argv[1]), elastic.find_torchrun(sys.argv[2])
    for turn in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1):
        for number, way in enumerate(WAYS):
            victim = (turn + number + 1) % RANKS
            text = table_of(torchrun, training, way, victim)
            check_table(text, way, victim)
        took = lose_a_rank_of_nobody(training, turn % RANKS)
        print(f"torchrun named them; without it the others ended {took:.2f} s after the loss")


if __name__ == "__main__":
    main()
