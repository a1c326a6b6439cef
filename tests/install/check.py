"""Installs the build tree into a temporary folder, moves it, and builds and runs users of it there.

One of them is the program that README.md begins with, with README.md's CMakeLists.txt; it must print
what README.md says. Also: whatever an installed header or an example includes of farspan must be
installed.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

README = re.compile(r"```cpp\n(?P<program>.*?)```.*?\$ build/program\n(?P<output>.*?)```"
                    r".*?```cmake\n(?P<project>.*?)```", re.DOTALL)
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
        settings = ["-G", "Ninja", f"-DCMAKE_PREFIX_PATH={installed}", f"-DLIBTORCH_ROOT={ask.libtorch}",
                    f"-DCMAKE_CXX_COMPILER={ask.compiler}", "-DCMAKE_BUILD_TYPE=Release"]
        consumer = ask.source / "tests/install/consumer"
        run(ask.cmake, "-S", consumer, "-B", f"{folder}/build", *settings)
        run(ask.cmake, "--build", f"{folder}/build")
        print(run(f"{folder}/build/consumer"))
        readme = README.search((ask.source / "README.md").read_text())
        project = pathlib.Path(folder, "readme")
        project.mkdir()
        (project / "program.cc").write_text(readme["program"])
        (project / "CMakeLists.txt").write_text(readme["project"])
        run(ask.cmake, "-S", project, "-B", project / "build", *settings)
        run(ask.cmake, "--build", project / "build")
        output = run(project / "build/program")
        if output != readme["output"]:
            sys.exit(f"README.md's program printed {output!r}, not {readme['output']!r}")


if __name__ == "__main__":
    main()
