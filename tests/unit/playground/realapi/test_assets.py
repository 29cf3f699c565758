"""The folder of KUBEBUILDER_ASSETS: found, or one line that says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from playground.realapi.components import Assets, assets_of

CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "empty": ((), "no etcd and no kube-apiserver"),
    "without an API server": (("etcd",), "no kube-apiserver"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_folder_that_lacks_what_is_needed(tmp_path: Path, case: tuple[tuple[str, ...], str]) -> None:
    there, missing = case
    for name in there:
        (tmp_path / name).touch()
    assert assets_of({"KUBEBUILDER_ASSETS": str(tmp_path)}) == f"KUBEBUILDER_ASSETS: {tmp_path} has {missing}"


def test_a_folder_that_is_not_named() -> None:
    assert assets_of({"KUBEBUILDER_ASSETS": ""}) == assets_of({})
    assert assets_of({}) == "KUBEBUILDER_ASSETS is not set; it names a folder with etcd and kube-apiserver"


def test_a_folder_with_what_is_needed_and_nothing_more(tmp_path: Path) -> None:
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).touch()
    found = assets_of({"KUBEBUILDER_ASSETS": str(tmp_path)})
    assert found == Assets(tmp_path)
    assert not Assets(tmp_path).has("kube-scheduler")


SAYS: dict[str, tuple[str, int]] = {
    "a release": ("echo Kubernetes v1.30.14", 30),
    "a build of a distribution": ("echo Kubernetes v1.36.0-rc.1+abc", 36),
    "something else": ("echo hello", 0),
    "nothing": ("exit 1", 0),
}


@pytest.mark.parametrize("case", SAYS.values(), ids=SAYS.keys())
def test_the_program_says_its_version(tmp_path: Path, case: tuple[str, int]) -> None:
    script, minor = case
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert Assets(tmp_path).minor() == minor
