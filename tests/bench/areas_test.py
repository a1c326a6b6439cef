#!/usr/bin/env python3
"""Tests that areas.py fits together, and fits the programs that it names."""

import dataclasses
import re
import unittest

from areas import AREAS, GROUPS, ONE_LINE, OURS, ROOT, Case

BENCH = ROOT / "tests" / "bench"


def complaints(area):
    """What does not fit in an area; a goal is about something with the unit of its case."""
    cases = {case.name: case for case in area.cases}
    labels = {program.label for program in area.programs}
    wrong = [f"'{name}' is no case, but has goals" for name in area.goals if name not in cases]
    names = [case.name for case in area.cases]
    wrong += [f"two cases are '{name}'" for name in cases if names.count(name) > 1]
    runs = [(program.label, program.name, run) for program in area.programs for run in program.runs]
    wrong += [f"{run} is there twice" for run in dict.fromkeys(runs) if runs.count(run) > 1]
    wrong += [] if OURS in labels else ["no program is ours"]
    for case in area.cases:
        wrong += [f"'{case.name}': no program is '{peer}'" for peer in case.peers if peer not in labels]
        wrong += [f"'{case.name}': two peers are '{peer}'" for peer in dict.fromkeys(case.peers)
                  if case.peers.count(peer) > 1]
        if OURS in case.peers:
            wrong.append(f"'{case.name}' has ours for a peer")
    unused = labels - {OURS} - {peer for case in area.cases for peer in case.peers}
    wrong += [f"no case has the peer '{label}'" for label in sorted(unused)]
    for name in area.goals.keys() & cases:
        others = {other.name for other in area.cases if other.unit == cases[name].unit} - {name}
        wrong += [f"'{name}' has a goal about '{about}'" for about in area.goals[name]
                  if about not in {OURS, *cases[name].peers} | others]
    return wrong


def source_of(program):
    """The text of a program, with the headers of this folder that it includes."""
    places = (BENCH / f"{program}.cc", BENCH / "peers" / f"{program}.cc", BENCH / "peers" / program)
    text = next(path for path in places if path.exists()).read_text()
    missing = set(re.findall(r'"bench/(\w+\.h)"', text))
    read = set()
    while missing - read:
        header = (missing - read).pop()
        read.add(header)
        text += (BENCH / header).read_text()
        missing |= set(re.findall(r'"bench/(\w+\.h)"', text))
    return text


def prints(source, case):
    """Whether a program has the name of a case, which is either whole there, or made of parts."""
    name = re.sub(r"( world \d| shm| tcp|, \d+ \w+)$", "", case)
    if f'"{name}' in source:
        return True
    *first, number, unit = name.split()
    return f'"{" ".join(first)} ' in source and f'"{number} {unit}"' in source


class AreasTest(unittest.TestCase):
    def test_goals_peers_and_names_fit_together(self):
        for name, area in AREAS.items():
            self.assertEqual(complaints(area), [], name)

    def test_what_does_not_fit_is_found(self):
        lanes = AREAS["lanes"]
        first, *others = lanes.cases
        ours = lanes.programs[0]
        for changed, said in (
                ({"goals": {"tensor": {OURS: 1}}}, "'tensor' is no case"),
                ({"goals": {first.name: {"two lines": 1}}}, "has a goal about 'two lines'"),
                ({"goals": {first.name: {first.name: 1}}}, f"has a goal about '{first.name}'"),
                ({"goals": {first.name: {others[0].name: 1}}}, f"has a goal about '{others[0].name}'"),
                ({"cases": (*lanes.cases, first)}, f"two cases are '{first.name}'"),
                ({"cases": (*lanes.cases, Case("x", "us", peers=("x",)))}, "'x': no program is 'x'"),
                ({"cases": (*lanes.cases, Case("x", "us", peers=(OURS,)))}, "'x' has ours for a peer"),
                ({"cases": (*lanes.cases, Case("x", "us", peers=(ONE_LINE,) * 2))},
                 f"'x': two peers are '{ONE_LINE}'"),
                ({"cases": (Case("x", "us", peers=()),)}, f"no case has the peer '{ONE_LINE}'"),
                ({"programs": (*lanes.programs, ours)}, "is there twice"),
                ({"programs": (lanes.programs[1],)}, "no program is ours")):
            found = complaints(dataclasses.replace(lanes, **changed))
            self.assertTrue(any(said in complaint for complaint in found), (said, found))

    def test_a_group_has_areas_and_no_name_of_one(self):
        for group, areas in GROUPS.items():
            self.assertNotIn(group, AREAS)
            self.assertEqual(set(areas) - set(AREAS), set())
            self.assertEqual(len(set(areas)), len(areas))

    def test_every_program_prints_what_its_area_asks_it_for(self):
        self.assertFalse(prints(source_of("limits"), "all_reduce 4 B world 2"))
        self.assertFalse(prints(source_of("collectives_bench"), "send 16 GiB world 2"))
        for area in AREAS.values():
            for program in area.programs:
                if program.example_of:
                    self.assertIn(program.example_of, [case.name for case in area.cases])
                    continue
                source = "".join(source_of(other.name) for other in area.programs
                                 if other.label == program.label)
                for case in area.cases:
                    if program.label in (OURS, *case.peers):
                        self.assertTrue(prints(source, case.name), (program.name, case.name))

    def test_every_program_that_is_compiled_is_built_for_a_measurement(self):
        text = (BENCH / "CMakeLists.txt").read_text()
        targets = dict(re.findall(r"^farspan_bench\((\w+) ([^)]+)\)", text, re.MULTILINE))
        self.assertEqual(list(targets), ["bench", "bench_gpu"])
        asked = {program.name for area in AREAS.values() for program in area.programs}
        asked |= {area.costs for area in AREAS.values() if area.costs}
        compiled = {name for name in asked if not name.endswith(".py")}
        self.assertEqual(compiled - set(" ".join(targets.values()).split()), set())

    def test_reductions_and_their_peers_keep_their_names(self):
        peers = {case.name: case.peers for case in AREAS["collectives"].cases}
        for world in (2, 4):
            for size in ("4 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"):
                name = f"all_reduce {size} world {world}"
                self.assertEqual(peers.get(name), ("gloo", "openmpi", "limit"), name)


if __name__ == "__main__":
    unittest.main()
