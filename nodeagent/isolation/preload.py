"""
Whether HAMi-core's library is on this node, whole and for this machine.

An init container of the agent copies it from HAMi's published image into a folder of the host, and writes there:

    libvgpu.so.<digest>   the library; the digest is the start of its SHA-256, so a new one never replaces one in use
    current               the name of that file
    ld.so.preload         what containers get as /etc/ld.so.preload

With a half-copied file, or one of another architecture, programs in containers would not start, or would run without a
limit unnoticed. So the agent checks the file before any container gets it.

With SELinux enforced a container reads only files labelled for containers, and starts without a library that it cannot
read. So the agent checks the label too.

Must not: change anything there.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract.model import Gpu
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.files import read_text
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.cdi import Edits, mount
from nodeagent.isolation.effects import NO_EFFECTS, Effects
from nodeagent.isolation.host import enforced_label
from nodeagent.isolation.mechanism import Handle, Mechanism, MechanismEntry
from runtime.settings import setting

LIBRARY = "PreloadedLibrary"
"""The condition for whether there is a library to preload."""
CACHE_IN_CONTAINER = "/var/lib/gpufraction"
"""
Where the library keeps its counts, by the container's `CUDA_DEVICE_MEMORY_SHARED_CACHE`. It is memory, new at each
start of the container: in a file that outlasts it, a killed process would count again once another process has its id.
"""
LIBRARY_IN_CONTAINER = "/usr/local/vgpu/libvgpu.so"
"""Where HAMi-core looks for itself by default."""
PRELOAD_IN_CONTAINER = "/etc/ld.so.preload"
"""A file, not a variable, so that a program started with an empty environment is limited too."""

_NAME = re.compile(r"libvgpu\.so\.(?P<digest>[0-9a-f]{12})")
_ELF_64 = b"\x7fELF\x02"
_MACHINES = {"x86_64": 62, "aarch64": 183}
"""elf.h, `e_machine`, by the kernel's name of the architecture."""
_DYNAMIC_SYMBOLS = 11
_HIDDEN = (1, 2)
"""elf.h: `SHT_DYNSYM`; `STV_INTERNAL` and `STV_HIDDEN`."""
_LIMITED = "cuMemAlloc_v2"
"""A function of CUDA that the library must replace."""
_MOST_BYTES = 64 << 20
_FOR_CONTAINERS = ("container_file_t", "container_ro_file_t")
"""Types of container-selinux that every container may read, and execute from."""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The library's files on the host."""

    library: Path
    preload: Path
    """The content of the container's `/etc/ld.so.preload`."""

    @property
    def edits(self) -> Edits:
        """The edits by which a container gets them."""
        cache = {
            "hostPath": "tmpfs",
            "containerPath": CACHE_IN_CONTAINER,
            "type": "tmpfs",
            "options": ["mode=1777", "size=16m", "nosuid", "nodev", "noexec"],
        }
        return Edits(
            # Otherwise its messages would be among the lines that programs parse.
            ("LIBCUDA_LOG_LEVEL=0",),
            (
                mount(self.library, LIBRARY_IN_CONTAINER, "ro"),
                mount(self.preload, PRELOAD_IN_CONTAINER, "ro"),
                cache,
            ),
        )


class Library:
    """The library in `folder`. `label_of`: a file's SELinux label, empty if none is enforced. One thread uses it."""

    def __init__(self, folder: Path, *, machine: str = "", label_of: Callable[[Path], str] = lambda file: "") -> None:
        self._folder = folder
        self._machine = machine or os.uname().machine
        self._label_of = label_of
        self._judged: tuple[object, str] | None = None
        self.trouble = "the preloaded library has not been looked for yet"

    def look(self) -> Preloaded | None:
        """The library's files; None, with `trouble` as a sentence, if no container may get it."""
        name = read_text(self._folder / "current").strip()
        found = _NAME.fullmatch(name)
        library, preload = self._folder / (name if found else "missing"), self._folder / "ld.so.preload"
        if found is None:
            self.trouble = f"{self._folder}/current points to no library; did the init container copy it?"
        elif read_text(preload).strip() != LIBRARY_IN_CONTAINER:
            self.trouble = f"{preload} does not contain {LIBRARY_IN_CONTAINER}"
        else:
            self.trouble = self._wrong_with(library, found["digest"]) or self._kept_from_containers(library, preload)
        return None if self.trouble else Preloaded(library, preload)

    def _wrong_with(self, library: Path, digest: str) -> str:
        try:
            status = library.stat()
            # The file has some hundred KiB, so it is read again only after a change.
            mark = (library, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
            if self._judged is None or self._judged[0] != mark:
                self._judged = mark, self._read(library, digest, status)
        except OSError as error:
            return f"{library} cannot be read: {error.strerror}"
        return self._judged[1]

    def _kept_from_containers(self, *files: Path) -> str:
        for file in files:
            label = self._label_of(file)
            kind, *rest = label.split(":")[2:] or [label]
            # A level with categories (s0:c1,c2) marks the files of one pod.
            if label and (kind not in _FOR_CONTAINERS or len(rest) > 1):
                cure = f"chcon -R -t {_FOR_CONTAINERS[0]} -l s0 {self._folder}"
                return f"{file} has the SELinux label {label}, which containers may not read; on the node: {cure}"
        return ""

    def _read(self, library: Path, digest: str, status: os.stat_result) -> str:
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{library} is writable by other users"
        if status.st_size > _MOST_BYTES:
            return f"{library} has {status.st_size} bytes, so it cannot be such a library"
        content = library.read_bytes()
        if hashlib.sha256(content).hexdigest()[: len(digest)] != digest:
            return f"{library} does not match its name; was it copied completely?"
        wanted = _MACHINES.get(self._machine)
        if content[:5] != _ELF_64 or int.from_bytes(content[18:20], "little") != wanted:
            return f"{library} is not a library for {self._machine}"
        if offers(content, _LIMITED) is False:
            return (
                f"{library} does not export {_LIMITED}, so it would limit nothing; was it built with hidden functions?"
            )
        return ""


def offers(content: bytes, function: str) -> bool | None:
    """
    Whether a shared library offers that function to others; None if its symbols cannot be found.

    HAMi-core limits by offering functions of CUDA's names. A build that hides them (its own release build, with the
    headers of CUDA 13) is loaded into every program, makes its file, and limits nothing. Form: elf(5), 64 bits, little
    endian.
    """
    found = list(_sections(content))
    for kind, offset, size, link in found:
        if kind == _DYNAMIC_SYMBOLS and link < len(found):
            names, wanted, symbols = found[link][1], function.encode() + b"\0", content[offset : offset + size]
            return any(
                content[names + name : names + name + len(wanted)] == wanted
                for name, _, other, section in struct.iter_unpack("<IBBH16x", symbols[: len(symbols) // 24 * 24])
                if section and other & 3 not in _HIDDEN
            )
    return None


def _sections(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, size and link of each section within the file."""
    if len(content) < 64:
        return
    start, size, count = *struct.unpack_from("<Q", content, 40), *struct.unpack_from("<HH", content, 58)
    for at in range(start, start + size * count, size or 1):
        if size < 64 or at + size > len(content):
            return
        kind, offset, length, link = struct.unpack_from("<4xI16xQQI", content, at)
        yield kind, offset, length, link


class PreloadedLibrary:
    """The mechanism. It serves whole cards only: the library was not made for slices of them."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._found: tuple[Preloaded | None, str] = (None, "")
        """The files, and why there are none."""

    def look(self, observation: Observation) -> Effects:
        """Read the library's state."""
        self._found = self._library.look(), self._library.trouble
        return NO_EFFECTS

    def limits(self, gpus: Iterable[Gpu]) -> bool:
        """Whether there is a library and none of the GPUs is a slice. From any thread."""
        return self._found[0] is not None and not any(gpu.parent for gpu in gpus)

    def edits(self, uuid: str, key: str | None) -> Edits | None:
        """The library's files, the same for all containers."""
        preloaded, _ = self._found
        return preloaded.edits if preloaded is not None and not uuid.startswith("MIG-") else None

    def conditions(self) -> tuple[Condition, ...]:
        """Whether there is a library."""
        _, trouble = self._found
        reason = GPUNodeReason.LIBRARY_NOT_USABLE if trouble else GPUNodeReason.LIBRARY_READY
        return (Condition(not trouble, reason, trouble, LIBRARY),)


@dataclass(frozen=True)
class PreloadSettings:
    """The preloaded library."""

    preload: str = setting(
        "",
        "Folder of HAMi-core's library on the host, mounted here under the same path; manifests/components/preload "
        "sets it and fills it. Empty: none.",
    )


def build(handle: Handle, chosen: PreloadSettings) -> Mechanism | None:
    """The library, where its folder is set."""
    if not chosen.preload:
        return None
    label_of = partial(enforced_label, handle.root)
    made = PreloadedLibrary(Library(Path(chosen.preload), machine=handle.machine, label_of=label_of))
    return Mechanism(made.limits, made.look, made.edits, conditions=made.conditions)


ENTRY = MechanismEntry(build, PreloadSettings)
