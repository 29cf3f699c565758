"""The fake libnvidia-ml.so.1, built once for all tests that load it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.unit.nodeagent.fakelibrary import built


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], Path]:
    return lambda functions: built(tmp_path_factory.mktemp("nvml"), functions)


@pytest.fixture(scope="session")
def library(build: Callable[[Sequence[str]], Path]) -> Path:
    return build(())
