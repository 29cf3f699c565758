"""What the agent costs, with NVML's real bindings and the fake library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_agent_stays_small_with_8_gpus_and_64_sharers(library: Path, tmp_path: Path) -> None:
    script = ["driver 550.54.15", "cuda 12040", *(f"gpu GPU-{n} NVIDIA H100 80GB HBM3" for n in range(8))]
    script += [f"memory {n} {80 << 30} {1 << 29} {8 << 30}" for n in range(8)]
    script += [f"process {n} {1000 + 8 * n + i} {1 << 30}" for n in range(8) for i in range(8)]
    (tmp_path / "script").write_text("\n".join(script) + "\n")
    environment = {**os.environ, "FAKE_NVML_SCRIPT": str(tmp_path / "script"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.nodeagent", f"--nvml-library={library}", "--looks=40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    print(done.stdout)
    found = re.fullmatch(
        r"node agent with 8 GPUs and 64 sharers: (\d+) MiB resident, .* ([0-9.]+) % of a core at a look every 5 s\n",
        done.stdout,
    )
    assert found is not None, done.stdout
    assert int(found[1]) < 60
    assert float(found[2]) < 1
