"""What the page of `kubectl gpufraction ui` says about broken clusters, and to which users."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from contract import names
from kubectl_gpufraction.__main__ import parser
from kubectl_gpufraction.session import Session
from kubectl_gpufraction.ui.command import of_session
from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.embedded import Embedded
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.transport import connect_transport
from runtime.kubernetes.warnings import WarningTransport
from tests.cluster.checking import faults

pytestmark = pytest.mark.system
JSON = dict[str, Any]
RBAC = Path(__file__).parents[3] / "manifests" / "components" / "ui" / "rbac.yaml"
ACCOUNT = "system:serviceaccount:gpufraction-system:gpufraction-ui"


class Page:
    """The page's server, queried as a browser does."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> JSON:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("GET", path, headers={"Host": "localhost"})
        found: JSON = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def head(self) -> JSON:
        head: JSON = self.get("/api/gpus")["head"]
        return head

    def banners(self) -> list[str]:
        return [each["kind"] for each in self.head()["banners"]]


@contextmanager
def page(kubeconfig: Path, *flags: str) -> Iterator[Page]:
    """The page for the user of that kubeconfig."""
    given = parser().parse_args(["ui", "--kubeconfig", str(kubeconfig), *flags])
    listening = WarningTransport(connect_transport(kubeconfig=str(kubeconfig), context=None, user_agent="test"))
    session = Session(given, Kube(listening), listening, "default")
    with of_session(session, token="", least_rest=0.2) as server:
        yield Page(server.port)


def test_the_banner_comes_when_the_leader_ends_and_goes_with_the_next(cluster: Cluster) -> None:
    with page(cluster.kubeconfig) as shown:
        assert (shown.banners(), shown.head()["unseen"]) == ([], [])
        with faults.stopped(cluster, "allocator"):
            wait_for(lambda: shown.banners() == ["leader"], lambda: f"{shown.head()}", timeout=60)
        wait_for(lambda: shown.banners() == [], lambda: f"{shown.head()}", timeout=60)


def test_the_banner_tells_of_a_webhook_that_is_not_configured(cluster: Cluster) -> None:
    with page(cluster.kubeconfig) as shown:
        with faults.deleted(cluster, faults.CONFIGURATION):
            wait_for(lambda: shown.banners() == ["webhook"], lambda: f"{shown.head()}", timeout=60)
        wait_for(lambda: shown.banners() == [], lambda: f"{shown.head()}", timeout=60)


_RBAC = "rbac.authorization.k8s.io"
TENANT = (
    {
        "kind": "Role",
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]}],
    },
    {
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "page-tenant"},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": "page-tenant"}],
    },
)


def test_a_tenant_has_no_banner_and_is_told_the_rights(cluster: Cluster, tmp_path: Path) -> None:
    user = tmp_path / "kubeconfig"
    user.write_text(cluster.control_plane.kubeconfig(User("page-tenant", ("system:authenticated",))))
    for document in TENANT:
        metadata = {"name": "page-tenant", "namespace": "default"}
        installing.apply(cluster.kube, {"apiVersion": f"{_RBAC}/v1", "metadata": metadata, **document})
    with page(user) as shown:
        head = shown.head()
    assert (head["whole"], head["banners"], head["unlisted"]) == (
        False,
        [],
        ["nodes", "gpunodes", "pods of all namespaces"],
    )
    assert head["unseen"] == [
        f"whether an allocator leads: you may not get leases in {names.NAMESPACE}",
        f"whether the webhook is ready: you may not list deployments in {names.NAMESPACE}",
        f"whether the webhook is installed: you may not get the MutatingWebhookConfiguration {names.CONFIGURATION}",
    ]


def test_the_account_of_the_component_may_read_all_that_the_page_tells(cluster: Cluster, tmp_path: Path) -> None:
    for document in yaml.safe_load_all(RBAC.read_text()):
        installing.apply(cluster.kube, document)
    user = tmp_path / "kubeconfig"
    user.write_text(cluster.control_plane.kubeconfig(User(ACCOUNT, ("system:serviceaccounts", "system:authenticated"))))
    with page(user) as shown:
        head = shown.head()
    assert (head["whole"], head["banners"], head["unseen"], head["unlisted"]) == (True, [], [], [])


class _Prometheus(BaseHTTPRequestHandler):
    """Answers each query with the query itself, as the label of a current value."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        query = parse_qs(urlsplit(self.path).query)
        series = {"metric": {"node": "t4", "gpu": "GPU-1"}, "values": [[int(query["end"][0]), "0.5"]]}
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _own_address() -> str:
    """
    An address of this machine other than its loopback address, which Endpoints may not contain; empty if there is none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect(("192.0.2.1", 9))  # sends nothing
        return str(found.getsockname()[0])


def _unproxied(kube: Kube) -> str:
    """Why the proxy does not reach it yet: the API server learns about a Service and its endpoints through watches."""
    try:
        kube.get(f"{paths.path('v1', 'services', 'default', 'prometheus:9090', 'proxy')}/ready", {"end": 0})
    except KubeError as error:
        return str(error)
    return ""


def test_prometheus_is_asked_through_the_api_servers_proxy(cluster: Cluster) -> None:
    if isinstance(cluster.control_plane, Embedded):
        pytest.skip("the embedded API server has no proxy of Services")
    server = HTTPServer(("0.0.0.0", 0), _Prometheus)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    port, metadata = server.server_address[1], {"name": "prometheus", "namespace": "default"}
    where, address = paths.pods("default", "prometheus"), _own_address()
    # The proxy connects only to addresses of pods.
    target = {"kind": "Pod", **metadata}
    subset = {"addresses": [{"ip": address, "targetRef": target}], "ports": [{"port": port}]}
    container = {"name": "main", "image": "example.org/prometheus"}
    try:
        for kind, body in (
            ("Service", {"spec": {"ports": [{"port": 9090, "targetPort": port}]}}),
            ("Pod", {"spec": {"containers": [container], "schedulerName": "nobody"}}),
            ("Endpoints", {"subsets": [subset]}),
        ):
            installing.apply(cluster.kube, {"apiVersion": "v1", "kind": kind, "metadata": metadata, **body})
        cluster.kube.patch_merge(f"{where}/status", {"status": {"podIP": address, "podIPs": [{"ip": address}]}})
        wait_for(lambda: not _unproxied(cluster.kube), lambda: _unproxied(cluster.kube), timeout=30)
        _Prometheus.asked.clear()
        with page(cluster.kubeconfig, "--prometheus", "default/prometheus:9090") as shown:
            shown.head()
            found = shown.get("/api/use")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
        cluster.kube.delete(paths.path("v1", "services", "default", "prometheus"))
        cluster.kube.delete(where, {"gracePeriodSeconds": 0})
    assert found["why"] == ""
    assert found["gpus"]["t4/GPU-1"]["busy"][-1] == 50
    assert [urlsplit(each).path for each in _Prometheus.asked] == ["/api/v1/query_range"] * 2
