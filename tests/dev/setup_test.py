#!/usr/bin/env python3
"""What `./dev` downloads, and which LibTorch it configures with: setup_test.py REPOSITORY"""

import fcntl
import os
import pathlib
import subprocess
import sys
import tempfile

from clone import Clones


def dev(clones, root, *arguments, **variables):
    done = subprocess.run([root / "dev", *arguments], cwd=clones.folder, capture_output=True, text=True,
                          env={**os.environ, **clones.variables(), **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def a_second_clone_downloads_nothing(clones):
    first, second = clones.clone("first"), clones.clone("second")
    dev(clones, first, "setup")
    assert clones.count_downloads() == 1
    assert "-r requirements.txt" in clones.downloads.read_text()
    dev(clones, first, "setup")
    assert "Downloading" not in dev(clones, second, "setup")
    dev(clones, second, "build")
    assert clones.count_downloads() == 1, "it was downloaded again"
    assert os.readlink(first / ".venv") == os.readlink(second / ".venv")
    assert pathlib.Path(os.readlink(first / ".venv")).is_relative_to(clones.folder / "cache")

    dev(clones, first, "clean")
    dev(clones, first, "setup")
    assert clones.count_downloads() == 1, "clean threw the download away"

    (second / "requirements.txt").write_text("torch==2.12.0\n")
    dev(clones, second, "setup")
    assert clones.count_downloads() == 2, "other requirements, the same download"
    assert os.readlink(first / ".venv") != os.readlink(second / ".venv")


def clones_that_begin_at_once_download_once(clones):
    roots = [clones.clone(f"clone{number}") for number in range(3)]
    running = [subprocess.Popen([root / "dev", "setup"], stdout=subprocess.DEVNULL,
                                env={**os.environ, **clones.variables()}) for root in roots]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert clones.count_downloads() == 1


def half_a_download_is_made_again(clones):
    root = clones.clone("clone")
    dev(clones, root, "setup")
    pathlib.Path(os.readlink(root / ".venv"), ".complete").unlink()
    dev(clones, root, "setup")
    assert clones.count_downloads() == 2


def what_is_installed_goes_where_the_caller_says(clones):
    root = clones.clone("clone")
    out = dev(clones, root, "install", "there")  # called from clones.folder
    there = clones.folder / "there"
    assert f"--install build/release --prefix {there}" in clones.cmake_log.read_text()
    assert f"-DCMAKE_PREFIX_PATH={there}" in out, out
    libtorch = pathlib.Path(os.readlink(root / ".venv"), "lib/python3.11/site-packages/torch")
    assert f"-DLIBTORCH_ROOT={libtorch}\n" in out, out


def one_at_a_time_builds_in_a_clone(clones):
    root = clones.clone("clone")
    with open(root / "dev") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = [subprocess.Popen([root / "dev", verb], stdout=subprocess.PIPE, text=True,
                                    env={**os.environ, **clones.variables()}) for verb in ("build", "clean")]
        said = [process.stdout.readline() for process in waiting]
        assert said == ["Waiting for another ./dev that builds here\n"] * 2, said
        assert not clones.cmake_log.exists()
    assert [process.wait() for process in waiting] == [0, 0]
    for process in waiting:
        process.stdout.close()


def the_users_own_libtorch_is_taken(clones):
    root, own = clones.clone("clone"), clones.folder / "own"
    own.mkdir()
    for libtorch in ("own", str(root), ""):
        dev(clones, root, "build", LIBTORCH_ROOT=libtorch)
        assert clones.count_downloads() == (0 if libtorch else 1)
    configured = [line for line in clones.cmake_log.read_text().splitlines() if "--build" not in line]
    # Expect: each run says where to look, so that an earlier answer in CMake's cache does not stay.
    assert [line.split("-DLIBTORCH_ROOT=")[1].split(" ")[0] for line in configured] == [
        str(own), str(root), ""], configured


def the_users_own_cuda_toolkit_is_taken(clones):
    root = clones.clone("clone")
    for toolkit in ("/opt/cuda", ""):
        dev(clones, root, "build", LIBTORCH_ROOT=str(clones.folder), CUDA_HOME=toolkit)
    configured = [line for line in clones.cmake_log.read_text().splitlines() if "--build" not in line]
    assert [line.split("-DCUDA_HOME=")[1].split(" ")[0] for line in configured] == ["/opt/cuda", ""], configured


def is_asked_for(clones, verb):
    asked = clones.apt_log.read_text().splitlines() if clones.apt_log.exists() else []
    return [line for line in asked if line.startswith(f"apt-get {verb}")]


def an_etcd_that_cannot_be_had_is_a_warning_unless_it_is_needed(clones):
    root = clones.clone("clone")
    path = [folder for folder in clones.variables()["PATH"].split(":")
            if not pathlib.Path(folder, "etcd").exists()]
    done = [subprocess.run([root / "dev", "test"], capture_output=True, text=True, env={
        **os.environ, **clones.variables(), "PATH": ":".join(path), "FARSPAN_NEED_ALL": need})
        for need in ("", "1")]
    assert is_asked_for(clones, "download")
    assert done[0].returncode == 0 and "tests are skipped" in done[0].stderr, done[0]
    assert done[1].returncode == 1 and "Downloading etcd failed" in done[1].stderr, done[1]


def any_package_of_libcurl_will_do_and_none_is_removed(clones):
    root, missing = clones.clone("clone"), pathlib.Path(f"{clones.apt_log}.missing")
    missing.write_text("libcurl4-openssl-dev\n")
    dev(clones, root, "setup")
    assert not is_asked_for(clones, "install")
    missing.write_text("".join(f"libcurl4-{tls}-dev\n" for tls in ("openssl", "gnutls", "nss")))
    dev(clones, root, "setup")
    asked = is_asked_for(clones, "install")
    assert len(asked) == 1 and asked[0].endswith(" libcurl4-openssl-dev"), asked
    assert "--no-remove" in asked[0]


def what_links_cuda_is_built_for_a_measurement_of_gpus(clones):
    root = clones.clone("clone")
    run = root / "tests" / "bench" / "run"
    run.parent.mkdir(parents=True)
    run.write_text("#!/bin/sh\n")
    run.chmod(0o755)
    for arguments, targets in (
            ((), "bench bench_gpu"), (("gpu",), "bench bench_gpu"), (("rpc", "--check", "gpu"), "bench bench_gpu"),
            (("--rounds", "1"), "bench bench_gpu"), (("rpc",), "bench"), (("--rounds", "1", "rpc"), "bench"),
            (("--out", "gpu", "rpc", "job"), "bench")):
        dev(clones, root, "bench", *arguments)
        built = clones.cmake_log.read_text().splitlines()[-1]
        assert built.endswith(f" --target {targets}"), (arguments, built)


def tests_bring_open_mpi_with_them(clones):
    root = clones.clone("clone")
    pathlib.Path(f"{clones.apt_log}.missing").write_text("libopenmpi-dev\nopenmpi-bin\n")
    dev(clones, root, "build")
    assert not is_asked_for(clones, "install")
    dev(clones, root, "test", FARSPAN_NEED_ALL="")
    asked = is_asked_for(clones, "install")
    assert len(asked) == 1 and asked[0].endswith(" libopenmpi-dev openmpi-bin"), asked


def a_demo_needs_nothing_for_stores(clones):
    root = clones.clone("clone")
    pathlib.Path(f"{clones.apt_log}.missing").write_text("libhiredis-dev\nlibcurl4-openssl-dev\nlibopenmpi-dev\n")
    for file in ("examples/one/one.cc", "build/release/examples/one/one"):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("#!/bin/sh\n")
        (root / file).chmod(0o755)
    dev(clones, root, "demo", "one")
    assert not is_asked_for(clones, "install")


def main():
    for rule in (a_second_clone_downloads_nothing, clones_that_begin_at_once_download_once,
                 half_a_download_is_made_again, what_is_installed_goes_where_the_caller_says,
                 one_at_a_time_builds_in_a_clone, the_users_own_libtorch_is_taken, the_users_own_cuda_toolkit_is_taken,
                 an_etcd_that_cannot_be_had_is_a_warning_unless_it_is_needed,
                 any_package_of_libcurl_will_do_and_none_is_removed, what_links_cuda_is_built_for_a_measurement_of_gpus,
                 tests_bring_open_mpi_with_them, a_demo_needs_nothing_for_stores):
        print(rule.__name__, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rule(Clones(pathlib.Path(sys.argv[1]), folder))


if __name__ == "__main__":
    main()
