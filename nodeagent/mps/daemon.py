"""
The `nvidia-cuda-mps-control` of one GPU: starts it, finds it again, sends it commands, ends it.

The daemon must outlive its starter, or every program on the card loses its server when the supervisor is replaced. So
it runs in the foreground (`-f`) in a session of its own, and its output goes to a file. It closes its standard input
and takes no commands there. A file has its process id and start time, written by the daemon's own process before it
becomes the daemon; the process id alone could be another process's by now.

Another run of the same program sends a command, as NVIDIA documents it (docs.nvidia.com/deploy/mps). Its exit status
shows only whether it reached the daemon: an unknown command, or a missing server, gives a text and status 0.

The daemon listens on two sockets. On `control` it serves CUDA programs and answers queries. On `control_privileged` it
takes every command from clients of its own user, which is root: to end it, or to end the clients of others. Containers
have the folder of both, and the daemon takes their root for its own, so the second socket is moved out of the folder.

Must not: decide when to do any of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path

from nodeagent.files import read_text
from nodeagent.mps.partitions import FLAG

log = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
_LAUNCH = 'echo "$$ $(cut -d " " -f 22 /proc/$$/stat)" >"$1.new" && mv "$1.new" "$1" && shift && exec "$@"'
"""The shell's process id and start time stay those of the program that it becomes."""
_SELINUX_TYPE = b"system_u:object_r:container_file_t:s0"
_INHERITED = ("PATH", "LD_LIBRARY_PATH")
_PRIVILEGED = "control_privileged"
_MOST_OUTPUT = 1 << 20
"""Bytes of the daemon's output, four lines for each query. Twice as much is kept, in the host's memory."""


class Daemon:
    """
    The daemon of the GPU `uuid`. `folder`: its files. `command`: the program and its arguments. `timeout`: seconds that
    one command may take. One thread uses it.
    """

    def __init__(self, folder: Path, uuid: str, *, command: tuple[str, ...] = (PROGRAM,), timeout: float = 5.0) -> None:
        self._folder = folder
        self._uuid = uuid
        self._command = command
        self._timeout = timeout
        self._child = 0
        self._quitting = 0

    @property
    def claimed(self) -> bool:
        """Whether we set the card's compute mode."""
        return (self._folder / "claimed").exists()

    def claim(self, claimed: bool) -> None:
        """Record whether we set the card's compute mode. Raises OSError."""
        self._make_folders()
        if claimed:
            (self._folder / "claimed").touch()
        else:
            (self._folder / "claimed").unlink(missing_ok=True)

    def pid(self) -> int:
        """The daemon's process id, 0 if it does not run."""
        self._child = _still(self._child)
        self._quitting = _still(self._quitting)
        if self._child:
            # It may not have written its file yet.
            return self._child
        text, _, started = read_text(self._folder / "daemon").strip().partition(" ")
        pid = _number(text)
        return pid if pid and started and start_time(pid) == started else 0

    @property
    def partitions(self) -> Path:
        """The file of the card's partitions."""
        return self._folder / "partitions"

    def partitioned(self) -> bool:
        """Whether the daemon that runs was started to give out partitions; that cannot be changed later."""
        pid = self.pid()
        return bool(pid) and FLAG in read_text(Path(f"/proc/{pid}/cmdline")).split("\0")

    def version(self) -> str:
        """The program's output about its version, or empty."""
        try:
            done = subprocess.run(
                (*self._command[:1], "-v"),
                capture_output=True,
                text=True,
                timeout=self._timeout,
                stdin=subprocess.DEVNULL,
                env=self._environment(self._folder / "pipe"),
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return ""
        return done.stdout if done.returncode == 0 else ""

    def start(self, *flags: str) -> None:
        """Start it with these flags. Queries show later whether it serves. Raises OSError."""
        self._make_folders()
        (self._keys / _PRIVILEGED).unlink(missing_ok=True)
        # A killed daemon leaves these. The next daemon replaces them, but until then a query would reach no daemon.
        for name in ("control", "control_lock", _PRIVILEGED, "nvidia-cuda-mps-control.pid"):
            (self._folder / "pipe" / name).unlink(missing_ok=True)
        output = str(self._output)
        command = ["/bin/sh", "-c", _LAUNCH, "sh", str(self._folder / "daemon"), *self._command, *flags, "-f"]
        self._child = os.posix_spawn(
            command[0],
            command,
            {**self._environment(self._folder / "pipe"), "CUDA_VISIBLE_DEVICES": self._uuid},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def tidy(self) -> None:
        """Take the privileged socket away from containers, and limit the daemon's output. Raises OSError."""
        self._keys.mkdir(mode=0o700, exist_ok=True)
        if not (self._keys / _PRIVILEGED).exists():
            # Only once for each daemon: a container may put a file there later.
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._folder / "pipe" / _PRIVILEGED, self._keys / _PRIVILEGED)
        with contextlib.suppress(FileNotFoundError):
            if self._output.stat().st_size > _MOST_OUTPUT:
                # The daemon appends to the file that it has open, so truncating is enough.
                shutil.copyfile(self._output, self._output.with_name("output.before"))
                os.truncate(self._output, 0)

    def ask(self, command: str) -> str | None:
        """The daemon's answer to one command; None if there is none in time or the program failed."""
        try:
            done = subprocess.run(
                self._command[:1],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=self._timeout,
                env=self._environment(self._control),
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return None
        return done.stdout if done.returncode == 0 else None

    def pids(self, command: str) -> tuple[int, ...] | None:
        """The process ids in the answer to a command, one in a line; None if there is no answer."""
        answer = self.ask(command)
        # Other lines are sentences, which may contain numbers.
        return None if answer is None else tuple(pid for line in answer.splitlines() if (pid := _number(line.strip())))

    def quit(self) -> None:
        """Ask it to end after its clients, without waiting."""
        self._quitting = _still(self._quitting)
        if self._quitting:
            return
        with contextlib.suppress(OSError):
            commands = self._folder / "quit"
            commands.write_text("quit\n")
            self._quitting = os.posix_spawnp(
                self._command[0],
                self._command[:1],
                self._environment(self._control),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, str(commands), os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )

    def kill(self) -> None:
        """Kill it and its servers, also those that outlived it."""
        last = _number(read_text(self._folder / "daemon").partition(" ")[0])
        # If the daemon has ended, another process may have its id by now.
        leader = self.pid() or (last if last and not start_time(last) else 0)
        if leader:
            for pid in session(leader):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @property
    def _keys(self) -> Path:
        return self._folder / "keys"

    @property
    def _output(self) -> Path:
        return self._folder / "log" / "output"

    @property
    def _control(self) -> Path:
        """The folder of the socket for commands."""
        return self._keys if (self._keys / _PRIVILEGED).exists() else self._folder / "pipe"

    def _environment(self, pipe: Path) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        log_folder = self._folder / "log"
        return {**inherited, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log_folder)}

    def _make_folders(self) -> None:
        for name in ("pipe", "log"):
            (self._folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        if Path("/sys/fs/selinux/enforce").exists():
            try:
                os.setxattr(self._folder / "pipe", "security.selinux", _SELINUX_TYPE)
            except OSError as error:
                log.warning("containers may not reach the MPS daemon under SELinux", extra={"reason": str(error)})


def _still(child: int) -> int:
    """A child of ours while it runs, then 0. Waiting for it removes an ended one from the process table."""
    try:
        return 0 if child and os.waitpid(child, os.WNOHANG)[0] else child
    except ChildProcessError:
        return 0


def start_time(pid: int) -> str:
    """
    When a process started, in clock ticks since boot (proc(5), `stat`, field 22); empty if it has ended, also as a
    zombie.
    """
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def session(leader: int) -> tuple[int, ...]:
    """
    The processes of the session that `leader` made (proc(5), `stat`, field 6).

    While one of them exists no other process gets the number, even if the leader has ended.
    """
    pids = (_number(path.name) for path in Path("/proc").iterdir())
    return tuple(sorted(pid for pid in pids if pid and _stat(pid)[3:4] == [str(leader)]))


def _stat(pid: int) -> list[str]:
    """The fields from the third on. The second is the program's name in brackets, which may contain anything."""
    fields = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields if len(fields) > 19 else []


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
