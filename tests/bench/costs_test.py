#!/usr/bin/env python3
"""Tests tests/bench/costs.py with programs that only pretend to call and to count."""

import os
import pathlib
import tempfile
import textwrap
import unittest
import unittest.mock

import costs
from processes import Failure

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 10.72    0.049418           1     30812     20810 recvfrom
  8.40    0.038703           3     10002           sendmsg
  1.00    0.010000           3       400           clock_nanosleep
  0.00    0.000000           0         1         1 access
------ ----------- ----------- --------- --------- ----------------
100.00    0.460952          10     41215     20811 total
"""
PERF = """\
# started on Tue Nov 24 03:04:44 2026

30500,,raw_syscalls:sys_enter,129076003,100.00,,
400,,syscalls:sys_enter_clock_nanosleep,129076003,100.00,,
10002,,syscalls:sys_enter_sendmsg,129076003,100.00,,
20000,,syscalls:sys_enter_recvfrom,129076003,100.00,,
0,,syscalls:sys_enter_futex,129076003,100.00,,
<not counted>,,syscalls:sys_enter_read,0,0.00,,
9998,,syscalls:sys_exit_recvfrom,129076003,100.00,,
"""
# Says that a call took twice its pause, and makes one allocation more the longer that is; and that
# its stages took 1.5, and its pause, and 0.25.
BENCH = """\
import json, os, sys
print(json.dumps({"caller": os.getpid(), "callee": os.getppid()}), flush=True)
for line in sys.stdin:
    *numbers, what = line.split()
    calls, pause = map(int, numbers)
    if what == "stages":
        print(json.dumps({"the message": 1.5 + pause, "the function": 0.25}), flush=True)
        continue
    said = {"count": 9 + pause, "bytes": 1043}
    print(json.dumps({"us": 2 * pause + 1, "caller": said, "callee": {"count": 15, "bytes": 1335},
                      "function": {"count": 4, "bytes": 308}}), flush=True)
"""


class ParsersTest(unittest.TestCase):
    def test_strace_counts_what_succeeded_and_what_failed(self):
        self.assertEqual(costs.parse_strace(STRACE), {
            "recvfrom": 10002, "recvfrom, in vain": 20810, "sendmsg": 10002, "access, in vain": 1})

    def test_perf_counts_what_succeeded_what_failed_and_what_has_no_event_of_its_own(self):
        self.assertEqual(costs.parse_perf(PERF), {
            "recvfrom": 10002, "recvfrom, in vain": 9998, "sendmsg": 10002, "others": 98})

    def test_nothing_is_counted_in_what_is_no_table(self):
        for text in ("", "strace: attach: Operation not permitted\n", "a b c d total\n"):
            self.assertEqual(costs.parse_strace(text), {})
            self.assertEqual(costs.parse_perf(text), {})


class ReportTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        python = pathlib.Path(os.path.realpath("/proc/self/exe"))
        self.python = f"#!{python}\n"
        self.bench = self.program("cost_bench", self.python + BENCH)
        path = unittest.mock.patch.dict(os.environ, {"PATH": str(self.folder)})
        path.start()
        self.addCleanup(path.stop)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def report(self):
        return costs.report(self.bench, timeout_s=10)[0]

    def test_a_tool_that_is_not_here_is_named_with_its_package(self):
        report = self.report()
        self.assertIn("no system calls by strace -c -f: there is no strace here (Debian: strace)", report)
        self.assertIn("no system calls by perf stat: there is no perf here (Debian: linux-perf)", report)

    def test_a_tool_that_may_not_attach_is_named_with_what_it_said(self):
        for name in ("strace", "perf"):
            self.program(name, self.python + f"import sys; sys.exit('{name}: not permitted')\n")
        report = self.report()
        self.assertIn("no system calls by strace -c -f: strace: not permitted", report)
        self.assertIn("no system calls by perf stat: perf: not permitted", report)

    def test_allocations_are_those_of_both_ends_and_of_the_function(self):
        lines = [line.split() for line in self.report().splitlines()]
        self.assertIn(["how", "many", *("9.00 15.00 14.00 15.00".split() * 2)], lines)
        self.assertIn(["bytes", *("1,043 1,335".split() * 4)], lines)
        self.assertIn("by the function itself: 4.00 of 308 bytes", self.report())

    def test_the_stages_are_those_of_each_transport_and_state_and_their_sum(self):
        lines = [line.split() for line in self.report().splitlines()]
        self.assertIn(["the", "message", "1.50", "6.50", "1.50", "6.50"], lines)
        self.assertIn(["all", "1.75", "6.75", "1.75", "6.75"], lines)

    def fake_perf(self):
        # Refuses what comes in another order than: enable, disable, interrupt.
        self.program("perf", self.python + textwrap.dedent(f"""\
            import pathlib, signal, sys
            options = dict(option.split("=", 1) for option in sys.argv[1:] if "=" in option)
            control, answers = options["--control"].removeprefix("fifo:").split(",")
            def end(*_):
                assert told == ["enable", "disable"], told
                pathlib.Path(options["--output"]).write_text({PERF!r})
                sys.exit()
            signal.signal(signal.SIGINT, end)
            told = []
            with open(control) as control, open(answers, "wb", buffering=0) as answers:
                for line in iter(control.readline, ""):
                    told.append(line.strip())
                    answers.write(b"ack\\n\\0")
            """))

    def test_perf_counts_only_while_calls_are_made(self):
        self.fake_perf()
        report = self.report()
        shm, asleep = (30100 / costs.STATES[state][0] for state in costs.STATES)
        cells = [f"{shm:.2f}"] * 2 + [f"{asleep:.2f}"] * 2
        self.assertIn(["all", *cells, *cells], [line.split() for line in report.splitlines()])
        self.assertRegex(report, r"\n  recvfrom, in vain +1.00 +1.00 ")
        self.assertRegex(report, r"\nus, median, while counted +1.00 +11.00 +1.00 +11.00\n")

    def test_goals_are_told_and_those_missed_once_more(self):
        self.fake_perf()
        report, missed = costs.report(self.bench, timeout_s=10)
        goals = [line for line in report.splitlines() if line.startswith("goal: ")]
        self.assertEqual([line.split()[-1] for line in goals], ["MISSED", "met", "MISSED", "MISSED"])
        self.assertRegex(goals[0], r"a hot ring \(shm\): 3.0100 MISSED$")
        self.assertEqual(missed, [goals[0], *goals[2:]])

    def test_without_perf_no_goal_is_judged_which_is_no_better_than_missed(self):
        for refuses in (False, True):
            if refuses:
                self.program("perf", self.python + "import sys; sys.exit('perf: not permitted')\n")
            report, missed = costs.report(self.bench, timeout_s=10)
            self.assertEqual(len(missed), 4)
            for line, what in zip(missed, ("ring (shm)", "socket (tcp)", "shm, asleep", "tcp, asleep")):
                self.assertTrue(line.endswith(f" {what}: not judged without perf stat"), line)
                self.assertIn(line, report.splitlines())

    def test_what_is_hardly_ever_called_has_no_line(self):
        column = costs.Column("shm", 10_000, {}, {})
        column.counts[costs.TOOLS[0]] = 3.5, {"caller": {"read": 10_000, "mmap": 3}, "callee": {}}
        lines = costs.system_call_lines(costs.TOOLS[0], [column])
        self.assertEqual([line.split() for line in lines[-2:]],
                         [["all", "1.00", "-"], ["read", "1.00", "-"]])

    def test_a_program_that_ends_is_named_with_what_it_said(self):
        self.program("cost_bench", self.python + "import sys; sys.exit('no such transport')\n")
        with self.assertRaisesRegex(Failure, "no such transport"):
            self.report()

    def test_a_program_that_hangs_is_given_up(self):
        self.program("cost_bench", self.python + "import time; time.sleep(600)\n")
        with self.assertRaisesRegex(Failure, "silent for more than 0.5 s"):
            costs.report(self.bench, timeout_s=0.5)


class GoalsTest(unittest.TestCase):
    """Of each goal: counts that just meet it, and such that just do not, at either end."""

    def judged(self, number, **counts):
        """The lines of a goal; `counts` are of the column that it is about, by side."""
        name = ("shm", "tcp", "shm, asleep", "tcp, asleep")[number]
        columns = []
        for other in ("shm, asleep", "tcp", "tcp, asleep", "shm"):
            calls = 400 if "asleep" in other else 10_000
            of_sides = {side: counts.get(side, {}) if other == name else {"read": 9 * calls}
                        for side in costs.SIDES}
            columns.append(costs.Column(other, calls, {}, {costs.PERF: (3.5, of_sides)}))
        lines, missed = costs.judge(columns, True)
        starts = [i for i, line in enumerate(lines) if line.startswith("goal: ")] + [len(lines)]
        lines = lines[starts[number]:starts[number + 1]]
        self.assertEqual(lines[0] in missed, lines[0].endswith(" MISSED"))
        return lines

    def check_ends(self, number, counts, more, found):
        """Meets the goal at both ends, and misses it with `more` at either."""
        both = dict.fromkeys(costs.SIDES, counts)
        self.assertRegex(self.judged(number, **both)[0], f": {found[0]} met$")
        for side in costs.SIDES:
            self.assertRegex(self.judged(number, **(both | {side: counts | more}))[0],
                             f": {found[1]} MISSED$")

    def test_a_hot_ring_makes_no_system_calls(self):
        self.check_ends(0, {"read": 399, "sched_yield": 100}, {"read": 400}, ("0.0499", "0.0500"))

    def test_a_hot_socket_makes_one_send(self):
        counts = {"sendmsg": 10_000, "sendto": 300, "write": 100, "others": 100, "recvfrom": 10_000}
        for name in ("sendmsg", "sendto", "write", "others"):
            self.check_ends(1, counts, {name: counts[name] + 1},
                            ("1.0500 sends, 1.0100 receives", "1.0501 sends, 1.010. receives"))

    def test_a_hot_socket_makes_one_receive_that_succeeds(self):
        counts = {"sendmsg": 10_000, "read": 100, "recvmsg": 300, "others": 100, "recvfrom": 10_000,
                  "recvfrom, in vain": 50_000, "sched_yield": 900, "epoll_ctl": 700}
        for name in ("read", "recvmsg", "recvfrom", "others"):
            self.check_ends(1, counts, {name: counts[name] + 1},
                            ("1.0100 sends, 1.0500 receives", "1.010. sends, 1.0501 receives"))
        self.assertEqual(self.judged(1, caller=counts)[1:4], [
            "  caller, sends: others 0.01; sendmsg 1.00",
            "  caller, receives: others 0.01; read 0.01; recvfrom 1.00; recvmsg 0.03",
            "  caller, left out: epoll_ctl 0.07; recvfrom, in vain 5.00; sched_yield 0.09"])

    def test_a_ring_asleep_makes_two_more_than_its_byte_takes(self):
        counts = {"sendto": 400, "epoll_ctl": 899, "others": 1, "recvfrom, in vain": 800,
                  "sched_yield": 800}
        for name in ("sendto", "epoll_ctl", "others", "recvfrom"):
            self.check_ends(2, counts, {name: counts.get(name, 0) + 1}, ("3.2500", "3.2525"))

    def test_a_socket_asleep_makes_two_more_than_a_hot_one(self):
        counts = {"sendmsg": 400, "recvfrom": 400, "epoll_ctl": 899, "others": 1, "sendmsg, in vain": 400,
                  "sched_yield": 800}
        for name in ("sendmsg", "recvfrom", "epoll_ctl", "others"):
            self.check_ends(3, counts, {name: counts[name] + 1}, ("4.2500", "4.2525"))

    def test_what_is_counted_of_sleepers_is_named_and_so_is_what_wakes_them(self):
        counts = {"sendto": 400, "recvfrom": 16, "epoll_ctl": 900, "recvfrom, in vain": 400,
                  "sched_yield": 2}
        self.assertEqual(self.judged(2, callee=counts), [
            "goal: at most 3.25 system calls that succeed of a call at either end of shm, asleep: 3.2900"
            " MISSED",
            "  caller: none; beside these two 0.0000",
            "  caller, left out: none",
            "  callee: epoll_ctl 2.25; recvfrom (its read) 0.04; sendto (the byte that wakes) 1.00;"
            " beside these two 2.2500",
            "  callee, left out: recvfrom, in vain 1.00; sched_yield 0.01"])
        self.assertEqual(self.judged(3, callee=counts)[3],
                         "  callee: epoll_ctl 2.25; recvfrom 0.04; sendto 1.00")


if __name__ == "__main__":
    unittest.main()
