"""The page with a real API server: viewers see what RBAC lets their token see, and nothing without a token."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
import yaml

from contract import names
from kubectl_gpufraction.__main__ import main
from playground.api.kinds.values import User
from playground.realapi.components import assets_of
from playground.realapi.server import RealServer
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.unit.kubectl_gpufraction.objects import admitted
from tests.unit.manifests.kube import MANIFESTS, documents
from tests.unit.manifests.realcluster import REAL

pytestmark = [pytest.mark.realcluster, REAL]
JSON = dict[str, Any]
PAGE = User("page", ("system:authenticated",))
TEAMS = ("team-a", "team-b")
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def account(team: str) -> User:
    return User(f"system:serviceaccount:{team}:viewer", ())


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    """Two teams, each with a waiting pod and an account that may list its pods; and the page's account."""
    assets = assets_of(os.environ)
    assert not isinstance(assets, str)
    with RealServer(assets, enabled=(), disabled=("ServiceAccount",)) as made:
        kube = made.kube()
        [definition] = documents(MANIFESTS / "base" / "gpunodes.crd.yaml")
        kube.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        wait_for(lambda: serves(kube, paths.gpunodes()), "GPUNodes are not served")
        role(kube, "page", [("authentication.k8s.io", "tokenreviews", "create"), ("", "namespaces", "list")])
        bind(kube, "page", {"kind": "User", "name": PAGE.name})
        role(kube, "all", [("*", "*", "get"), ("*", "*", "list")])
        role(kube, "pods", [("", "pods", "get"), ("", "pods", "list"), ("", "events", "list")])
        for team in TEAMS:
            label = {str(names.INJECT_LABEL): names.INJECT_ENABLED}
            kube.create(paths.namespaces(), {"metadata": {"name": team, "labels": label}})
            for name in ("viewer", "admin"):
                kube.create(paths.path("v1", "serviceaccounts", team), {"metadata": {"name": name}})
            subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": team}
            bind(kube, "pods", subject, team)
            pod = admitted(f"of-{team}", "gpufraction.io/gpu-memory", "8Gi", waits="no room")
            pod["metadata"] = {**pod["metadata"], "namespace": team}
            kube.create(paths.pods(team), pod)
        bind(kube, "all", {"kind": "ServiceAccount", "name": "admin", "namespace": "team-a"})
        yield made


def serves(kube: Kube, path: str) -> bool:
    try:
        return kube.list(path) is not None
    except KubeNotFound:
        return False


def role(kube: Kube, name: str, rights: list[tuple[str, str, str]]) -> None:
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in rights]
    kube.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})


def bind(kube: Kube, name: str, subject: JSON, namespace: str = "") -> None:
    subject = {**subject, **({"apiGroup": "rbac.authorization.k8s.io"} if subject["kind"] == "User" else {})}
    kind = "rolebindings" if namespace else "clusterrolebindings"
    where = f"{RBAC}/namespaces/{namespace}/{kind}" if namespace else f"{RBAC}/{kind}"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    metadata = {"name": f"{name}-{subject['name']}"}
    kube.create(where, {"metadata": metadata, "roleRef": reference, "subjects": [subject]})


def token_of(server: RealServer, user: User) -> str:
    [entry] = yaml.safe_load(server.kubeconfig(user))["users"]
    return str(entry["user"]["token"])


@contextmanager
def page(server: RealServer, *flags: str) -> Iterator[int]:
    """The command as the component starts it, with the page's own account. Yields its port."""
    out, stop = io.StringIO(), threading.Event()
    words = ["ui", "--kubeconfig", str(server.certified(PAGE)), "--listen", "127.0.0.1:0", *flags]
    thread = threading.Thread(target=lambda: main(words, out=out, environment={}, stop=stop))
    thread.start()
    try:
        wait_for(lambda: "\n" in out.getvalue(), "the page does not serve")
        found = re.match(r"http://[^:]+:(\d+)", out.getvalue())
        assert found is not None
        yield int(found[1])
    finally:
        stop.set()
        thread.join(20)


def ask(port: int, path: str, **headers: str) -> tuple[int, JSON]:
    connection = HTTPConnection("127.0.0.1", port, timeout=40)
    connection.request("GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body) if body.startswith(b"{") else {}


def pods_for(port: int, token: str) -> tuple[int, list[str]]:
    status, body = ask(port, "/api/queue", Authorization=f"Bearer {token}")
    rows = (body.get("view") or {}).get("rows") or []
    return status, sorted(str(row["name"]) for row in rows)


def test_each_viewer_sees_what_their_token_may_list(server: RealServer) -> None:
    with page(server, "--viewers", "token") as port:
        for team in TEAMS:
            assert pods_for(port, token_of(server, account(team))) == (200, [f"of-{team}"])
        everybody = token_of(server, User("system:serviceaccount:team-a:admin", ()))
        assert pods_for(port, everybody) == (200, ["of-team-a", "of-team-b"])
        # Again, after other viewers looked: no answer is shared.
        assert pods_for(port, token_of(server, account("team-b"))) == (200, ["of-team-b"])


def test_a_story_of_another_teams_pod_is_not_there(server: RealServer) -> None:
    with page(server, "--viewers", "token") as port:
        mine = {"Authorization": f"Bearer {token_of(server, account('team-a'))}"}
        assert ask(port, "/api/pod?namespace=team-a&name=of-team-a", **mine)[0] == 200
        assert ask(port, "/api/pod?namespace=team-b&name=of-team-b", **mine)[0] == 404


def test_without_a_good_token_nothing_is_answered_but_the_files(server: RealServer) -> None:
    with page(server, "--viewers", "token") as port:
        assert ask(port, "/")[0] == ask(port, "/healthz")[0] == 200
        for path in (
            "/api/queue",
            "/api/gpus",
            "/api/pods",
            "/api/namespaces",
            "/api/pod?namespace=team-a&name=of-team-a",
        ):
            assert ask(port, path)[0] == 401, path
            assert ask(port, path, Authorization="Bearer made-up")[0] == 401, path
        nobody = token_of(server, User("system:serviceaccount:team-b:admin", ()))
        assert pods_for(port, nobody)[0] == 503  # authenticated, but not allowed to list anything


def test_the_pages_account_alone_sees_no_pod(server: RealServer) -> None:
    with page(server) as port:
        assert ask(port, "/api/queue")[0] == 503


def test_by_a_proxys_word_only_whom_the_role_names_is_impersonated(server: RealServer) -> None:
    kube = server.kube()
    right = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["alice"]}
    groups = {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"]}
    groups["resourceNames"] = ["system:authenticated"]
    kube.create(f"{RBAC}/clusterroles", {"metadata": {"name": "impersonator"}, "rules": [right, groups]})
    bind(kube, "impersonator", {"kind": "User", "name": PAGE.name})
    bind(kube, "pods", {"kind": "User", "name": "alice"}, "team-b")
    proxy = {"Authorization": f"Bearer {token_of(server, User('system:serviceaccount:team-a:admin', ()))}"}
    other = {"Authorization": f"Bearer {token_of(server, account('team-a'))}"}
    with page(server, "--viewers", "proxy", "--proxy-account", "team-a/admin") as port:
        status, body = ask(port, "/api/queue", **proxy, X_Forwarded_User="alice")
        assert (status, [row["name"] for row in body["view"]["rows"]]) == (200, ["of-team-b"])
        assert ask(port, "/api/queue", **proxy, X_Forwarded_User="bob")[0] == 503
        assert ask(port, "/api/queue", **proxy, X_Forwarded_User="system:admin")[0] == 403
        assert ask(port, "/api/queue", **other, X_Forwarded_User="alice")[0] == 403
