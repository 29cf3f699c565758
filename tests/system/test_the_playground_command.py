"""`make playground` as a newcomer uses it: start it, take the KUBECONFIG that it prints, kubectl, Ctrl-C."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from playground import scenarios

pytestmark = [pytest.mark.system, pytest.mark.kubectl]
_TOP = scenarios.SAMPLES.parent


def test_a_kubectl_works_with_what_it_prints_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer on PATH")
    said = tmp_path / "said"
    with said.open("wb") as out:
        playground = subprocess.Popen(
            [sys.executable, "-m", "playground", "up", "--directory", str(tmp_path / "run")],
            cwd=_TOP,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        scenarios.wait_for(lambda: "Ctrl-C" in said.read_text(), said.read_text, timeout=60)
        found = re.search(r"export KUBECONFIG=(\S+)", said.read_text())
        assert found is not None
        kubectl = ["kubectl", "--kubeconfig", found[1], "--cache-dir", str(tmp_path / "cache")]
        for command in (
            ["apply", "-f", str(scenarios.SAMPLES / "superedge-nano-gpu.yaml")],
            ["wait", "pod/gpu-pod", "--for=condition=Ready", "--timeout=30s"],
        ):
            subprocess.run([*kubectl, *command], check=True, capture_output=True, timeout=60)
    finally:
        playground.send_signal(signal.SIGINT)
        assert playground.wait(30) == 0
