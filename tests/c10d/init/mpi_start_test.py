#!/usr/bin/env python3
"""init_process_group("mpi") and the end of its processes: mpi_start_test.py PROGRAM MPIRUN.PY"""

import subprocess
import sys
import time

# Jobs, each of so many ranks, which go by the rules of mpi_ranks.cc one after the other; and what is
# said when the job does not end well. A job takes seconds, mostly to start.
JOBS = (
    (3, None, ("waits_for_who_is_late_and_names_him", "refuses_another_membership",
               "starts_and_ends_several_times", "keeps_few_messages_that_nobody_asks_for",
               "an_error_that_was_caught_ends_nothing")),
    (2, None, ("ends_with_the_programs_own_mpi",)),
    (2, "out of time", ("a_failure_ends_the_job",)),
    (2, "rank 1 does not come to its end", ("who_has_run_out_of_time_does_not_wait_for_ever",)),
)
# Each without mpirun.
ALONE = ("starts_and_ends_several_times", "needs_mpi_for_several_threads",
         "refuses_to_be_alone_in_a_larger_job")
LIMIT = 60  # seconds, for what hangs


def run(*command):
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{time.monotonic() - began:.1f} s: {' '.join(map(str, command[1:]))}", flush=True)
    return done


def main():
    program, mpirun = sys.argv[1:]
    for ranks, complaint, rules in JOBS:
        done = run(sys.executable, "-B", mpirun, str(ranks), str(LIMIT), program, *rules)
        if done.stdout.startswith("skipped: "):
            print(done.stdout)
            return
        assert done.returncode != 124 and (done.returncode == 0) == (complaint is None), done
        assert complaint is None or complaint in done.stdout + done.stderr, done
    for rule in ALONE:
        done = run(program, rule)
        assert done.returncode == 0, done


if __name__ == "__main__":
    main()
