"""Tests that need a real API server are skipped if KUBEBUILDER_ASSETS is empty, as if it is not set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.manifests.kube import ROOT

_NEEDS = ("tests/unit/manifests/test_policies.py", "tests/cluster/realcluster/test_real_control_plane.py")


@pytest.mark.parametrize("file", _NEEDS)
def test_an_empty_variable_is_as_none(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    environment = {**os.environ, "KUBEBUILDER_ASSETS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, " skipped in " in last, "passed" in last) == (0, True, False), done.stdout
    assert "KUBEBUILDER_ASSETS is not set" in done.stdout
