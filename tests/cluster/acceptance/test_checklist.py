"""
What users of the older systems would check after the move: one test for each row, with the row's number.

The input is a manifest as users have it. The proof is what the API server, the container or the user's own tool shows.
Two rows need more than a cluster and are elsewhere: row 35, a node with CRI-O, in
`tests/cluster/realnode/test_openshift.py`, and row 38, an allocation beyond its limit that fails on a GPU, in
`tests/unit/nodeagent/test_limits_on_a_gpu.py`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from contract import names, pods
from contract.encoding.quantity import GIB
from playground import scenarios
from playground.cluster import Cluster
from playground.programs import installing
from playground.scenarios import SCENARIOS
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.acceptance.looking import (
    ALIYUN,
    annotated,
    bound,
    create,
    environment,
    get,
    gpu_mem,
    indexes,
    left,
    on_t4,
    overcommitted,
    phase,
    plugin,
    refusal,
    run,
    uuids,
)

pytestmark = pytest.mark.system
SPLIT = "scheduler.framework.gpushare.allocation"


def test_row_1_nothing_of_the_scheduler_is_touched(cluster: Cluster) -> None:
    kinds = {(document["kind"], document["metadata"].get("namespace", "")) for document in installing.shipped()}
    # The right to read the lists of unhealthy cards that older systems keep there belongs to a component.
    assert [kind for kind in kinds if kind[1] == "kube-system" or "Scheduler" in kind[0]] == []
    found = run(cluster, gpu_mem("p", 5))
    assert found["p"]["spec"]["nodeName"] == "t4"
    assert found["p"]["spec"].get("schedulerName", "default-scheduler") == "default-scheduler"


def test_row_2_gpu_count_and_gpu_mem_as_they_are(cluster: Cluster) -> None:
    scenario = next(s for s in SCENARIOS if s.sample == "aliyun-gpushare.yaml")
    scenarios.submit(cluster.kube, scenario)
    made = scenarios.settled(cluster.kube, 1, running=1)[0]
    assert environment(cluster, made, ALIYUN) == {
        f"{ALIYUN}DEV": "14",
        f"{ALIYUN}CONTAINER": "5",
        f"{ALIYUN}POD": "5",
        f"{ALIYUN}IDX": "0",
    }
    assert environment(cluster, made, "NVIDIA_VISIBLE_DEVICES") == {"NVIDIA_VISIBLE_DEVICES": next(iter(uuids(made)))}


def test_row_3_gpu_count_does_not_stop_sharing(cluster: Cluster) -> None:
    found = run(cluster, *(gpu_mem(name, 5).asks("aliyun.com/gpu-count", 1) for name in ("a", "b")))
    assert len({uuid for each in found.values() for uuid in uuids(each)}) == 1


def test_row_4_the_inspect_tool_says_the_same(cluster: Cluster) -> None:
    run(cluster, gpu_mem("a", 6), gpu_mem("b", 3))
    assert plugin(cluster, "inspect", "t4") == (
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "t4    10.0.0.11  9/14                   0/14                   9/28\n"
        f"{'-' * (len('t4 10.0.0.11 9/14 0/14 9/28 ') + 20)}\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "9/28 (32%)  \n"
    )
    assert "a            default    6                0                \n" in plugin(cluster, "inspect", "-d", "t4")


def test_row_5_annotations_of_a_placed_pod(cluster: Cluster) -> None:
    create(cluster, gpu_mem("p", 5))
    wait_for(
        lambda: annotated(get(cluster, "p"), ALIYUN).get("ASSIGNED") == "true",
        lambda: f"ASSIGNED is not true: {annotated(get(cluster, 'p'), ALIYUN)}",
    )
    found = annotated(get(cluster, "p"), ALIYUN)
    assert re.fullmatch(r"[0-9]{19}", found.pop("ASSUME_TIME"))
    assert found == {"IDX": "0", "DEV": "14", "POD": "5", "ASSIGNED": "true"}
    dry = cluster.kube.create(paths.pods("default"), gpu_mem("q", 5).manifest(), {"dryRun": "All"})
    assert annotated(dry, ALIYUN)["ASSIGNED"] == "false"


def test_row_6_memory_must_be_free_on_one_card(cluster: Cluster) -> None:
    run(cluster, gpu_mem("a", 8), gpu_mem("b", 10))
    create(cluster, gpu_mem("c", 9), pod("elsewhere").asks("aliyun.com/gpu-mem", 9))
    found = {each["metadata"]["name"]: each for each in scenarios.settled(cluster.kube, 4, running=3)}
    assert scenarios.waits(found["c"]) == "Memory"
    assert scenarios.condition(found["c"])["message"] == (
        "waiting: 0 of 3 GPU nodes fit: 1 short of memory (largest free 6917 MiB, wanted 9216), 1 not matching the "
        "pod's node selector or affinity, 1 with a taint that the pod does not tolerate "
        "(nvidia.com/gpu=present:NoSchedule): Insufficient GPU Memory in one device"
    )
    assert found["elsewhere"]["spec"]["nodeName"] == "v100"


def test_row_9_the_commercial_editions_label_divides_over_cards(cluster: Cluster) -> None:
    made = pod("p").labelled("aliyun.com/gpu-count", "4").asks("aliyun.com/gpu-mem", 8)
    found = run(cluster, made.tolerates("nvidia.com/gpu"))["p"]
    assert len(uuids(found)) == 4
    assert environment(cluster, found, f"{ALIYUN}CONTAINER") == {f"{ALIYUN}CONTAINER": "2"}
    visible = environment(cluster, found, "NVIDIA_VISIBLE_DEVICES")["NVIDIA_VISIBLE_DEVICES"]
    assert set(visible.split(",")) == uuids(found)
    assert annotated(found, SPLIT) == {"": '{"0":{"0":2,"1":2,"2":2,"3":2}}'}
    assert re.search(r"^a10 .*( 2/22){4} 8/88$", plain(plugin(cluster, "inspect", "a10")), re.MULTILINE)


def test_row_10_more_than_a_card_has_is_never_bound(cluster: Cluster) -> None:
    message = refusal(cluster, pod("p").asks("aliyun.com/gpu-mem", 33))
    assert "no GPU of this cluster can ever serve it" in message
    assert " 0/14 " in plugin(cluster, "inspect", "t4")


def test_row_13_a_card_that_others_overcommitted_takes_no_more(cluster: Cluster) -> None:
    with overcommitted(cluster, "t4", 0, 15 * GIB):
        found = run(cluster, gpu_mem("a", 1), gpu_mem("b", 13))
        assert {name: indexes(each) for name, each in found.items()} == {"a": [1], "b": [1]}
        create(cluster, gpu_mem("c", 1))
        waiting = [p for p in scenarios.settled(cluster.kube, 3, running=2) if scenarios.waits(p)]
        assert [(p["metadata"]["name"], scenarios.waits(p)) for p in waiting] == [("c", "Memory")]
    scenarios.settled(cluster.kube, 3, running=3)


def test_row_13_a_pod_bound_by_hand_books_nothing_that_is_not_there(cluster: Cluster) -> None:
    run(cluster, gpu_mem("a", 10), gpu_mem("b", 10))
    message = refusal(cluster, pod("by-hand").asks("aliyun.com/gpu-mem", 10).on("t4"))
    assert "spec.nodeName: found 't4', which cannot take the pod now" in message
    create(cluster, gpu_mem("small", 1))
    scenarios.settled(cluster.kube, 3, running=3)


def test_row_16_a_tenants_own_visible_devices_is_replaced(cluster: Cluster) -> None:
    found = run(cluster, gpu_mem("p", 5).env("NVIDIA_VISIBLE_DEVICES", "all"))["p"]
    assert environment(cluster, found, "NVIDIA_VISIBLE_DEVICES") == {"NVIDIA_VISIBLE_DEVICES": next(iter(uuids(found)))}


def test_row_17_a_container_without_a_share_sees_no_gpu(cluster: Cluster) -> None:
    made = on_t4(pod("p")).container("log").env("NVIDIA_VISIBLE_DEVICES", "all").container("main")
    found = run(cluster, made.asks("aliyun.com/gpu-mem", 5))["p"]
    assert environment(cluster, found, "NVIDIA_VISIBLE_DEVICES") == {"NVIDIA_VISIBLE_DEVICES": "void"}


def elastic(name: str, group: str, **amounts: str) -> PodBuilder:
    made = on_t4(pod(name)).container("cuda")
    for key, amount in amounts.items():
        made = made.asks(f"{group}/gpu-{key}", amount)
    return made


def plain(text: str) -> str:
    return re.sub(" +", " ", text)


ASSUMED = "elasticgpu.io/assumed"


@pytest.mark.parametrize("group", ["elasticgpu.io", "elasticgpu.com"])
def test_rows_25_and_28_elastic_gpu_memory_under_both_names(cluster: Cluster, group: str) -> None:
    found = run(cluster, elastic("p", group, memory="256"))["p"]
    assert annotated(found, "elasticgpu.io/") == {"container-cuda": "0", "assumed": "true"}
    assert found["metadata"]["labels"][ASSUMED] == "true"
    assert list(scenarios.held(found).values()) == [256 << 20]


@pytest.mark.parametrize("group", ["elasticgpu.io", "elasticgpu.com"])
def test_rows_26_and_28_two_whole_cards_are_nobody_elses(cluster: Cluster, group: str) -> None:
    create(cluster, elastic("two", group, core="200"))
    scenarios.settled(cluster.kube, 1, running=1)
    create(cluster, elastic("late", group, memory="256"))
    found = {each["metadata"]["name"]: each for each in scenarios.settled(cluster.kube, 2)}
    assert annotated(found["two"], "elasticgpu.io/container-") == {"cuda": "0,1"}
    assert scenarios.waits(found["late"]) == "Exclusive"


def nano(name: str, percent: int = 20) -> PodBuilder:
    made = on_t4(pod(name)).annotated(names.GPU_POLICY, "binpack")
    return made.container("cuda-container").asks("nano-gpu/gpu-percent", percent)


def test_row_31_nano_gpu(cluster: Cluster) -> None:
    scenario = next(s for s in SCENARIOS if s.sample == "superedge-nano-gpu.yaml")
    scenarios.submit(cluster.kube, scenario)
    found = scenarios.settled(cluster.kube, 1, running=1)[0]
    assert annotated(found, "nano-gpu/") == {"container-cuda-container": "0", "assume": "true"}
    assert found["metadata"]["labels"]["nano-gpu/assume"] == "true"


def test_row_32_five_fifths_and_one_more(cluster: Cluster) -> None:
    create(cluster, *(nano(f"p{number}") for number in range(11)))
    found = scenarios.settled(cluster.kube, 11, running=10)
    assert [scenarios.is_running(pod) for pod in found].count(False) == 1
    assert len({uuid for pod in found for uuid in uuids(pod)}) == 2
    runs = next(pod["metadata"]["name"] for pod in found if scenarios.is_running(pod))
    cluster.kube.delete(paths.pods("default", runs))
    after = scenarios.settled(cluster.kube, 10, running=10)
    assert runs not in {pod["metadata"]["name"] for pod in after}


def test_row_33_more_than_a_card_in_percent(cluster: Cluster) -> None:
    message = refusal(cluster, nano("p", 120))
    assert "give a whole number from 1 to 100, which is one whole card" in message


def test_row_36_a_tainted_gpu_pool(cluster: Cluster) -> None:
    scenario = next(s for s in SCENARIOS if s.sample == "oke-claims-pods.yaml")
    scenarios.submit(cluster.kube, scenario)
    assert {p["spec"]["nodeName"] for p in scenarios.settled(cluster.kube, 2, running=2)} == {"a10"}
    nodes = {node["metadata"]["name"]: node for node in cluster.kube.list(paths.nodes()).items}
    assert names.GPU_MEMORY in nodes["a10"]["status"]["allocatable"]


def await_event(cluster: Cluster, claim: dict[str, Any], wanted: str) -> None:
    """Wait for this Event about the claim."""

    def found() -> list[str]:
        events = cluster.kube.list(paths.events("default")).items
        mine = [each for each in events if each["involvedObject"].get("uid") == claim["metadata"]["uid"]]
        return [f"{each['reason']}: {each['message']}" for each in mine]

    wait_for(lambda: wanted in found(), lambda: f"the claim is told {found()}")


def test_row_21_class_and_claims_as_they_are(cluster: Cluster) -> None:
    for document in installing.documents(scenarios.SAMPLES / "oke-claims.yaml"):
        cluster.kube.create(installing.path_of(document), document)
    taken: set[str] = set()
    for name in ("gpushare-egpuc-1", "gpushare-egpuc-2"):
        claim, share = bound(cluster, name)
        assert share["spec"]["claimRef"]["name"] == name
        assert share["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        await_event(cluster, claim, f"ClaimBound: bound to ElasticGPU {share['metadata']['name']}")
        taken.update(scenarios.held(share).keys())
    assert len(taken) == 1, "the fullest card is taken first"
    wait_for(
        lambda: [left(cluster, "elasticgpu.io/gpu-core").get(uuid) for uuid in taken] == [98],
        lambda: f"the card shows {left(cluster, 'elasticgpu.io/gpu-core')}",
    )


def test_row_21_and_the_pods_that_name_them_have_their_shares(cluster: Cluster) -> None:
    scenario = next(s for s in SCENARIOS if s.sample == "oke-claims-pods.yaml")
    scenarios.submit(cluster.kube, scenario)
    found = {each["metadata"]["name"]: each for each in scenarios.settled(cluster.kube, 2, running=2)}
    for number, mib in ((1, 2048), (2, 1024)):
        made = found[f"test-cuda-{number}"]
        _, share = bound(cluster, f"gpushare-egpuc-{number}")
        assert scenarios.held(made) == scenarios.held(share), "the pod has the claim's share"
        assert annotated(made, "elasticgpu.io/") == {"container-dcgmproftester11": "0", "assumed": "true"}
        assert environment(cluster, made, "GPUFRACTION_MEMORY_LIMIT_MIB") == {"GPUFRACTION_MEMORY_LIMIT_MIB": str(mib)}
        assert environment(cluster, made, "NVIDIA_VISIBLE_DEVICES")["NVIDIA_VISIBLE_DEVICES"] in uuids(share)


README = [
    {
        "apiVersion": scenarios.ELASTIC,
        "kind": "ElasticGPUClass",
        "metadata": {"name": "readme-egpuclass"},
        "provisioner": "gpushare.provisioner.elasticgpu.io",
        "reclaimPolicy": "Retain",
        "egpuBindingMode": "Immediate",
    },
    {
        "apiVersion": scenarios.ELASTIC,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "gpushare-egpuc-1"},
        "spec": {
            "egpuClassName": "readme-egpuclass",
            "resources": {
                "requests": {
                    "gpushare.provisioner.elasticgpu.io/gpu-core": 10,
                    "gpushare.provisioner.elasticgpu.io/gpu-memory": 4,
                }
            },
        },
    },
]


def test_row_23_the_readmes_own_words(cluster: Cluster) -> None:
    for document in README:
        made = cluster.kube.create(installing.path_of(document), document, {"fieldValidation": "Strict"})
        kept = {key: made[key] for key in document if key not in ("metadata", "status")}
        assert kept == {key: document[key] for key in kept}, "stored, not pruned"
    _, share = bound(cluster, "gpushare-egpuc-1")
    assert list(scenarios.held(share).values()) == [4 << 30]
    create(cluster, pod("p").container("main").annotated("egpuc.elasticgpu.io/test1", "gpushare-egpuc-1"))
    found = scenarios.settled(cluster.kube, 1, running=1)[0]
    assert scenarios.held(found) == scenarios.held(share)
    cluster.kube.delete(paths.pods("default", "p"))
    cluster.kube.delete(paths.path(scenarios.ELASTIC, "elasticgpuclaims", "default", "gpushare-egpuc-1"))
    wait_for(
        lambda: phase(cluster, share) == "Released" and not scenarios.all_claims(cluster.kube),
        lambda: f"the share is {phase(cluster, share)}",
    )


@pytest.mark.parametrize("sample", ["4paradigm-vgpu.yaml", "4paradigm-vgpu-cores.yaml"])
def test_row_37_ten_replicas_six_run(cluster: Cluster, sample: str) -> None:
    scenario = next(s for s in SCENARIOS if s.sample == sample)
    scenarios.submit(cluster.kube, scenario)
    assert scenarios.outcome(scenarios.settled(cluster.kube, 10, running=6)) == scenario.want


def test_row_40_without_an_allocator_pods_wait_and_others_do_not(cluster: Cluster) -> None:
    allocator = cluster.programs["allocator"]
    allocator.terminate()
    allocator.wait()
    try:
        create(cluster, gpu_mem("share", 5), pod("plain").container("main"))
        wait_for(lambda: scenarios.is_running(get(cluster, "plain")), "the pod without a share does not run")
        assert pods.gates(get(cluster, "share")) == (names.GATE,)
    finally:
        allocator.start()
    wait_for(lambda: scenarios.is_running(get(cluster, "share")), "the share was not placed")


def test_row_19_each_card_has_its_own_memory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    mixed = gpu_node("mixed", "1 x NVIDIA A2 10240MiB, 1 x NVIDIA A4500 20480MiB")
    with Cluster(nodes=[mixed], directory=tmp_path_factory.mktemp("mixed")) as cluster:
        found = run(cluster, pod("p").asks("aliyun.com/gpu-mem", 12))["p"]
        assert indexes(found) == [1]
        assert re.search(r"^mixed .* 0/10 12/20 12/30$", plain(plugin(cluster, "inspect")), re.MULTILINE)


def test_indexes_are_the_cards_own(cluster: Cluster) -> None:
    found = run(cluster, gpu_mem("a", 10), gpu_mem("b", 10))
    assert sorted(indexes(found["a"]) + indexes(found["b"])) == [0, 1]
