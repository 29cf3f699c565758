"""
The binding on a real card, if there is one: `make test-gpu` runs this and prints what it saw.

On other machines the tests are skipped. They change nothing on a card: one process allocates some memory and ends.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.nodeagent import measure, report
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import Observation, look
from nodeagent.isolation.driver import possible
from nodeagent.isolation.host import read_host

MIB = 1 << 20
ALLOCATED = 512 * MIB
QUERY = "index,uuid,name,memory.total,pci.bus_id,compute_cap,driver_version"
ALLOCATE = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name}: CUDA error {code}")
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1])))
print("allocated", flush=True)
for line in sys.stdin:
    end = time.monotonic() + float(line)
    while time.monotonic() < end:
        call("cuMemsetD32_v2", memory, ctypes.c_uint(7), ctypes.c_size_t(int(sys.argv[1]) // 4))
        call("cuCtxSynchronize")
    print("rests", flush=True)
"""
"""Allocates this many bytes. Computes for as many seconds as each line of its input says, and rests in between."""
FORGOTTEN = 25.0
"""Seconds after which the driver should report a resting process as idle; the agent asks about the last 20."""


@pytest.fixture(scope="module")
def nvml() -> Nvml:
    library = Nvml()
    seen = look(library)
    if seen.problem:
        pytest.skip(f"no GPU here: {seen.problem}")
    return library


def observed(nvml: Nvml) -> Observation:
    seen = look(nvml)
    assert seen.problem == ""
    return seen


def test_the_inventory_is_what_nvidia_smi_says(nvml: Nvml) -> None:
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("nvidia-smi is not on PATH")
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    print(f"\n{output}")
    seen = observed(nvml)
    ours = [
        [str(c.index), c.uuid, c.model, str(c.memory_bytes // MIB), c.pci, c.capability, seen.driver]
        for c in seen.cards
        if not c.parent
    ]
    assert [[cell.strip() for cell in line.split(",")] for line in output.splitlines()] == ours


def test_what_there_is_to_see(nvml: Nvml) -> None:
    seen, host = observed(nvml), read_host()
    print(f"\ndriver {seen.driver}, CUDA {seen.cuda}, kernel {host.kernel}, cgroup {host.cgroup or 'unknown'}")
    for card in seen.cards:
        print(card)
    print(f"memory limits by the driver: {possible(seen.driver, host.cgroup) or 'possible'}")
    assert all(card.uuid.startswith(("GPU-", "MIG-")) and card.memory_bytes > 0 for card in seen.cards)
    assert [card.uuid for card in observed(nvml).cards] == [card.uuid for card in seen.cards], "names stay"


@contextmanager
def allocating() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", ALLOCATE, str(ALLOCATED)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "allocated\n":
            process.wait(timeout=60)
            pytest.skip("CUDA cannot be used here: libcuda.so.1 is missing or refuses")
        yield process
    finally:
        process.communicate(timeout=60)


def test_memory_is_seen_where_it_is_used(nvml: Nvml) -> None:
    before = {card.uuid: card.used_bytes or 0 for card in observed(nvml).cards}
    with allocating() as process:
        cards = observed(nvml).cards
        grown = max((card.used_bytes or 0) - before[card.uuid] for card in cards)
        listed = [(pid, used // MIB) for card in cards for pid, used in card.processes or ()]
    print(f"\nused memory grew by {grown // MIB} MiB; process {process.pid} here, the driver lists (id, MiB): {listed}")
    assert grown >= ALLOCATED


def _active(nvml: Nvml) -> frozenset[int]:
    """The processes that recently used any card. Skips the test if the driver does not report it."""
    cards = [card for card in observed(nvml).cards if not card.sliced]
    if any(card.active is None for card in cards):
        pytest.skip("this driver or card does not tell what each process uses")
    return frozenset(pid for card in cards for pid in card.active or ())


def test_a_process_is_idle_while_it_only_has_memory_and_not_while_it_computes(nvml: Nvml) -> None:
    others = _active(nvml)
    with allocating() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        time.sleep(FORGOTTEN)
        resting = _active(nvml) - others
        process.stdin.write("10\n")
        process.stdin.flush()
        time.sleep(5.0)
        computing = _active(nvml) - others
        busy = [(card.utilisation, card.busy) for card in observed(nvml).cards]
        assert process.stdout.readline() == "rests\n"
        began = time.monotonic()
        while _active(nvml) - others and time.monotonic() < began + 2 * FORGOTTEN:
            time.sleep(1.0)
        after = time.monotonic() - began
    print(
        f"\nprocess {process.pid} here; active with memory alone: {sorted(resting)}, while it computed: "
        f"{sorted(computing)} (cards: {busy}), idle again after {after:.0f} s"
    )
    assert not resting
    assert computing
    assert after <= FORGOTTEN


def test_the_agents_cost(nvml: Nvml) -> None:
    print("\n" + report(measure(nvml, looks=20), interval=5.0))
    assert observed(nvml).cards
