"""
What holds programs to their share on a real card, if there is one: `make test-gpu` runs this and prints what it saw.

On other machines the tests are skipped, each with what it needs. They call CUDA through its driver's own library, so
nothing must be installed. The tests of MPS set a card's compute mode and restore it. They do not touch a card on which
any process computes, and no card if GPUFRACTION_KEEP_GPU_SETTINGS is set.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.files import write_atomically
from nodeagent.gpus.library import Card, MemoryLimit
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import look
from nodeagent.isolation.driver import possible
from nodeagent.isolation.host import read_host
from nodeagent.mps.daemon import PROGRAM
from nodeagent.mps.exchange import GpuReport, MpsPaths, wanted_to_text
from nodeagent.mps.supervisor import Supervisor
from playground.waiting import wait_for

GIB = 1 << 30
CLIENT = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, count, whole, free = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        print(json.dumps({"failed": name, "code": code}), flush=True)
        sys.exit(1)
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuDeviceGetAttribute", ctypes.byref(count), 16, 0)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
allocated, chunk = 0, 128 << 20
while allocated < int(sys.argv[1]):
    memory = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(chunk))
    if code:
        break
    allocated += chunk
print(json.dumps({"allocated": allocated, "code": code, "sms": count.value, "total": whole.value}), flush=True)
sys.stdin.read()
"""
OUT_OF_MEMORY = 2
"""cuda.h, CUDA_ERROR_OUT_OF_MEMORY."""


@pytest.fixture(scope="module")
def card() -> Card:
    seen = look(Nvml())
    if seen.problem:
        pytest.skip(f"no GPU here: {seen.problem}")
    whole = [card for card in seen.cards if not card.sliced and not card.parent and card.uuid]
    if not whole:
        pytest.skip("no GPU here that is not in MIG mode")
    if os.geteuid():
        pytest.skip("limits take root")
    return whole[0]


@contextmanager
def client(wish: int, *, inside: str = "", **variables: str) -> Iterator[dict[str, int]]:
    """
    A program that allocates until `wish` bytes or a failure, prints what it got, and holds it. `inside`: a cgroup.
    """
    join = f"open({inside + '/cgroup.procs'!r}, 'w').write('0')\n" if inside else ""
    process = subprocess.Popen(
        [sys.executable, "-c", join + CLIENT, str(wish)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the client ended without a word: is libcuda.so.1 here?"
        yield json.loads(line)
    finally:
        process.communicate(timeout=60)


class Mps:
    """A supervisor for one card, with real daemons."""

    def __init__(self, root: Path, card: Card) -> None:
        self.places, self.card = MpsPaths(root), card
        write_atomically(self.places.wanted, wanted_to_text([card.uuid]))
        self.supervisor = Supervisor(Nvml(), root)

    def until(self, holds: Callable[[GpuReport], bool]) -> GpuReport:
        found: list[GpuReport] = []

        def held() -> bool:
            found[:] = [self.supervisor.step().gpus[self.card.uuid]]
            return holds(found[0])

        wait_for(held, lambda: f"{found[0]}", 120.0, every=0.2)
        return found[0]

    def variables(self, memory_mib: int, percent: int) -> dict[str, str]:
        """The variables of a container with a share."""
        return {
            "CUDA_VISIBLE_DEVICES": self.card.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.places.of(self.card.uuid) / "pipe"),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory_mib}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
        }


@pytest.fixture(scope="module")
def mps(card: Card) -> Iterator[Mps]:
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not on PATH")
    if os.environ.get("GPUFRACTION_KEEP_GPU_SETTINGS"):
        pytest.skip("GPUFRACTION_KEEP_GPU_SETTINGS is set, and MPS takes another compute mode")
    if card.processes is None or card.processes:
        pytest.skip("somebody computes on the card, or the driver does not tell")
    # Short, because the path of a socket may have 107 characters.
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    made = Mps(root, card)
    try:
        made.until(lambda report: report.serving)
        yield made
    finally:
        made.supervisor.end(within=60.0)
        shutil.rmtree(root)
    assert Nvml().exclusive(card.uuid) is False, "the compute mode was put back"


def test_two_programs_share_a_card_and_each_fails_beyond_its_own(mps: Mps) -> None:
    with client(64 * GIB, **mps.variables(2048, 50)) as small, client(64 * GIB, **mps.variables(4096, 25)) as big:
        print(f"\n2 GiB at 50 %: {small}\n4 GiB at 25 %: {big}")
        report = mps.until(lambda report: report.clients == 2)
        print(f"MPS: {report}; on the card: {look(Nvml()).cards[mps.card.index].processes}")
        assert (small["code"], big["code"]) == (OUT_OF_MEMORY, OUT_OF_MEMORY)
        # A context's own memory counts towards the limit.
        assert GIB < small["allocated"] <= 2 * GIB < 3 * GIB < big["allocated"] <= 4 * GIB
        assert small["sms"] > big["sms"] > 0, "the thread percentage is visible"


def test_a_program_past_mps_fails_while_somebody_is_served(mps: Mps) -> None:
    wrong = {**mps.variables(2048, 50), "CUDA_MPS_PIPE_DIRECTORY": "/tmp/no-such-pipe"}
    with client(GIB, **mps.variables(2048, 50)) as served, client(GIB, **wrong) as past:
        print(f"\nserved: {served}\npast MPS: {past}")
        assert ("failed" in served, "failed" in past) == (False, True)


def test_a_daemon_that_is_killed_comes_back(mps: Mps) -> None:
    pid = int((mps.places.of(mps.card.uuid) / "daemon").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    mps.until(lambda report: not report.serving)
    report = mps.until(lambda report: report.serving)
    with client(GIB, **mps.variables(2048, 50)) as served:
        print(f"\nafter {report.starts} starts: {served}")
        assert served["allocated"] >= GIB


def test_the_driver_holds_a_control_group_to_its_limit(card: Card) -> None:
    nvml, group = Nvml(), Path("/sys/fs/cgroup/gpufraction-test")
    why_not = possible(nvml.driver_version(), read_host().cgroup)
    if why_not:
        pytest.skip(f"no limits by the driver: {why_not}")
    group.mkdir(exist_ok=True)
    try:
        assert nvml.limit_memory(card.uuid, str(group), MemoryLimit(2 * GIB, GIB)) == ""
        with client(64 * GIB, inside=str(group), CUDA_VISIBLE_DEVICES=card.uuid) as held:
            print(f"\nin a group of 2 GiB: {held}")
            assert held["code"] == OUT_OF_MEMORY
            assert GIB < held["allocated"] <= 2 * GIB
    finally:
        nvml.limit_memory(card.uuid, str(group), None)
        group.rmdir()
