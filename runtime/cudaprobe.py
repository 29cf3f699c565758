"""
A self-contained CUDA program: it tries to exceed a container's share of a GPU, and measures what it gets.

It runs in containers as `python3 -c TEXT MODE ...`, where TEXT is this file, so it needs only Python 3.8 and the
driver's library `libcuda.so.1`. The conformance kit and the canary run it. Its last line is `MARK` and JSON; the exit
code is one of those below. It never takes more memory than it is told to, and ends by itself.

    memory TARGET_MIB CHUNK_MIB     allocates until the driver refuses, or TARGET is reached
    rate SECONDS                    how many kernels the card finishes a second
    latency SECONDS                 how long one kernel takes, again and again
    load SECONDS                    keeps the card busy, as a greedy neighbour does

Tested over a played driver, not on a card. Must not: import anything of ours, read a file, or write one.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

MARK = "gpufraction-probe "
HELD, EXCEEDED, BROKEN = 0, 3, 4
"""Exit codes: the share held (or a measurement was made), it did not, and the card could not be used."""
FULL = "full"
"""The answer for a card that others have filled."""
OUT_OF_MEMORY = 2
"""cuda.h, `CUDA_ERROR_OUT_OF_MEMORY`."""
_MIB = 1 << 20
_MOST_MIB = 1 << 20
_MOST_SECONDS = 120
_MOST_SAMPLES = 200_000
_BLOCKS, _THREADS, _STEPS = 256, 256, 20_000
"""One kernel: enough blocks for every multiprocessor of a card, and about a millisecond of work."""
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 steps)
{
    .reg .pred %p<3>;
    .reg .u32 %r<6>;
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [steps];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, 0;
AGAIN:
    mul.lo.u32 %r2, %r2, 1664525;
    add.u32 %r2, %r2, 1013904223;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra AGAIN;
    setp.eq.u32 %p2, %r2, 12345;
    @%p2 st.global.u32 [%rd1], %r2;
    ret;
}
\0"""


class CardUnusable(Exception):
    """The driver refused what every program needs. `code`: CUDA's, or -1 without a library."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what)
        self.what, self.code = what, code


class CudaCard:
    """The first card that the driver shows, with a context."""

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise CardUnusable("library", -1) from None
        self._must(self._cuda.cuInit(0), "init")
        context = ctypes.c_void_p()
        self._must(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "context")
        self._must(self._cuda.cuCtxSetCurrent(context), "context")
        self._function: Any = None
        self._out = ctypes.c_uint64()

    def _must(self, code: int, what: str) -> None:
        if code:
            raise CardUnusable(what, code)

    def shown_mib(self) -> tuple[int, int]:
        """The memory that the driver shows as free, and as the card's."""
        left, there = ctypes.c_size_t(), ctypes.c_size_t()
        self._must(self._cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(there)), "info")
        return int(left.value // _MIB), int(there.value // _MIB)

    def take(self, mib: int) -> int:
        """CUDA's code for one more allocation, which is never freed."""
        address = ctypes.c_uint64()
        return int(self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib * _MIB)))

    def compute(self) -> None:
        """Run one kernel to its end."""
        if self._function is None:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self._must(self._cuda.cuModuleLoadData(ctypes.byref(module), _PTX), "module")
            self._must(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, b"work"), "module")
            self._must(self._cuda.cuMemAlloc_v2(ctypes.byref(self._out), ctypes.c_size_t(4)), "memory")
            self._function = function
        steps = ctypes.c_uint32(_STEPS)
        parameters = (ctypes.c_void_p * 2)(
            ctypes.cast(ctypes.byref(self._out), ctypes.c_void_p), ctypes.cast(ctypes.byref(steps), ctypes.c_void_p)
        )
        grid = (_BLOCKS, 1, 1, _THREADS, 1, 1, 0)
        self._must(self._cuda.cuLaunchKernel(self._function, *grid, None, parameters, None), "launch")
        self._must(self._cuda.cuCtxSynchronize(), "compute")


def memory(card: CudaCard, target: int, chunk: int) -> dict[str, int]:
    """
    Allocate until the driver refuses or `target` MiB are there. `code`: the refusal's, 0 if there was none.

    A card that others have filled also refuses, and proves nothing. So nothing is tried if the whole card is shown and
    less than the target is free.
    """
    left, shown = card.shown_mib()
    if left < target <= shown:
        raise CardUnusable(FULL, OUT_OF_MEMORY)
    took, code = 0, 0
    while took < target and not code:
        code = card.take(chunk)
        took += 0 if code else chunk
    return {"tookMiB": took, "code": code, "shownMiB": shown}


def timed(card: CudaCard, seconds: int) -> list[float]:
    """The seconds that each kernel took, for this long."""
    card.compute()  # the driver compiles the kernel
    samples: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(samples) < _MOST_SAMPLES:
        began = time.monotonic()
        card.compute()
        samples.append(time.monotonic() - began)
    return samples


def quantile(ordered: list[float], part: float) -> float:
    """The nearest-rank quantile of samples in order."""
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def measured(samples: list[float]) -> dict[str, int]:
    """The summary of the samples: whole numbers, so that reports are compared with `==`."""
    ordered = sorted(samples) or [0.0]
    return {
        "kernels": len(samples),
        "perSecond": round(len(samples) / max(sum(samples), 1e-6)),
        "p50Microseconds": round(quantile(ordered, 0.5) * 1e6),
        "p99Microseconds": round(quantile(ordered, 0.99) * 1e6),
    }


def run(arguments: list[str]) -> tuple[dict[str, Any], int]:
    """The result of one call, and its exit code."""
    mode, *numbers = arguments
    given = [int(each) for each in numbers]
    try:
        card = CudaCard()
        if mode == "memory":
            target, chunk = min(given[0], _MOST_MIB), max(given[1], 1)
            found: dict[str, Any] = memory(card, target, chunk)
            if found["code"] not in (0, OUT_OF_MEMORY):
                return found, BROKEN
            return found, EXCEEDED if found["tookMiB"] >= target else HELD
        return measured(timed(card, min(given[0], _MOST_SECONDS))), HELD
    except CardUnusable as error:
        return {"failed": error.what, "code": error.code}, BROKEN


def main() -> None:
    """Print what was found; exit with its code."""
    found, code = run(sys.argv[1:])
    print(MARK + json.dumps(found), flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
