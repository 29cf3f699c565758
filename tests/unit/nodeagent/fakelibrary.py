"""The fake libnvidia-ml.so.1, built from `fake_nvml/nvml.c` with this machine's compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FAKE = Path(__file__).parent / "fake_nvml"


def built(folder: Path, without: Sequence[str] = (), *, source: Path = FAKE / "nvml.c") -> Path:
    """The library in `folder`, without these functions. Skips the test if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build the fake libnvidia-ml.so.1: install gcc")
    library = folder / "libnvidia-ml.so.1"
    defines = [f"-DWITHOUT_{function}" for function in without]
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, *defines, "-o", library, source], check=True, timeout=60)
    return library
