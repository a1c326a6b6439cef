#!/usr/bin/env python3
"""Agents leave and join a job that trains: elastic_members_test.py ELASTIC_TRAINING TORCHRUN [RUNS]

Three agents, of one rank each, under torchrun --nnodes=1:3. One is lost with its rank, and then another,
so that as few are left as may be; one comes. Each time the world is formed anew and goes on from the checkpoint: every example is trained on
once in each epoch, but for those that even out the ranks' shares, and no momentum is lost.
"""

import math
import random
import re
import sys

import elastic

EXAMPLES, BATCH, EPOCHS, EVERY = 101, 2, 3, 3  # as elastic_training has them
HOLDS = 8, 14, 20  # steps, all in the first epoch: by three ranks, then two, then one
LAST = 2  # ranks, at the end
# A lost agent is noticed after 4 s. A world of less than three waits a second for others to come.
RENDEZVOUS = "keep_alive_interval=1,keep_alive_max_attempt=4,last_call_timeout=1"
# Without it an agent of PyTorch 2.11 that joins later waits for an address of the agents' store that
# the others have kept from the round before, and do not tell again. With it rank 0 has the store.
AGENTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Expected:
    """Where a run should be, and how many samples it has seen, from the worlds that it was in."""

    def __init__(self):
        self.step, self.epoch, self.taken, self.samples = 0, 0, 0, 0
        self.share = 0  # of each rank, of what is left of the epoch

    def world(self, ranks):
        self.ranks, self.share = ranks, math.ceil((EXAMPLES - self.taken) / ranks)

    def train(self, steps=math.inf):
        """So many steps, or all that are left."""
        while steps > 0:
            if self.share == 0:
                if self.epoch == EPOCHS - 1:
                    break
                self.epoch, self.taken = self.epoch + 1, 0
                self.world(self.ranks)
            batch = min(BATCH, self.share)
            self.share, self.step, steps = self.share - batch, self.step + 1, steps - 1
            self.samples += batch * self.ranks
            self.taken = min(self.taken + batch * self.ranks, EXAMPLES)


def check(lines):
    """That all of a run's worlds were where the sampler should have been, and nothing is lost."""
    expected = Expected()
    for line in lines:
        began = re.match(r"(began|resumed) at step (\d+) with (\d+) ranks, (\d+) of epoch (\d+)", line)
        if began:
            step, ranks, taken, epoch = map(int, began.groups()[1:])
            # What was done after the last checkpoint does not count.
            expected.train(step - expected.step)
            assert (taken, epoch) == (expected.taken, expected.epoch), f"{line}: {vars(expected)}"
            expected.world(ranks)
    expected.train()
    done = re.fullmatch(
        rf"done at step (\d+) with {LAST} ranks, (\d+) of epoch (\d+): "
        r"(\d+) samples, seen (\d+), the least (\d+), turns (\d+)", lines[-1])
    step, taken, epoch, samples, seen, least, turns = map(int, done.groups())
    assert (step, samples) == (expected.step, expected.samples), f"{lines[-1]}: {vars(expected)}"
    assert (taken, epoch) == (EXAMPLES, EPOCHS - 1), lines[-1]
    assert seen == samples, "what was trained on is not what was counted"
    assert least == EPOCHS, "an example was left out"
    assert seen - EPOCHS * EXAMPLES < EPOCHS * 3, "examples came twice"
    assert turns == step * (step + 1) // 2, "momentum was lost"


def agent(training, torchrun, port, arguments, hosts):
    return elastic.start(
        torchrun,
        ["--nnodes=1:3", "--nproc-per-node=1", "--max-restarts=5", "--rdzv-id=elastic",
         "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
         f"--rdzv-conf={RENDEZVOUS},is_host={int(hosts)}"],
        [training, *arguments], AGENTS)


def in_world(what, ranks, step):
    return rf"{what} at step {step} with {ranks} ranks, (\d+) of epoch (\d+)"


def leave_and_join(training, torchrun):
    run = elastic.CountingRun(limit=HOLDS[0])
    port = elastic.free_port()
    agents = [agent(training, torchrun, port, run.arguments(), number == 0) for number in range(3)]
    run.wait_for(in_world("held", 3, HOLDS[0]), agents)

    lost = []
    for ranks, before, until in ((2, *HOLDS[:2]), (1, *HOLDS[1:])):
        # The first has the store that the agents meet in, and so must not be the one that is lost.
        lost.append(agents.pop(random.randrange(1, len(agents))))
        lost[-1].kill()
        run.wait_for(in_world("resumed", ranks, before // EVERY * EVERY), agents)
        run.allow(until)
        run.wait_for(in_world("held", ranks, until), agents)

    agents.append(agent(training, torchrun, port, run.arguments(), False))
    run.wait_for(in_world("resumed", LAST, HOLDS[2] // EVERY * EVERY), agents)
    run.allow(10**9)
    elastic.end_well(agents)
    for one in lost:
        left = one.left_over(5, elastic.may_stay)
        assert not left, f"a lost agent left {left}"

    lines = run.lines()
    print(*lines, sep="\n")
    check(lines)
    run.clean_up()


def main():
    training, torchrun = sys.argv[1], elastic.find_torchrun(sys.argv[2])
    for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1):
        leave_and_join(training, torchrun)


if __name__ == "__main__":
    main()
