#!/usr/bin/env python3
"""What examples say to --help and to wrong arguments: arguments_test.py PROGRAM OPTION.."""

import subprocess
import sys

WRONG = (
    ["--epochs", "0"],
    ["--lr", "fast"],
    ["--transport", "pigeon"],
    ["--lr", "-1"],
    ["--no-such-option"],
    ["--epoch", "2"],
    ["--curves", "/dev/null/curves.svg"],
    ["--checkpoint", "/"],
    ["unexpected"],
)


def main():
    program, options = sys.argv[1], sys.argv[2:]
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    for option in options:
        assert option in text, f"--help does not tell of {option}:\n{text}"
    for arguments in WRONG:
        run = subprocess.run([program, *arguments], capture_output=True, text=True)
        said = run.stdout + run.stderr
        assert run.returncode != 0, f"{arguments} is accepted"
        assert len(said.splitlines()) == 1 and "--help" in said, f"{arguments}: {said}"
        assert len(said) < 200, f"{arguments}: {said}"
        assert "--epochs" not in text or "--epoch" not in arguments or "is --epochs meant?" in said, said
        wrong = arguments[0] if arguments[0] in said else arguments[-1]
        assert wrong in said, f"{arguments}: it does not say what is wrong: {said}"


if __name__ == "__main__":
    main()
