"""A program under watch: its processes, what they open, and what is left when they have ended."""

import os
import pathlib
import pty
import signal
import subprocess
import tempfile
import termios
import threading
import time
import uuid

MARK = "FARSPAN_WATCHED_RUN"
PROC = pathlib.Path("/proc")
STATE, EXIT_SIGNAL = 0, 35  # in /proc/PID/stat, counted from behind the name


def default_signals():
    # What starts the tests may ignore Ctrl-C (a job in the background does); the program must not.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def sockets_in_use():
    """Inodes of all TCP sockets but those that only wait out their time, and of all unix sockets."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in (PROC / "net" / name).read_text().splitlines()[1:]:
            inodes.add(line.split()[9])
    for line in (PROC / "net" / "unix").read_text().splitlines()[1:]:
        inodes.add(line.split()[6])
    return inodes - {"0"}


def unix_names():
    """{inode: name} of the unix sockets that have one."""
    lines = [line.split() for line in (PROC / "net" / "unix").read_text().splitlines()[1:]]
    return {fields[6]: fields[7] for fields in lines if len(fields) > 7}


def keep_what_was_written(terminal):
    """Else a Ctrl-C drops what has not been read: also what is said because of it, when that is said
    before the system, which tells the program first, has come to dropping."""
    attributes = termios.tcgetattr(terminal)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


class WatchedRun:
    """Starts a program in a session, a folder, and with temporary files of its own.

    It is told apart from all else on the machine by a variable that its processes inherit. It gets
    more of them from `variables`, a dict.
    """

    def __init__(self, command, terminal=False, variables=()):
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.folder = tempfile.TemporaryDirectory()
        self.sockets, self.shared, self.unix_names = set(), set(), set()
        self.begun = time.monotonic()
        self.terminal = None
        environment = dict(os.environ, TMPDIR=self.folder.name, TERM="xterm", LC_ALL="C")
        environment.update(variables)
        environment.update([self.mark.split("=")])
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if terminal:
            self.terminal, inside = pty.openpty()
            keep_what_was_written(inside)
            streams = dict.fromkeys(streams, inside)
        self.process = subprocess.Popen(
            [os.path.abspath(command[0]), *command[1:]], cwd=self.folder.name, env=environment, start_new_session=True, **streams,
            preexec_fn=lambda: self._before_exec(terminal))
        if terminal:
            os.close(inside)
            os.set_blocking(self.terminal, False)

    @staticmethod
    def _before_exec(terminal):
        default_signals()
        if terminal:
            import fcntl
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def pids(self):
        """Its processes that have not ended; the one that we started comes first, if it is there."""
        found = []
        for entry in PROC.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            ended = fields[STATE] in "ZX"
            # LeakSanitizer's helper at an exit, which shares all with its process, is no process:
            # killed, it would leave that process waiting for ever.
            is_process = int(fields[EXIT_SIGNAL]) == signal.SIGCHLD
            if self.mark.encode() in variables and not ended and is_process:
                found.append(int(entry.name))
        return sorted(found, key=lambda pid: (pid != self.process.pid, pid))

    def look(self):
        """Notes what its processes have open now, and returns their ids."""
        pids = self.pids()
        for pid in pids:
            try:
                targets = [os.readlink(fd) for fd in (PROC / str(pid) / "fd").iterdir()]
                maps = (PROC / str(pid) / "maps").read_text().split()
            except OSError:
                continue
            self.sockets.update(t[8:-1] for t in targets if t.startswith("socket:["))
            self.shared.update(name for name in targets + maps if name.startswith("/dev/shm/"))
        names = unix_names()
        self.unix_names.update(names[inode] for inode in self.sockets & names.keys())
        return pids

    def watch_to_its_end(self, seconds, eager=False):
        """As finish(), and looks again and again until then, for what opens late as well.

        eager: without pauses, which takes a core; else it takes a tenth of one
        """
        ended = threading.Event()

        def keep_looking():
            pause = 0
            while not ended.wait(pause):
                begun = time.monotonic()
                self.look()
                pause = 0 if eager else max(0.05, 9 * (time.monotonic() - begun))

        watcher = threading.Thread(target=keep_looking)
        watcher.start()
        try:
            return self.finish(seconds)
        finally:
            ended.set()
            watcher.join()

    def wait_until(self, elapsed):
        """Until so many seconds after the start, or the end of the program."""
        left = self.begun + elapsed - time.monotonic()
        try:
            self.process.wait(max(left, 0))
        except subprocess.TimeoutExpired:
            pass

    def finish(self, seconds):
        """Waits for its end, within a limit.

        returns: status, standard output, standard error
        """
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it still runs after {seconds} s") from None
        return self.process.returncode, (out or b"").decode(), (err or b"").decode()

    def read_terminal(self):
        text = b""
        try:
            while chunk := os.read(self.terminal, 65536):
                text += chunk
        except (BlockingIOError, OSError):
            pass  # nothing more now, or nobody at the other end any more
        return text.decode(errors="replace")

    def kill(self):
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def left_over(self, seconds, files):
        """What is left after at most so many seconds: nothing, it should be.

        files: a function that says of a path whether it may stay
        """
        deadline = time.monotonic() + seconds
        while True:
            left = [f"process {pid}" for pid in self.pids()]
            left += [f"socket {inode}" for inode in sorted(self.sockets & sockets_in_use())]
            left += [f"segment {name}" for name in sorted(self.shared) if os.path.exists(name)]
            left += [f"file {path.name}" for path in sorted(pathlib.Path(self.folder.name).rglob("*"))
                     if not files(path)]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.kill()
        if self.terminal is not None:
            os.close(self.terminal)
        self.folder.cleanup()
        return left
