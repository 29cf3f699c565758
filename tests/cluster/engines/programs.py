"""The folder with an engine's program, for tests that need it."""

from __future__ import annotations

from pathlib import Path

import pytest


def folder_of(assets: Path | str) -> Path:
    """The folder that an engine's `assets` returns. Skips the test if it returns what is missing."""
    if isinstance(assets, str):
        pytest.skip(assets)
    return assets
