"""What `./dev bench` measures: its areas with their programs, cases and goals."""

import os
import pathlib
import shutil
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import hosts  # noqa: E402

EXAMPLE = ROOT / "tests" / "bench" / "example.py"
OURS, PYTORCH, GRPC, GLOO, OPENMPI, LIMIT = "ours", "pytorch", "grpc", "gloo", "openmpi", "limit"
BLOCKING = "blocking"  # ours without polling
LOCAL = "local"  # the same model in one process, without calls
TURNS = "turns"  # so, but by two threads of which one sleeps: the limit
LOW, HIGH = "low", "high"  # ours with a threshold so low, or so high, that no size here is on its other side
ONE_LINE = "one line"  # ours without lanes
FEW = "few"  # ours where there is little of what there is much of else
HOST = "through the host"  # ours where nothing may go straight from device to device
SAME_MALLOC = "pytorch same malloc"  # told to keep memory as ours does
CUDA_IPC, CUDA_BASIC = "pytorch cuda_ipc", "pytorch cuda_basic"  # by the channel for tensors of GPUs
BY_NAME = "by name"  # the limit where another process copies, from memory that it has opened once
WORLDS = (("--world", "2"), ("--world", "4"))
ALONE = ("--world", "1")  # what a call costs that has nobody to talk to
NETS = (("--net", "small"), ("--net", "large"))
EPOCH = ("--batch-size", "32")
REDUCED_SIZES = ("4 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB")
SENT_SIZES = ("4 B", "64 KiB", "1 MiB", "64 MiB")
THRESHOLDS = {  # by their names in c10d/backends/cpu/tuning.h
    "small": ("all_reduce", ("1 KiB", "4 KiB", "8 KiB")),
    "hosts_small": ("all_reduce", ("4 KiB", "16 KiB", "64 KiB", "256 KiB")),
    "tree": ("broadcast", ("16 KiB", "64 KiB", "256 KiB", "1 MiB")),
    "piece": ("all_reduce", ("1 MiB", "4 MiB", "16 MiB")),
    "attach": ("send", ("64 KiB", "256 KiB", "1 MiB")),
    "stripe": ("send", ("2 MiB", "8 MiB", "32 MiB")),
}
GROWN = ("16 workers", "64 workers", "10000 references", "1000000 references", "10000 contexts")
TENSOR_SIZES = ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB", "256 MiB")
ECHOED = TENSOR_SIZES[3:]
GPU_TENSOR_SIZES = (*TENSOR_SIZES, "512 MiB", "1 GiB")


def collectives_of(world):
    return (
        *(f"all_reduce {size}" for size in REDUCED_SIZES),
        "broadcast 1 MiB",
        "all_gather 1 MiB",
        "reduce_scatter 1 MiB",
        "all_to_all 1 MiB",
        "barrier",
        *(f"send {size}" for size in SENT_SIZES if world == 2),
    )


@dataclass(frozen=True)
class Case:
    name: str
    unit: str
    peers: tuple = (PYTORCH, GRPC, LIMIT)

    @property
    def less_is_better(self):
        return self.unit in ("us", "s", "count")


@dataclass(frozen=True)
class Program:
    """One benchmark program, run once with each tuple of arguments in every round."""

    label: str
    name: str  # in the build folder, or of a Python script in peers/
    needed: bool  # else it is left out where the build could not make it
    runs: tuple = (("--transport", "shm"), ("--transport", "tcp"))
    mpi: bool = False  # started by mpirun, as many times as its last argument says
    on_hosts: bool = False  # between network namespaces, where they can be made
    example_of: str = ""  # of an example: the case that its table has the figures of

    def command(self, folder, arguments):
        """What starts it, or None where something of that is not here."""
        program = [folder / self.name]
        if self.name.endswith(".py"):
            python = ROOT / ".venv" / "bin" / "python"
            program = [python, ROOT / "tests" / "bench" / "peers" / self.name]
        if self.example_of:
            program = [folder.parents[1] / "examples" / self.name / self.name]
        if not all(path.exists() for path in program):
            return None
        if self.mpi:
            mpirun = shutil.which("mpirun")
            if mpirun is None:
                return None
            as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            program = [mpirun, *as_root, "--oversubscribe", "-n", arguments[-1], *program]
        if self.example_of:
            program = [sys.executable, "-B", EXAMPLE, self.example_of, *program]
        command = [*program, *arguments]
        return hosts.between_hosts(*command) if self.on_hosts and hosts.can_make_hosts() else command

    @property
    def note(self):
        """What a reader of its figures has to know; None: nothing."""
        if self.on_hosts and not hosts.can_make_hosts():
            return f"{self.name}: between two addresses, for no network namespaces can be made here"
        return None


@dataclass(frozen=True)
class Plus:
    """Of a goal about another case: how much more than ours there our figure may be."""

    most: float


@dataclass(frozen=True)
class Area:
    programs: tuple
    cases: tuple
    # Of a case, by what it is about: a peer, the least ratio to it; OURS, what our figure must reach or
    # may not exceed, whichever way its unit goes; another case, the same as a multiple of ours there,
    # or Plus().
    goals: dict
    costs: str = ""  # the program that costs.py measures: what it finds out is no part of the results
    needs: str = ""  # what builds its programs: it is skipped where that is not

    @property
    def peers(self):
        labels = dict.fromkeys(program.label for program in self.programs)  # two may share one
        return [label for label in labels if label != OURS]


# What one asks for together. Of calls: what they cost, in numbers, in a crowd, on lanes and in a job.
GROUPS = {"rpc": ("calls", "growth", "crowd", "lanes", "job")}

AREAS = {
    "calls": Area(
        programs=(
            Program(OURS, "rpc_bench", needed=True),
            Program(PYTORCH, "pytorch_rpc", needed=False),
            Program(GRPC, "grpc_unary", needed=False),
            Program(LIMIT, "limits", needed=True),
            Program(LIMIT, "local_adds", needed=True, runs=(("--transport", "shm"),)),
        ),
        cases=(
            Case("small call p50 shm", "us"),
            Case("small call p50 tcp", "us"),
            Case("small call p99 shm", "us"),
            Case("small call after a pause p50 shm", "us"),
            Case("calls per second 1 thread shm", "calls/s", peers=(PYTORCH, GRPC)),
            Case("calls per second 8 threads shm", "calls/s", peers=(PYTORCH, GRPC)),
            Case("calls per second 128 in flight shm", "calls/s", peers=(PYTORCH, GRPC)),
            Case("calls per second 128 in flight of 8 threads shm", "calls/s",
                 peers=(PYTORCH, GRPC)),
            *(
                Case(f"tensor {size} {transport}", "GB/s")
                for transport in ("shm", "tcp")
                for size in TENSOR_SIZES
            ),
            *(Case(f"echo {size} shm", "GB/s", peers=(LIMIT,)) for size in ECHOED),
            Case("ring tensor 64 MiB shm", "GB/s", peers=(LIMIT,)),
            Case("hand over 256 MiB shm", "us", peers=(PYTORCH, GRPC)),
        ),
        goals={
            "small call p50 shm": {PYTORCH: 4, OURS: 5},
            "small call p50 tcp": {PYTORCH: 4, OURS: 14},
            "small call p99 shm": {"small call p50 shm": 3},
            "small call after a pause p50 shm": {OURS: 60},
            # No call waits for another, but all for a turn on a processor: ARCHITECTURE.md, "Eight threads".
            "calls per second 8 threads shm": {"calls per second 1 thread shm": 0.8},
            "calls per second 128 in flight shm": {PYTORCH: 10, OURS: 400_000},
            "calls per second 128 in flight of 8 threads shm": {
                "calls per second 128 in flight shm": 0.95, OURS: 400_000},
            "tensor 1 MiB shm": {OURS: 10},
            "tensor 16 MiB shm": {LIMIT: 0.9},
            "tensor 64 MiB shm": {PYTORCH: 1.5, LIMIT: 0.9},
            "tensor 256 MiB shm": {LIMIT: 0.9},
            "tensor 64 MiB tcp": {PYTORCH: 1.5, OURS: 3.5},
            **{f"echo {size} shm": {f"tensor {size} shm": 0.9} for size in ECHOED},
            "ring tensor 64 MiB shm": {OURS: 7},
            "hand over 256 MiB shm": {OURS: 100},
        },
        costs="cost_bench",
    ),
    # What a call costs when there is much of everything.
    "growth": Area(
        programs=(
            Program(OURS, "growth_bench", needed=True,
                    runs=tuple((f"--{what.split()[1]}", what.split()[0]) for what in GROWN)),
            Program(FEW, "growth_bench", needed=True,
                    runs=tuple((f"--{what.split()[1]}", what.split()[0], "--few")
                               for what in GROWN)),
        ),
        cases=tuple(
            Case(f"{name}, {what}", unit, peers=(FEW,))
            for what in GROWN
            for name, unit, of in (
                ("small call p50", "us", ("workers", "references", "contexts")),
                ("made and read, each", "us", ("references",)),
                ("to_here p50", "us", ("references",)),
                ("recorded call p50", "us", ("contexts",)),
                ("start", "s", ("workers",)),
                ("shutdown", "s", ("workers", "references")),
                ("descriptors of a worker", "count", ("workers",)),
                ("descriptors of one that has called all", "count", ("workers",)),
                ("threads of a worker", "count", ("workers",)),
            )
            if what.split()[1] in of
        ),
        goals={
            **{f"{name}, {what}": {FEW: 1 / 1.2}  # flat within 20 %
               for name, of in (("small call p50", GROWN), ("to_here p50", GROWN[2:4]),
                                ("recorded call p50", GROWN[4:]))
               for what in of},
            "start, 64 workers": {OURS: 30},
            "shutdown, 64 workers": {OURS: 10},
            # Those of a worker do not grow with how many there are, but for those that it has called.
            **{f"{name}, {workers} workers": {OURS: most} for workers in (16, 64)
               for name, most in (("descriptors of a worker", 40), ("threads of a worker", 8),
                                  ("descriptors of one that has called all", 40 + 4 * workers))},
        },
    ),
    # More workers than processors: polling must not cost what it saves.
    "crowd": Area(
        programs=(
            Program(OURS, "crowd_bench", needed=True, runs=(("--trainers", "8"),)),
            Program(BLOCKING, "crowd_bench", needed=True,
                    runs=(("--trainers", "8", "--blocking"),)),
        ),
        cases=(
            Case("steps per second, 8 trainers", "steps/s", peers=(BLOCKING,)),
            Case("calls per second, 8 trainers", "calls/s", peers=(BLOCKING,)),
            Case("processor time of a step, 8 trainers", "us", peers=(BLOCKING,)),
            Case("processor time of a call, 8 trainers", "us", peers=(BLOCKING,)),
            Case("polled in a second, 8 trainers", "s", peers=()),
        ),
        # At least those of blocking; the medians of two runs of one program differ by up to 3 % (5 % for calls).
        goals={"steps per second, 8 trainers": {BLOCKING: 0.97},
               "processor time of a step, 8 trainers": {BLOCKING: 0.97},
               "calls per second, 8 trainers": {BLOCKING: 0.95},
               "processor time of a call, 8 trainers": {BLOCKING: 0.95},
               "polled in a second, 8 trainers": {OURS: 0.02}},
    ),
    # Between two hosts: network namespaces of this one, or two addresses where they cannot be made.
    "lanes": Area(
        programs=(
            Program(OURS, "lanes_bench", needed=True, runs=((),), on_hosts=True),
            Program(ONE_LINE, "lanes_bench", needed=True, runs=(("--one-line",),), on_hosts=True),
        ),
        cases=(
            Case("tensor 64 MiB between hosts", "GB/s", peers=(ONE_LINE,)),
            Case("small call between hosts p50", "us", peers=(ONE_LINE,)),
            Case("small call beside 64 MiB tensors p50", "us", peers=(ONE_LINE,)),
            Case("small call beside 64 MiB tensors p99", "us", peers=(ONE_LINE,)),
        ),
        goals={"tensor 64 MiB between hosts": {ONE_LINE: 0.95},
               "small call beside 64 MiB tensors p50": {ONE_LINE: 100, OURS: 200},
               "small call beside 64 MiB tensors p99": {ONE_LINE: 10}},
    ),
    # What calls cost a job: a parameter server with one trainer, beside the same training in one process, by
    # one thread and by two that take turns, and beside the same two processes of PyTorch.
    "job": Area(
        programs=(
            Program(OURS, "parameter_server", needed=True, runs=((*EPOCH, "--trainers", "1"),),
                    example_of="epoch batch 32"),
            Program(LOCAL, "local_training", needed=True, runs=(EPOCH,),
                    example_of="epoch batch 32"),
            Program(TURNS, "taking_turns", needed=False, runs=((),)),
            Program(PYTORCH, "pytorch_parameter_server.py", needed=False, runs=((),)),
            Program(SAME_MALLOC, "pytorch_parameter_server.py", needed=False,
                    runs=(("--same-malloc",),)),
        ),
        cases=(Case("epoch batch 32", "samples/s", peers=(LOCAL, TURNS, PYTORCH, SAME_MALLOC)),
               Case("epoch batch 32, processor time", "s", peers=(LOCAL, TURNS, PYTORCH, SAME_MALLOC))),
        goals={"epoch batch 32": {LOCAL: 1 / 1.03, TURNS: 1 / 1.03}},
    ),
    "collectives": Area(
        programs=(
            Program(OURS, "collectives_bench", needed=True, runs=(ALONE, *WORLDS)),
            Program(GLOO, "gloo_collectives.py", needed=False, runs=(ALONE, *WORLDS)),
            Program(OPENMPI, "openmpi_collectives", needed=False, runs=WORLDS, mpi=True),
            Program(LIMIT, "collective_limits", needed=True, runs=WORLDS),
        ),
        cases=(
            *(Case(f"{what} world 1", "us", peers=(GLOO,)) for what in ("all_reduce 4 B", "barrier")),
            *(
                Case(f"{what} world {world}", "us", peers=(GLOO, OPENMPI, LIMIT))
                for world in (2, 4)
                for what in collectives_of(world)
            ),
        ),
        goals={
            **{f"all_reduce 4 B world {world}": {GLOO: 10} for world in (2, 4)},
            **{f"all_reduce {size} world {world}": {GLOO: 10, OPENMPI: 0.9}
               for size in ("4 KiB", "64 KiB", "1 MiB") for world in (2, 4)},
            "all_reduce 16 MiB world 2": {GLOO: 5, OPENMPI: 1.5},
            "all_reduce 64 MiB world 2": {GLOO: 5, OPENMPI: 4},
            "all_reduce 16 MiB world 4": {GLOO: 3, OPENMPI: 0.9},
            "all_reduce 64 MiB world 4": {GLOO: 3, OPENMPI: 0.9},
        },
    ),
    # Between hosts, which are emulated on this one: ours through TCP over loopback, as gloo always.
    "hosts": Area(
        programs=(
            Program(OURS, "collectives_bench", needed=True,
                    runs=tuple((*world, "--hosts", "2") for world in WORLDS)),
            Program(GLOO, "gloo_collectives.py", needed=False, runs=WORLDS),
        ),
        cases=tuple(
            Case(f"{what} world {world}", "us", peers=(GLOO,))
            for world in (2, 4)
            for what in collectives_of(world)
        ),
        goals={},
    ),
    # The sizes from which on the cpu backend goes another way: beside each way at all sizes.
    "thresholds": Area(
        programs=tuple(
            Program(label, "thresholds_bench", needed=True,
                    runs=tuple(("--threshold", threshold, *extra) for threshold in THRESHOLDS))
            for label, extra in ((OURS, ()), (LOW, ("--low",)), (HIGH, ("--high",)))
        ),
        cases=tuple(
            Case(f"{threshold}: {what} {size}", "us", peers=(LOW, HIGH))
            for threshold, (what, sizes) in THRESHOLDS.items()
            for size in sizes
        ),
        goals={},
    ),
    "ddp": Area(
        programs=(
            Program(OURS, "ddp_bench", needed=True, runs=NETS),
            Program(GLOO, "gloo_ddp.py", needed=False,
                    runs=(*NETS, *((*net, "--same-malloc") for net in NETS))),
            Program(LIMIT, "ddp_bench", needed=True,
                    runs=tuple((*net, "--alone") for net in NETS)),
        ),
        cases=tuple(
            case
            for net in ("MNIST net", "25 M parameters")
            for case in (
                Case(f"step {net} world 2", "steps/s", peers=(GLOO, LIMIT)),
                Case(f"step {net}, same malloc world 2", "steps/s", peers=(GLOO,)),
            )
        ),
        goals={"step MNIST net world 2": {GLOO: 1.5, LIMIT: 0.85}},
    ),
    # Two processes that use one GPU.
    "gpu": Area(
        programs=(
            Program(OURS, "gpu_bench", needed=True, runs=((),)),
            Program(CUDA_IPC, "pytorch_gpu", needed=False, runs=(("--channel", "cuda_ipc"),)),
            Program(CUDA_BASIC, "pytorch_gpu", needed=False, runs=(("--channel", "cuda_basic"),)),
            Program(HOST, "gpu_bench", needed=True, runs=(("--through-host",),)),
            Program(LIMIT, "gpu_limits", needed=True, runs=(("--in-one-process",),)),
            Program(BY_NAME, "gpu_limits", needed=True, runs=(("--by-name",),)),
        ),
        cases=(
            Case("small CPU call p50", "us", peers=(CUDA_IPC, CUDA_BASIC, LIMIT)),
            Case("small CUDA call p50", "us", peers=(CUDA_IPC, CUDA_BASIC)),
            *(
                Case(f"{what} {size}", unit, peers=(CUDA_IPC, CUDA_BASIC, HOST, LIMIT, BY_NAME))
                for what, unit in (("CUDA tensor", "GB/s"), ("time of CUDA tensor", "us"))
                for size in GPU_TENSOR_SIZES
            ),
        ),
        goals={
            "small CUDA call p50": {"small CPU call p50": Plus(60)},
            **{f"CUDA tensor {size}": {CUDA_IPC: 1.8, CUDA_BASIC: 1.8}
               for size in GPU_TENSOR_SIZES[3:6]},
            **{f"CUDA tensor {size}": {CUDA_IPC: 1.8, CUDA_BASIC: 1.8, LIMIT: 0.9}
               for size in GPU_TENSOR_SIZES[6:]},
        },
        needs="the CUDA toolkit, and a LibTorch with CUDA",
    ),
}
