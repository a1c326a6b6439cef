"""Installs the build tree into a temporary folder, moves it, and builds and runs users of it there.

One of them is the program that README.md begins with; it must print what README.md says. Also: whatever an installed header or an example includes of farspan must be installed.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

README = re.compile(r"```cpp\n(?P<program>.*?)```\s+```\n(?P<output>.*?)```", re.DOTALL)
INCLUDE = re.compile(r"^\s*#\s*include\s+<(farspan/[^>]+)>", re.MULTILINE)


def run(*command):
    print("+", *command, flush=True)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}exit status {done.returncode}")
    return done.stdout


def missing_headers(installed, readers):
    for reader in readers:
        for target in INCLUDE.findall(reader.read_text()):
            if not (installed / "include" / target).exists():
                yield f"{reader} includes {target}, which is not installed (list it as PUBLIC)"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--libtorch", required=True)
    ask = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        installed = pathlib.Path(folder) / "moved"
        run(ask.cmake, "--install", ask.build, "--prefix", f"{folder}/first")
        pathlib.Path(folder, "first").rename(installed)
        readers = [*installed.rglob("*.h"), *ask.source.glob("examples/**/*.h"),
                   *ask.source.glob("examples/**/*.cc")]
        complaints = list(missing_headers(installed, readers))
        if complaints:
            sys.exit("\n".join(complaints))
        readme = README.search((ask.source / "README.md").read_text())
        program = pathlib.Path(folder, "readme.cc")
        program.write_text(readme["program"])
        run(ask.cmake, "-G", "Ninja", "-S", ask.source / "tests/install/consumer",
            "-B", f"{folder}/build", f"-DCMAKE_PREFIX_PATH={installed}",
            f"-DCMAKE_CXX_COMPILER={ask.compiler}", f"-DLIBTORCH_ROOT={ask.libtorch}",
            f"-DREADME_PROGRAM={program}", "-DCMAKE_BUILD_TYPE=Release")
        run(ask.cmake, "--build", f"{folder}/build")
        print(run(f"{folder}/build/consumer"))
        output = run(f"{folder}/build/readme")
        if output != readme["output"]:
            sys.exit(f"README.md's program printed {output!r}, not {readme['output']!r}")


if __name__ == "__main__":
    main()
