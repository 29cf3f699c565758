"""
One GPU's `nvidia-cuda-mps-control`: started, found again, asked, ended.

The daemon must outlive whoever started it, or every program on the card loses its server when the supervisor is
replaced. So it runs in the foreground (`-f`) in a session of its own, its output goes to a file, and its standard input
is a named pipe that it holds open for writing too: it never sees an end of input, and a later supervisor can still say
`quit` there. Who it is stands in a file, as process id and start time, written by the daemon's own process before it
becomes the daemon; a process id alone may be somebody else's by now.

Commands are asked by another run of the same program, as NVIDIA documents it (docs.nvidia.com/deploy/mps).

Must not: decide when to do any of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from pathlib import Path

from nodeagent.mps.places import read_text

log = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
_LAUNCH = 'echo "$$ $(cut -d " " -f 22 /proc/$$/stat)" >"$1.new" && mv "$1.new" "$1" && shift && exec "$@"'
"""The shell's process id and start time stay those of the program that it becomes."""
_SELINUX_TYPE = b"system_u:object_r:container_file_t:s0"
_INHERITED = ("PATH", "LD_LIBRARY_PATH")


class Daemon:
    """
    The daemon of the GPU `uuid`. `folder`: where its files are. `command`: the program and its arguments. `timeout`:
    seconds that one command may take. Used by one thread.
    """

    def __init__(self, folder: Path, uuid: str, *, command: tuple[str, ...] = (PROGRAM,), timeout: float = 5.0) -> None:
        self._folder, self._uuid, self._command, self._timeout = folder, uuid, command, timeout
        self._child = 0

    @property
    def claimed(self) -> bool:
        """Whether we set the card's compute mode."""
        return (self._folder / "claimed").exists()

    def claim(self, claimed: bool) -> None:
        """Note it. Raises OSError."""
        self._make_folders()
        if claimed:
            (self._folder / "claimed").touch()
        else:
            (self._folder / "claimed").unlink(missing_ok=True)

    def pid(self) -> int:
        """The daemon's process id, 0 where it does not run."""
        if self._child:
            # A child that has ended stays in the process table until it is asked for.
            try:
                self._child = 0 if os.waitpid(self._child, os.WNOHANG)[0] else self._child
            except ChildProcessError:
                self._child = 0
        if self._child:
            # It may not have come to writing its file yet.
            return self._child
        text, _, started = read_text(self._folder / "daemon").strip().partition(" ")
        pid = _number(text)
        return pid if pid and started and start_time(pid) == started else 0

    def start(self) -> None:
        """Start it. Whether it serves is seen by asking. Raises OSError."""
        self._make_folders()
        # A daemon that was killed leaves these, and the next one takes them for a living one's.
        for name in ("control", "control_lock", "control_privileged", "nvidia-cuda-mps-control.pid"):
            (self._folder / "pipe" / name).unlink(missing_ok=True)
        told = str(self._folder / "log" / "output")
        command = ["/bin/sh", "-c", _LAUNCH, "sh", str(self._folder / "daemon"), *self._command, "-f"]
        self._child = os.posix_spawn(
            command[0],
            command,
            {**self._environment(), "CUDA_VISIBLE_DEVICES": self._uuid},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, str(self._stdin()), os.O_RDWR, 0),
                (os.POSIX_SPAWN_OPEN, 1, told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def ask(self, command: str) -> str | None:
        """The daemon's answer to one command, None where there is none in time or the asking failed."""
        try:
            done = subprocess.run(
                self._command[:1],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=self._timeout,
                env=self._environment(),
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return None
        return done.stdout if done.returncode == 0 else None

    def pids(self, command: str) -> tuple[int, ...] | None:
        """The process ids that are the answer to a command, None where there is no answer."""
        answer = self.ask(command)
        return None if answer is None else tuple(int(word) for word in answer.split() if word.isdecimal())

    def quit(self) -> None:
        """Ask it to end when its clients let it. One that is gone already needs no asking."""
        with contextlib.suppress(OSError):
            stdin = os.open(self._stdin(), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(stdin, b"quit\n")
            finally:
                os.close(stdin)

    def kill(self) -> None:
        """End it and its servers at once, also those that it left behind."""
        leader = self.pid() or self._last_pid()
        if leader:
            for pid in session(leader):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _last_pid(self) -> int:
        """The process id of a daemon that has ended, 0 where it is somebody else's by now."""
        pid = _number(read_text(self._folder / "daemon").partition(" ")[0])
        return 0 if pid and start_time(pid) else pid

    def _stdin(self) -> Path:
        path = self._folder / "stdin"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        return path

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        pipe, told = self._folder / "pipe", self._folder / "log"
        return {**kept, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(told)}

    def _make_folders(self) -> None:
        for name in ("pipe", "log"):
            folder = self._folder / name
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if Path("/sys/fs/selinux/enforce").exists():
            try:
                os.setxattr(self._folder / "pipe", "security.selinux", _SELINUX_TYPE)
            except OSError as error:
                log.warning("containers may not reach the MPS daemon under SELinux", extra={"said": str(error)})


def start_time(pid: int) -> str:
    """
    When a process started, in clock ticks since the machine's start (proc(5), `stat`, field 22); empty where it has
    ended, even if nobody asked for its end yet.
    """
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def session(leader: int) -> tuple[int, ...]:
    """
    The processes of the session that `leader` made (proc(5), `stat`, field 6).

    While one of them is there, the number is given to no other process, even if the leader itself has ended.
    """
    pids = (_number(path.name) for path in Path("/proc").iterdir())
    return tuple(sorted(pid for pid in pids if pid and _stat(pid)[3:4] == [str(leader)]))


def _stat(pid: int) -> list[str]:
    """The fields from the third on: the second is the program's name in brackets, and may contain anything."""
    fields = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields if len(fields) > 19 else []


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
