"""Every C++ source file is compiled by some target, and every header of the rooms compiles alone in
`./dev lint`: none is forgotten in a CMakeLists.txt.

    built.py ROOT BUILD [PATTERN..]     paths like a PATTERN need what this machine does not have
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


def check(root, build, without=()):
    commands = json.loads((build / "compile_commands.json").read_text())
    built = {pathlib.Path(command["directory"], command["file"]).resolve() for command in commands}
    alone = {found[1] for found in map(ALONE.search, map(str, built)) if found}

    def tracked(ending):
        return (path for path in sources.tracked(root, (ending,))
                if not any(path.match(pattern) for pattern in without))

    return [
        f"{path}: no target compiles it" for path in tracked(".cc")
        if (root / path).resolve() not in built and not str(path).startswith(ELSEWHERE)
    ] + [
        f"{path}: no target has it among its headers" for path in tracked(".h")
        if path.parts[0] in sources.LIBRARY and str(path) not in alone
    ]


BUILT = ("rpc/send.cc", "build/farspan_rpc_verify_interface_header_sets/farspan/rpc/rpc.h.cxx")


def check_alone(root):
    (root / "compile_commands.json").write_text(json.dumps(
        [{"directory": "/", "file": f"{root}/{file}"} for file in BUILT]))
    return check(root, root, without=["mpi/*", "*cuda*", "cuda/*"])


if __name__ == "__main__":
    sources.prove(check_alone,
                  good={"rpc/send.cc": "", "rpc/rpc.h": "", "tests/rpc/some.h": "",
                        "c10d/mpi/wire.cc": "", "c10d/mpi/wire.h": "", "rpc/cuda_ipc.cc": "",
                        "rpc/device/cuda/register.cc": ""},
                  bad={"rpc/receive.cc": "", "rpc/hidden.h": "", "rpc/compile.cc": ""})
    complaints = check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]),
                       without=list(filter(None, sys.argv[3:])))
    print("\n".join(complaints))
    sys.exit(1 if complaints else 0)
