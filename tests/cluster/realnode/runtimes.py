"""
The container runtimes that a real node is tested with, behind one interface.

To add one, write a class with these members and a line in `RUNTIMES`. Files are where the runtime has them on a real
node, because the agent concludes from them how GPUs reach containers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from playground.programs.process import Program
from playground.waiting import wait_for
from tests.cluster.realnode.assets import NodeAssets
from tests.cluster.realnode.crio import Crio
from tests.cluster.realnode.machine import Machine


class ContainerRuntime(Protocol):
    """What kubelet runs containers with. It is created together with the machine, which has not started yet."""

    name: str
    socket: str
    """The path of its CRI socket on the machine."""

    def start(self) -> None:
        """Write its files, start it, and wait until it listens."""
        ...

    def load(self, archive: Path, name: str) -> None:
        """Load the image of that name from an OCI archive that the machine can read."""
        ...

    def restart(self) -> None:
        """End it and start it again; containers keep running."""
        ...


MakeRuntime = Callable[[NodeAssets, Machine, str], ContainerRuntime]


class Containerd:
    """containerd 2: CDI and NRI are on by default, and NVIDIA's runtime is the handler `nvidia`, which starts runc."""

    name = "containerd"
    socket = "/run/containerd/containerd.sock"
    needs = ("containerd", "containerd-shim-runc-v2", "ctr")

    def __init__(self, assets: NodeAssets, machine: Machine, pause: str) -> None:
        self._assets, self._machine, self._pause = assets, machine, pause
        self._program: Program | None = None

    def start(self) -> None:
        self._machine.write("/etc/containerd/config.toml", self._configuration())
        path = {"PATH": f"{self._assets.folder}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self._program = self._machine.program("containerd", [self._assets.program("containerd")], path)
        self._listen()

    def restart(self) -> None:
        assert self._program is not None
        self._program.terminate()
        self._program.wait()
        self._listen()

    def _listen(self) -> None:
        program = self._program
        assert program is not None
        program.start()

        def answers() -> bool:
            program.check()
            return self._ctr("version").returncode == 0

        wait_for(answers, lambda: f"containerd does not answer: {program.tail()}")

    def load(self, archive: Path, name: str) -> None:
        done = self._ctr("--namespace", "k8s.io", "images", "import", str(archive))
        assert done.returncode == 0, done.stdout

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._machine.run([self._assets.program("ctr"), *arguments])

    def _configuration(self) -> str:
        runtime = '[plugins."io.containerd.cri.v1.runtime"'
        handlers = {"runc": "runc", "nvidia": "nvidia-container-runtime"}
        lines = [
            "version = 3",
            '[plugins."io.containerd.cri.v1.images".pinned_images]',
            f'sandbox = "{self._pause}"',
            f"{runtime}]",
            # Not every root user may exempt a process from the kernel's memory killer, and a test's node does not need
            # it.
            "restrict_oom_score_adj = true",
            f"enable_selinux = {str(self._machine.selinux).lower()}",
            f"{runtime}.cni]",
            'bin_dirs = ["/opt/cni/bin"]',
            f"{runtime}.containerd]",
            'default_runtime_name = "runc"',
        ]
        for name, binary in handlers.items():
            handler = f"{runtime}.containerd.runtimes.{name}"
            lines += [f"{handler}]", 'runtime_type = "io.containerd.runc.v2"']
            lines += [f"{handler}.options]", f'BinaryName = "{self._assets.program(binary)}"']
            lines += [f"SystemdCgroup = {str(self._machine.cgroup_driver == 'systemd').lower()}"]
        return "\n".join(lines) + "\n"


RUNTIMES: dict[str, tuple[MakeRuntime, Sequence[str]]] = {
    "containerd": (Containerd, Containerd.needs),
    "cri-o": (Crio, Crio.needs),
}
