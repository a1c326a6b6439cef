#!/usr/bin/env python3
"""One trainer learns as a program without workers does: same_as_local_test.py EXAMPLE LOCAL

Loss and accuracy of every step and all accuracies on test images are the same to the bit; and they
are so in every run, over every transport. The options are none of the defaults.
"""

import csv
import pathlib
import sys

from watched_run import WatchedRun

STEPS = 16
OPTIONS = ("--seed", "7", "--lr", "0.04", "--batch-size", "40", "--images", "320", "--epochs", "2",
           "--curves", "curves.csv")


def curves_of(*command):
    """The numbers of one run, as the text of a CSV file."""
    run = WatchedRun([*command, *OPTIONS])
    status, out, err = run.finish(300)
    print(out, err, sep="")
    assert status == 0, f"it ended with status {status}"
    text = pathlib.Path(run.folder.name, "curves.csv").read_text()
    left = run.left_over(5, lambda path: path.name == "curves.csv")
    assert not left, f"it left {left}"
    return text


def values(text, panel, series=None):
    return [float(row["value"]) for row in csv.DictReader(text.splitlines())
            if row["panel"] == panel and series in (None, row["series"])]


def main():
    example, local = sys.argv[1:]
    alone = curves_of(local)
    losses = values(alone, "loss")
    assert len(losses) == STEPS, f"the local program has made {len(losses)} steps"
    assert losses[-1] < losses[0], "it has learned nothing"
    assert len(values(alone, "accuracy", "training batches")) == STEPS
    assert len(values(alone, "accuracy", "test images")) > 1, "it has looked only at the end"

    for transport in ("unix", "tcp"):
        ours = curves_of(example, "--trainers", "1", "--transport", transport)
        assert len(ours.splitlines()) == len(alone.splitlines())
        for here, there in zip(ours.splitlines(), alone.splitlines()):
            assert here == there, f"over {transport} '{here}', local '{there}'"


if __name__ == "__main__":
    main()
