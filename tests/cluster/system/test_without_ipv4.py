"""All programs, the API server and a pod with a share work without IPv4, in a separate network namespace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[3]
ALONE = ("unshare", "--net", "--map-root-user")
SETUP = 'ip link set lo up && ip -4 address flush dev lo && exec "$@"'


def missing() -> str:
    """Why no network namespace can be created here; empty if one can."""
    if not all(map(shutil.which, ("unshare", "ip"))):
        return "unshare and ip are not here (util-linux, iproute2)"
    done = subprocess.run([*ALONE, "true"], capture_output=True, text=True, timeout=30, check=False)
    return done.stderr.strip() if done.returncode else ""


def test_a_pod_gets_its_share_and_probes_are_answered_without_ipv4(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    driver = [sys.executable, "-m", "tests.cluster.system.without_ipv4", str(tmp_path)]
    command = [*ALONE, "sh", "-c", SETUP, "sh", *driver]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    logs = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{logs}"
    assert json.loads(done.stdout) == {
        "probes": {"webhook": 200, "allocator": 200, "nodeagent": 200},
        "by IPv4": [],
        "node": "n1",
    }
