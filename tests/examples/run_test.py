#!/usr/bin/env python3
"""Runs an example to its end: run_test.py [--alone] PROGRAM ARGUMENT.. -- LINE..

It must end with status 0, print each LINE (a regular expression) in this order, its progress first,
use the --transport that it was told to, and leave nothing but complete pictures. --alone: it opens no
socket.
"""

import re
import sys

from watched_run import WatchedRun


def is_picture(path):
    return path.suffix == ".svg" and path.read_text().endswith("</svg>\n")


def run_to_its_end(command, lines, eager=False):
    run = WatchedRun(command)
    status, out, err = run.watch_to_its_end(540, eager)
    left = run.left_over(5, is_picture)
    text = err + out  # the progress, then what it led to
    print(text)
    at = 0
    for line in lines:
        found = re.compile(line, re.MULTILINE).search(text, at)
        assert found, f"there is no line like '{line}' where it should be"
        at = found.end()
    assert status == 0, f"it ended with status {status}"
    assert not left, f"it left {left}"
    return run


def main():
    split = sys.argv.index("--")
    command, lines = sys.argv[1:split], sys.argv[split + 1:]
    if command[0] == "--alone":
        run = run_to_its_end(command[1:], lines)
        assert not run.sockets, "it has opened sockets"
        return
    for tries in range(10):  # on a busy machine a short one may end between two looks
        run = run_to_its_end(command, lines, eager=tries > 0)
        if run.sockets:
            break
    assert run.sockets, "none of its sockets was seen"
    if "--transport" in command:
        wanted = command[command.index("--transport") + 1]
        named = [name for name in run.unix_names if name.startswith("@farspan-")]
        assert bool(named) == (wanted != "tcp"), f"over {wanted}, it listened on {named}"


if __name__ == "__main__":
    main()
