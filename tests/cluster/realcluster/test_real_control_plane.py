"""The real control plane itself: which users it has, what replaces its missing parts, and that nothing stays."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from kubectl_gpufraction import connection
from playground import scenarios
from playground.api.kinds.values import ADMIN, User
from playground.machinery.objects.nodes import NodeSpec, node_object
from playground.realapi.components import assets_of
from playground.realapi.real import Real
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeNotFound
from runtime.kubernetes.transport import connect_transport

JSON = dict[str, Any]
ASSETS = assets_of(os.environ)
pytestmark = [
    pytest.mark.realcluster,
    *([pytest.mark.skip(reason=ASSETS)] if isinstance(ASSETS, str) else []),
]
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
CONTAINER = {"name": "c", "image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}
CHILD = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [CONTAINER]}}


@pytest.fixture(scope="module")
def plane() -> Iterator[Real]:
    """An API server alone; everything else is replaced. It has one node."""
    assert not isinstance(ASSETS, str)
    made = Real(ASSETS, scheduler=False, controllers=False)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def kube(plane: Real, tmp_path_factory: pytest.TempPathFactory) -> Kube:
    path = tmp_path_factory.mktemp("admin") / "kubeconfig"
    path.write_text(plane.kubeconfig(ADMIN))
    made = Kube(connect_transport(kubeconfig=str(path), context=None, user_agent="test"))
    made.create(paths.nodes(), node_object(NodeSpec("n1"), 1_700_000_000))
    return made


def as_user(plane: Real, tmp_path: Any, user: User) -> Kube:
    path = tmp_path / "kubeconfig"
    path.write_text(plane.kubeconfig(user))
    return Kube(connect_transport(kubeconfig=str(path), context=None, user_agent="test"))


def who(kube: Kube) -> JSON:
    info: JSON = kube.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", REVIEW)["status"]["userInfo"]
    return info


def test_a_service_accounts_token_says_on_which_node_it_runs(plane: Real, kube: Kube, tmp_path: Any) -> None:
    user = User("system:serviceaccount:default:default", extra={"authentication.kubernetes.io/node-name": ("n1",)})
    info = who(as_user(plane, tmp_path, user))
    assert info["username"] == user.name
    assert "system:serviceaccounts:default" in info["groups"]
    assert info["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]


def test_a_service_account_that_is_not_there_has_no_token(plane: Real) -> None:
    with pytest.raises(KubeNotFound, match="nobody"):
        plane.kubeconfig(User("system:serviceaccount:default:nobody"))


def test_what_no_credential_can_say_is_refused(plane: Real) -> None:
    with pytest.raises(ValueError, match="extra"):
        plane.kubeconfig(User("tenant", extra={"a": ("b",)}))


def test_the_plugin_asks_as_the_user_and_the_groups_that_are_named(plane: Real, kube: Kube, tmp_path: Any) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(plane.kubeconfig(ADMIN))
    asked = connection.connect(str(path), None, user="mia", groups=("dev", "ops"), timeout=5.0)
    info = who(Kube(asked))
    assert (info["username"], set(info["groups"])) == ("mia", {"dev", "ops", "system:authenticated"})
    with pytest.raises(KubeForbidden, match='User "mia" cannot list resource "pods"'):
        Kube(asked).list(paths.pods("default"))


def test_a_user_is_who_its_certificate_says(plane: Real, kube: Kube, tmp_path: Any) -> None:
    tenant = as_user(plane, tmp_path, User("tenant", ("tenants",)))
    info = who(tenant)
    assert (info["username"], set(info["groups"])) == ("tenant", {"tenants", "system:authenticated"})
    with pytest.raises(KubeForbidden):
        tenant.list(paths.pods("default"))


def test_a_new_node_is_ready_for_pods(kube: Kube) -> None:
    wait_for(lambda: not kube.get(paths.nodes("n1"))["spec"].get("taints"), "the node is still tainted")


def test_a_deployment_runs_prints_and_takes_its_pods_with_it(kube: Kube) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": CHILD}
    path = paths.deployments("default")
    kube.create(path, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    wait_for(lambda: [scenarios.is_running(p) for p in scenarios.all_pods(kube)] == [True, True], "not running")
    wait_for(lambda: kube.get(f"{path}/web").get("status", {}).get("readyReplicas") == 2, "its status does not say")
    for pod in scenarios.all_pods(kube):
        assert pod["spec"]["nodeName"] == "n1"
        assert scenarios.printed(kube, pod) == "NVIDIA_VISIBLE_DEVICES=void\n"
    kube.delete(f"{path}/web", {"propagationPolicy": "Background"})
    wait_for(lambda: not scenarios.all_pods(kube), "pods are left behind")


def test_a_quota_is_counted_in_and_out(kube: Kube) -> None:
    path = paths.resourcequotas("default")

    def used() -> str:
        status: JSON = kube.get(f"{path}/pods").get("status", {})
        return str(status.get("used", {}).get("pods", ""))

    kube.create(path, {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}})
    try:
        wait_for(lambda: used() == "0", lambda: f"used: {used()}")
        pod = {**CHILD, "metadata": {"name": "one"}}
        kube.create(paths.pods("default"), pod)
        with pytest.raises(KubeForbidden, match="exceeded quota"):
            kube.create(paths.pods("default"), {**CHILD, "metadata": {"name": "two"}})
        kube.delete(paths.pods("default", "one"))
        wait_for(lambda: used() == "0", lambda: f"used: {used()}")
    finally:
        kube.delete(f"{path}/pods")


def test_kubelets_go_on_after_the_api_server_crashed(plane: Real, kube: Kube) -> None:
    plane.server.restart(crash=True)
    kube.create(paths.pods("default"), {**CHILD, "metadata": {"name": "after"}})
    wait_for(lambda: scenarios.is_running(kube.get(paths.pods("default", "after"))), "it does not run")
    kube.delete(paths.pods("default", "after"))


def test_only_the_api_server_may_ask_a_kubelet_for_logs(plane: Real, kube: Kube) -> None:
    node = kube.get(paths.nodes("n1"))
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain, context.wrap_socket(plain) as stranger:
            stranger.sendall(b"GET /containerLogs/a/b/c HTTP/1.1\r\nHost: x\r\n\r\n")
            return stranger.recv(1)

    with pytest.raises(ssl.SSLError):
        ask()


def test_nothing_stays_behind() -> None:
    assert not isinstance(ASSETS, str)
    made = Real(ASSETS)
    try:
        made.start()
        programs = list(made.server.programs.values())
        assert programs
        assert all(program.alive() for program in programs)
    finally:
        made.stop()
    assert not any(program.alive() for program in programs)
    assert not made.server.directory.exists()
