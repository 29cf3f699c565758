"""
Every NVML function that the agent calls exists in NVIDIA's own library, under the name that the bindings look up.

`NVML_LIBRARY=/path/to/libnvidia-ml.so.1` names the library, and `NVML_LIBRARY_DRIVER=550.163.01` its driver. The test
needs no GPU and no driver: the names can be read from any such file, and its answers without a driver are tested too.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.nodeagent.gpus.test_nvml_binding import ROOT, TWO

CALLED = {
    "nvmlDeviceGetComputeInstanceId": 0,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetCount_v2": 0,
    "nvmlDeviceGetCudaComputeCapability": 0,
    "nvmlDeviceGetGpuInstanceId": 0,
    "nvmlDeviceGetHandleByIndex_v2": 0,
    "nvmlDeviceGetHandleByUUID": 0,
    "nvmlDeviceGetMaxMigDeviceCount": 0,
    "nvmlDeviceGetMemoryInfo": 0,
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetMemoryLimits_v1": 615,
    "nvmlDeviceGetMigDeviceHandleByIndex": 0,
    "nvmlDeviceGetMigMode": 0,
    "nvmlDeviceGetName": 0,
    "nvmlDeviceGetNumaNodeId": 550,
    "nvmlDeviceGetNvLinkState": 0,
    "nvmlDeviceGetP2PStatus": 0,
    "nvmlDeviceGetPciInfo_v3": 0,
    "nvmlDeviceGetProcessUtilization": 0,
    "nvmlDeviceGetRemappedRows": 0,
    "nvmlDeviceGetTopologyCommonAncestor": 0,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetUUID": 0,
    "nvmlDeviceGetUtilizationRates": 0,
    "nvmlDeviceRegisterEvents": 0,
    "nvmlDeviceSetComputeMode": 0,
    "nvmlDeviceSetMemoryLimits_v1": 615,
    "nvmlEventSetCreate": 0,
    "nvmlEventSetWait_v2": 0,
    "nvmlInitWithFlags": 0,
    "nvmlShutdown": 0,
    "nvmlSystemGetCudaDriverVersion": 0,
    "nvmlSystemGetDriverVersion": 0,
}
"""The name, and the first driver known to have it: as seen in the libraries of 470 to 555, or according to NVIDIA."""

ASKED = """
import json, sys
from nodeagent.gpus.library import GpuLibraryError, MemoryLimit
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.nvml_calls import bindings
library = Nvml(path=sys.argv[1])
told = []
for ask in (library.driver_version, library.cuda_version, library.gpus):
    try:
        ask()
    except GpuLibraryError as error:
        told.append([error.reason, str(error)])
told.append([library.exclusive("GPU-aaaa"), library.set_exclusive("GPU-aaaa", True)])
told.append(library.limit_memory("GPU-aaaa", "/sys/fs/cgroup/x", MemoryLimit(1)))
library.close()
print(json.dumps([told, sorted(bindings()._nvmlGetFunctionPointer_cache)]))
"""


def run(library: Path, script: Path) -> list[list[object]]:
    """What the agent gets from that library, and the functions that the bindings loaded from it."""
    script.write_text(f"{TWO}mig 1 1\nslice 1 MIG-a 4096 A100 MIG 1g.5gb\nnvlinks 0 1\n")
    environment = {**os.environ, "FAKE_NVML_SCRIPT": str(script), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ASKED, str(library)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    found: list[list[object]] = json.loads(done.stdout)
    return found


def test_the_table_is_what_the_agent_calls(library: Path, tmp_path: Path) -> None:
    functions = run(library, tmp_path / "script")[1]
    assert functions == sorted(CALLED)


@pytest.fixture
def real() -> Path:
    named = os.environ.get("NVML_LIBRARY", "")
    if not named:
        pytest.skip("needs NVML_LIBRARY=/path/to/libnvidia-ml.so.1, NVIDIA's library")
    return Path(named)


def test_nvidias_library_has_what_its_driver_is_known_to_have(real: Path) -> None:
    branch = int(os.environ.get("NVML_LIBRARY_DRIVER", "0").partition(".")[0])
    library = ctypes.CDLL(str(real))
    assert {name for name in CALLED if hasattr(library, name)} == {n for n, first in CALLED.items() if first <= branch}


def test_without_a_driver_the_library_says_so_and_the_agent_too(real: Path, tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("needs a machine without NVIDIA's driver")
    unloaded = "the NVIDIA kernel driver is not loaded: Driver Not Loaded (NVML code 9)"
    shown, _ = run(real, tmp_path / "script")
    assert shown == [*([["DriverGone", unloaded]] * 3), [None, unloaded], unloaded]
