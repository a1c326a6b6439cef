#!/usr/bin/env python3
"""Tests tests/bench/run with programs that only pretend to measure."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

RUN = pathlib.Path(__file__).with_name("run")
SIZES = ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB", "256 MiB")
SHM_CASES = ("small call p99 shm", "small call after a pause p50 shm", "calls per second 8 threads shm",
             "calls per second 128 in flight shm", "echo 64 MiB shm", "ring tensor 64 MiB shm",
             "hand over 256 MiB shm")
CASES = {
    transport: [
        f"small call p50 {transport}",
        *(SHM_CASES if transport == "shm" else []),
        *(f"tensor {size} {transport}" for size in SIZES),
    ]
    for transport in ("shm", "tcp")
}


def load_run():
    loader = importlib.machinery.SourceFileLoader("run", str(RUN))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
    sys.modules["run"] = module  # its dataclasses look for it
    loader.exec_module(module)
    return module


def source_of(program):
    """The text of a program, with the headers of this folder that it includes."""
    for path in (RUN.parent / f"{program}.cc", RUN.parent / "peers" / f"{program}.cc",
                 RUN.parent / "peers" / program):
        if path.exists():
            text = path.read_text()
            break
    missing = set(re.findall(r'"bench/(\w+\.h)"', text))
    read = set()
    while missing - read:
        header = (missing - read).pop()
        read.add(header)
        text += (RUN.parent / header).read_text()
        missing |= set(re.findall(r'"bench/(\w+\.h)"', text))
    return text


def prints(source, case):
    """Whether a program has the name of a case, which is either whole there, or made of parts."""
    name = re.sub(r"( world \d| shm| tcp|, \d+ \w+)$", "", case)
    if f'"{name}' in source:
        return True
    *first, number, unit = name.split()
    return f'"{" ".join(first)} ' in source and f'"{number} {unit}"' in source


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has waited for yet does nothing any more.
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def until(condition, seconds=10):
    """Waits for a condition that another process makes true; the time is a limit only."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class RunTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.programs = self.folder / "build" / "tests" / "bench"
        self.programs.mkdir(parents=True)
        self.out = self.folder / "results.json"
        for name, value in (("rpc_bench", 10), ("pytorch_rpc", 40), ("grpc_unary", 20), ("limits", 5),
                            ("local_adds", 5)):
            self.fake(name, f"figures({value})")

    def fake(self, name, body):
        """A program; in `body`, figures(v) prints v for all cases of the asked transport."""
        source = textwrap.dedent(
            f"""\
            #!/usr/bin/env python3
            import json, os, pathlib, sys, time
            here = pathlib.Path(__file__).parent
            transport = sys.argv[2]
            def figures(value, without=()):
                for case in {CASES!r}[transport]:
                    if case not in without:
                        print(json.dumps({{"case": case, "value": value, "unit": "us"}}), flush=True)
            def sleep_with_a_child():
                child = os.fork()
                if child:
                    (here / "pids").write_text(f"{{os.getpid()}} {{child}} ")
                time.sleep(600)
            """
        )
        (self.programs / name).write_text(source + body + "\n")
        (self.programs / name).chmod(0o755)

    def command(self, *options):
        return [RUN, "rpc", "--build", self.folder / "build", "--out", self.out, *options]

    def bench(self, *options):
        return subprocess.run(self.command(*options), capture_output=True, text=True, timeout=60)

    def rows(self):
        return {(row["case"], row["peer"]): row for row in json.loads(self.out.read_text())}

    def test_a_ratio_above_one_means_ours_is_better(self):
        self.assertEqual(self.bench("--rounds", "1").returncode, 0)
        rows = self.rows()
        # Less is better for microseconds, more for the others.
        self.assertEqual(rows["small call p50 shm", "pytorch"]["ratio"], 4)
        self.assertEqual(rows["small call p50 shm", "limit"]["ratio"], 0.5)
        self.assertEqual(rows["calls per second 128 in flight shm", "pytorch"]["ratio"], 0.25)
        self.assertEqual(rows["tensor 64 MiB tcp", "limit"]["ratio"], 2)

    def test_every_row_has_the_same_keys_and_every_case_a_row(self):
        self.bench("--rounds", "1")
        rows = json.loads(self.out.read_text())
        for row in rows:
            self.assertEqual(
                list(row), ["area", "case", "unit", "ours", "peer", "theirs", "ratio"]
            )
            self.assertEqual(row["area"], "rpc")
        wanted = {(case, peer) for cases in CASES.values() for case in cases
                  for peer in ("pytorch", "grpc", "limit")}
        wanted -= {("calls per second 128 in flight shm", "limit"),  # has none
                   ("calls per second 8 threads shm", "limit"), ("hand over 256 MiB shm", "limit"),
                   *((f"{case} 64 MiB shm", peer) for case in ("echo", "ring tensor")
                     for peer in ("pytorch", "grpc"))}
        self.assertEqual({(row["case"], row["peer"]) for row in rows}, wanted)

    def test_a_figure_is_the_median_of_its_rounds(self):
        self.fake(
            "rpc_bench",
            "count = here / transport; n = int(count.read_text()) if count.exists() else 0\n"
            "count.write_text(str(n + 1)); figures([7, 1000, 8][n])",
        )
        self.assertEqual(self.bench("--rounds", "3").returncode, 0)
        self.assertEqual(self.rows()["small call p50 shm", "limit"]["ours"], 8)

    def test_the_programs_take_turns(self):
        for name in ("rpc_bench", "pytorch_rpc", "grpc_unary", "limits"):
            self.fake(name, f"(here / 'order').open('a').write('{name} ' + transport + '\\n')\n"
                            "figures(1)")
        self.bench("--rounds", "2")
        order = (self.programs / "order").read_text().splitlines()
        one_round = [f"{name} {transport}" for transport in ("shm", "tcp")
                     for name in ("rpc_bench", "pytorch_rpc", "grpc_unary", "limits")]
        self.assertEqual(order, one_round * 2)

    def test_the_table_shows_every_case_and_which_goals_are_met(self):
        table = self.bench("--rounds", "1").stdout
        for cases in CASES.values():
            for case in cases:
                self.assertIn(f"\n{case} ", table)
        self.assertRegex(table, r"small call p50 shm +us +10 +40 +4.00 +20 +2.00 +5 +0.50 +>= 4 pytorch met\n")
        self.assertRegex(table, r"calls per second .* +>= 10 pytorch MISSED\n")

    def test_a_missed_goal_is_a_failure_only_when_asked(self):
        self.assertEqual(self.bench("--rounds", "1").returncode, 0)
        checked = self.bench("--rounds", "1", "--check")
        self.assertEqual(checked.returncode, 1)
        self.assertIn("calls per second 128 in flight shm: 0.25 times pytorch", checked.stderr)

    def test_a_program_without_a_case_is_named(self):
        self.fake("rpc_bench", "figures(1, without=['tensor 1 MiB tcp'])")
        done = self.bench("--rounds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ours: no figure for 'tensor 1 MiB tcp'", done.stderr)
        self.assertIn(("tensor 4 KiB tcp", "limit"), self.rows())

    def test_a_program_that_fails_is_named_with_what_it_said(self):
        self.fake("pytorch_rpc", "print('no such device', file=sys.stderr); sys.exit(3)")
        done = self.bench("--rounds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("pytorch_rpc --transport shm: it ended with 3: no such device", done.stderr)
        self.assertIn(("small call p50 shm", "limit"), self.rows())

    def test_what_is_no_figure_is_an_error(self):
        for line in ("hello", "[1]", '{"case": "x"}', '{"case": "x", "value": "y"}'):
            self.fake("limits", f"print({line!r})")
            done = self.bench("--rounds", "1")
            self.assertEqual(done.returncode, 1)
            self.assertIn("it printed what is no figure: " + line, done.stderr)

    def test_without_our_own_program_there_is_nothing_to_compare(self):
        (self.programs / "rpc_bench").unlink()
        done = self.bench()
        self.assertEqual(done.returncode, 1)
        self.assertIn("rpc_bench; build it first", done.stderr)

    def test_a_peer_that_was_not_built_is_left_out(self):
        (self.programs / "pytorch_rpc").unlink()
        done = self.bench("--rounds", "1")
        self.assertEqual(done.returncode, 0)
        self.assertEqual({peer for _, peer in self.rows()}, {"grpc", "limit"})

    def test_an_unknown_area_is_named(self):
        done = subprocess.run([RUN, "rcp"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no area 'rcp', only rpc", done.stderr)

    def test_bandwidths_are_those_of_reductions_and_then_of_messages(self):
        rows = [{"case": what, "peer": peer, "ours": 1000, "ratio": 0.5}
                for what in ("send 1 MiB world 4", "all_reduce 1 MiB world 4",
                             "all_reduce 4 B world 1", "barrier world 4")
                for peer in ("gloo", "limit")]
        self.assertEqual(load_run().bandwidths(rows), [
            "all_reduce 1 MiB world 4: busbw 1.57 GB/s, 0.50 of memcpy",
            "send 1 MiB world 4: 1.05 GB/s, 0.50 of the limit"])

    def test_every_program_prints_what_its_area_asks_it_for(self):
        areas = load_run().AREAS
        self.assertFalse(prints(source_of("limits"), "all_reduce 4 B world 2"))
        self.assertFalse(prints(source_of("collectives_bench"), "send 16 GiB world 2"))
        for area in areas.values():
            for program in area.programs:
                if program.example_of:
                    self.assertIn(program.example_of, [case.name for case in area.cases])
                    continue
                source = "".join(source_of(other.name) for other in area.programs
                                 if other.label == program.label)
                for case in area.cases:
                    if program.label in ("ours", *case.peers):
                        self.assertTrue(prints(source, case.name), (program.name, case.name))

    def test_an_example_is_measured_by_the_rate_in_its_table(self):
        for name, rate, time in (("parameter_server", "1,940", 80), ("local_training", "2,000", 76)):
            path = self.folder / "build" / "examples" / name / name
            path.parent.mkdir(parents=True)
            path.write_text("#!/bin/sh\ntouch picture\n"
                            f"echo 'training  9 samples/s'; echo 'samples/s   {rate}';"
                            f"echo 'processor time of all   {time}.0 s'; echo \"$@\" >$0.got\n")
            path.chmod(0o755)
        done = subprocess.run([RUN, "job", *self.command("--rounds", "1")[2:]], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        row = self.rows()["epoch batch 32", "local"]
        self.assertEqual((row["ours"], row["theirs"], row["ratio"]), (1940, 2000, 0.97))
        row = self.rows()["epoch batch 32, processor time", "local"]
        self.assertEqual((row["ours"], row["theirs"], row["ratio"]), (80, 76, 0.95))
        self.assertEqual(path.with_name("local_training.got").read_text(),
                         "--batch-size 32\n")
        self.assertFalse(pathlib.Path("picture").exists(), "it was left here")

    def test_an_example_without_figures_is_named(self):
        for body, said in (("echo no images >&2; exit 3", "it ended with 1: no images"),
                           ("echo 'samples/s  7'", "printed no row like 'processor time of all")):
            for name in ("parameter_server", "local_training"):
                path = self.folder / "build" / "examples" / name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"#!/bin/sh\n{body}\n")
                path.chmod(0o755)
            done = subprocess.run([RUN, "job", *self.command("--rounds", "1")[2:]], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)

    def test_every_goal_is_about_a_case_and_a_peer_of_it(self):
        for name, area in load_run().AREAS.items():
            peers = {case.name: case.peers for case in area.cases}
            for case, goals in area.goals.items():
                self.assertLessEqual(set(goals), set(peers.get(case, ())), (name, case))

    def pids(self):
        file = self.programs / "pids"
        self.assertTrue(until(lambda: file.exists() and file.read_text().endswith(" ")))
        return [int(pid) for pid in file.read_text().split()]

    def test_a_program_that_hangs_is_ended_with_its_children(self):
        self.fake("rpc_bench", "sleep_with_a_child()")
        done = self.bench("--rounds", "1", "--timeout", "2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it ran for more than 2.0 s", done.stderr)
        for pid in self.pids():
            self.assertTrue(until(lambda: not alive(pid)))

    def test_a_child_that_outlives_its_program_is_ended(self):
        self.fake("rpc_bench", "figures(1)\nif os.fork() == 0:\n"
                               "    os.close(1), os.close(2), sleep_with_a_child()")
        self.assertEqual(self.bench("--rounds", "1").returncode, 0)
        for pid in self.pids():
            self.assertTrue(until(lambda: not alive(pid)))

    def test_interrupts_end_everything(self):
        for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(stop=stop):
                (self.programs / "pids").unlink(missing_ok=True)
                self.fake("rpc_bench", "sleep_with_a_child()")
                with subprocess.Popen(self.command(), stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL) as running:
                    pids = self.pids()
                    running.send_signal(stop)
                    self.assertEqual(running.wait(timeout=10), 128 + stop)
                for pid in pids:
                    self.assertTrue(until(lambda: not alive(pid)))


if __name__ == "__main__":
    unittest.main()
