"""What a small call of ours costs beside its time, system calls and allocations, at both ends; and
where its time goes.

tests/bench/README.md says what is counted, and why system calls are counted twice.
"""

import contextlib
import functools
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

from processes import Failure, process_group

SIDES = ("caller", "callee")
RING, SOCKET = TRANSPORTS = ("shm", "tcp")
HOT, ASLEEP = "", ", asleep"
STATES = {HOT: (10_000, 0), ASLEEP: (400, 5)}  # calls, and the milliseconds before each
PAUSE = "clock_nanosleep"  # the program's own between calls, which is no part of one
# Those that perf counts one by one. Not all: each costs time whenever a thread begins or ends to run.
COUNTED = (PAUSE, "close", "epoll_ctl", "epoll_wait", "futex", "ppoll", "pread64", "read",
           "recvfrom", "recvmsg", "sched_yield", "sendmsg", "sendto", "timerfd_settime", "write")
MAY_FAIL = ("futex", "read", "recvfrom", "recvmsg", "sendmsg", "sendto")
ALL, OTHERS = "raw_syscalls:sys_enter", "others"
IN_VAIN = ", in vain"  # after the name of a system call: those that failed
LEAST = 0.005  # of a call; what is less often is not shown
WITH_TIME = 0.05  # of a call; some come with time, a hundredth of one with each call
# What has no event of its own (writev, readv) may be either.
KINDS = {"sends": ("sendmsg", "sendto", "write", OTHERS),
         "receives": ("read", "recvfrom", "recvmsg", OTHERS)}
YIELDING = "sched_yield"  # part of polling, as looks in vain are: that depends on who comes first
# System calls of a call at either end by which it passes when both have gone to sleep, and how many more
# it takes then. Beside a ring one end sends a byte that wakes, and the other one reads it.
TO_PASS, MORE_ASLEEP = {RING: 1, SOCKET: 2}, 2
# One wait in sixteen polls all the same, which takes two more; and with a call's 5 ms more comes with time.
TRIES_ASLEEP = 0.25
# The socket beside a ring carries nothing else.
WAKING = {RING: {"sendto": "the byte that wakes", "recvfrom": "its read"}, SOCKET: {}}


class ToolFailure(Exception):
    """Why a tool could not count."""


class Pair:
    """The two processes of cost_bench, warm."""

    def __init__(self, process, timeout_s):
        self._process, self._timeout_s = process, timeout_s
        self.ids = self._answer()

    def call(self, calls, pause_ms, what="counts"):
        """Makes so many calls. What the program found out about one: its "counts", or its "stages"."""
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer will say how
            self._process.stdin.write(f"{calls} {pause_ms} {what}\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        if not select.select([self._process.stdout], [], [], self._timeout_s)[0]:
            raise Failure(f"it was silent for more than {self._timeout_s} s")
        line = self._process.stdout.readline()
        try:
            return json.loads(line)
        except ValueError:
            os.killpg(self._process.pid, signal.SIGKILL)  # or reading to the end might never end
            errors = line + self._process.stderr.read()
            raise Failure(f"instead of JSON it printed: {errors.strip()[-600:]}") from None


@contextlib.contextmanager
def pair(program, transport, timeout_s):
    command = [program, "--transport", transport]
    with process_group(command, stdin=subprocess.PIPE) as process:
        yield Pair(process, timeout_s)


def check_runs(process):
    if process.poll() is not None:
        errors = process.communicate(timeout=60)[1]
        raise ToolFailure(errors.strip()[-300:] or f"it ended with {process.returncode}")


def interrupt(process):
    """Ends a tool, which then writes what it has counted."""
    check_runs(process)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        raise ToolFailure("it does not end") from None


def is_traced(pid):
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/status")
    try:
        return all("\nTracerPid:\t0\n" not in status.read_text() for status in threads)
    except OSError:  # a thread has ended meanwhile
        return False


def count_by_strace(ids, work):
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tracers = []
        for side, pid in ids.items():
            command = ["strace", "-c", "-f", "-o", folder / side, "-p", str(pid)]
            tracers.append(stack.enter_context(process_group(command)))
            while not is_traced(pid):
                check_runs(tracers[-1])
                time.sleep(0.01)
        work()
        for tracer in tracers:
            interrupt(tracer)
        return {side: parse_strace((folder / side).read_text()) for side in ids}


def parse_strace(text):
    """Of `strace -c`: % time, seconds, usecs/call, calls, errors (if any), name."""
    counts = {}
    for line in text.splitlines():
        *figures, name = line.split() or [""]
        if len(figures) not in (4, 5) or not figures[3].isdigit() or name == "total":
            continue
        failed = int(figures[4]) if len(figures) == 5 else 0
        add(counts, name, int(figures[3]), failed)
    counts.pop(PAUSE, None)
    return counts


def count_by_perf(ids, work):
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        entered = ",".join(f"syscalls:sys_enter_{name}" for name in COUNTED)
        left = ",".join(f"syscalls:sys_exit_{name}" for name in MAY_FAIL)
        counters = []
        for side, pid in ids.items():
            control, answers = folder / f"{side}.control", folder / f"{side}.answers"
            for fifo in (control, answers):
                os.mkfifo(fifo)
            command = ["perf", "stat", "--delay=-1", f"--control=fifo:{control},{answers}",
                       "--field-separator=,", f"--output={folder / side}",
                       f"--event={ALL}", f"--event={entered}",
                       f"--event={left}", "--filter=ret < 0", f"--pid={pid}"]
            # Open for both, so that opening does not wait for perf.
            control, answers = (stack.enter_context(open(fifo, "r+b", buffering=0))
                                for fifo in (control, answers))
            counters.append((stack.enter_context(process_group(command)), control, answers))
        for counter in counters:
            tell_perf(*counter, b"enable\n")
        work()
        for counter in counters:
            tell_perf(*counter, b"disable\n")
        for perf, _, _ in counters:
            interrupt(perf)
        return {side: parse_perf((folder / side).read_text()) for side in ids}


def tell_perf(perf, control, answers, command):
    control.write(command)
    while not select.select([answers], [], [], 0.1)[0]:
        check_runs(perf)
    answers.read(16)


def parse_perf(text):
    """Of `perf stat --field-separator=,`: count, unit, event, and more. Exits are of calls that failed."""
    events = {}
    for line in text.splitlines():
        count, _, event, *_ = (*line.split(","), "", "")
        if count.isdigit():
            events[event] = int(count)
    counts = {}
    for name in COUNTED:
        add(counts, name, events.get(f"syscalls:sys_enter_{name}", 0),
            events.get(f"syscalls:sys_exit_{name}", 0))
    add(counts, OTHERS, events.get(ALL, 0) - sum(counts.values()), 0)
    counts.pop(PAUSE, None)
    return counts


def add(counts, name, calls, failed):
    if calls > failed:
        counts[name] = calls - failed
    if failed:
        counts[name + IN_VAIN] = failed


@dataclass(frozen=True)
class Tool:
    name: str
    package: str  # Debian's
    count: object  # (process ids by side, work) -> {side: system calls by name}

    def missing(self):
        program = self.name.split()[0]
        if shutil.which(program):
            return None
        return f"there is no {program} here (Debian: {self.package})"


PERF = Tool("perf stat", "linux-perf", count_by_perf)  # the only one that does not change what it counts
TOOLS = (PERF, Tool("strace -c -f", "strace", count_by_strace))


@dataclass
class Column:
    """One transport in one state."""

    name: str
    calls: int
    figures: dict  # what cost_bench said while nothing was counted from outside
    counts: dict  # of a tool: (median time while it counted, {side: system calls by name})


def measure(program, tools, timeout_s):
    """The columns; by tool why it could not count; by transport and state the microseconds of each
    stage."""
    columns, failures, stages = [], {}, {}
    for transport in TRANSPORTS:
        with pair(program, transport, timeout_s) as bench:
            for state, (calls, pause_ms) in STATES.items():
                column = Column(transport + state, calls, bench.call(calls, pause_ms), {})
                for tool in tools:
                    if tool in failures:
                        continue
                    said = []
                    try:
                        counts = tool.count(bench.ids, lambda: said.append(bench.call(calls, pause_ms)))
                        column.counts[tool] = said[0]["us"], counts
                    except ToolFailure as failure:
                        failures[tool] = failure
                columns.append(column)
        for state, (calls, pause_ms) in STATES.items():
            with pair(program, transport, timeout_s) as bench:  # of its own: notes are taken from then on
                stages[transport + state] = bench.call(calls, pause_ms, "stages")
    return columns, failures, stages


def cell(value):
    if value < LEAST:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def aligned(lines):
    """Names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join([line[0].ljust(widths[0]),
                       *(text.rjust(width) for text, width in zip(line[1:], widths[1:]))]).rstrip()
            for line in lines]


def head(title, columns):
    return [["", *(text for column in columns for text in (column.name, ""))],
            [title, *(side for _ in columns for side in SIDES)]]


def allocation_lines(columns):
    lines = head("allocations of a call", columns)
    for name, key in (("how many", "count"), ("bytes", "bytes")):
        lines.append([name, *(cell(column.figures[side][key]) for column in columns for side in SIDES)])
    alone = columns[0].figures["function"]
    return [*aligned(lines), f"of these at the callee, by the function itself: {cell(alone['count'])}"
                             f" of {cell(alone['bytes'])} bytes"]


def stage_lines(stages):
    lines = [["where the time of a call goes, us, median", *stages]]
    for name in next(iter(stages.values())):
        lines.append([f"  {name}", *(cell(of[name]) for of in stages.values())])
    return aligned([*lines, ["all", *(cell(sum(of.values())) for of in stages.values())]])


def system_call_lines(tool, columns):
    lines = head(f"system calls of a call, by {tool.name}", columns)
    lines.append(["us, median, while counted",
                  *(text for column in columns for text in (cell(column.counts[tool][0]), ""))])
    counted = [{name: count / column.calls for name, count in column.counts[tool][1][side].items()}
               for column in columns for side in SIDES]
    lines.append(["all", *(cell(sum(counts.values())) for counts in counted)])
    for name in sorted(set().union(*counted)):
        cells = [cell(counts.get(name, 0)) for counts in counted]
        if set(cells) != {"-"}:
            lines.append([f"  {name}", *cells])
    return aligned(lines)


def of_a_call(columns, name):
    """Of what perf has counted in a column: {side: system calls of one call by name}."""
    column = next(column for column in columns if column.name == name)
    return {side: {call: count / column.calls for call, count in column.counts[PERF][1][side].items()}
            for side in SIDES}


def total(counts):
    return round(sum(counts.values()), 4)  # as it is printed, and no more: it is a sum of fractions


def without(counts, is_left_out):
    return {name: often for name, often in counts.items() if not is_left_out(name)}


def named(counts, notes=()):
    shown = [f"{name}{f' ({notes[name]})' if name in notes else ''} {cell(often)}"
             for name, often in sorted(counts.items()) if often >= LEAST]
    return "; ".join(shown) or "none"


def judge_hot_ring(columns):
    most = max(total(counts) for counts in of_a_call(columns, RING + HOT).values())
    return f"{most:.4f}", most < WITH_TIME, []


def judge_hot_socket(columns):
    found, details = dict.fromkeys(KINDS, 0), []
    for side, counts in of_a_call(columns, SOCKET + HOT).items():
        for what, names in KINDS.items():
            of_kind = {name: counts[name] for name in names if name in counts}
            found[what] = max(found[what], total(of_kind))
            details.append(f"  {side}, {what}: {named(of_kind)}")
        rest = without(counts, lambda name: any(name in names for names in KINDS.values()))
        details.append(f"  {side}, left out: {named(rest)}")
    return (", ".join(f"{most:.4f} {what}" for what, most in found.items()),
            max(found.values()) <= 1 + WITH_TIME, details)


def most_asleep(transport):
    return TO_PASS[transport] + MORE_ASLEEP + TRIES_ASLEEP


def judge_asleep(transport, columns):
    most, details, waking = 0, [], WAKING[transport]
    for side, counts in of_a_call(columns, transport + ASLEEP).items():
        counted = without(counts, lambda name: name == YIELDING or name.endswith(IN_VAIN))
        most = max(most, total(counted))
        beside = total(without(counted, lambda name: name in waking))
        details += [f"  {side}: {named(counted, waking)}"
                    + (f"; beside these two {beside:.4f}" if waking else ""),
                    f"  {side}, left out: {named(without(counts, lambda name: name in counted))}"]
    return f"{most:.4f}", most <= most_asleep(transport), details


# What each goal says, and (columns) -> (what was found at the worse end, whether that meets it, lines
# that say what was counted).
GOALS = {
    f"less than {WITH_TIME:g} system calls of a call at either end of a hot ring ({RING})": judge_hot_ring,
    f"at most {1 + WITH_TIME:g} sends, and as many receives that succeed, of a call at either end of a hot"
    f" socket ({SOCKET})": judge_hot_socket,
    **{f"at most {most_asleep(transport):g} system calls that succeed of a call at either end of"
       f" {transport + ASLEEP}": functools.partial(judge_asleep, transport) for transport in TRANSPORTS},
}


def judge(columns, is_counted):
    """What is printed of the goals; and the lines of those that are not known to be met."""
    lines, missed = [], []
    for goal, judge_it in GOALS.items():
        verdict, is_met, details = f"not judged without {PERF.name}", False, []
        if is_counted:
            found, is_met, details = judge_it(columns)
            verdict = f"{found} {'met' if is_met else 'MISSED'}"
        lines += [f"goal: {goal}: {verdict}", *details]
        missed += [] if is_met else [f"goal: {goal}: {verdict}"]
    return lines, missed


def report(program, timeout_s):
    """What is printed: tables, and a line for each tool that could not count; and the goals that were
    missed, or could not be judged."""
    missing = {tool: why for tool in TOOLS if (why := tool.missing())}
    tools = [tool for tool in TOOLS if tool not in missing]
    columns, failures, stages = measure(program, tools, timeout_s)
    parts, missed = [stage_lines(stages), allocation_lines(columns)], []
    for tool in TOOLS:
        why = missing.get(tool) or failures.get(tool)
        parts.append([f"no system calls by {tool.name}: {why}"] if why
                     else system_call_lines(tool, columns))
        if tool == PERF:
            lines, missed = judge(columns, not why)
            parts[-1] += lines
    return "\n\n".join("\n".join(lines) for lines in parts), missed
