#!/usr/bin/env python3
"""A rank of mpirun's is killed, or stopped: mpi_lost_ranks_test.py PROGRAM MPIRUN.PY [SEED ..]

It happens while all of them are in collectives (mpi_ranks.cc). Killed, it ends the job: mpirun ends
the others. Stopped, it is named by the others at their deadline, who abort the group and end, and so
does the job. Each time all processes and files of the job are gone soon.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS, VICTIM = 3, 1
SOON = 2  # seconds, from the loss of a rank to the end of all, and from a deadline to the error
SLEEPS = 1  # second, which mpirun does in any case before it ends, and removes its files
DEADLINE = 3  # as mpi_ranks.cc has it
LIMIT = 60  # seconds, for what hangs
SKIPPED = "skipped: "


def is_alive(pid):
    try:
        return re.search(r"^State:\s+[^ZX]", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return False


def memories_of(pid):
    """The files of Open MPI's that this process shares with the others."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"\S*/vader_segment\S*", maps))


class Job:
    def __init__(self, program, mpirun, rule, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-B", mpirun, str(RANKS), str(LIMIT), program, rule],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(folder), "FARSPAN_LOG_LEVEL": "error"})
        self.lines, self.pids, self.memories = [], {}, set()

    def line(self, pattern):
        """The next one of standard output that matches."""
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(SKIPPED):
                print(line)
                sys.exit()
            found = re.match(pattern, line)
            if found:
                return found
        raise AssertionError(f"no '{pattern}' in {self.lines}: {self.process.stderr.read()}")

    def wait_until_all_work(self):
        while len(self.pids) < RANKS:
            rank, pid = map(int, self.line(r"rank (\d+) of process (\d+) works").groups())
            self.pids[rank] = pid
        self.memories = set().union(*map(memories_of, self.pids.values()))
        assert self.memories and any(self.folder.iterdir()), "what MPI leaves is looked for elsewhere"

    def alive(self):
        return [pid for pid in self.pids.values() if is_alive(pid)]

    def expect_end_with_all_that_it_had(self, since):
        while self.alive() and time.monotonic() < since + LIMIT:
            time.sleep(0.005)
        took = time.monotonic() - since
        out, err = self.process.communicate(timeout=LIMIT)
        took_in_all = time.monotonic() - since
        files = [*self.folder.iterdir(), *filter(os.path.exists, self.memories)]
        assert self.process.returncode not in (0, 124), (self.lines, out, err)
        assert not self.alive() and not files, f"it left {self.alive()} and {files}"
        print(f"no rank after {took:.2f} s, no job after {took_in_all:.2f} s", flush=True)
        assert took < SOON and took_in_all < SOON + SLEEPS, "that was late"
        return out, err


@contextlib.contextmanager
def job(program, mpirun, rule):
    with tempfile.TemporaryDirectory() as folder:
        one = Job(program, mpirun, rule, pathlib.Path(folder))
        try:
            one.wait_until_all_work()
            yield one
        finally:
            one.process.terminate()  # mpirun ends its ranks then


def test_a_killed_rank_ends_the_job(program, mpirun, seed):
    with job(program, mpirun, "work_until_one_is_killed") as one:
        time.sleep(random.Random(seed).uniform(0, 0.1))  # any moment will do
        killed = time.monotonic()
        os.kill(one.pids[VICTIM], signal.SIGKILL)
        out, err = one.expect_end_with_all_that_it_had(killed)
    # The others learn nothing, but end: only mpirun has seen it.
    assert f"process rank {VICTIM} " in err and "exited on signal 9" in err, err
    assert "later" not in out, out


def expect_timeouts(one, error_that_names):
    """Of all but the victim; and the end of the job."""
    for _ in range(RANKS - 1):
        rank, took, unit, error = one.line(
            r"rank (\d+) of process \d+ ([\d.]+) (\S+) later: (.*)").groups()
        assert int(rank) != VICTIM and unit == "s", one.lines[-1]
        assert DEADLINE / 2 < float(took) < DEADLINE + SOON, one.lines[-1]
        assert re.match(error_that_names, error), error
        said = time.monotonic()
    one.expect_end_with_all_that_it_had(said)


def test_a_stopped_rank_is_named_at_the_deadline(program, mpirun, _):
    with job(program, mpirun, "work_until_one_stops_before_call_30") as one:
        victim = rf"rank {VICTIM} \([^ ]+:{one.pids[VICTIM]}\)"
        expect_timeouts(one, r"TIMEOUT: all_reduce SUM of float32 \[100000\], call 30 of the default "
                             rf"group on worker '{victim}': .*{victim} had not called it")


# They may be in different calls, and the abort() of one that is ahead ends those of the others, too.
def test_a_rank_stopped_in_a_collective_ends_it_at_the_deadline(program, mpirun, seed):
    with job(program, mpirun, "work_until_one_is_killed") as one:
        time.sleep(random.Random(seed).uniform(0, 0.1))
        os.kill(one.pids[VICTIM], signal.SIGSTOP)
        call = r"\w+ .*of float32 \[\d+\].*, call \d+ of the default group on worker"
        expect_timeouts(one, rf"TIMEOUT: {call} '.*rank \d .*gave up after")


def main():
    program, mpirun, *seeds = sys.argv[1:]
    for seed in seeds or ["1"]:
        for test in (test_a_killed_rank_ends_the_job, test_a_stopped_rank_is_named_at_the_deadline,
                     test_a_rank_stopped_in_a_collective_ends_it_at_the_deadline):
            print(f"{test.__name__}, {seed}: ", end="", flush=True)
            test(program, mpirun, seed)


if __name__ == "__main__":
    main()
