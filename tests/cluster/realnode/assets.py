"""The folder that REALNODE_ASSETS names: the programs of a node, or one line that says what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = "REALNODE_ASSETS"
NEEDED = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kubelet", "runc", "busybox"),
    *("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-cdi-hook", "nvidia-ctk"),
)
_TOOLS = ("unshare", "nsenter", "pivot_root", "mount")


@dataclass(frozen=True, slots=True)
class NodeAssets:
    """The programs of a node, in one folder. `needed`: what a container runtime needs in addition."""

    folder: Path

    def program(self, name: str) -> str:
        return str(self.folder / name)

    def lacks(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if not (self.folder / name).is_file())


def node_assets(environment: Mapping[str, str], runtime: tuple[str, ...]) -> NodeAssets | str:
    """The folder with what every node and this container runtime need, or one line that says why there is no node."""
    folder = environment.get(ENVIRONMENT, "")
    if not folder:
        return f"{ENVIRONMENT} is not set; it names a folder with a node's programs (docs/testing.md)"
    if os.geteuid() != 0:
        return f"{ENVIRONMENT}: a node takes root"
    tools = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if tools:
        return f"{ENVIRONMENT}: a node takes {' and '.join(tools)} of util-linux"
    found = NodeAssets(Path(folder))
    missing = found.lacks((*NEEDED, *runtime))
    return f"{ENVIRONMENT}: {folder} has no {' and no '.join(missing)}" if missing else found
