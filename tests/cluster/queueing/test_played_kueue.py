"""
With a simulated Kueue, on both control planes: quotas, groups, preemption, Jobs, in every dialect and with each pin.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.queueing import played, samples
from tests.cluster.queueing.played import ADMISSION_GATE, GROUP, QUEUE, ROLE, TOTAL, PlayedKueue, Queue
from tests.cluster.system import another

pytestmark = pytest.mark.system
JSON = dict[str, Any]
MEMORY, CORES = str(names.GPU_MEMORY), str(names.GPU_CORES)
QUOTA = {"cpu": "20", "memory": "40Gi", MEMORY: "8Gi", CORES: "300", "nvidia.com/gpu": "64"}
V100 = {"gpu": "on"}
HIGH = "queued-high"
QUEUES = {
    "team": Queue(QUOTA, selector=V100, preempts=True),
    "claims": Queue({"cpu": "2"}),
    "lender": Queue({**QUOTA, MEMORY: "4Gi"}, cohort="all", selector=V100),
    "borrower": Queue({**QUOTA, MEMORY: "4Gi"}, cohort="all", selector=V100),
}


@pytest.fixture
def kueue(cluster: Cluster) -> Iterator[PlayedKueue]:
    """Kueue's webhook is called after ours. Afterwards the API server has refused nothing that Kueue wrote."""
    priorities = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}}
    installing.apply(cluster.kube, {**priorities, "value": 1000})
    with played.playing(cluster.kube, QUEUES) as found:
        yield found
        end(cluster)
    assert found.problems == []


def end(cluster: Cluster) -> None:
    """
    Delete everything while Kueue still removes finalizers. Jobs are deleted first, because Kueue starts a suspended one
    again.

    ReplicaSets are deleted before their pods: one that is left creates another pod, and nothing removes that pod's
    finalizer.
    """
    for version, plural in (("batch/v1", "jobs"), ("apps/v1", "deployments"), ("apps/v1", "replicasets")):
        path = paths.path(version, plural, "default")
        for each in cluster.kube.list(path).items:
            with contextlib.suppress(KubeNotFound):
                cluster.kube.delete(f"{path}/{each['metadata']['name']}", {"propagationPolicy": "Background"})
        wait_for(lambda path=path: not cluster.kube.list(path).items, f"{plural} are still there")  # type: ignore[misc]
    scenarios.clear(cluster.kube)


def create(cluster: Cluster, made: PodBuilder, queue: str = "team") -> JSON:
    return cluster.kube.create(paths.pods("default"), made.labelled(QUEUE, queue).manifest())


def found(cluster: Cluster) -> list[JSON]:
    return scenarios.all_pods(cluster.kube)


def behind(cluster: Cluster) -> list[JSON]:
    return [each for each in found(cluster) if ADMISSION_GATE in pods.gates(each)]


ASKS = {
    "our own words": pod("p").asks(MEMORY, "3Gi"),
    "our own words, two GPUs": pod("p").asks(MEMORY, "1536Mi").asks("gpufraction.io/gpu-count", 2),
    "Aliyun's": pod("p").asks("aliyun.com/gpu-mem", 3),
    "HAMi's": pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 3072),
    "Elastic GPU's": pod("p").asks("elasticgpu.io/gpu-memory", 3072),
    "nano-gpu's percentage, of 15109 MiB at least": pod("p").asks("nano-gpu/gpu-percent", 20),
    "KAI's annotation": pod("p").container("main").annotated("gpu-memory", "3072"),
}


@pytest.mark.parametrize("pin", ["auto", pytest.param("affinity", marks=pytest.mark.long)])
@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS.keys())
def test_plain_pods_run_within_the_quota_and_wait_without_a_share_beyond_it(
    cluster: Cluster, kueue: PlayedKueue, asks: PodBuilder, pin: str
) -> None:
    for _ in range(3):
        create(cluster, asks.generated("p-").needs(cpu="10m", memory="16Mi").annotated(names.PLACEMENT, pin))
    ran = scenarios.settled(cluster.kube, 3, running=2)
    running = [each for each in ran if scenarios.is_running(each)]
    assert {each["spec"]["nodeName"] for each in running} == {"v100"}, "the flavor's selector counts"
    (waits,) = behind(cluster)
    wait_for(lambda: {scenarios.waits(each) for each in behind(cluster)} == {"ForeignGate"}, "it does not learn why")
    cluster.kube.delete(paths.pods("default", running[0]["metadata"]["name"]))
    name = paths.pods("default", waits["metadata"]["name"])
    wait_for(lambda: scenarios.is_running(cluster.kube.get(name)), "the next one does not run when the quota is free")


def member(number: int, total: int, memory: str) -> PodBuilder:
    made = pod(f"m-{number}").asks(MEMORY, memory).needs(cpu="10m", memory="16Mi")
    return made.labelled(GROUP, "group").annotated(TOTAL, str(total))


@pytest.mark.parametrize("order", [another.BEFORE, another.AFTER])
@pytest.mark.parametrize("pin", ["auto", pytest.param("affinity", marks=pytest.mark.long)])
def test_identical_members_of_a_group_are_of_one_role_and_start_together(
    cluster: Cluster, pin: str, order: str
) -> None:
    with played.playing(cluster.kube, QUEUES, order=order):
        for number in range(3):
            create(cluster, member(number, 3, "2Gi").annotated(names.PLACEMENT, pin))
        ran = scenarios.settled(cluster.kube, 3, running=3)
        assert len({pods.annotations_of(each)[ROLE] for each in ran}) == 1
        end(cluster)


def test_a_group_waits_for_its_quota_as_a_whole_and_holds_no_share(cluster: Cluster, kueue: PlayedKueue) -> None:
    create(cluster, pod("first").asks(MEMORY, "4Gi").needs(cpu="10m", memory="16Mi"))
    scenarios.settled(cluster.kube, 1, running=1)
    for number in range(3):
        create(cluster, member(number, 3, "2Gi"))
    scenarios.settled(cluster.kube, 4, running=1)
    assert len(behind(cluster)) == 3, "two members would fit, and all wait"
    cluster.kube.delete(paths.pods("default", "first"))
    wait_for(lambda: not any(each["metadata"]["name"] == "first" for each in found(cluster)), "the first pod stays")
    scenarios.settled(cluster.kube, 3, running=3)


def test_a_pod_of_higher_priority_gets_the_share_of_one_of_lower(cluster: Cluster, kueue: PlayedKueue) -> None:
    asks = pod("p").asks(MEMORY, "4Gi").needs(cpu="10m", memory="16Mi")
    for _ in range(2):
        create(cluster, asks.generated("low-"))
    scenarios.settled(cluster.kube, 2, running=2)
    create(cluster, asks.generated("high-").spec(priorityClassName=HIGH))

    def preempted() -> bool:
        running = [each["metadata"]["name"].split("-")[0] for each in found(cluster) if scenarios.is_running(each)]
        return sorted(running) == ["high", "low"] and len(found(cluster)) == 2

    wait_for(preempted, lambda: f"not preempted: {scenarios.shown(found(cluster))}")


def test_what_a_queue_reclaims_is_given_back_once(cluster: Cluster, kueue: PlayedKueue) -> None:
    asks = pod("p").asks(MEMORY, "4Gi").needs(cpu="10m", memory="16Mi")
    for _ in range(2):
        create(cluster, asks.generated("borrower-"), "borrower")
    scenarios.settled(cluster.kube, 2, running=2)
    create(cluster, asks.generated("lender-"), "lender")

    def reclaimed() -> bool:
        running = [each["metadata"]["name"].split("-")[0] for each in found(cluster) if scenarios.is_running(each)]
        return sorted(running) == ["borrower", "lender"] and len(found(cluster)) == 2

    wait_for(reclaimed, lambda: f"not reclaimed: {scenarios.shown(found(cluster))}")


def test_pods_with_claims_wait_for_quota_and_get_the_shares_of_their_claims(
    cluster: Cluster, kueue: PlayedKueue
) -> None:
    for document in installing.documents(scenarios.SAMPLES / "oke-claims.yaml"):
        cluster.kube.create(installing.path_of(document), document)
    create(cluster, pod("first").container("main").needs(cpu="2"), "claims")
    scenarios.settled(cluster.kube, 1, running=1)
    for document in installing.documents(scenarios.SAMPLES / "oke-claims-pods.yaml"):
        document["metadata"].setdefault("labels", {})[QUEUE] = "claims"
        document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        cluster.kube.create(paths.pods("default"), document)
    wait_for(lambda: len(behind(cluster)) == 2, lambda: f"they do not wait: {scenarios.shown(found(cluster))}")
    cluster.kube.delete(paths.pods("default", "first"))
    scenarios.settled(cluster.kube, 2, running=2)


STEPS, SEED = 60, 7


@pytest.mark.long
def test_whatever_comes_and_goes_every_share_is_within_a_quota(cluster: Cluster, kueue: PlayedKueue) -> None:
    """Pods and groups of three queues, with two priorities and both pins, are created and deleted at random."""
    rng = random.Random(SEED)
    for step in range(STEPS):
        queue, pin = rng.choice(["team", "lender", "borrower"]), rng.choice(["auto", "affinity"])
        made = pod("p").asks(MEMORY, f"{rng.randint(1, 4)}Gi").needs(cpu="10m", memory="16Mi")
        made = made.annotated(names.PLACEMENT, pin)
        if rng.random() < 0.3:
            made = made.spec(priorityClassName=HIGH)
        match rng.choice(["pod", "pod", "group", "delete"]):
            case "pod":
                create(cluster, made.generated(f"s{step}-"), queue)
            case "group":
                size = rng.randint(2, 3)
                for _ in range(size):
                    one = made.generated(f"s{step}-").labelled(GROUP, f"group-{step}").annotated(TOTAL, str(size))
                    create(cluster, one, queue)
            case "delete":
                existing = found(cluster)
                with contextlib.suppress(IndexError, KubeNotFound):  # there is none, or it was just deleted
                    cluster.kube.delete(paths.pods("default", rng.choice(existing)["metadata"]["name"]))
    wait_for(lambda: is_quiet(cluster), lambda: f"not at rest: {scenarios.shown(found(cluster))}")
    shares: Counter[str] = Counter()
    for each in found(cluster):
        if names.ALLOCATION in pods.annotations_of(each):
            shares[QUEUES[each["metadata"]["labels"][QUEUE]].cohort] += sum(scenarios.held(each).values())
    assert shares, "some run"
    assert {cohort for cohort, amount in shares.items() if amount > 8 << 30} == set()


def is_quiet(cluster: Cluster) -> bool:
    """Whether no pod is terminating, and each runs or waits with a reason, now and half a second later."""

    def state() -> dict[str, str] | None:
        there = found(cluster)
        if any("deletionTimestamp" in each["metadata"] for each in there):
            return None
        states = {pods.uid(each): scenarios.waits(each) or scenarios.is_running(each) * "runs" for each in there}
        return states if all(states.values()) else None

    before = state()
    time.sleep(0.5)
    return before is not None and before == state()


@pytest.mark.parametrize("sample", samples.WORKLOADS, ids=lambda path: path.stem)
def test_a_sample_comes_to_what_its_header_states(cluster: Cluster, sample: Path) -> None:
    (queue,) = (each for each in installing.documents(samples.QUEUES) if each["kind"] == "ClusterQueue")
    (flavor,) = (each for each in installing.documents(samples.QUEUES) if each["kind"] == "ResourceFlavor")
    (given,) = queue["spec"]["resourceGroups"][0]["flavors"]
    quota = {each["name"]: each["nominalQuota"] for each in given["resources"]}
    name = queue["metadata"]["name"]
    want = samples.stated(sample)
    with played.playing(cluster.kube, {name: Queue(quota, tolerations=tuple(flavor["spec"]["tolerations"]))}) as kueue:
        samples.apply(cluster.kube, sample)
        wait_for(
            lambda: samples.come_to(cluster.kube, kueue.charged()) == want,
            lambda: f"want {want}, found {samples.come_to(cluster.kube, kueue.charged())}",
        )
        scenarios.settled(cluster.kube, want.running + want.waiting, running=want.running)
        end(cluster)
    assert kueue.problems == []
