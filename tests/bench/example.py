"""Runs an example as a benchmark: example.py CASE PROGRAM ARGUMENT..

Its figures are those in the table that closes its run, of the training alone, without what comes
before and after it: samples a second, and the processor time of all its processes. Its files go to
a folder that is removed.
"""

import json
import re
import subprocess
import sys
import tempfile

ROWS = {"": ("samples/s", r"samples/s +([0-9,]+)"),
        ", processor time": ("s", r"processor time of all +([0-9.]+) s")}


def main():
    case, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr.strip()[-600:])
    for part, (unit, row) in ROWS.items():
        found = re.search(f"^{row}$", run.stdout, re.MULTILINE)
        if not found:
            sys.exit(f"{command[0]} printed no row like '{row}'")
        value = float(found[1].replace(",", ""))
        print(json.dumps({"case": case + part, "value": value, "unit": unit}))


if __name__ == "__main__":
    main()
