#!/usr/bin/env python3
"""Says what failed, after all that the tests have printed: failures.py LOG

LOG is what ctest has written, Testing/Temporary/LastTest.log. Of each test that did not pass its
name, and of its output the lines that say why; where none does, the last ones.
"""

import re
import sys

TEST = re.compile(r"^\d+/\d+ Testing: (.*)$")
WHY = re.compile(r": Failure$|ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|: runtime error: |^Traceback |"
                 r"terminate called|^lint|^\S*Error: ")
AFTER, OF_A_TEST, LAST = 12, 60, 20  # lines


def failed(lines):
    """Pairs of a test's name and its output."""
    name, output, writes = None, [], False
    for line in lines:
        if match := TEST.match(line):
            name, output, writes = match[1], [], False
        elif line == "Output:":
            writes = True
        elif writes and line == "<end of output>":
            writes = False
        elif writes:
            output.append(line)
        elif line.startswith(("Test Failed.", "Test Fail Reason:")) and name:
            yield name, output[1:]  # without the rule
            name = None


def reasons(output):
    """The lines that say why, each with some of those that follow."""
    chosen, left = [], 0
    for line in output:
        left = AFTER if WHY.search(line) else left - 1
        if left > 0:
            chosen.append(line)
    return (chosen or output[-LAST:])[:OF_A_TEST]


def main():
    with open(sys.argv[1], errors="replace") as log:
        for name, output in failed(log.read().splitlines()):
            print(f"\n{name} failed:", *reasons(output), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
