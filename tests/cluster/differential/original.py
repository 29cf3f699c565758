"""
What kube-scheduler itself decides about a pod: in one cycle, a filter extender receives all nodes that its filters
leave.

The extender refuses all of them, so nothing is bound, nominated or reserved, and a probe changes nothing for the next.
It is called only if a node is left. A pod for which it was not called has the condition `PodScheduled` with the
scheduler's message.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.machinery.cluster import SCHEDULER
from playground.realapi import components
from playground.realapi.server import RealServer

JSON = dict[str, Any]
WHOLE = "judge-all"
"""The schedulerName of the default profile."""


_FILTERS_ALONE = ("NodeUnschedulable", "NodeName", "TaintToleration")
"""Plugins that need no preparation before they filter."""


def only(plugin: str) -> str:
    """The schedulerName of the profile that has only this filter."""
    return f"judge-{plugin.lower()}"


class Extender:
    """Records, by the pod's uid, the names of the nodes that the filters left."""

    def __init__(self) -> None:
        self.left: dict[str, frozenset[str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = request.get("NodeNames") or request.get("nodenames") or []
                pod = request.get("Pod") or request.get("pod")
                outer.left[pod["metadata"]["uid"]] = frozenset(names)
                refused = {"nodenames": [], "failedAndUnresolvableNodes": dict.fromkeys(names, "a probe")}
                body = json.dumps(refused).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="extender", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _configuration(kubeconfig: Path, port: int, plugins: Sequence[str]) -> JSON:
    quiet: JSON = {"postFilter": {"disabled": [{"name": "*"}]}}
    profiles: list[JSON] = [{"schedulerName": WHOLE, "plugins": quiet}]
    for plugin in plugins:
        points = ("filter",) if plugin in _FILTERS_ALONE else ("preFilter", "filter")
        alone = {
            point: {"disabled": [{"name": "*"}], "enabled": [{"name": plugin}] if point in points else []}
            for point in ("preFilter", "filter")
        }
        profiles.append({"schedulerName": only(plugin), "plugins": {**quiet, **alone}})
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "profiles": profiles,
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}",
                "filterVerb": "filter",
                "nodeCacheCapable": True,
                "enableHTTPS": False,
                "httpTimeout": "30s",
            }
        ],
    }


@contextmanager
def judging(server: RealServer, plugins: Sequence[str]) -> Iterator[Extender]:
    """Run the server's kube-scheduler with the default profile and one profile for each of the plugins."""
    extender = Extender()
    try:
        file = server.directory / "judging.json"
        configuration = _configuration(server.certified(SCHEDULER), extender.port, plugins)
        file.write_text(json.dumps(configuration))
        program = server.add(components.SCHEDULER, [f"--config={file}", "--secure-port=0", "--bind-address=127.0.0.1"])
        program.start()
        try:
            yield extender
        finally:
            program.terminate()
            program.wait()
    finally:
        extender.close()


def verdict(pod: Mapping[str, Any]) -> JSON | None:
    """The condition `PodScheduled` of a pod that was judged; None before that."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in conditions if each["type"] == "PodScheduled"), None)
