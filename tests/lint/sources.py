"""The files that the lint tests look at, and how a lint test reports and proves itself."""

import argparse
import pathlib
import sys
import tempfile

LIBRARY = ("c10d", "rpc", "rref", "autograd", "optim")
ROOMS = (*LIBRARY, "examples", "tests")


def tracked(root, suffixes):
    """All files under the rooms and beside them with one of the suffixes, as paths from root."""
    found = [p for p in root.iterdir() if p.is_file() and p.name != ".git"]  # a worktree's
    for room in ROOMS:
        found += [p for p in (root / room).rglob("*") if p.is_file()]
    return sorted(p.relative_to(root) for p in found if p.suffix in suffixes)


def code(root):
    return tracked(root, (".h", ".cc", ".cu"))


def read(root, path):
    return (root / path).read_text(encoding="utf-8", errors="replace")


def main(check, good, bad):
    """Runs check(root) -> complaints over the repository, after proving that it can fail.

    good and bad are {path: text}: a tree without complaints, and one where each file has some.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    root = parser.parse_args().root.resolve()
    prove(check, good, bad)
    complaints = check(root)
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


def prove(check, good, bad):
    for path, text in good.items():
        complaints = complaints_about(check, {path: text})
        assert not complaints, f"self-test: {path} should pass: {complaints}"
    for path, text in bad.items():
        assert complaints_about(check, {path: text}), f"self-test: {path} should fail"


def complaints_about(check, files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for room in ROOMS:
            (root / room).mkdir()
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return check(root)
