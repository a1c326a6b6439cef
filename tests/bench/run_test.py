#!/usr/bin/env python3
"""Tests tests/bench/run with programs that only pretend to measure."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

RUN = pathlib.Path(__file__).with_name("run")
SIZES = ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB", "256 MiB")
SHM_CASES = ("small call p99 shm", "small call after a pause p50 shm", "calls per second 1 thread shm",
             "calls per second 8 threads shm", "calls per second 128 in flight shm",
             "calls per second 128 in flight of 8 threads shm",
             *(f"echo {size} shm" for size in SIZES[3:]), "ring tensor 64 MiB shm", "hand over 256 MiB shm")
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


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # a zombie that nobody has waited for yet does nothing any more


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
        """A program; in `body`, figures(v) prints v for all cases of the asked transport, but those of
        `other`."""
        source = textwrap.dedent(
            f"""\
            #!/usr/bin/env python3
            import json, os, pathlib, sys, time
            here = pathlib.Path(__file__).parent
            transport = sys.argv[2]
            def figures(value, without=(), other={{}}):
                for case in {CASES!r}[transport]:
                    if case not in without:
                        figure = {{"case": case, "value": other.get(case, value), "unit": "us"}}
                        print(json.dumps(figure), flush=True)
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
        return [RUN, "calls", "--build", self.folder / "build", "--out", self.out, *options]

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
            self.assertEqual(row["area"], "calls")
        wanted = {(case, peer) for cases in CASES.values() for case in cases
                  for peer in ("pytorch", "grpc", "limit")}
        wanted -= {*((case, "limit") for case in SHM_CASES if case.startswith(("calls", "hand"))),
                   *((case, peer) for case in SHM_CASES if case.startswith(("echo", "ring"))
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
        self.assertRegex(table, r"small call p50 shm +us +10 +40 +4.00 +20 +2.00 +5 +0.50 +"
                                r">= 4 pytorch met, <= 5 us MISSED\n")
        self.assertRegex(table, r"calls per second 128 .* >= 10 pytorch MISSED, >= 400,000 calls/s MISSED\n")

    def test_our_figure_may_be_a_goal_by_itself_whichever_way_its_unit_goes(self):
        # Of each: a figure that just meets its goal, and one that just does not.
        for case, transport, goal, met, missed in (
                ("small call p50", "shm", "<= 5 us", 5, 5.1),
                ("tensor 64 MiB", "tcp", ">= 3.5 GB/s", 3.5, 3.4)):
            for value, word in ((met, "met"), (missed, "MISSED")):
                self.fake("rpc_bench", f"figures({value})")
                done = self.bench("--rounds", "1", "--check")
                self.assertRegex(done.stdout, f"\n{case} {transport} .*, {goal} {word}\n")
                said = f"{case} {transport}: {value} {goal.split()[-1]}, the goal is {goal}\n"
                self.assertEqual(said in done.stderr, word == "MISSED", done.stderr)

    def test_our_figure_is_judged_also_where_no_peer_is(self):
        for name in ("pytorch_rpc", "grpc_unary"):
            (self.programs / name).unlink()
        done = self.bench("--rounds", "1", "--check")
        self.assertRegex(done.stdout, r"\nhand over 256 MiB shm +us +10 .* <= 100 us met\n")
        self.assertRegex(done.stdout, r"\nsmall call p50 tcp .* >= 4 pytorch not judged, <= 14 us met\n")
        self.assertIn("small call p50 tcp: pytorch was not measured, the goal is >= 4 pytorch\n", done.stderr)

    def test_a_goal_may_be_a_multiple_of_our_figure_in_another_case(self):
        for slowest, echo, word in ((30, 9, "met"), (31, 8.9, "MISSED")):
            other = {"small call p99 shm": slowest, "echo 64 MiB shm": echo}
            self.fake("rpc_bench", f"figures(10, other={other!r})")
            done = self.bench("--rounds", "1", "--check")
            self.assertRegex(done.stdout, f"\nsmall call p99 shm .* <= 3 x small call p50 shm {word}\n")
            self.assertRegex(done.stdout, f"\necho 64 MiB shm .* >= 0.9 x tensor 64 MiB shm {word}\n")
            for said in ("small call p99 shm: 3.10 x small call p50 shm, the goal is <= 3 x ",
                         "echo 64 MiB shm: 0.89 x tensor 64 MiB shm, the goal is >= 0.9 x "):
                self.assertEqual(said in done.stderr, word == "MISSED", done.stderr)

    def test_a_missed_goal_is_a_failure_only_when_asked(self):
        self.assertEqual(self.bench("--rounds", "1").returncode, 0)
        checked = self.bench("--rounds", "1", "--check")
        self.assertEqual(checked.returncode, 1)
        self.assertIn("calls per second 128 in flight shm: 0.25 times pytorch", checked.stderr)

    def test_a_missed_goal_of_what_a_call_costs_is_a_failure_only_when_asked(self):
        run = load_run()
        report = unittest.mock.patch.object(run.costs, "report", return_value=("table", ["one is MISSED"]))
        for check, problems in ((False, []), (True, ["one is MISSED"])):
            with report, contextlib.redirect_stdout(io.StringIO()) as out, \
                    contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(run.print_costs(RUN, 1, check), problems)
            self.assertIn("table", out.getvalue())

    def test_a_busy_machine_is_one_where_others_run_now_whatever_its_load_is(self):
        run = load_run()
        for running, mean in (((1, 1, 1, 1), 0), ((3, 1, 3, 1), 1), ((1, 1, 1, 9), 2)):
            texts = [f"9.00 9.00 9.00 {now}/300 4711\n" for now in running]
            with unittest.mock.patch.object(pathlib.Path, "read_text", side_effect=texts):
                self.assertEqual(run.others_running(looks=4, between_s=0), mean)
        for nothing in ({"return_value": "?\n"}, {"side_effect": FileNotFoundError}):
            with unittest.mock.patch.object(pathlib.Path, "read_text", **nothing):
                self.assertEqual(run.others_running(between_s=0), 0)

    def test_that_others_run_is_said_before_each_area(self):
        run = load_run()
        said = "bench: 1.5 other threads run: they will show in the figures\n"
        for others, times in ((1.5, 2), (0.5, 0)):
            argv = ["run", "calls", "gpu", "--build", str(self.folder), "--out", str(self.out)]
            with unittest.mock.patch.object(sys, "argv", argv), \
                    unittest.mock.patch.object(run.signal, "signal"), \
                    unittest.mock.patch.object(run, "others_running", return_value=others), \
                    unittest.mock.patch.object(run, "run_area", side_effect=run.Skipped("not here")), \
                    contextlib.redirect_stdout(io.StringIO()), \
                    contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertEqual(run.main(), 77)
            self.assertEqual(errors.getvalue(), said * times)

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
        self.assertIn("there is no area 'rcp', only rpc, calls", done.stderr)

    def test_a_group_stands_for_its_areas_each_once(self):
        run = load_run()
        calls = ["calls", "growth", "crowd", "lanes", "job"]
        for asked, areas in ((["rpc"], calls), (["ddp", "rpc", "growth"], ["ddp", *calls]),
                             (["job", "rpc"], ["job", *calls[:-1]]), ([], list(run.AREAS))):
            with unittest.mock.patch.object(sys, "argv", ["run", *asked, "--rounds", "1"]):
                self.assertEqual(run.parse_arguments().areas, areas)

    def test_bandwidths_are_those_of_reductions_and_then_of_messages(self):
        rows = [{"case": what, "peer": peer, "ours": 1000, "ratio": 0.5}
                for what in ("send 1 MiB world 4", "all_reduce 1 MiB world 4",
                             "all_reduce 4 B world 1", "barrier world 4")
                for peer in ("gloo", "limit")]
        self.assertEqual(load_run().bandwidths(rows), [
            "all_reduce 1 MiB world 4: busbw 1.57 GB/s, 0.50 of memcpy",
            "send 1 MiB world 4: 1.05 GB/s, 0.50 of the limit"])

    def fake_example(self, name, body):
        path = self.folder / "build" / "examples" / name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def bench_job(self):
        """Area `job`, with this test's folder for the root, so that its peers in Python are fakes, or none."""
        run = ("import areas, pathlib, runpy, sys; areas.ROOT = pathlib.Path(sys.argv.pop(1)); "
               f"runpy.run_path({str(RUN)!r}, run_name='__main__')")
        return subprocess.run([sys.executable, "-B", "-c", run, self.folder, "job",
                               *self.command("--rounds", "1")[2:]],
                              cwd=RUN.parent, capture_output=True, text=True, timeout=60)

    def test_an_example_is_measured_by_the_rate_in_its_table(self):
        for name, rate, time in (("parameter_server", "1,940", 80), ("local_training", "2,000", 76)):
            path = self.fake_example(
                name, "touch curves.svg\n"
                f"echo 'training  9 samples/s'; echo 'samples/s   {rate}';"
                f"echo 'processor time of all   {time}.0 s'; echo \"$@\" >$0.got")
        done = self.bench_job()
        self.assertEqual(done.returncode, 0, done.stderr)
        row = self.rows()["epoch batch 32", "local"]
        self.assertEqual((row["ours"], row["theirs"], row["ratio"]), (1940, 2000, 0.97))
        row = self.rows()["epoch batch 32, processor time", "local"]
        self.assertEqual((row["ours"], row["theirs"], row["ratio"]), (80, 76, 0.95))
        self.assertEqual(path.with_name("local_training.got").read_text(),
                         "--batch-size 32\n")
        self.assertFalse((RUN.parent / "curves.svg").exists(), "it was left there")

    def test_a_peer_in_python_is_left_out_without_its_interpreter_and_else_run_in_each_way(self):
        table = "echo 'samples/s  1,500'; echo 'processor time of all  40.0 s'"
        for name in ("parameter_server", "local_training"):
            self.fake_example(name, table)
        done = self.bench_job()
        self.assertEqual(done.returncode, 0, done.stderr)
        for label in ("pytorch", "pytorch same malloc"):
            self.assertIn(f"bench: without {label}: what pytorch_parameter_server.py needs", done.stderr)
        self.assertEqual({peer for _, peer in self.rows()}, {"local"})

        python = self.folder / ".venv" / "bin" / "python"
        script = self.folder / "tests" / "bench" / "peers" / "pytorch_parameter_server.py"
        for path in (python, script):
            path.parent.mkdir(parents=True)
        script.touch()
        python.write_text(textwrap.dedent(
            f"""\
            #!/bin/sh
            [ "$1" = {script} ] || exit 1
            rate=750; [ "$2" != --same-malloc ] || rate=1000
            echo '{{"case": "epoch batch 32", "value": '$rate'}}'
            echo '{{"case": "epoch batch 32, processor time", "value": 60}}'
            """))
        python.chmod(0o755)
        done = self.bench_job()
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows()
        for peer, rate in (("pytorch", 2), ("pytorch same malloc", 1.5)):
            self.assertEqual(rows["epoch batch 32", peer]["ratio"], rate)
            self.assertEqual(rows["epoch batch 32, processor time", peer]["ratio"], 1.5)

    def test_an_example_without_figures_is_named(self):
        for body, said in (("echo no images >&2; exit 3", "it ended with 1: no images"),
                           ("echo 'samples/s  7'", "printed no row like 'processor time of all")):
            for name in ("parameter_server", "local_training"):
                self.fake_example(name, body)
            done = self.bench_job()
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)

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


GPU_SIZES = (*SIZES, "512 MiB", "1 GiB")
# What each program of area `gpu` prints when nothing else is said, by its arguments.
GPU_FIGURES = {
    ("gpu_bench", ""): {"small CPU call p50": 10, "small CUDA call p50": 60, "CUDA tensor": 900},
    ("gpu_bench", "--through-host"): {"CUDA tensor": 3},
    ("pytorch_gpu", "--channel cuda_ipc"): {"small CPU call p50": 200, "small CUDA call p50": 300,
                                            "CUDA tensor": 500},
    ("pytorch_gpu", "--channel cuda_basic"): {"small CPU call p50": 200, "small CUDA call p50": 400,
                                              "CUDA tensor": 2},
    ("gpu_limits", "--in-one-process"): {"small CPU call p50": 1, "CUDA tensor": 1000},
    ("gpu_limits", "--by-name"): {"CUDA tensor": 950},
}


class GpuTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.out = self.folder / "results.json"
        for name in ("gpu_bench", "pytorch_gpu", "gpu_limits"):
            self.fake(name)

    def fake(self, name, body="", **other):
        """A program that prints the figures of above; those of `other` by its arguments instead."""
        figures = {arguments: {**figures, **other.get(arguments.strip("-").replace("-", "_") or "ours", {})}
                   for (program, arguments), figures in GPU_FIGURES.items() if program == name}
        path = self.folder / "build" / "tests" / "bench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(
            f"""\
            #!/usr/bin/env python3
            import json, sys
            {body}
            for case, value in {figures!r}[" ".join(sys.argv[1:])].items():
                of_tensor = case == "CUDA tensor"
                for size in {GPU_SIZES!r} if of_tensor else [""]:
                    print(json.dumps({{"case": f"{{case}} {{size}}".strip(), "value": value}}))
                    if of_tensor:
                        print(json.dumps({{"case": f"time of {{case}} {{size}}", "value": 1 / value}}))
            """))
        path.chmod(0o755)

    def bench(self, *areas):
        return subprocess.run([RUN, *areas, "--build", self.folder / "build", "--out", self.out,
                               "--rounds", "1", "--check"], capture_output=True, text=True, timeout=60)

    def test_each_way_has_a_column(self):
        done = self.bench("gpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {(row["case"], row["peer"]): row for row in json.loads(self.out.read_text())}
        for size in GPU_SIZES:
            for case, ours in ((f"CUDA tensor {size}", 900), (f"time of CUDA tensor {size}", 1 / 900)):
                ratios = {peer: row["ratio"] for (of, peer), row in rows.items() if of == case}
                self.assertEqual(rows[case, "limit"]["ours"], ours)
                self.assertEqual(ratios, {"pytorch cuda_ipc": 1.8, "pytorch cuda_basic": 450,
                                          "through the host": 300, "limit": 0.9, "by name": 0.9474})
        self.assertEqual(rows["small CPU call p50", "limit"]["ratio"], 0.1)
        self.assertEqual(rows["small CUDA call p50", "pytorch cuda_ipc"]["ratio"], 5)

    def test_goals_of_tensors_hold_from_the_size_on_that_they_are_for(self):
        self.fake("gpu_bench", ours={"CUDA tensor": 890})
        done = self.bench("gpu")
        self.assertEqual(done.returncode, 1)
        for size in GPU_SIZES:
            lines = [line for line in done.stderr.splitlines() if f" CUDA tensor {size}: " in line]
            sizes = {"ipc": GPU_SIZES[3:], "limit": GPU_SIZES[6:]}
            self.assertEqual(len(lines), (size in sizes["ipc"]) + (size in sizes["limit"]), lines)
            self.assertEqual(any("1.78 times pytorch cuda_ipc" in line for line in lines),
                             size in sizes["ipc"])
            self.assertEqual(any("0.89 times limit, the goal is >= 0.9 limit" in line for line in lines),
                             size in sizes["limit"])

    def test_a_goal_may_be_so_much_more_than_our_figure_in_another_case(self):
        goal = "<= small CPU call p50 + 60 us"
        for taken, word, found in ((5, "met", ""), (70, "met", ""), (71.5, "MISSED", "+ 61.5")):
            self.fake("gpu_bench", ours={"small CUDA call p50": taken})
            done = self.bench("gpu")
            self.assertIn(f" {goal} {word}\n", done.stdout)
            self.assertEqual(done.returncode, word == "MISSED", done.stderr)
            if found:
                self.assertIn(f"small CUDA call p50: small CPU call p50 {found} us, the goal is {goal}\n",
                              done.stderr)

    no_gpu = "print('a warning\\nfake: there is no GPU (said the driver)', file=sys.stderr); sys.exit(77)"

    def test_without_a_gpu_it_says_so_in_one_line_and_keeps_the_last_results(self):
        self.out.write_text("of last time")
        for name in ("gpu_bench", "pytorch_gpu", "gpu_limits"):
            self.fake(name, self.no_gpu)
        done = self.bench("gpu")
        self.assertEqual(done.returncode, 77)
        self.assertEqual(done.stdout, "gpu: skipped: fake: there is no GPU (said the driver)\n")
        self.assertNotIn("pytorch_gpu", done.stderr)
        self.assertEqual(self.out.read_text(), "of last time")

    def test_without_the_toolkit_it_says_so_in_one_line(self):
        (self.folder / "build" / "tests" / "bench" / "gpu_bench").unlink()
        done = self.bench("gpu")
        self.assertEqual(done.returncode, 77)
        self.assertRegex(done.stdout, r"^gpu: skipped: gpu_bench was not built, which takes the CUDA toolkit.*\n$")

    def test_what_is_skipped_changes_no_other_area(self):
        self.fake("gpu_bench", self.no_gpu)
        crowd = self.folder / "build" / "tests" / "bench" / "crowd_bench"
        crowd.write_text("#!/bin/sh\nfor what in 'steps per second' 'calls per second' 'polled in a second' \\\n"
                         "'processor time of a step' 'processor time of a call'; do echo '{\"case\": \"'$what', 8 trainers\", \"value\": 0.01}'; done\n")
        crowd.chmod(0o755)
        for areas in (("crowd", "gpu"), ("gpu", "crowd")):
            done = self.bench(*areas)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("gpu: skipped: fake: there is no GPU (said the driver)\n", done.stdout)
            self.assertEqual({row["area"] for row in json.loads(self.out.read_text())}, {"crowd"})

    def test_a_peer_that_finds_no_gpu_beside_ours_is_a_failure(self):
        self.fake("pytorch_gpu", self.no_gpu)
        done = self.bench("gpu")
        self.assertEqual(done.returncode, 1)
        self.assertIn("pytorch_gpu --channel cuda_ipc: fake: there is no GPU (said the driver)\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
