#!/usr/bin/env python3
"""Kills a rank of the example at a random step: elastic_restart_test.py DDP TORCHRUN [RUNS]

torchrun --max-restarts starts all ranks again; they go on from the last checkpoint, take as many
steps as without the loss, and learn as much. All of it in the store of torchrun's agent: no rank hosts one.
"""

import os
import random
import re
import signal
import sys
import time

import elastic
from watched_run import WatchedRun

IMAGES, BATCH, EPOCHS, RANKS, EVERY = 2400, 16, 2, 2, 5
STEPS = EPOCHS * -(-IMAGES // (RANKS * BATCH))
OPTIONS = [f"--images={IMAGES}", f"--batch-size={BATCH}", f"--epochs={EPOCHS}",
           "--lr=0.01"]
TOLERANCE = 10  # per cent, of 2,400 test images; dropout has other random numbers after a restart


def accuracy_in(text):
    (accuracy,) = re.findall(r"accuracy on the test images +([0-9.]+) %", text)
    return float(accuracy)


def left_alone(ddp):
    run = WatchedRun([ddp, *OPTIONS, f"--ranks={RANKS}"])
    status, out, err = run.finish(elastic.LIMIT)
    assert status == 0, err
    assert f"step {STEPS}/{STEPS}" in err, err
    left = run.left_over(5, elastic.may_stay)
    assert not left, f"it left {left}"
    return accuracy_in(out)


def wait_for_checkpoints(run, number):
    """Until the file has been replaced so often."""
    file = os.path.join(run.folder.name, "checkpoint")
    seen, deadline = set(), time.monotonic() + elastic.LIMIT
    while len(seen) < number:
        assert run.process.poll() is None, f"it has ended: {run.finish(1)}"
        assert time.monotonic() < deadline, "it makes no checkpoints"
        try:
            found = os.stat(file)
            seen.add((found.st_ino, found.st_mtime_ns))
        except FileNotFoundError:
            pass
        time.sleep(0.001)


def lose_a_rank(ddp, torchrun, options):
    """returns: accuracy at the end, and the step that the second start began at"""
    run = elastic.start(torchrun, [f"--nproc-per-node={RANKS}", "--max-restarts=2", *options],
                        [ddp, *OPTIONS, "--checkpoint=checkpoint", f"--checkpoint-every={EVERY}"])
    number, victim = random.randint(1, STEPS // EVERY // 2), random.randrange(RANKS)
    wait_for_checkpoints(run, 1)
    pids = [elastic.pid_of_rank(run, rank) for rank in range(RANKS)]
    for pid in pids:
        assert elastic.variables_of(pid).get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        ports = elastic.listening_ports(pid)  # on one host farspan needs none
        assert not ports, f"a rank hosts something at {ports}"
    master = int(elastic.variables_of(pids[0])["MASTER_PORT"])
    assert master in elastic.listening_ports(run.process.pid), "the agent has no store there"
    wait_for_checkpoints(run, number)
    os.kill(pids[victim], signal.SIGKILL)
    text = elastic.end_well([run])
    resumed = re.findall(r"resumed at step (\d+) of (\d+) with (\d+) ranks", text)
    assert len(resumed) == 1, f"rank {victim} was killed after checkpoint {number}:\n{text}"
    step, steps, ranks = map(int, resumed[0])
    assert (steps, ranks) == (STEPS, RANKS), text
    assert step % EVERY == 0 and number * EVERY <= step < STEPS, text
    assert f"step {STEPS}/{STEPS}" in text, text
    return accuracy_in(text), step


def main():
    ddp, torchrun = sys.argv[1], elastic.find_torchrun(sys.argv[2])
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    expected = left_alone(ddp)
    for _ in range(runs):
        for place, options in elastic.places().items():
            accuracy, step = lose_a_rank(ddp, torchrun, options)
            print(f"{place}: {accuracy} % after a restart at step {step}, {expected} % without")
            assert abs(accuracy - expected) < TOLERANCE


if __name__ == "__main__":
    main()
