"""Installs the build tree into a temporary folder, moves it, and builds and runs users of it there.

One of them is the program that README.md begins with, with README.md's CMakeLists.txt; it must print
what README.md says. Also: whatever an installed header or an example includes of farspan must be
installed; who does not link farspan::cuda needs nothing of CUDA's.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

README = re.compile(r"```cpp\n(?P<program>.*?)```.*?\$ build/program\n(?P<output>.*?)```"
                    r".*?```cmake\n(?P<project>.*?)```", re.DOTALL)
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
OF_CUDA = re.compile("cuda|nccl")
INCLUDE = re.compile(r"^\s*#\s*include\s+<(farspan/[^>]+)>", re.MULTILINE)


def run(*command):
    print("+", *command, flush=True)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}exit status {done.returncode}")
    return done.stdout


def needed_by(program):
    """The libraries that it names itself. (LibTorch's core brings some of CUDA's with a CUDA wheel.)"""
    return NEEDED.findall(run("readelf", "--dynamic", program))


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
    parser.add_argument("--cuda", help="the toolkit that it was built with")
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
        run(ask.cmake, "-S", consumer, "-B", f"{folder}/build", *settings,
            *([f"-DCUDA_HOME={ask.cuda}"] if ask.cuda else []))
        run(ask.cmake, "--build", f"{folder}/build")
        print(run(f"{folder}/build/consumer"))
        of_cuda = {library for library in needed_by(f"{folder}/build/consumer") if OF_CUDA.search(library)}
        if of_cuda:
            sys.exit(f"without farspan::cuda a program needs {of_cuda}")
        if ask.cuda:
            run(f"{folder}/build/consumer_on_gpus")
            if not any(map(OF_CUDA.search, needed_by(f"{folder}/build/consumer_on_gpus"))):
                sys.exit("with farspan::cuda a program needs nothing of CUDA's")
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
