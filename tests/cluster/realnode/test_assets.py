"""The folder of REALNODE_ASSETS: found, or one line that says what is missing. These tests need no node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.realnode.assets import NEEDED, NodeAssets, node_assets


def test_a_folder_that_is_not_named() -> None:
    assert (
        node_assets({}, ()) == "REALNODE_ASSETS is not set; it names a folder with a node's programs (docs/testing.md)"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a node takes root")
def test_a_folder_that_lacks_a_runtime(tmp_path: Path) -> None:
    for name in NEEDED:
        (tmp_path / name).touch()
    environment = {"REALNODE_ASSETS": str(tmp_path)}
    assert node_assets(environment, ("ctr", "containerd")) == (
        f"REALNODE_ASSETS: {tmp_path} has no ctr and no containerd"
    )
    assert node_assets(environment, ()) == NodeAssets(tmp_path)
