"""
JupyterHub with KubeSpawner as a process alongside a control plane, reached by its REST API on loopback.

The proxy is left out: it connects browsers to notebooks, and does not affect how pods are created. JupyterHub's page
for a starting notebook reads the progress URL. This module reads the same URL as a browser does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.programs.process import Program
from playground.realapi.components import Ports
from playground.waiting import wait_for

JSON = dict[str, Any]
PYTHON = "jupyterhub/bin/python"
"""Python in a virtual environment in the engines' folder, with the packages jupyterhub and jupyterhub-kubespawner."""
_CONFIG = """
import json
from jupyterhub.proxy import Proxy

given = json.loads(open({path!r}).read())


class NoProxy(Proxy):
    should_start = False
    routes = {{}}

    async def add_route(self, routespec, target, data):
        self.routes[routespec] = {{"routespec": routespec, "target": target, "data": data}}

    async def delete_route(self, routespec):
        self.routes.pop(routespec, None)

    async def get_all_routes(self):
        return self.routes


c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.bind_url = f"http://127.0.0.1:{{given['public']}}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{{given['hub']}}"
c.JupyterHub.db_url = "sqlite:///" + given["database"]
c.JupyterHub.cookie_secret = bytes.fromhex(given["secret"])
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.services = [{{"name": "tests", "api_token": given["token"]}}]
c.JupyterHub.load_roles = [{{"name": "tests", "scopes": ["admin:users", "admin:servers"], "services": ["tests"]}}]
c.KubeSpawner.namespace = "default"
c.KubeSpawner.http_timeout = 5
for name, value in given["spawner"].items():
    setattr(c.KubeSpawner, name, value)
"""


def assets() -> Path | str:
    """The folder with its environment, or one line that says what is missing."""
    return engine.assets(PYTHON)


@dataclass(frozen=True)
class JupyterHub:
    """The running Hub."""

    address: str
    token: str
    program: Program

    def spawn(self, user: str) -> None:
        """Start a user's notebook, and return before it runs. Creates the user first."""
        with contextlib.suppress(urllib.error.HTTPError):  # the user exists already
            self._ask("POST", f"users/{user}")
        self._ask("POST", f"users/{user}/server", {})

    def stop(self, user: str) -> None:
        """Stop the notebook, or cancel its start."""
        self._ask("DELETE", f"users/{user}/server")

    def progress(self, user: str) -> Iterator[str]:
        """The lines of the page that shows how the notebook starts, until the start ends."""
        with self._open("GET", f"users/{user}/server/progress", timeout=60) as answer:
            for raw in answer:
                line = raw.decode()
                if line.startswith("data:"):
                    yield str(json.loads(line.removeprefix("data:")).get("message", ""))

    def pending(self, user: str) -> str:
        """The pending action of the user's notebook: `spawn`, `stop`, or empty."""
        servers = self._ask("GET", f"users/{user}").get("servers") or {}
        return str((servers.get("") or {}).get("pending") or "")

    def answers(self) -> bool:
        """Whether the Hub answers requests."""
        try:
            return "version" in self._ask("GET", "")
        except (urllib.error.URLError, OSError):
            return False

    def _ask(self, method: str, path: str, body: JSON | None = None) -> JSON:
        with self._open(method, path, body) as answer:
            text = answer.read()
        return dict(json.loads(text)) if text else {}

    def _open(self, method: str, path: str, body: JSON | None = None, *, timeout: float = 15) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/hub/api/{path}", data, headers, method=method)
        return urllib.request.urlopen(request, timeout=timeout)


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path, spawner: Mapping[str, Any]) -> Iterator[JupyterHub]:
    """Run the Hub inside the context. `spawner`: KubeSpawner's settings by name."""
    ports, token = Ports.free(), secrets.token_hex(16)
    directory.mkdir(parents=True)
    given, config = directory / "given.json", directory / "config.py"
    document = {
        "public": ports.api,
        "hub": ports.etcd,
        "token": token,
        "secret": secrets.token_hex(32),
        "database": str(directory / "hub.sqlite"),
        "spawner": dict(spawner),
    }
    given.touch(0o600)
    given.write_text(json.dumps(document))
    config.write_text(_CONFIG.format(path=str(given)))
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("jupyterhub", ("system:masters",))))
    command = ("env", "-C", str(directory), str(folder / PYTHON), "-m")
    environment = {"KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}
    arguments = ["jupyterhub", "--config", str(config)]
    log = directory / "jupyterhub.log"
    program = Program("jupyterhub", arguments, log=log, environment=environment, command=command)
    program.start()
    hub = JupyterHub(f"http://127.0.0.1:{ports.etcd}", token, program)
    try:
        wait_for(
            lambda: hub.answers() or not program.alive(), lambda: f"JupyterHub does not serve: {program.tail()}", 60
        )
        program.check()
        yield hub
    finally:
        program.terminate()
        program.wait()
