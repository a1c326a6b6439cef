#!/usr/bin/env python3
"""CMake takes the LibTorch and the CUDA toolkit that the user names, and others when they change:
own_toolkits_test.py REPOSITORY CMAKE

All of them are stand-ins: folders of empty libraries.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH %s/c10d)
find_package(LibTorch 2.11 REQUIRED)
get_target_property(torch farspan::libtorch_torch_cpu IMPORTED_LOCATION)
set(cudart none)
if(TARGET farspan::torch_cuda)
  get_target_property(cudart CUDA::cudart IMPORTED_LOCATION)
endif()
message(STATUS "takes ${torch} and ${LibTorch_INCLUDE_DIR} and ${cudart} of ${CUDAToolkit_VERSION}")
"""


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make_libtorch(root, version):
    major, minor, patch = version.split(".")
    write(root / "include/ATen/ATen.h")
    write(root / "include/torch/headeronly/version.h",
          f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n"
          f"#define TORCH_VERSION_PATCH {patch}\n")
    for library in ("torch_cpu", "c10", "torch_cuda", "c10_cuda"):
        write(root / f"lib/lib{library}.so")
    return root


def make_toolkit(root, version):
    write(root / "include/cuda_runtime.h")
    write(root / "lib64/libcudart.so")
    write(root / "bin/nvcc", f'#!/bin/sh\necho "Cuda compilation tools, V{version}"\n').chmod(0o755)
    return root


class User:
    """Configures in one build folder, again and again."""

    def __init__(self, repository, cmake, folder):
        self.cmake, self.folder = cmake, folder
        write(folder / "CMakeLists.txt", PROJECT % repository)

    def run(self, *definitions, **environment):
        kept = {name: value for name, value in os.environ.items()
                if name not in ("LIBTORCH_ROOT", "CUDA_HOME", "CUDA_PATH")}
        # Not installed toolkits: those found by PATH or where they usually are.
        kept["PATH"] = os.pathsep.join(
            path for path in os.environ["PATH"].split(os.pathsep) if "cuda" not in path)
        return subprocess.run(
            [self.cmake, "-G", "Ninja", "-S", self.folder, "-B", self.folder / "build",
             *definitions],
            env={**kept, **{name: str(value) for name, value in environment.items()}},
            capture_output=True, text=True)

    def takes(self, torch, toolkit, *definitions, **environment):
        done = self.run(*definitions, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("-- takes ")]
        assert f"takes {torch}/lib/libtorch_cpu.so and {torch}/include and " in line, line
        if toolkit is not None:
            assert f" and {toolkit}/lib64/libcudart.so of {toolkit.name}" in line, line


def main():
    repository, cmake = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        one, two = (make_libtorch(folder / version, version) for version in ("2.11.0", "2.11.1"))
        old = make_libtorch(folder / "2.10.0", "2.10.0")
        cuda12, cuda13 = (make_toolkit(folder / version, version) for version in ("12.6.1", "13.0.2"))
        user = User(repository, cmake, folder / "user")

        # By the environment, and by another one; what a variable says goes before it.
        user.takes(one, cuda12, LIBTORCH_ROOT=one, CUDA_HOME=cuda12)
        user.takes(two, cuda12, LIBTORCH_ROOT=two, CUDA_HOME=cuda12)
        user.takes(two, cuda13, LIBTORCH_ROOT=two, CUDA_HOME=cuda13)
        user.takes(two, cuda13)  # as a build tool runs CMake again
        user.takes(one, cuda12, f"-DLIBTORCH_ROOT={one}", f"-DCUDA_HOME={cuda12}",
                   LIBTORCH_ROOT=two, CUDA_HOME=cuda13)

        # As ./dev does: every run says both. The toolkit is then whichever this machine has.
        user.takes(two, cuda13, f"-DLIBTORCH_ROOT={two}", f"-DCUDA_HOME={cuda13}")
        user.takes(two, None, f"-DLIBTORCH_ROOT={two}", "-DCUDA_HOME=")
        user.takes(one, cuda12, f"-DLIBTORCH_ROOT={one}", f"-DCUDA_HOME={cuda12}")

        for wrong in (old, folder / "nowhere"):
            done = user.run(f"-DLIBTORCH_ROOT={wrong}")
            assert done.returncode != 0, f"{wrong} is taken"
            assert "LIBTORCH_ROOT" in done.stderr, done.stderr
        user.takes(one, cuda12, f"-DLIBTORCH_ROOT={one}")


if __name__ == "__main__":
    main()
