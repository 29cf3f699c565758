"""The fake libnvidia-ml.so.1, built once for all tests that load it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

FAKE = Path(__file__).parent / "fake_nvml"


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], Path]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build the fake libnvidia-ml.so.1: install gcc")

    def compile_without(functions: Sequence[str]) -> Path:
        library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
        without = [f"-DWITHOUT_{function}" for function in functions]
        flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run([compiler, *flags, *without, "-o", library, FAKE / "nvml.c"], check=True, timeout=60)
        return library

    return compile_without


@pytest.fixture(scope="session")
def library(build: Callable[[Sequence[str]], Path]) -> Path:
    return build(())
