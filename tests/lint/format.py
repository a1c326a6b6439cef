"""All C++ files are as clang-format leaves them."""

import concurrent.futures
import os
import pathlib
import subprocess

import sources

STYLE = pathlib.Path(__file__).resolve().parents[2] / ".clang-format"


def unformatted(root, path):
    text = (root / path).read_bytes()
    formatted = subprocess.run(
        ["clang-format", f"--style=file:{STYLE}", f"--assume-filename={path}"],
        input=text, capture_output=True, check=True).stdout
    return text != formatted


def check(root):
    files = sources.code(root)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = pool.map(lambda path: unformatted(root, path), files)
    return [f"{path}: run clang-format -i on it" for path, bad in zip(files, wrong) if bad]


GOOD = {"rpc/send.cc": "int twice(int x) { return x + x; }\n"}
BAD = {"rpc/send.cc": "int twice(int x) {return x+x;}\n", "rpc/rpc.h": "int * p;\n"}

if __name__ == "__main__":
    sources.main(check, GOOD, BAD)
