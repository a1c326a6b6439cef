#!/usr/bin/env python3
"""Runs an example to its end: run_test.py PROGRAM ARGUMENT.. -- LINE..

It must end with status 0, print each LINE (a regular expression) in this order, and leave nothing
but complete pictures.
"""

import re
import sys
import time

from watched_run import WatchedRun


def is_picture(path):
    return path.suffix == ".svg" and path.read_text().endswith("</svg>\n")


def main():
    split = sys.argv.index("--")
    command, lines = sys.argv[1:split], sys.argv[split + 1:]
    run = WatchedRun(command)
    while run.process.poll() is None and time.monotonic() < run.begun + 0.9 and not run.sockets:
        run.look()
    status, out, err = run.finish(540)
    left = run.left_over(5, is_picture)
    print(out, err, sep="")
    at = 0
    for line in lines:
        found = re.compile(line, re.MULTILINE).search(out, at)
        assert found, f"there is no line like '{line}' where it should be"
        at = found.end()
    assert status == 0, f"it ended with status {status}"
    assert not left, f"it left {left}"


if __name__ == "__main__":
    main()
