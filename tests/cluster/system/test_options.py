"""
The ConfigMap of options, changed while everything runs: new placements follow it, and running pods are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod

pytestmark = pytest.mark.system
JSON = dict[str, Any]
Set = Callable[[str], None]


@pytest.fixture
def options(cluster: Cluster) -> Iterator[Set]:
    """Writes the document. At the end the document is empty again, and no agent remembers its content."""

    def write(text: str) -> None:
        path = paths.configmaps(names.NAMESPACE, names.OPTIONS)
        cluster.kube.patch_merge(path, {"data": {names.OPTIONS_FILE: text}})

    yield write
    scenarios.clear(cluster.kube)
    write("")
    wait_for(
        lambda: all(not status(cluster, node.spec.name)["options"] for node in cluster.nodes),
        "the options of the test are still published",
    )


def status(cluster: Cluster, node: str) -> JSON:
    found: JSON = cluster.kube.get(paths.gpunodes(node))["status"]
    return found


def published(cluster: Cluster, node: str, **wanted: str) -> None:
    """Wait until a GPUNode shows exactly these options."""
    wait_for(
        lambda: {each["name"]: each["value"] for each in status(cluster, node)["options"]} == wanted,
        lambda: f"{node} says {status(cluster, node)['options']}, not {wanted}",
    )


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for builder in made:
        cluster.kube.create(paths.pods("default"), builder.manifest())


def dry_run(cluster: Cluster, made: PodBuilder) -> JSON:
    """The result for the pod now, without a reservation."""
    return cluster.kube.create(paths.pods("default"), made.manifest(), {"dryRun": "All"})


def would_wait(cluster: Cluster, made: PodBuilder) -> None:
    """Wait until the allocator has learnt that there is no room for this pod."""
    wait_for(lambda: bool(dry_run(cluster, made)["spec"].get("schedulingGates")), "the pod would still be placed")


def t4(name: str, mib: int) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi").spec(nodeSelector={"gpushare": "true"})


def pools(**options: float) -> str:
    return yaml.safe_dump({"pools": [{"name": "t4", "nodeSelector": {"matchLabels": {"gpushare": "true"}}, **options}]})


def test_a_pool_is_oversubscribed_and_back_while_its_pods_run(cluster: Cluster, options: Set) -> None:
    create(cluster, *(t4(f"p{i}", 10_000) for i in range(4)))
    scenarios.settled(cluster.kube, 4, running=2)
    options(pools(deviceMemoryScaling=2, deviceSplitCount=3))
    published(cluster, "t4", deviceMemoryScaling="2.0", deviceSplitCount="3")
    found = scenarios.settled(cluster.kube, 4, running=4)
    assert {each["spec"]["nodeName"] for each in found} == {"t4"}
    assert (status(cluster, "t4")["pool"], status(cluster, "v100")["pool"]) == ("t4", "")

    options(pools(deviceMemoryScaling=1))
    published(cluster, "t4", deviceMemoryScaling="1.0")
    would_wait(cluster, t4("late", 6000))
    create(cluster, t4("late", 6000))
    found = scenarios.settled(cluster.kube, 5, running=4)
    [late] = [each for each in found if scenarios.waits(each)]
    assert (late["metadata"]["name"], scenarios.waits(late)) == ("late", "Memory")
    assert {each["metadata"]["uid"] for each in found if each is not late} == {
        each["metadata"]["uid"] for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)
    }

    options("deviceSplitCount: 0\n")
    wait_for(
        lambda: "deviceSplitCount: found 0; give a whole number from 1 to 1024" in refused(cluster),
        lambda: f"nothing is said about the wrong document: {refused(cluster)!r}",
    )
    published(cluster, "t4", deviceMemoryScaling="1.0")

    options(pools(deviceMemoryScaling=2))
    scenarios.settled(cluster.kube, 5, running=5)
    assert refused(cluster) == ""


def refused(cluster: Cluster) -> str:
    """The T4 node's agent's message about a document that it cannot read."""
    found = [each for each in status(cluster, "t4")["conditions"] if each["type"] == "OptionsRefused"]
    return str(found[0]["message"]) if found else ""


def test_what_a_manifest_leaves_out_is_read_by_the_options(cluster: Cluster, options: Set) -> None:
    def memory() -> int:
        """Bytes that a pod with only cores would get now. This is a dry run, so that nothing is reserved."""
        made = (
            pod("v").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpucores", 10).spec(nodeSelector={"gpushare": "true"})
        )
        return sum(scenarios.held(dry_run(cluster, made)).values())

    assert memory() == 15_109 << 20
    options("defaultMem: 3000\n" + pools(defaultMem=2000))
    wait_for(lambda: memory() == 2000 << 20, lambda: f"{memory()} bytes are read")
    options("defaultMem: 3000\n")
    wait_for(lambda: memory() == 3000 << 20, lambda: f"{memory()} bytes are read")


def test_core_limits_are_off_where_the_pool_says_so(cluster: Cluster, options: Set) -> None:
    def limit(name: str) -> str:
        create(cluster, t4(name, 1000).asks("gpufraction.io/gpu-cores", 20))
        found = {
            each["metadata"]["name"]: each for each in scenarios.settled(cluster.kube, len(made), running=len(made))
        }
        return str(found[name]["metadata"]["annotations"]["gpufraction.io/cores-limit.main"])

    def freed() -> bool:
        dry = dry_run(cluster, t4("dry", 1000).asks("gpufraction.io/gpu-cores", 20))
        return bool(dry["metadata"]["annotations"]["gpufraction.io/cores-limit.main"] == "0")

    made = ["held"]
    assert limit("held") == "20"
    options(pools(disablecorelimit=True))
    published(cluster, "t4", disablecorelimit="true")
    made.append("free")
    wait_for(freed, "the allocator places by the old options")
    assert limit("free") == "0"
