"""LimitRanges and shares: what they give containers, what they restrict, and pods that request nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeForbidden
from tests.builders import PodBuilder, pod

pytestmark = pytest.mark.system
JSON = dict[str, Any]
MEMORY, OLDER, SEEN = "gpufraction.io/gpu-memory", "aliyun.com/gpu-mem", "example.com/seen"
_numbers = itertools.count()


class Team:
    """A separate served namespace, because an API server remembers a deleted LimitRange for half a minute."""

    def __init__(self, cluster: Cluster, **item: JSON) -> None:
        self.kube, self.name = cluster.kube, f"ranged-{next(_numbers)}"
        cluster.label_namespace(self.name)
        # A marker that shows when the API server applies it; no node needs to have it.
        item = {**item, "defaultRequest": {**item.get("default", {}), "ephemeral-storage": "1Mi"}}
        spec = {"limits": [{"type": "Container", **item}]}
        path = paths.path("v1", "limitranges", self.name)
        self.kube.create(path, {"metadata": {"name": "shares"}, "spec": spec})
        wait_for(self._acts, "the LimitRange does nothing")

    def _acts(self) -> bool:
        try:
            made = self.create(pod("probe"), dry_run=True)
        except KubeError:
            return True
        requests = (made["spec"]["containers"][0].get("resources") or {}).get("requests") or {}
        return "ephemeral-storage" in requests

    def create(self, made: PodBuilder, *, dry_run: bool = False) -> JSON:
        manifest = made.manifest()
        manifest["metadata"]["namespace"] = self.name
        return self.kube.create(paths.pods(self.name), manifest, {"dryRun": "All"} if dry_run else None)

    def runs(self, made: PodBuilder) -> dict[str, str]:
        """Create the pod and wait until it runs. Returns what is counted for it, by container."""
        path = paths.pods(self.name, self.create(made)["metadata"]["name"])
        wait_for(
            lambda: self.kube.get(path).get("status", {}).get("phase") == "Running",
            lambda: f"does not run: {scenarios.shown([self.kube.get(path)])}",
        )
        found = self.kube.get(path)
        assert all(OLDER not in each["resources"].get("limits", {}) for each in found["spec"]["containers"])
        return {
            each["name"]: each["resources"].get("limits", {}).get(MEMORY, "") for each in found["spec"]["containers"]
        }

    def end(self) -> None:
        for each in self.kube.list(paths.pods(self.name)).items:
            self.kube.delete(paths.pods(self.name, each["metadata"]["name"]), {"gracePeriodSeconds": 0})


@pytest.fixture
def teams(cluster: Cluster) -> Iterator[Any]:
    made: list[Team] = []

    def team(**item: JSON) -> Team:
        made.append(Team(cluster, **item))
        return made[-1]

    yield team
    for each in made:
        each.end()


def two(**asks: str) -> PodBuilder:
    builder = pod("p").container("main")
    for resource, amount in asks.items():
        builder = builder.asks(resource, amount)
    return builder.container("side")


def test_a_default_in_an_older_systems_words_is_a_share_for_every_container(teams: Any) -> None:
    team = teams(default={OLDER: "2"})
    assert team.runs(two()) == {"main": "2Gi", "side": "2Gi"}


def test_beside_a_most_in_our_words_it_is_still_one_share_and_bounded(teams: Any) -> None:
    team = teams(default={OLDER: "2"}, max={MEMORY: "4Gi"})
    assert team.runs(two()) == {"main": "2Gi", "side": "2Gi"}
    with pytest.raises(KubeForbidden, match=f"maximum {MEMORY} usage per Container is 4Gi, but limit is 5Gi"):
        team.create(pod("large").asks(OLDER, 5))


def test_what_a_tenant_asks_in_another_dialect_comes_before_the_default(teams: Any) -> None:
    team = teams(default={OLDER: "2"}, max={MEMORY: "4Gi"})
    assert team.runs(two(**{"nvidia.com/gpumem": "1024"})) == {"main": "1Gi", "side": "0"}


def test_a_most_with_a_default_of_0_bounds_shares_and_gives_none(teams: Any) -> None:
    team = teams(max={MEMORY: "4Gi"}, default={MEMORY: "0"})
    plain = team.create(pod("plain"))
    assert "schedulingGates" not in plain["spec"]
    assert "gpufraction.io/request" not in plain["metadata"].get("annotations", {})
    assert team.runs(two(**{OLDER: "1"})) == {"main": "1Gi", "side": "0"}
    with pytest.raises(KubeForbidden, match=f"maximum {MEMORY} usage per Container is 4Gi, but limit is 5Gi"):
        team.create(pod("large").asks(OLDER, 5))


def test_the_api_server_rejects_a_maximum_in_an_older_systems_format(teams: Any) -> None:
    """
    Admission removes names in the older format, and the API server looks for them afterwards: a max must use our names.
    """
    team = teams(max={OLDER: "4"})
    with pytest.raises(KubeForbidden, match=f"maximum {OLDER} usage per Container is 4. +No limit is specified"):
        team.create(pod("p").asks(OLDER, 1))


def test_a_default_that_nothing_can_serve_is_refused_with_the_limit_range(teams: Any) -> None:
    team = teams(default={"nano-gpu/gpu-percent": "200"})
    with pytest.raises(KubeError, match="found '200', set by a LimitRange in the namespace"):
        team.create(pod("p"))
