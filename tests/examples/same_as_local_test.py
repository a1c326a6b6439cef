#!/usr/bin/env python3
"""One trainer learns as a program without workers does: same_as_local_test.py EXAMPLE LOCAL

Loss and accuracy of every step and the accuracy at the end are the same to the bit; and they are so
in every run, over every transport. The options are none of the defaults.
"""

import csv
import pathlib
import subprocess
import sys

from watched_run import WatchedRun

SEED, LR, BATCH_SIZE, IMAGES, EPOCHS = "7", "0.04", "40", "320", "2"
STEPS = 16


def curves_of(example, transport):
    """The numbers of one run, as the text of a CSV file."""
    run = WatchedRun([example, "--trainers", "1", "--transport", transport, "--seed", SEED, "--lr", LR,
                      "--batch-size", BATCH_SIZE, "--images", IMAGES, "--epochs", EPOCHS,
                      "--curves", "curves.csv"])
    status, out, err = run.finish(300)
    print(out, err, sep="")
    assert status == 0, f"it ended with status {status}"
    text = pathlib.Path(run.folder.name, "curves.csv").read_text()
    left = run.left_over(5, lambda path: path.name == "curves.csv")
    assert not left, f"it left {left}"
    return text


def series(text):
    found = {}
    for row in csv.DictReader(text.splitlines()):
        found.setdefault((row["panel"], row["series"]), []).append(float(row["value"]))
    (losses,) = [values for (panel, _), values in found.items() if panel == "loss"]
    return losses, found["accuracy", "training batches"], found["accuracy", "test images"]


def main():
    example, local = sys.argv[1:]
    printed = subprocess.run([local, SEED, LR, BATCH_SIZE, IMAGES, EPOCHS], check=True,
                             capture_output=True, text=True).stdout.splitlines()
    steps = [tuple(map(float, line.split())) for line in printed[:-1]]
    assert len(steps) == STEPS, f"the local program has made {len(steps)} steps"

    runs = {transport: curves_of(example, transport) for transport in ("unix", "tcp")}
    losses, right, tests = series(runs["unix"])
    assert len(losses) == len(right) == STEPS
    for number, (theirs, ours) in enumerate(zip(steps, zip(losses, right))):
        assert theirs == ours, f"step {number}: local {theirs}, over RPC {ours}"
    assert tests[-1] == float(printed[-1]), f"accuracy: local {printed[-1]}, over RPC {tests[-1]}"
    assert losses[-1] < losses[0], "it has learned nothing"
    assert runs["unix"] == runs["tcp"], "two runs with one seed differ"


if __name__ == "__main__":
    main()
