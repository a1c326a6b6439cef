"""Every C++ source file is compiled by some target, and every header of the rooms compiles alone in
lint.headers: none is forgotten in a CMakeLists.txt.

    built.py ROOT BUILD [--without-cuda]     files with "cuda" in their names need a toolkit
"""

import json
import pathlib
import re
import sys

import sources

# Built by the tests of installation and lint, in build folders of their own.
ELSEWHERE = ("tests/install/consumer/",)
# What CMake generates to compile a header alone.
ALONE = re.compile(r"_verify_interface_header_sets/farspan/(.*\.h)\.cxx$")


def check(root, build, without_cuda=False):
    commands = json.loads((build / "compile_commands.json").read_text())
    built = {pathlib.Path(command["directory"], command["file"]).resolve() for command in commands}
    alone = {found[1] for found in map(ALONE.search, map(str, built)) if found}
    return [
        f"{path}: no target compiles it" for path in sources.tracked(root, (".cc",))
        if (root / path).resolve() not in built and not str(path).startswith(ELSEWHERE)
        and not (without_cuda and "cuda" in path.name)
    ] + [
        f"{path}: no target has it among its headers" for path in sources.tracked(root, (".h",))
        if path.parts[0] in sources.LIBRARY and str(path) not in alone
    ]


BUILT = ("rpc/send.cc", "build/farspan_rpc_verify_interface_header_sets/farspan/rpc/rpc.h.cxx")


def check_alone(root):
    (root / "compile_commands.json").write_text(json.dumps(
        [{"directory": "/", "file": f"{root}/{file}"} for file in BUILT]))
    return check(root, root)


if __name__ == "__main__":
    sources.prove(check_alone, good={"rpc/send.cc": "", "rpc/rpc.h": "", "tests/rpc/some.h": ""},
                  bad={"rpc/receive.cc": "", "rpc/hidden.h": ""})
    complaints = check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]),
                       without_cuda="--without-cuda" in sys.argv[3:])
    print("\n".join(complaints))
    sys.exit(1 if complaints else 0)
