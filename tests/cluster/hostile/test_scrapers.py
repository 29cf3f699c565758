"""
The metrics of allocator, webhook and agent name every team, so Prometheus may read them and tenants may not.

The tests run on both control planes, also while the API server is away, and while strangers send endless bad tokens.
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from playground.api.kinds.values import User
from playground.programs import scraping
from playground.programs.probes import free_port
from playground.shapes import DEMO
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.cluster.trouble.proxy import Drop, Fault, Proxy
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
ALLOCATOR, WEBHOOK, AGENT = "allocator", "webhook", "nodeagent"
SERIES = {ALLOCATOR: "gpufraction_leader", WEBHOOK: "gpufraction_certificate_expiry", AGENT: "gpufraction_gpus"}


@dataclass
class Scraped:
    """A cluster whose agent has a port for metrics, and the tokens of the clients."""

    hostile: Hostile
    agent_port: int
    proxies: dict[str, Proxy]
    """The proxy between each program and the API server."""

    @property
    def ports(self) -> dict[str, int]:
        replica = self.hostile.cluster.replicas[0]
        return {ALLOCATOR: replica.allocator_port, WEBHOOK: replica.health_port, AGENT: self.agent_port}

    def answers(self, token: str, timeout: float = 20.0) -> dict[str, int]:
        """The status that each program answers. If it is 200, checks that the answer has the program's series."""
        return {name: self.one(name, token, timeout) for name in self.ports}

    def one(self, name: str, token: str, timeout: float = 20.0) -> int:
        try:
            text = scraping.scrape(self.ports[name], token, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                message = error.read().decode()
            assert not any(word in message for word in (TENANT, NEIGHBOUR, "gpufraction_", token or "gpufraction_")), (
                message
            )
            return error.code
        assert SERIES[name] in text
        return 200

    def token(self, namespace: str, account: str) -> str:
        """The token of a service account; creates the account if it does not exist."""
        with contextlib.suppress(KubeNotFound):
            self.hostile.kube.get(paths.path("v1", "serviceaccounts", namespace, account))
            return self._token_of(namespace, account)
        body = {"metadata": {"name": account, "namespace": namespace}}
        self.hostile.kube.create(paths.path("v1", "serviceaccounts", namespace), body)
        return self._token_of(namespace, account)

    def _token_of(self, namespace: str, account: str) -> str:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        user = User(f"system:serviceaccount:{namespace}:{account}", groups)
        return scraping.token_of(self.hostile.cluster.control_plane.kubeconfig(user))

    def probes(self) -> set[int]:
        """What every program answers to probes without a token and without TLS."""
        found = set()
        for port in self.ports.values():
            for path in ("/healthz", "/readyz"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    found.add(answer.status)
                    assert TENANT not in answer.read().decode()
        return found


@pytest.fixture(scope="module", params=control_planes())
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    port, proxies = free_port(), dict[str, Proxy]()

    def route(program: str, kubeconfig: str) -> str:
        proxies[program] = Proxy()
        return proxies[program].kubeconfig(kubeconfig)

    for hostile in hostile_cluster(
        request.param,
        tmp_path_factory.mktemp("scrapers"),
        nodes=DEMO[:1],
        nodeagent=("--listen", f"127.0.0.1:{port}"),
        route=route,
    ):
        yield Scraped(hostile, port, proxies)
    for proxy in proxies.values():
        proxy.close()


@pytest.fixture
def scraped(attacked: Scraped) -> Iterator[Scraped]:
    for _ in unharmed(attacked.hostile):
        yield attacked


def everywhere(status: int) -> dict[str, int]:
    return dict.fromkeys(SERIES, status)


def test_prometheus_is_served_and_nobody_else(scraped: Scraped) -> None:
    tenant = scraped.token(TENANT, "default")
    assert scraped.answers(scraped.hostile.cluster.scraper_token()) == everywhere(200)
    assert scraped.answers(tenant) == everywhere(403)
    assert scraped.answers("") == everywhere(401)
    assert scraped.answers("eyJhbGciOiJub25lIn0.e30.") == everywhere(401)
    assert scraped.probes() == {200}


def test_nobody_is_served_without_tls(scraped: Scraped) -> None:
    token, found = scraped.hostile.cluster.scraper_token(), set()
    for port in scraped.ports.values():
        about = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(about, timeout=10)
        found.add(refused.value.code)
        refused.value.close()
    assert found == {403}


def test_an_account_is_served_once_it_is_bound_to_the_role(scraped: Scraped) -> None:
    token, kube = scraped.token(TENANT, "own-prometheus"), scraped.hostile.kube
    binding = {
        "metadata": {"name": "own-prometheus"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "gpufraction-metrics-reader",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "own-prometheus", "namespace": TENANT}],
    }
    kind = paths.path("rbac.authorization.k8s.io/v1", "clusterrolebindings")
    kube.create(kind, binding)
    try:
        wait_for(lambda: scraped.one(AGENT, token) == 200, "the account is not let in", 60, every=1)
        assert scraped.answers(token) == everywhere(200)
    finally:
        kube.delete(f"{kind}/own-prometheus")


def test_strangers_who_flood_keep_neither_prometheus_nor_probes_out(scraped: Scraped) -> None:
    token, stop = scraped.hostile.cluster.scraper_token(), threading.Event()
    assert scraped.answers(token) == everywhere(200)
    statuses: set[int] = set()

    def flood(number: int) -> None:
        sent = 0
        while not stop.is_set():
            sent += 1
            for name in scraped.ports:
                with contextlib.suppress(OSError):
                    statuses.add(scraped.one(name, f"forged-{number}-{sent}", 10))

    threads = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert scraped.answers(token) == everywhere(200)
            assert scraped.probes() == {200}
            time.sleep(0.2)
        assert scraped.hostile.neighbour_is_served() < 20
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert statuses <= {401, 503}


def test_while_the_api_server_is_away_who_was_served_is_and_nobody_else(scraped: Scraped) -> None:
    token, tenant = scraped.hostile.cluster.scraper_token(), scraped.token(TENANT, "default")
    other = scraped.token(NEIGHBOUR, "late-scraper")
    assert scraped.answers(token) == everywhere(200)
    dropped = Fault(lambda request: True, Drop())
    with contextlib.ExitStack() as stack:
        for proxy in scraped.proxies.values():
            stack.enter_context(proxy.suffering(dropped))
            proxy.cut()
        assert scraped.answers(token) == everywhere(200)
        assert set(scraped.answers(tenant).values()) <= {403, 503}
        assert scraped.answers(other) == everywhere(503)
        assert scraped.answers("") == everywhere(401)
        assert set(scraped.answers("forged-while-away").values()) == {503}
    wait_for(lambda: scraped.answers(other) == everywhere(403), lambda: str(scraped.answers(other)), 60, every=2)
    assert scraped.answers(token) == everywhere(200)


def test_no_metric_names_a_pod_to_a_tenant_who_guesses_paths(scraped: Scraped) -> None:
    found = set()
    for port in scraped.ports.values():
        for path in ("/metrics/", "//metrics", "/metrics?x=1", "/%6detrics", "/METRICS", "/debug/snapshot", "/"):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    found.add(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    found.add(error.code)
    assert found <= {403, 404}
