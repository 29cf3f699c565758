"""What a virtual machine needs and this machine lacks, in one line."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping

from tests.cluster.realnode.assets import node_assets

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
"""Each with Debian's package."""


def missing(environment: Mapping[str, str]) -> str:
    """What to set or to install first; empty if nothing is missing."""
    if platform.machine() != "x86_64":
        return f"the virtual machine is an x86-64 one, and this machine is {platform.machine()}"
    assets = node_assets(environment, ())
    if isinstance(assets, str):
        return assets
    packages = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if packages:
        return f"a virtual machine takes Debian's packages {' and '.join(packages)}"
    return "" if os.geteuid() == 0 else "a virtual machine's disk is made as root"
