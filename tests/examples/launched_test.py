#!/usr/bin/env python3
"""One program under every launcher, unchanged: launched_test.py PROGRAM TORCHRUN ARGUMENT..

torchrun and mpirun are run where they are, or must be (FARSPAN_NEED_ALL); what plain scripts, MPICH's
mpirun and srun set is set here.
Each time two processes must find each other, end with status 0, print one result, and leave nothing.
"""

import os
import shutil
import socket
import sys

from run_test import is_picture
from watched_run import WatchedRun

RANKS = 2


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def by_variables(command, variables):
    """A shell that starts each rank with its variables; all have one parent, as under a launcher."""
    starts = []
    for rank in range(RANKS):
        settings = " ".join(f"{name}={value.format(rank=rank)}" for name, value in variables.items())
        starts.append(f"{settings} {' '.join(command)} & pid{rank}=$!")
    ends = " && ".join(f"wait $pid{rank}" for rank in range(RANKS))
    return ["/bin/sh", "-c", "; ".join(starts).replace("&;", "&") + f"; {ends}"]


def launches(program, torchrun, arguments):
    command = [program, *arguments]
    size = str(RANKS)
    yield "plain variables", by_variables(command, {
        "RANK": "{rank}", "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port())})
    yield "MPICH's variables", by_variables(command, {
        "PMI_RANK": "{rank}", "PMI_SIZE": size, "MPI_LOCALNRANKS": size})
    yield "srun's variables", by_variables(command, {
        "SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": size, "SLURM_STEP_NUM_NODES": "1",
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"})
    needed = os.environ.get("FARSPAN_NEED_ALL")
    if os.path.exists(torchrun) or needed:
        yield "torchrun", [torchrun, "--no-python", f"--nproc-per-node={size}",
                           f"--master-port={free_port()}", *command]
    mpirun = shutil.which("mpirun") or (needed and "mpirun")
    if mpirun:
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        yield "mpirun", [mpirun, *as_root, "--oversubscribe", "-n", size, *command]


def main():
    program, torchrun, *arguments = sys.argv[1:]
    names = []
    for name, command in launches(os.path.abspath(program), torchrun, arguments):
        names.append(name)
        run = WatchedRun(command, variables={"OMP_NUM_THREADS": "1"})
        status, out, err = run.watch_to_its_end(200)
        print(f"== {name}\n{err}{out}")
        assert status == 0, f"{name}: it ended with status {status}"
        assert out.count("Data parallel, 2 ranks") == 1, f"{name}: not one result of two ranks"
        # The folder for files to meet in stays; launchers clean up theirs by themselves.
        left = run.left_over(5, lambda path: is_picture(path) or path.is_dir())
        assert not left, f"{name}: it left {left}"
    print("launched by:", ", ".join(names))


if __name__ == "__main__":
    main()
