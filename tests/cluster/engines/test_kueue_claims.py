"""Jobs whose pods request by ResourceClaimTemplates, in a queue of Kueue's own program with our check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from contract.encoding import resourceclaims
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import kueue
from playground.engines.kueue import KUEUE, Kueue
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.engines.programs import folder_of
from tests.cluster.engines.test_kueue_check import V100, check_queue, messages, submit
from tests.clusters import allow_claims, real

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
CARDS = "gpufraction.io/claimed-cards"
"""The resource as which Kueue counts claims of our class, by its own configuration."""
MAPPED = {"resources": {"deviceClassMappings": [{"name": CARDS, "deviceClassNames": [str(names.SHARE_CLASS)]}]}}
BY_CLAIM = pod("p").uses("gpu", template="20gi").needs(cpu="10m", memory="16Mi")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Kueue]]:
    """gpufraction with claims and the check, and Kueue with a queue that counts the cards of claims."""
    folder = folder_of(KUEUE.assets())
    pace = ("--assume-ttl", "2s", "--repair-every", "1s", "--fits-retry-after", "2s", "--fits-hold", "10s")
    directory = tmp_path_factory.mktemp("claims")
    with (
        Cluster(
            directory=directory / "us",
            settings={"allocator": pace},
            control_plane=real,
            components=("resourceclaims", "kueue-check"),
        ) as cluster,
        kueue.running(cluster, folder, directory / "kueue", MAPPED) as found,
    ):
        allow_claims(cluster.kube)
        template(cluster, "20gi", "20Gi")
        check_queue(found, {"cpu": "20", "memory": "40Gi", CARDS: "3"})
        yield cluster, found


def template(cluster: Cluster, name: str, memory: str) -> None:
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": memory}}}
    template_of(cluster, name, {"name": "gpu", "exactly": exactly})


def template_of(cluster: Cluster, name: str, request: JSON) -> None:
    body = {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    cluster.kube.create(paths.resourceclaimtemplates("default"), body)


def told(found: Kueue, uid: str, text: str) -> None:
    """Wait until the Workload of the Job says this."""
    wait_for(
        lambda: any(text in each for each in messages(found, uid)),
        lambda: f"it is not told: {messages(found, uid)}",
        60,
    )


def taker() -> PodBuilder:
    """A pod without a queue that takes one of the two cards."""
    return BY_CLAIM.spec(nodeSelector=V100).generated("taker-")


def test_a_job_by_a_template_starts_when_all_its_claims_fit(beside: tuple[Cluster, Kueue], cluster: Cluster) -> None:
    name = cluster.kube.create(paths.pods("default"), taker().manifest())["metadata"]["name"]
    scenarios.settled(cluster.kube, 1, running=1)
    uid = submit(cluster, "gang", 2, BY_CLAIM)
    told(beside[1], uid, "1 of 2 pods fit; the next one of pod set main does not")
    assert [each["metadata"]["name"] for each in scenarios.all_pods(cluster.kube)] == [name], "none of it is started"
    cluster.kube.delete(paths.pods("default", name))
    scenarios.settled(cluster.kube, 2, running=2)
    assert {each[CARDS] for each in beside[1].charged()} == {"2"}


def test_kueue_counts_the_cards_of_claims(beside: tuple[Cluster, Kueue], cluster: Cluster) -> None:
    """Four cards exceed the quota of three, however many are free."""
    uid = submit(cluster, "wide", 4, BY_CLAIM)
    told(beside[1], uid, CARDS)
    assert scenarios.all_pods(cluster.kube) == []


def test_a_template_that_is_missing_is_named_and_may_come(beside: tuple[Cluster, Kueue], cluster: Cluster) -> None:
    uid = submit(cluster, "early", 1, pod("p").uses("gpu", template="later").needs(cpu="10m", memory="16Mi"))
    wait_for(lambda: messages(beside[1], uid), "Kueue has made no Workload", 60)
    template(cluster, "later", "4Gi")
    scenarios.settled(cluster.kube, 1, running=1)


SHARE = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": "4Gi"}}}
OURS = {"cel": {"expression": "device.driver == 'gpufraction.io'"}}
REFUSED: dict[str, tuple[JSON, str]] = {
    "selectors": (
        {"name": "gpu", "exactly": {**SHARE, "selectors": [OURS]}},
        "0 device(s) match in the cluster but 1 requested",
    ),
    "alternatives": (
        {"name": "gpu", "firstAvailable": [{"name": "one", **SHARE}]},
        "FirstAvailable device selection is not supported",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_kueue_admits_no_job_whose_template_has(beside: tuple[Cluster, Kueue], cluster: Cluster, what: str) -> None:
    """Kueue refuses these by itself, as docs/kueue.md says: it looks for the cards in ResourceSlices."""
    request, message = REFUSED[what]
    template_of(cluster, what, request)
    uid = submit(cluster, what, 1, pod("p").uses("gpu", template=what).needs(cpu="10m", memory="16Mi"))
    told(beside[1], uid, message)
    assert scenarios.all_pods(cluster.kube) == []
