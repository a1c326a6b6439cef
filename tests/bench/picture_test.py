#!/usr/bin/env python3
"""Tests tests/bench/picture with figures that are made up."""

import importlib.machinery
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

PICTURE = pathlib.Path(__file__).with_name("picture")
SVG = "{http://www.w3.org/2000/svg}"
PEERS = ("pytorch", "grpc", "limit")


def load_picture():
    loader = importlib.machinery.SourceFileLoader("picture", str(PICTURE))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("picture", loader))
    sys.modules["picture"] = module  # its dataclasses look for it
    loader.exec_module(module)
    return module


picture = load_picture()


def rows(peers=PEERS, transports=("shm", "tcp")):
    """As of a benchmark in which a call takes 10 us (peers: 100) and a GB/s passes (peers: 0.1)."""
    return [{"area": "calls", "case": f"{case} {transport}", "unit": unit, "ours": ours, "peer": peer,
             "theirs": theirs, "ratio": 10}
            for transport in transports for peer in peers
            for case, unit, ours, theirs in (
                ("small call p50", "us", 10, 100), ("small call p99", "us", 77, 777),
                ("calls per second 128 in flight", "calls/s", 7, 7),
                *((f"tensor {size}", "GB/s", 1, 0.1) for size in ("4 KiB", "1 MiB", "256 MiB")))]


class PictureTest(unittest.TestCase):
    def drawn(self, from_rows):
        return xml.fromstring(picture.draw(picture.figures_of(from_rows)))

    def points(self, drawn, line):
        found = drawn.find(f".//{SVG}polyline[@id='{line}']")
        return [tuple(map(float, point.split(","))) for point in found.get("points").split()]

    def texts(self, drawn):
        return [text.text for text in drawn.iter(f"{SVG}text")]

    def test_every_system_has_a_line_with_its_name_in_every_panel(self):
        drawn = self.drawn(rows())
        lines = {line.get("id") for line in drawn.iter(f"{SVG}polyline")}
        self.assertEqual(lines, {f"{what}-{transport}-{system}" for what in ("time", "bandwidth")
                                 for transport in ("shm", "tcp") for system in ("ours", *PEERS)})
        for name in ("farspan", "PyTorch", "gRPC", "limit"):
            self.assertEqual(self.texts(drawn).count(name), 4)

    def test_a_peer_that_was_not_there_has_no_line(self):
        drawn = self.drawn(rows(peers=("pytorch", "limit")))
        self.assertEqual(len(list(drawn.iter(f"{SVG}polyline"))), 4 * 3)
        self.assertNotIn("gRPC", self.texts(drawn))

    def test_bandwidths_lie_where_the_scale_says(self):
        # From 0.1 to 1 GB/s: ours lies on the upper edge of the plot, the peers on the lower one.
        drawn = self.drawn(rows())
        right, bottom = picture.PLOT_WIDTH, picture.PLOT_HEIGHT
        ours = self.points(drawn, "bandwidth-shm-ours")
        self.assertEqual(ours[0], (picture.SIZES_FROM, 0))
        self.assertEqual(ours[-1], (right, 0))
        # 1 MiB is 8 of the 16 doublings from 4 KiB to 256 MiB.
        self.assertEqual(ours[1], ((picture.SIZES_FROM + right) / 2, 0))
        self.assertEqual({y for _, y in self.points(drawn, "bandwidth-tcp-grpc")}, {bottom})

    def test_times_follow_from_bandwidths(self):
        self.assertEqual(picture.Figures({1 << 20: 2.0}).times_us(), {1 << 20: 524.288})
        # 4 KiB at 1 GB/s take 4.096 us, on a scale from 1 us to 5 s (256 MiB at 0.1 GB/s take 2.7).
        scale = picture.Scale([4.096, 2.7e6], picture.PLOT_HEIGHT, 0)
        drawn = self.drawn(rows())
        self.assertAlmostEqual(self.points(drawn, "time-shm-ours")[0][1], scale(4.096), delta=0.06)

    def test_a_scale_is_logarithmic_and_ends_at_1_2_or_5_times_a_power_of_ten(self):
        scale = picture.Scale([0.03, 7], 200, 0)
        self.assertEqual((scale.low, scale.high), (0.01, 10))
        self.assertEqual([round(scale(value), 6) for value in (0.01, 10, 1)], [200, 0, round(200 / 3, 6)])
        self.assertEqual(scale.ticks(), [0.01, 0.1, 1, 10])
        scale = picture.Scale([3, 130], 200, 0)
        self.assertEqual((scale.low, scale.high), (1, 200))
        self.assertEqual(scale.ticks(), [1, 10, 100])

    def test_small_calls_are_dots_with_their_time(self):
        drawn = self.drawn(rows())
        scale = picture.Scale([4.096, 2.7e6], picture.PLOT_HEIGHT, 0)
        for system, us in (("ours", 10), ("grpc", 100)):
            dot = drawn.find(f".//{SVG}circle[@id='time-tcp-small-{system}']")
            self.assertAlmostEqual(float(dot.get("cy")), scale(us), delta=0.06)
        # Twice as a tick; 10 us once more for ours, 100 us for each of three peers.
        self.assertEqual(self.texts(drawn).count("10 us"), 2 * (1 + 1))
        self.assertEqual(self.texts(drawn).count("100 us"), 2 * (1 + 3))
        self.assertNotIn("77 us", self.texts(drawn))

    def test_names_do_not_lie_on_each_other(self):
        self.assertEqual(picture.spread([10, 100], 14), [10, 100])
        self.assertEqual(picture.spread([50, 50, 50], 14), [36, 50, 64])
        self.assertEqual(picture.spread([0, 10, 18], 10), [-2 / 3, 10 - 2 / 3, 20 - 2 / 3])

    def test_figures_are_written_in_the_unit_that_suits_them(self):
        self.assertEqual([picture.time_text(us) for us in (0.295, 3.564, 183, 1000, 2.5e4, 1e6)],
                         ["0.29 us", "3.6 us", "183 us", "1 ms", "25 ms", "1 s"])
        self.assertEqual([picture.bandwidth_text(value) for value in (0.01, 0.1, 1, 100)],
                         ["10 MB/s", "100 MB/s", "1 GB/s", "100 GB/s"])

    def run_with(self, results):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if results is not None:
                (folder / "results.json").write_text(json.dumps(results))
            done = subprocess.run([PICTURE, "--results", folder / "results.json", "--out", folder / "a.svg"],
                                  capture_output=True, text=True, timeout=60)
            written = folder / "a.svg"
            return done, written.read_text() if written.exists() else None

    def test_a_file_is_written_that_is_valid_and_has_a_background(self):
        done, text = self.run_with(rows())
        self.assertEqual(done.returncode, 0, done.stderr)
        drawn = xml.fromstring(text)
        rectangle = drawn.find(f"{SVG}rect")
        self.assertEqual((rectangle.get("width"), rectangle.get("height")),
                         (drawn.get("width"), drawn.get("height")))
        self.assertTrue(re.fullmatch("#[0-9a-f]{6}", rectangle.get("fill")))

    def test_without_figures_it_says_how_to_get_them(self):
        for results in (None, [], rows(transports=("shm",))):
            done, text = self.run_with(results)
            self.assertEqual((done.returncode, text), (1, None))
            self.assertIn("run ./dev bench calls first", done.stderr)


if __name__ == "__main__":
    unittest.main()
