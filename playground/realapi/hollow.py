"""
Real kubelets over a container runtime that runs nothing: one process of Kubernetes' own `kubemark` for each node.

With them, Kubernetes' own code admits pods, updates nodes and writes statuses, in place of our stand-in. Each has one
CPU and 3.75 GiB, regardless of a node's description, and prints no logs. Kubemark reads no kubelet configuration, so
its effects on the machine are limited from outside: without a PATH it finds no iptables.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from playground.machinery.objects.nodes import NodeSpec
from playground.programs.process import Program
from playground.realapi.components import KUBELETS, Assets

_ROOT = re.compile(r"Using (/tmp/hollow-kubelet\.\d+) as root dir for hollow-kubelet")


class HollowKubelets:
    """
    `kubeconfig` gives the file with which a node's kubelet connects.

    `offers`: extended resources of a node that its kubelet reports as if a device plugin had registered them.
    """

    def __init__(
        self,
        assets: Assets,
        directory: Path,
        kubeconfig: Callable[[str], Path],
        *,
        offers: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._assets = assets
        self._directory = directory
        self._kubeconfig = kubeconfig
        self._offers = offers or {}
        self.programs: dict[str, Program] = {}

    def register(self, spec: NodeSpec) -> None:
        """Start the node's kubelet; it registers the node by itself, a moment later."""
        offers = self._offers.get(spec.name, {})
        flags = [
            *("--morph=kubelet", f"--kubeconfig={self._kubeconfig(spec.name)}", f"--name={spec.name}"),
            *("--kubelet-port=0", "--kubelet-read-only-port=0", "--use-host-image-service=false", "--v=2"),
            *(f"--node-labels={key}={value}" for key, value in spec.labels.items()),
            *(f"--register-with-taints={taint}" for taint in spec.taints),
            *(f"--extended-resources={name}={amount}" for name, amount in offers.items()),
            f"--max-pods={spec.pods}",
        ]
        log = self._directory / f"kubelet-{spec.name}.log"
        program = Program(
            f"kubelet {spec.name}",
            flags,
            log=log,
            environment={"PATH": "/nonexistent"},
            command=(str(self._assets.folder / KUBELETS),),
        )
        self.programs[spec.name] = program
        program.start()

    def kill(self, name: str) -> None:
        """End a node's kubelet without warning; its pods stay as they are."""
        program = self.programs[name]
        program.kill()
        _remove([*_roots(program), *_deserted()])

    def restart(self, name: str) -> None:
        """End a node's kubelet and start it again, over a runtime that has forgotten every container."""
        self.kill(name)
        self.programs[name].start()

    def static_pods(self, name: str) -> Path:
        """The folder whose manifests the node's kubelet runs by itself. Raises LookupError before that is known."""
        found = _roots(self.programs[name])
        if not found:
            raise LookupError(f"kubelet {name} has not said where its files are")
        (folder,) = found[-1].glob("static-pods*")
        return folder

    def stop(self) -> None:
        """Kill all of them. They have no graceful shutdown, so nothing is lost."""
        for name in self.programs:
            self.kill(name)


def _roots(program: Program) -> list[Path]:
    text = program.log.read_text(errors="replace") if program.log.exists() else ""
    return [Path(path) for path in _ROOT.findall(text)]


def _deserted() -> Iterator[Path]:
    """Sockets of runtimes that no longer run. Kubemark creates them in /tmp under names that it does not report."""
    for path in Path("/tmp").glob("kubelet_remote_*.sock"):
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as caller:
            try:
                caller.connect(str(path))
            except ConnectionRefusedError:
                yield path
            except OSError:
                continue  # another process has removed it


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
