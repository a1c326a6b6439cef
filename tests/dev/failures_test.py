#!/usr/bin/env python3
"""What ../support/failures.py says of a run of ctest's: failures_test.py REPOSITORY"""

import pathlib
import subprocess
import sys
import tempfile

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(tests NONE)
enable_testing()
add_test(NAME good COMMAND sh -c "echo 'good.cc:1: Failure'")
add_test(NAME bad COMMAND sh -c "seq 1000 2000; echo 'bad.cc:1: Failure'; echo Expected; seq 3000 4000; exit 1")
add_test(NAME silent COMMAND sh -c "seq 5000 6000; exit 1")
add_test(NAME wrong COMMAND sh -c "echo 7000")
set_tests_properties(wrong PROPERTIES PASS_REGULAR_EXPRESSION 8000)
add_test(NAME late COMMAND sh -c "echo begun; exec sleep 1000")
set_tests_properties(late PROPERTIES TIMEOUT 1)
add_test(NAME skipped COMMAND sh -c "echo reason; exit 77")
set_tests_properties(skipped PROPERTIES SKIP_RETURN_CODE 77)
"""


def main():
    failures = pathlib.Path(sys.argv[1]) / "tests/support/failures.py"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "CMakeLists.txt").write_text(PROJECT)
        for command in (["cmake", "-G", "Ninja", "."], ["ctest"]):
            subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        said = subprocess.check_output([failures, f"{folder}/Testing/Temporary/LastTest.log"], text=True)
    bad = ["bad failed:", "bad.cc:1: Failure", "Expected", *map(str, range(3000, 3010))]
    silent = ["silent failed:", *map(str, range(5981, 6001))]
    assert said.split("\n\n") == ["\n" + "\n  ".join(bad), "\n  ".join(silent), "wrong failed:\n  7000", "late failed:\n  begun\n"], said


if __name__ == "__main__":
    main()
