"""Every C++ source file is compiled by some target: none is forgotten in a CMakeLists.txt.

    built.py ROOT BUILD [--without-cuda]     files with "cuda" in their names need a toolkit
"""

import json
import pathlib
import sys

import sources

# Built by the tests of installation and lint, in build folders of their own.
ELSEWHERE = ("tests/install/consumer/",)


def check(root, build, without_cuda=False):
    commands = json.loads((build / "compile_commands.json").read_text())
    built = {pathlib.Path(command["directory"], command["file"]).resolve() for command in commands}
    return [f"{path}: no target compiles it" for path in sources.tracked(root, (".cc",))
            if (root / path).resolve() not in built and not str(path).startswith(ELSEWHERE)
            and not (without_cuda and "cuda" in path.name)]


ENTRY = '[{"directory": "/", "file": "%s/rpc/send.cc"}]'


def check_alone(root):
    (root / "compile_commands.json").write_text(ENTRY % root)
    return check(root, root)


if __name__ == "__main__":
    sources.prove(check_alone, good={"rpc/send.cc": ""}, bad={"rpc/receive.cc": ""})
    complaints = check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]),
                       without_cuda="--without-cuda" in sys.argv[3:])
    print("\n".join(complaints))
    sys.exit(1 if complaints else 0)
