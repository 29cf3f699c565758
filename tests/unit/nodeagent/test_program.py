"""The program as a user starts it: its commands, and a complete run with the embedded API over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nodeagent.gpus.simulated import simulated_uuid
from playground.api.http.server import HttpsServer
from playground.programs.probes import free_port
from playground.waiting import wait_for
from runtime.kubernetes.client import JSON
from runtime.kubernetes.paths import gpunodes, nodes
from tests.unit.nodeagent.cluster import Cluster

ROOT = Path(__file__).parents[3]
NAMES = [simulated_uuid("n1", index) for index in range(2)]


def environment() -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("GPUFRACTION_")}
    return {**plain, "PYTHONPATH": str(ROOT)}


def call(*arguments: str, **extra: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "nodeagent", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env={**environment(), **extra})
    return done.returncode, done.stdout, done.stderr


INVENTORY = f"""\
driver 550.54.15, CUDA 12.4
INDEX  UUID                                      MODEL     MEMORY    USABLE    HEALTH
0      {NAMES[0]}  Tesla T4  15109MiB  14853MiB  Healthy
1      {NAMES[1]}  Tesla T4  15109MiB  14853MiB  Unhealthy: XID 79
"""


def test_inventory_prints_what_would_be_published(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text("gpus: 2 x Tesla T4 15109MiB\ncards: {1: {healthy: false, reason: XID 79}}")
    options = tmp_path / "options.yaml"
    options.write_text("reserveMem: 256\n")
    want = (0, INVENTORY, "")
    assert call("inventory", "--node=n1", f"--simulate=@{file}", f"--options={options}") == want
    twins = {"GPUFRACTION_NODE": "n1", "GPUFRACTION_SIMULATE": f"@{file}", "GPUFRACTION_OPTIONS": str(options)}
    assert call("inventory", **twins) == want


WRONG = {
    "no command": ([], 2, "found ''; give run, inventory, hold or mps"),
    "no GPU": (["inventory", "--nvml-library=/none.so"], 1, "no GPU: /none.so cannot be loaded"),
    "no node": (["run"], 2, "node: not set"),
    "an unknown flag": (["run", "--node=n1", "--intervall=1s"], 2, "did you mean --interval?"),
    "a wrong simulation": (["inventory", "--simulate=T4"], 2, "'T4' is not a count, a model and a memory"),
    "a wrong address": (["run", "--node=n1", "--listen=9445"], 2, "listen is '9445'; give address and port"),
    "no way to a cluster": (["run", "--node=n1", "--kubeconfig=/none"], 2, "kubeconfig /none"),
}


@pytest.mark.parametrize(("arguments", "status", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_says_what_would_be_right(arguments: list[str], status: int, words: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (status, "")
    assert words in err


class Running:
    """An agent's process on a cluster that is served over TLS. `program`: how Python starts it."""

    def __init__(
        self, cluster: Cluster, server: HttpsServer, directory: Path, program: Sequence[str] = ("-m", "nodeagent")
    ) -> None:
        self.cluster, self.gpus = cluster, directory / "gpus.yaml"
        self.gpus.write_text("gpus: 2 x Tesla T4 15109MiB")
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        flags = ["--node=n1", f"--simulate=@{self.gpus}", f"--kubeconfig={kubeconfig}", "--interval=100ms"]
        self.port = free_port()
        self.process = subprocess.Popen(
            [
                sys.executable,
                *program,
                "run",
                *flags,
                f"--listen=127.0.0.1:{self.port}",
                "--metrics-access=open",
            ],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> JSON:
        code, found = self.cluster.api.call("GET", gpunodes("n1"))
        return found.get("status", {}) if code == 200 else {}

    def until(self, holds: Callable[[], bool]) -> None:
        def held() -> bool:
            assert self.process.poll() is None
            return holds()

        wait_for(held, lambda: f"{self.status()}, {self.get('/readyz')}", 20.0)

    def resident_kib(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=10)
        return self.process.returncode


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    cluster = Cluster("n1")
    with HttpsServer(cluster.api) as server:
        made = Running(cluster, server, tmp_path)
        yield made
        if made.process.poll() is None:
            made.stop()


def test_a_run_from_start_to_stop(running: Running) -> None:
    running.until(lambda: running.get("/readyz") == (200, '{"ok":true,"reasons":{}}'))
    assert [gpu["uuid"] for gpu in running.status()["gpus"]] == NAMES
    assert running.get("/healthz")[0] == 200
    assert 'gpufraction_gpus{health="healthy",node="n1"} 2.0' in running.get("/metrics")[1]
    print(f"resident memory of a running agent: {running.resident_kib() // 1024} MiB")
    assert running.resident_kib() < 60 << 10

    running.gpus.write_text("{gpus: 2 x Tesla T4 15109MiB, cards: {0: {healthy: false, reason: XID 79}}}")
    running.until(lambda: running.status()["gpus"][0]["reason"] == "XID 79")

    running.gpus.write_text("{gpus: 2 x Tesla T4 15109MiB, failure: DriverGone}")
    running.until(lambda: running.get("/readyz")[0] == 503)
    reasons = json.loads(running.get("/readyz")[1])["reasons"]
    assert reasons == {"published": "simulated: the description says so"}
    assert running.get("/healthz")[0] == 200

    running.gpus.write_text("gpus: 2 x Tesla T4 15109MiB")
    running.until(lambda: running.get("/readyz")[0] == 200)
    running.cluster.wipe_capacity("n1")
    running.until(lambda: running.cluster.node("n1")["status"]["capacity"]["gpufraction.io/gpu-cores"] == "200")
    assert running.stop() == 0


def test_a_run_ends_when_the_driver_was_replaced_under_its_library(running: Running) -> None:
    running.until(lambda: running.get("/readyz")[0] == 200)
    running.gpus.write_text("{gpus: 2 x Tesla T4 15109MiB, failure: LibraryOutdated}")
    _, output = running.process.communicate(timeout=60)
    assert (running.process.returncode, "the driver was replaced; the agent restarts" in output) == (1, True)


TABLES = """
import sys
from nodeagent.__main__ import main
from tests.unit.nodeagent.isolation.test_mechanism_table import TABLE, WAY
sys.exit(main([*sys.argv[1:], "--limiters-quota"], mechanisms=TABLE, ways=[lambda site: WAY]))
"""


def test_a_run_uses_the_tables_that_it_is_given(tmp_path: Path) -> None:
    cluster = Cluster("n1")
    cluster.merge(nodes("n1"), {"metadata": {"labels": {"plugged": "yes"}}})
    with HttpsServer(cluster.api) as server:
        running = Running(cluster, server, tmp_path, ("-c", TABLES))
        try:
            running.until(lambda: running.get("/readyz")[0] == 200)
            reasons = {each["type"]: each["message"] for each in running.status()["conditions"]}
            assert reasons["Quotas"] == "quotas are set"
            assert running.status()["delivery"]["cdiKind"] == "vendor.example/gpu"
            assert 'gpufraction_node_isolation{level="quota",node="n1"} 0.0' in running.get("/metrics")[1]
            assert running.stop() == 0
        finally:
            running.process.kill()
