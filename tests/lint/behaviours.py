"""Every test that BEHAVIOURS.md names is there: its folder, its file, and its name in that file."""

import re

import sources

PAGE = "tests/c10d/BEHAVIOURS.md"
FOLDERS = ("tests/c10d", "tests/conformance")  # where files are that are named without a folder
ENDINGS = ("", ".cc", ".h")
WITHOUT_TESTS = "## Left out"  # from there on reasons, not names
# `a file`, or Name, or Suite.Name
NAMED = re.compile(r"`([^`]+)`|\b([A-Z]\w+(?:\.[A-Z]\w+)?)")
TEST = re.compile(r"\bTEST\w*\(\s*(\w+),\s*(\w+)\s*\)")


def find(root, folder, name):
    """The file of this name; below the folder, if one was named."""
    folders = (folder,) if folder else FOLDERS
    found = [path for folder in folders for ending in ENDINGS
             for path in sorted((root / folder).rglob(name + ending)) if path.is_file()]
    return found[0] if found else None


def complaints_of(root, cell):
    folder, file, tests = None, None, ()
    for named, text in NAMED.findall(re.sub(r"\([^)]*\)", "", cell)):
        if named.startswith("tests/"):
            folder = named
            if not (root / folder).is_dir():
                yield f"there is no folder {folder}"
        elif named:
            file = find(root, folder, named)
            folder, tests = None, ()
            if file:
                tests = TEST.findall(sources.read(root, file.relative_to(root)))
            else:
                yield f"there is no file '{named}'"
        elif not any(text in (test, f"{suite}.{test}") for suite, test in tests):
            yield f"there is no test {text} in {file.name if file else 'no file'}"


def check(root):
    complaints = []
    for number, line in enumerate(sources.read(root, PAGE).splitlines(), 1):
        if line.startswith(WITHOUT_TESTS):
            break
        if not line.startswith("| ") or line.startswith(("| ---", "| behaviour")):
            continue
        cell = line.strip("| ").rsplit(" | ", 1)[-1]
        problems = list(complaints_of(root, cell))
        if "`" not in cell:
            problems.append("no test is named")
        complaints += [f"{PAGE}:{number}: {problem}" for problem in problems]
    return complaints


SOURCES = {
    "tests/c10d/store/store_test.cc": "TEST(Store, GetWaits) {}\nTEST_F(Keys,\n       AreBytes) {}\n",
    "tests/c10d/store/store_test.py": "",
    "tests/conformance/store_suite.h": "TEST_P(StoreSuite, AddCounts) {}\n",
    "tests/parity/store_parity_test.cc": "TEST(Parity, IsThere) {}\n",
}
GOOD = (
    "| gets | `store_test` GetWaits, Keys.AreBytes (also over TCP); `store_suite` AddCounts |\n",
    "| | `tests/parity`, `store_parity_test` IsThere; `store_test.py` |\n",
    "| behaviour | test |\n| --- | --- |\n| all | `store_suite` (all of it) |\n",
    "## Left out, and why\n| Gloo's | not built; `gone_test` Played |\n",
)
BAD = (
    "| gets | `store_test` GetWaitsForTheKey |\n",
    "| gets | `store_test` GetWaits, GetEnds |\n",
    "| gets | `store_test` Keys.GetWaits |\n",
    "| gets | `store_test` AddCounts |\n",
    "| gets | `gone_test` GetWaits |\n",
    "| gets | `store_parity_test` IsThere |\n",
    "| gets | `tests/gone`, `store_parity_test` IsThere |\n",
    "| gets | `gone_test.py` |\n",
    "| gets | GetWaits |\n",
    "| gets | to be tested |\n",
)


def check_page(root):
    """A page beside some tests."""
    for path, text in SOURCES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return check(root)


if __name__ == "__main__":
    for page in GOOD:
        sources.prove(check_page, {PAGE: page}, {})
    for page in BAD:
        sources.prove(check_page, {}, {PAGE: page})
    sources.main(check, {}, {})
