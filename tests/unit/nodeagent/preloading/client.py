"""
A minimal CUDA program: reads commands from standard input, one on each line, and answers each with JSON.

    alloc DEVICE BYTES    the driver's code for an allocation on that card
    found DEVICE BYTES    as `alloc`, with the address from cuGetProcAddress, as CUDA's runtime does it
    info DEVICE           the card's free and total memory in bytes, as CUDA reports it
    nvml INDEX            the card's total and used memory, as `nvidia-smi` shows it
    launch DEVICE         the driver's code for a kernel
    mask                  the process's umask
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")


class Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_uint64), ("left", ctypes.c_uint64), ("used", ctypes.c_uint64))


def on(device: int) -> None:
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def alloc(device: int, size: int) -> int:
    on(device)
    return int(cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)))


def found(device: int, size: int) -> int:
    on(device)
    address = ctypes.c_void_p()
    assert cuda.cuGetProcAddress_v2(b"cuMemAlloc", ctypes.byref(address), 12000, ctypes.c_uint64(0), None) == 0
    assert address.value
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(address.value)
    return int(call(ctypes.addressof(ctypes.c_uint64()), size))


def info(device: int) -> list[int]:
    on(device)
    left, there = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(there)) == 0
    return [left.value, there.value]


def shown(index: int) -> list[int]:
    handle, memory = ctypes.c_void_p(), Memory()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return [memory.total, memory.used]


def launch(device: int) -> int:
    on(device)
    return int(cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None))


def mask() -> int:
    before = os.umask(0o22)
    os.umask(before)
    return before


COMMANDS: dict[str, Callable[..., Any]] = {
    "alloc": alloc,
    "found": found,
    "info": info,
    "nvml": shown,
    "launch": launch,
    "mask": mask,
}
assert cuda.cuInit(0) == 0
for line in sys.stdin:
    name, *arguments = line.split()
    print(json.dumps(COMMANDS[name](*map(int, arguments))), flush=True)
