"""
HAMi-core's real library with what we give a container: the environment from admission, and from the node's CDI file.

`LIBVGPU=/path/to/libvgpu.so` names a built library; without it only the simulated driver is tested. Unlike in a
container, LD_PRELOAD loads the library instead of `/etc/ld.so.preload`, and a temporary folder replaces the one for the
limiter's file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract import names
from contract.encoding.codec import container_annotations
from contract.isolation import PRELOAD
from contract.model import Allocation, ContainerAllocation, GpuShare
from nodeagent.isolation.cdi import description
from nodeagent.isolation.preload import Preloaded
from webhook.admission.containers import CACHE_FOLDER, CACHE_VARIABLE, Volumes, with_volumes

HERE = Path(__file__).parent
MIB = 1 << 20
CONTEXT = 256 * MIB
"""What a process's context takes from its share on the card that it uses first: see driver.c."""
OUT_OF_MEMORY = 2
"""cuda.h, `CUDA_ERROR_OUT_OF_MEMORY`."""
NOBODY = 65534


def share(index: int, mib: int, *, cores: int = 0) -> GpuShare:
    return GpuShare(f"GPU-{index}", index, mib * MIB, cores, 24 << 30)


@dataclass
class Container:
    """One container of a pod: its programs see what the runtime would give them."""

    folder: Path
    name: str
    shares: Sequence[GpuShare]
    library: str = ""
    home: Path | None = None
    """Where driver and program are; by default the folder's parent."""

    @property
    def _home(self) -> Path:
        return self.home or self.folder.parent

    @property
    def cache(self) -> Path:
        return self.folder / f"{self.name}.cache"

    def environment(self) -> dict[str, str]:
        """Nothing from this process except where programs are."""
        output = container_annotations(Allocation("a", "n", (ContainerAllocation(self.name, tuple(self.shares)),)))
        ours = {name: output[names.per_container(key, self.name)] for name, key in names.ENVIRONMENT}
        pod: Any = {"spec": {"containers": [{"name": self.name}]}}
        [container] = with_volumes(pod, {self.name}, Volumes(cache=True))["spec"]["containers"]
        ours |= {item["name"]: item["value"].replace(CACHE_FOLDER, str(self.folder)) for item in container["env"]}
        assert ours[CACHE_VARIABLE] == str(self.cache)
        preloaded = Preloaded(Path(self.library), Path("ld.so.preload"))
        spec = json.loads(description(["GPU-0"], lambda uuid, key: (PRELOAD.name, preloaded.edits)))
        ours |= dict(entry.split("=", 1) for entry in spec["devices"][0]["containerEdits"]["env"])
        if self.library:
            # In a container: /etc/ld.so.preload, and the place where the library looks for itself.
            ours |= {"LD_PRELOAD": self.library, "CUDA_REDIRECT": self.library}
        paths = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self._home / "driver")}
        return {**paths, **ours, "FAKE_GPUS": str(len(self.shares))}

    def start(self, *, user: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable if user is None else "/usr/bin/python3", "-IS", str(self._home / "client.py")],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            user=user,
        )

    def run(self, *commands: str, user: int | None = None) -> list[Any]:
        """The answers of one program, or its exit status if it failed."""
        with self.start(user=user) as program:
            output, _ = program.communicate("".join(f"{command}\n" for command in commands), timeout=60)
        return [json.loads(line) for line in output.splitlines()] if program.returncode == 0 else [program.returncode]

    def region(self, offset: int) -> int:
        """A number in the library's file (its `shared_region_t`)."""
        return int(struct.unpack_from("<Q", self.cache.read_bytes(), offset)[0])


def answer(program: subprocess.Popen[str], command: str) -> Any:
    """The answer to one command of a program that keeps running."""
    assert program.stdin is not None
    assert program.stdout is not None
    print(command, file=program.stdin, flush=True)
    return json.loads(program.stdout.readline())


@pytest.fixture(scope="module")
def played() -> Iterator[Path]:
    """A folder that all users may read, with a driver and a program in it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build the driver that is played: install gcc")
    with tempfile.TemporaryDirectory(prefix="preload", dir="/tmp") as name:
        folder = Path(name)
        (folder / "driver").mkdir()
        for kind, library in (("CUDA", "libcuda.so.1"), ("NVML", "libnvidia-ml.so.1")):
            flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-D{kind}", f"-Wl,-soname,{library}"]
            source, target = HERE / "driver.c", folder / "driver" / library
            subprocess.run([compiler, *flags, "-o", target, source], check=True, timeout=60)
        shutil.copy(HERE / "client.py", folder)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def folder(played: Path) -> Iterator[Path]:
    """Like an emptyDir of kubelet: writable for all users."""
    with tempfile.TemporaryDirectory(dir=played) as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def library(played: Path) -> str:
    named = os.environ.get("LIBVGPU", "")
    if not named:
        pytest.skip("needs LIBVGPU=/path/to/libvgpu.so, HAMi-core's library")
    copied = played / "libvgpu.so"
    if not copied.exists():
        shutil.copy(named, copied)
        copied.chmod(0o755)
    return str(copied)


def test_nothing_holds_a_program_without_the_library(folder: Path) -> None:
    container = Container(folder, "main", [share(0, 3000)])
    there = 24 << 30
    output = container.run(f"alloc 0 {4000 * MIB}", f"found 0 {4000 * MIB}", "info 0", "nvml 0", "launch 0")
    assert output == [0, 0, [there - 8000 * MIB, there], [there, 0], 0]
    assert not container.cache.exists()


def test_an_allocation_beyond_the_share_fails_and_the_share_is_what_is_shown(folder: Path, library: str) -> None:
    container = Container(folder, "main", [share(0, 3000)], library)
    beyond, within = 3000 * MIB, 2000 * MIB
    output = container.run(f"alloc 0 {beyond}", f"found 0 {beyond}", f"alloc 0 {within}", f"found 0 {within}")
    assert output == [OUT_OF_MEMORY, OUT_OF_MEMORY, 0, OUT_OF_MEMORY]
    assert container.run(f"alloc 0 {within}", "info 0", "nvml 0") == [
        0,
        [1000 * MIB - CONTEXT, 3000 * MIB],
        [3000 * MIB, within + CONTEXT],
    ]


def test_each_of_two_gpus_is_limited_whatever_order_they_have(folder: Path, library: str) -> None:
    container = Container(folder, "main", [share(0, 3000), share(1, 3000)], library)
    output = container.run(*(f"alloc {card} {2000 * MIB}" for card in (1, 0, 1, 0)))
    assert output == [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]


def test_unequal_shares_are_limited_to_the_smallest_on_both(folder: Path, library: str) -> None:
    container = Container(folder, "main", [share(0, 6000), share(1, 3000)], library)
    assert container.run(*(f"alloc {card} {3000 * MIB}" for card in (0, 1))) == [OUT_OF_MEMORY] * 2


CORES = {"no cores were asked": (0, 100), "all of them": (100, 100), "some": (30, 30)}


@pytest.mark.parametrize(("cores", "limit"), CORES.values(), ids=CORES.keys())
def test_cores_reach_the_library(folder: Path, library: str, cores: int, limit: int) -> None:
    container = Container(folder, "main", [share(0, 3000, cores=cores)], library)
    assert container.run("launch 0") == [0]
    assert (container.region(1600), container.region(1728)) == (3000 * MIB, limit)


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK),
    reason="needs root, to become another user, and a Python that every user may start: /usr/bin/python3",
)
def test_a_program_of_another_user_is_limited_too(folder: Path, library: str) -> None:
    container = Container(folder, "main", [share(0, 3000)], library)
    output = container.run(f"alloc 0 {3000 * MIB}", f"alloc 0 {1000 * MIB}", user=NOBODY)
    assert (output, container.cache.stat().st_uid) == ([OUT_OF_MEMORY, 0], NOBODY)
    assert container.run(f"alloc 0 {3000 * MIB}") == [OUT_OF_MEMORY], "and root's beside it, in the same file"


def test_two_containers_of_one_pod_have_shares_of_their_own(folder: Path, library: str) -> None:
    first, second = (Container(folder, name, [share(0, 3000)], library) for name in ("first", "second"))
    with first.start() as program:
        assert answer(program, f"alloc 0 {2000 * MIB}") == 0
        assert second.run(f"alloc 0 {2000 * MIB}") == [0]
        program.kill()


def test_a_containers_programs_have_one_limit_and_a_killed_one_frees_memory(folder: Path, library: str) -> None:
    container = Container(folder, "main", [share(0, 3000)], library)
    with container.start() as program:
        assert answer(program, f"alloc 0 {2000 * MIB}") == 0
        assert container.run(f"alloc 0 {2000 * MIB}") == [OUT_OF_MEMORY]
        program.send_signal(signal.SIGKILL)
    assert container.run(f"alloc 0 {2000 * MIB}") == [0], "its process id is nobody's any more"


def test_without_its_folder_the_library_ends_the_program(folder: Path, library: str) -> None:
    assert Container(folder / "missing", "main", [share(0, 3000)], library, home=folder.parent).run("info 0") == [1]
