"""Sizes of files (600 lines), headers (250 lines of code) and functions (100 lines, by ctags)."""

import json
import re
import subprocess

import sources

FILE_LINES = 600
HEADER_LINES = 250  # neither comments nor empty lines; the aim is 200 with both
FUNCTION_LINES = 100
TEXT = (".h", ".cc", ".cu", ".py", ".cmake", ".txt", ".md", ".capnp", "")
HEADER = re.compile(r"^(c10d|rpc|rref|autograd|optim)/.*\.h$")
CODE = re.compile(r"^\s*(?!//)\S", re.MULTILINE)


def check(root):
    complaints = []
    for path in sources.tracked(root, TEXT):
        text = sources.read(root, path)
        lines = text.count("\n")
        if lines > FILE_LINES:
            complaints.append(f"{path}: {lines} lines, the limit is {FILE_LINES}")
        lines = len(CODE.findall(text)) if HEADER.match(str(path)) else 0
        if lines > HEADER_LINES:
            complaints.append(f"{path}: {lines} lines of code, the limit is {HEADER_LINES}")
    return complaints + long_functions(root)


def long_functions(root):
    files = "\n".join(str(root / path) for path in sources.code(root))
    tags = subprocess.run(
        ["ctags", "--languages=C++", "--langmap=C++:.h.cc.cu", "--kinds-C++=f", "--fields=+ne",
         "--output-format=json", "-f", "-", "-L", "-"],
        input=files, capture_output=True, text=True, check=True).stdout
    complaints = []
    for tag in map(json.loads, tags.splitlines()):
        lines = tag.get("end", tag["line"]) - tag["line"] + 1
        if lines > FUNCTION_LINES:
            place = tag["path"].removeprefix(f"{root}/")
            complaints.append(
                f"{place}:{tag['line']}: {tag['name']} has {lines} lines, "
                f"the limit is {FUNCTION_LINES}")
    return complaints


def function_of(lines):
    return "void f() {\n" + "  g();\n" * (lines - 2) + "}\n"


GOOD = {
    "rpc/send.cc": function_of(100) + "namespace a {\n" + function_of(99) + "}\n",
    "rpc/rpc.h": "  // says why\n\nint x;\n" * 200,
    "tests/rpc/send_test.cc": "\n" * 600,
}
BAD = {
    "rpc/send.cc": function_of(101),
    "rref/fork.cc": "namespace {\nstruct S {\n" + function_of(101) + "};\n}\n",
    "rpc/rpc.h": "int x;\n" * 251,
    "rpc/worker.h": "// says why\n" * 601,
    "tests/rpc/send_test.cc": "TEST(A, B) {\n" + "  g();\n" * 100 + "}\n",
    "optim/step.cc": "\n" * 601,
    "tests/lint/long.py": "\n" * 601,
}

if __name__ == "__main__":
    sources.main(check, GOOD, BAD)
