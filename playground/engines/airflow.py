"""
Airflow's own scheduler, DAG processor, triggerer and API server alongside a control plane, asked over its REST API.

Tasks run in processes of the scheduler's LocalExecutor, or in worker pods of the KubernetesExecutor. Kubelets of the
playground run no containers, so `work` runs the command of a worker's container here, once its pod runs there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.programs.process import Program
from playground.realapi.components import Ports
from playground.waiting import wait_for

JSON = dict[str, Any]
PYTHON = "airflow/bin/python"
"""Of a virtual environment in the folder of the engines, with Airflow and its provider for Kubernetes."""
WORKER = "base"
"""The name of the container in a worker's pod."""
RUN = "run"
"""The name of each DAG's only run."""
_PROGRAMS = ("api-server", "scheduler", "dag-processor", "triggerer")
_TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker"},
    "spec": {"containers": [{"name": WORKER, "image": "airflow"}], "restartPolicy": "Never"},
}


def assets() -> Path | str:
    """The folder with its environment, or one line on what is missing."""
    return engine.assets(PYTHON)


@dataclass(frozen=True)
class Airflow:
    """The programs that run, and what a user sees of DAGs that have one task each, of the DAG's name."""

    address: str
    programs: tuple[Program, ...]
    python: str
    environment: Mapping[str, str]
    directory: Path

    def start(self, dag: str) -> None:
        """Start the DAG's run."""
        self._ask("PATCH", f"dags/{dag}", {"is_paused": False})
        self._ask("POST", f"dags/{dag}/dagRuns", {"dag_run_id": RUN, "logical_date": None})

    def state(self, dag: str) -> str:
        """The state of its task; empty for one that is not known yet."""
        return str(self._task(dag).get("state") or "")

    def run(self, dag: str) -> str:
        """The state of its run."""
        return str(self._ask("GET", f"dags/{dag}/dagRuns/{RUN}").get("state") or "")

    def log(self, dag: str) -> str:
        """The log of its task's latest try with its errors, as the UI shows it."""
        number = max(int(self._task(dag).get("try_number") or 1), 1)
        found = self._ask("GET", f"dags/{dag}/dagRuns/{RUN}/taskInstances/{dag}/logs/{number}")
        return "\n".join(f"{each['event']} {each.get('error_detail') or ''}" for each in found["content"])

    def audit(self, dag: str) -> list[str]:
        """What Airflow's audit log says of the task, the oldest first."""
        found = self._ask("GET", f"eventLogs?dag_id={dag}&order_by=id&limit=100")
        return [f"{each['event']}: {each.get('extra') or ''}" for each in found["event_logs"]]

    def fail(self, dag: str) -> None:
        """Mark the task as failed, as the UI does; Airflow ends it."""
        self._ask("PATCH", f"dags/{dag}/dagRuns/{RUN}/taskInstances/{dag}", {"new_state": "failed"})

    def delete(self, dag: str) -> None:
        """Delete the DAG's run."""
        self._ask("DELETE", f"dags/{dag}/dagRuns/{RUN}")

    def knows(self, dags: set[str]) -> bool:
        """Whether it serves, and has read these DAGs. Raises if it cannot read one."""
        try:
            if errors := [each["stack_trace"] for each in self._ask("GET", "importErrors")["import_errors"]]:
                raise ValueError(errors[0])
            return dags <= {each["dag_id"] for each in self._ask("GET", "dags?limit=100")["dags"]}
        except (urllib.error.URLError, OSError):
            return False

    def work(self, pod: JSON) -> int:
        """Run what the worker's pod says to its end, as its container would: its exit code."""
        (container,) = (each for each in pod["spec"]["containers"] if each["name"] == WORKER)
        command = [*(container.get("command") or ()), *container["args"]]
        if command[0] != "python":
            raise ValueError(f"a worker's command is {command[:3]}")
        variables = {each["name"]: each["value"] for each in container.get("env") or () if "value" in each}
        environment = {**os.environ, **self.environment, **variables}
        with (self.directory / "worker.log").open("ab") as log:
            return subprocess.run(
                [self.python, *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=60,
            ).returncode

    def tail(self) -> str:
        """The ends of the programs' logs."""
        return "\n".join(f"{each.name}:\n{each.tail(8)}" for each in self.programs)

    def _task(self, dag: str) -> JSON:
        try:
            return self._ask("GET", f"dags/{dag}/dagRuns/{RUN}/taskInstances/{dag}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return {}

    def _ask(self, method: str, path: str, body: JSON | None = None) -> JSON:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(f"{self.address}/api/v2/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return dict(json.loads(text)) if text else {}


@contextlib.contextmanager
def running(
    cluster: Cluster, folder: Path, directory: Path, dags: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[Airflow]:
    """
    It runs meanwhile. `dags`: the source of each DAG by its name; `settings`: of Airflow, as SECTION__KEY.
    """
    ports = Ports.free()
    address = f"http://127.0.0.1:{ports.api}"
    home = directory / "home"
    (home / "dags").mkdir(parents=True)
    for name, source in dags.items():
        (home / "dags" / f"{name}.py").write_text(source)
    kubeconfig, template = directory / "kubeconfig.yaml", directory / "worker.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("airflow", ("system:masters",))))
    template.write_text(yaml.safe_dump(_TEMPLATE))
    environment = {
        "AIRFLOW_HOME": str(home),
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{folder / PYTHON}".rpartition("/")[0] + os.pathsep + os.environ["PATH"],
        **{f"AIRFLOW__{key}": value for key, value in {**_settings(ports, home, template), **settings}.items()},
    }
    python = str(folder / PYTHON)
    migrate = Program(
        "airflow-db", ["db", "migrate"], log=directory / "db.log", environment=environment, command=_command(python)
    )
    migrate.run(timeout=120)
    programs = tuple(
        Program(each, [each], log=directory / f"{each}.log", environment=environment, command=_command(python))
        for each in _PROGRAMS
    )
    airflow = Airflow(address, programs, python, environment, directory)
    try:
        for each in programs:
            each.start()
        wait_for(
            lambda: airflow.knows(set(dags)) or not all(each.alive() for each in programs),
            lambda: f"Airflow has not read its DAGs: {airflow.tail()}",
            120,
        )
        for each in programs:
            each.check()
        yield airflow
    finally:
        for each in programs:
            each.terminate()
        for each in programs:
            each.wait()


def _command(python: str) -> tuple[str, ...]:
    return (python, "-m", "airflow")


def _settings(ports: Ports, home: Path, template: Path) -> dict[str, str]:
    """What it needs to run here: one SQLite file, no log-in, and the secrets that its programs share."""
    return {
        "CORE__EXECUTOR": "LocalExecutor,KubernetesExecutor",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_FOLDER": str(home / "dags"),
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{ports.api}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "API__SECRET_KEY": secrets.token_hex(32),
        "API__HOST": "127.0.0.1",
        "API__PORT": str(ports.api),
        "API__WORKERS": "1",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "LOGGING__WORKER_LOG_SERVER_PORT": str(ports.etcd),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports.peer),
        "LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "KUBERNETES_EXECUTOR__NAMESPACE": "default",
        "KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "KUBERNETES_EXECUTOR__CONFIG_FILE": str(template.parent / "kubeconfig.yaml"),
        "KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(template),
        "KUBERNETES_EXECUTOR__WORKER_CONTAINER_REPOSITORY": "airflow",
        "KUBERNETES_EXECUTOR__WORKER_CONTAINER_TAG": "test",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
