"""A clone of `dev` alone, and programs for its PATH that only pretend to install and to build."""

import os
import pathlib
import shutil

# By name, as shell scripts. DOWNLOADS is the file that counts them; CMAKE_LOG and APT_LOG get what
# cmake, apt-get and dpkg are asked for, one line a call.
PROGRAMS = {
    # With a file $APT_LOG.slow nothing is installed, and the first installation takes for ever; what
    # $APT_LOG.missing names is not installed.
    "dpkg-query": """
        [[ -e $APT_LOG.slow ]] || grep -qsx -- "${@: -1}" "$APT_LOG.missing" || echo installed
    """,
    "dpkg": 'echo "dpkg $*" >>"$APT_LOG"',
    "apt-get": """
        echo "apt-get $*" >>"$APT_LOG"
        [[ $1 != install || ! -e $APT_LOG.slow ]] || (( $(grep -c install "$APT_LOG") > 1 )) || exec sleep 1000
    """,
    "sudo": """
        while [[ $1 == -* ]]; do shift; done
        (($# == 0)) || exec "$@"
    """,
    "python3": """
        [[ $1 != --version ]] || exec echo Python 3.11.2
        mkdir -p "$3/bin" "$3/lib/python3.11/site-packages/torch"
        cp "$0.pip" "$3/bin/pip"
    """,
    "python3.pip": """
        echo "$*" >>"$DOWNLOADS"
        [[ ! -e $DOWNLOADS.slow ]] || exec sleep 1000
    """,
    "cmake": 'echo "$*" >>"$CMAKE_LOG"',
    "ctest": "",
    # The first call builds for ever, with a process of its own that does so too.
    "obedient/cmake": """
        trap 'touch "$CMAKE_LOG.obeyed"; exit 1' TERM
        sleep 1000 &
        touch "$CMAKE_LOG"
        wait
    """,
    "stubborn/cmake": """
        trap '' TERM INT HUP
        sleep 1000 &
        touch "$CMAKE_LOG"
        while true; do wait; sleep 1000; done
    """,
}


class Clones:
    """Clones in one folder, which share a cache."""

    def __init__(self, source, folder):
        self.source, self.folder = source, pathlib.Path(folder)
        self.downloads = self.folder / "downloads"
        self.cmake_log = self.folder / "cmake_log"
        self.apt_log = self.folder / "apt_log"
        for name, text in PROGRAMS.items():
            program = self.folder / "programs" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/usr/bin/env bash\n{text}\n")
            program.chmod(0o755)

    def clone(self, name):
        root = self.folder / name
        root.mkdir()
        for file in ("dev", "requirements.txt"):
            shutil.copy(self.source / file, root / file)
        return root

    def variables(self, programs=""):
        """For ./dev. programs: "obedient" or "stubborn", which cmake it finds."""
        found = self.folder / "programs"
        return {
            "PATH": f"{found / programs}:{found}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "DOWNLOADS": str(self.downloads),
            "CMAKE_LOG": str(self.cmake_log),
            "APT_LOG": str(self.apt_log),
            "LIBTORCH_ROOT": "",
        }

    def count_downloads(self):
        return len(self.downloads.read_text().splitlines()) if self.downloads.exists() else 0
