"""
The disk of the virtual machine: a Debian with systemd, ssh and the agent's Python packages, built once and kept.

It is kept outside the repository. Its name has a digest of everything that it is built from, so a change builds
another. It contains nothing of ours except Python packages; the programs under test are copied into the running
machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).resolve().parent / "guest"
PACKAGES = (
    *("systemd", "systemd-sysv", "udev", "dbus", "kmod", "linux-image-amd64", "initramfs-tools", "python3"),
    *("openssh-server", "runc", "conmon", "skopeo", "busybox-static", "iproute2", "procps"),
    *("util-linux", "mount", "nftables", "iptables", "libseccomp2"),
)
SELINUX = ("selinux-policy-default", "policycoreutils", "selinux-utils")
_SIZE = "8G"
"""The size of the disk. It is a sparse file that uses about 1 GiB."""
_SECONDS = 3600.0


class NoImage(Exception):
    """The image could not be built; the message has the end of the output."""


@dataclass(frozen=True, slots=True)
class Image:
    """The files of an image: QEMU receives the kernel and its initial file system in addition to the disk."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.raw"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.img"

    @property
    def host_key(self) -> str:
        """The host key of the machine's ssh server."""
        return (self.folder / "host_key.pub").read_text().strip()


def default_cache(environment: Mapping[str, str]) -> Path:
    """Where images are kept: VIRTUALMACHINE_CACHE, or a folder in the user's home."""
    if named := environment.get("VIRTUALMACHINE_CACHE"):
        return Path(named)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufraction" / "virtualmachine"


def key(release: str, *, selinux: bool) -> str:
    """A name for the inputs from which an image of this release is built."""
    parts = [release, *PACKAGES, *(SELINUX if selinux else ()), *(file.read_text() for file in sorted(GUEST.iterdir()))]
    parts += [(TOP / name).read_text() for name in ("requirements.lock", "pyproject.toml")]
    kind = "-selinux" if selinux else ""
    return f"{release}{kind}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"


def image(cache: Path, release: str, tell: Callable[[str], None], *, selinux: bool = False) -> Image:
    """The image, from the cache or built now. `selinux`: with a policy, and labels on files. Raises `NoImage`."""
    found = Image(cache / key(release, selinux=selinux))
    if found.folder.is_dir():
        return found
    tell(f"making the disk of a {release} in {found.folder}; this takes minutes, once")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as folder:
        _make(Path(folder), release, (*PACKAGES, *(SELINUX if selinux else ())), tell)
        ready = Path(folder) / "image"
        ready.rename(found.folder)
    return found


def requirements() -> list[str]:
    """What the programs need, and what the agent needs as kubelet's plugin."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dra"]]


def _make(folder: Path, release: str, packages: Sequence[str], tell: Callable[[str], None]) -> None:
    root, wheels, ready = folder / "root", folder / "wheels", folder / "image"
    ready.mkdir()
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")]
    # It has its own mounts, so that none is left below the removed folder, however the command ends.
    debian = [
        "unshare",
        "--mount",
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        "--format=directory",
        "--skip=check/qemu",
    ]
    _run([*debian, *without, f"--include={','.join(packages)}", release, str(root)])
    tell("Debian is installed; now the Python packages")
    version = _run(["chroot", str(root), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    download += ["--require-hashes", "--only-binary=:all:", f"--python-version={version}", f"--dest={wheels}"]
    _run([*download, "--requirement", str(TOP / "requirements.lock")])
    site = root / f"usr/local/lib/python{version}/dist-packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    install += [f"--find-links={wheels}", f"--python-version={version}", "--only-binary=:all:", "--no-compile"]
    _run([*install, f"--target={site}", *requirements()])
    shutil.rmtree(wheels)
    shutil.copytree(GUEST, root / "opt/guest")
    _run(["chroot", str(root), "sh", "/opt/guest/setup.sh"])
    tell("the Python packages are installed; now the disk")
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, ready / "vmlinuz")
    shutil.copy(kernel.with_name(kernel.name.replace("vmlinuz", "initrd.img")), ready / "initrd.img")
    shutil.copy(root / "etc/ssh/ssh_host_ed25519_key.pub", ready / "host_key.pub")
    _run(["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(ready / "disk.raw"), _SIZE])


def _run(command: list[str]) -> str:
    clean = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean,
        timeout=_SECONDS,
    )
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-20:])
        raise NoImage(f"{command[0]} failed with status {done.returncode}:\n{end}")
    return done.stdout
