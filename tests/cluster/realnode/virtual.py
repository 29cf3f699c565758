"""
A virtual machine as a node's machine: systemd is its first process, and runs the node's programs as services.

`make test-virtualmachine` boots it, and `REALNODE_MACHINE` says how to reach it: by ssh, and by a folder that both
machines share. The control plane, the webhook and the allocator stay on this machine. The node reaches the API server
through ssh, at the address that it has here.

Must not: know about Kubernetes, or about QEMU.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from playground.programs.process import Program, ProgramFailed
from playground.waiting import NotInTime, slower, wait_for
from tests.cluster.realnode.machine import NoMachine

ENVIRONMENT = "REALNODE_MACHINE"
PREPARE = """
set -e
for folder in {written}; do
    # The last one mounted is unmounted first: a volume of a pod before the folder that it is in.
    for at in $(awk '{{print $2}}' /proc/mounts | grep "^$folder/" | tac); do umount -l "$at"; done
    rm -rf "$folder"
done
mkdir -p {shared} /var/log/pods /var/lib/containerd /var/lib/containers
mountpoint -q /var/log/pods || mount --bind {shared} /var/log/pods
"""
CARDS = """
set -e
card() {{ rm -f "/dev/$1"; mknod -m 666 "/dev/$1" c "$2" "$3"; }}
card nvidiactl 195 255
card nvidia-uvm 511 0
for number in $(seq 0 {last}); do card "nvidia$number" 195 "$number"; done
"""
END = """
systemctl stop kubepods.slice
for unit in {units}; do
    for group in $(find /sys/fs/cgroup/kubepods.slice "/sys/fs/cgroup/system.slice/$unit" -name cgroup.procs 2>&-); do
        for pid in $(cat "$group"); do kill -9 "$pid"; done
    done
done
umount /var/log/pods
"""
_WRITTEN = (
    *("/etc/cni", "/etc/cdi", "/etc/containerd", "/etc/crio", "/etc/kubernetes", "/etc/nvidia-container-runtime"),
    *("/run/cdi", "/run/containerd", "/run/crio", "/run/containers", "/run/runc", "/run/nvidia", "/run/nri"),
    *("/opt/cni", "/opt/runtimes", "/opt/nri", "/var/lib/gpufraction", "/var/lib/cni", "/var/lib/kubelet"),
    *("/var/lib/containerd", "/var/lib/containers", "/var/lib/crio", "/home/kubernetes"),
)
"""Folders that a node's programs write. All of them are removed before a node starts."""
_UNCONFINED = "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023"
"""
SELinux's context of the node's services. Debian's policy has none for kubelet and container runtimes that come from
elsewhere; their containers have one of their own.
"""
_SECONDS = 120.0
_LOOK_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Access:
    """
    `ssh`: the command that runs another one there. `shared`: a folder that both machines share. `python`, `top`: the
    interpreter there that has the agent's packages, and the folder of our programs. `selinux`: whether it is enforced
    there.
    """

    ssh: tuple[str, ...]
    shared: Path
    python: str
    top: str
    selinux: bool = False

    def write(self, file: Path) -> None:
        """Write it as text for `access`."""
        about: dict[str, object] = {"ssh": self.ssh, "shared": str(self.shared), "python": self.python, "top": self.top}
        about["selinux"] = self.selinux
        file.write_text(json.dumps(about), encoding="utf-8")

    def run(self, command: Sequence[str], *, seconds: float = _SECONDS, text: str = "") -> tuple[int, str]:
        """Its status and output, within `seconds` of a machine as fast as this one. `text`: its standard input."""
        done = subprocess.run(
            [*self.ssh, shlex.join(command)],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds * slower(),
        )
        return done.returncode, done.stdout

    def forward(self, port: int, *, back: bool = False) -> None:
        """Let it reach a port of this machine's loopback interface at its own; `back`: the other direction."""
        both = ("-L" if back else "-R", f"{port}:127.0.0.1:{port}")
        subprocess.run([*self.ssh[:-1], "-O", "forward", *both, self.ssh[-1]], check=True, timeout=_SECONDS * slower())


def access(environment: Mapping[str, str]) -> Access | None:
    """How to reach the virtual machine; None if there is none."""
    if not (named := environment.get(ENVIRONMENT)):
        return None
    about = json.loads(Path(named).read_text(encoding="utf-8"))
    return Access(tuple(about["ssh"]), Path(about["shared"]), about["python"], about["top"], about["selinux"])


class VirtualMachine:
    """`folder`: below the shared one. `gpus`: how many cards are in /dev, with nothing behind them."""

    cgroup_driver = "systemd"

    def __init__(self, way: Access, folder: Path, *, gpus: int) -> None:
        self.folder = folder
        self.python, self.top, self.selinux = way.python, way.top, way.selinux
        self.environment: dict[str, str] = {}
        self._way = way
        self._gpus = gpus
        self._pods = folder / "var/log/pods"
        self._services: list[Service] = []

    def start(self) -> None:
        """Create the cards, and remove what an earlier node has left. Raises `NoMachine`."""
        self._pods.mkdir(parents=True)
        self._script(PREPARE.format(written=" ".join(_WRITTEN), shared=shlex.quote(str(self._pods))))
        self._script(CARDS.format(last=self._gpus - 1))

    def stop(self) -> None:
        """End the node's services and containers."""
        for service in reversed(self._services):
            service.terminate()
        for service in reversed(self._services):
            service.wait()
        self._way.run(["sh", "-c", END.format(units=" ".join(service.unit for service in self._services))])

    def path(self, path: str) -> Path:
        """A file of the machine. Only the logs of pods can be seen from here."""
        return self._pods / Path(path).relative_to("/var/log/pods")

    def read(self, path: str) -> str:
        """The text of a file there. Raises `FileNotFoundError`."""
        status, printed = self._way.run(["cat", path])
        if status:
            raise FileNotFoundError(printed)
        return printed

    def write(self, path: str, text: str | bytes, *, mode: int = 0o644) -> None:
        """Write a file there, and create its folders."""
        data = text.encode() if isinstance(text, str) else text
        script = 'mkdir -p "${0%/*}" && base64 -d >"$0" && chmod "$1" "$0"'
        status, printed = self._way.run(["sh", "-c", script, path, f"{mode:o}"], text=_base64(data))
        if status:
            raise NoMachine(f"{path} cannot be written: {printed}")

    def program(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Program:
        """A systemd service there. It is ended with the machine."""
        log = self.folder / f"{name}.log"
        made = Service(self._way, name, command, log=log, environment={**self.environment, **(environment or {})})
        self._services.append(made)
        return made

    def run(self, command: Sequence[str], *, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
        """Run a program there to its end. Returns what it prints."""
        named = [f"{key}={text}" for key, text in self.environment.items()]
        status, printed = self._way.run(["env", *named, *command], seconds=max(seconds, _SECONDS))
        return subprocess.CompletedProcess(list(command), status, printed)

    def reach(self, port: int) -> None:
        """Let the machine reach this port of the loopback interface here."""
        self._way.forward(port)

    def expose(self, port: int) -> None:
        """Make this port of the machine's loopback interface reachable at the loopback interface here."""
        self._way.forward(port, back=True)

    def _script(self, text: str) -> None:
        status, printed = self._way.run(["sh", "-s"], text=text)
        if status:
            raise NoMachine(f"the virtual machine cannot be made a node: {printed}")


class Service(Program):
    """
    A program as a service of the machine's systemd, in its own control group below system.slice.

    As in the unit files of kubelet and of container runtimes, only its first process is ended with it, and it manages
    the groups below its own.
    """

    def __init__(
        self, way: Access, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        super().__init__(name, command, log=log, environment=environment)
        self.unit = f"realnode-{name}.service"
        self._way = way
        self._started = self._begun = False
        self._looked_at = 0.0
        self._command = [
            *("systemd-run", "--quiet", "--collect", "--expand-environment=no", f"--unit={self.unit}"),
            f"--working-directory={way.top}",
            *("--property=Type=exec", "--property=Delegate=yes", "--property=KillMode=process"),
            *("--property=TasksMax=infinity", "--property=LimitNOFILE=1048576"),
            *((f"--property=SELinuxContext={_UNCONFINED}",) if way.selinux else ()),
            *(f"--property=Standard{stream}=append:{log}" for stream in ("Output", "Error")),
            *(f"--setenv={key}={text}" for key, text in {**environment, "PYTHONUNBUFFERED": "1"}.items()),
            *("--", *command),
        ]

    def start(self) -> None:
        """Start it. The program is running when this returns."""
        if self.alive():
            raise RuntimeError(f"{self.name} is running")
        # What a runtime has started outlives it in the service's group, so systemd may still know the service.
        known = self._begun and self._property("LoadState") == "loaded"
        status, printed = self._way.run(["systemctl", "start", self.unit] if known else self._command)
        if status:
            raise ProgramFailed(f"{self.name} does not start: {printed}")
        self._started = self._begun = True

    @property
    def pid(self) -> int:
        """Its first process there; 0 if there is none."""
        return int(self._property("MainPID") or 0) if self._started else 0

    def alive(self) -> bool:
        """Whether it runs."""
        states = ("active", "activating", "deactivating", "reloading")
        return self._started and self._property("ActiveState") in states

    def check(self) -> None:
        """Raise `ProgramFailed` if it was started and has ended. A check is slow, so it runs only from time to time."""
        now = time.monotonic()
        if self._started and now - self._looked_at > _LOOK_EVERY:
            self._looked_at = now
            if not self.alive():
                raise ProgramFailed(f"{self.name} has ended:\n{self.tail()}")

    def terminate(self) -> None:
        """Ask systemd to end it; `wait` waits for that."""
        if self._started:
            self._way.run(["systemctl", "stop", "--no-block", self.unit])

    def wait(self) -> None:
        """
        Wait for its end, and kill it when it takes too long.

        systemd gives up a unit whose process does not end even then. Raises `ProgramFailed` with what the process does.
        """
        if not self._started:
            return
        pid = self.pid
        try:
            wait_for(lambda: not self.alive(), "", every=0.5)
        except NotInTime:
            self._kill(pid)
        self._started = False
        if pid and not self._way.run(["test", "-e", f"/proc/{pid}"])[0]:
            raise ProgramFailed(self._stuck(pid))

    def kill(self) -> None:
        """End its first process at once (SIGKILL)."""
        self._kill(self.pid)

    def _kill(self, pid: int) -> None:
        self._way.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", self.unit])
        wait_for(lambda: not self.alive(), lambda: self._stuck(pid), every=0.5)

    def _stuck(self, pid: int) -> str:
        """For a killed process that does not end: where in the kernel each of its threads is."""
        script = 'for at in /proc/"$0"/task/*; do cat "$at/comm" "$at/wchan" "$at/stack"; done'
        return f"{self.name} is killed and does not end:\n{self._way.run(['sh', '-c', script, str(pid)])[1]}"

    def _property(self, name: str) -> str:
        return self._way.run(["systemctl", "show", f"--property={name}", "--value", self.unit])[1].strip()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
