"""Whether the pods of a Workload fit together: all pod sets on single cards, with the flavors that Kueue assigned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import HeldNode
from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import DEFAULT_POLICY, Placement
from allocator.features.kueue import judge, workloads
from allocator.features.kueue.answers import answer_to
from allocator.features.kueue.judge import (
    FallsShort,
    Fits,
    Gang,
    GangTrial,
    NeverFits,
    NotAdmitted,
    NotSeen,
    TemplateReading,
)
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.model import Delivery, Usage
from contract.options import pool_options
from contract.scheduling import needs, nodeinfo
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import SchedulingRequest
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.proof import feathers
from tests.unit.allocator.features.kueue.objects import flavor, pod_set, workload
from tests.unit.allocator.harness import request_of

JSON = dict[str, Any]
MEMORY = "gpufraction.io/gpu-memory"
T4 = 16 << 10
TWO = [node("a").gpu("T4", mib=T4), node("b").gpu("T4", mib=T4)]
"""Two cards of 16 GiB on two nodes."""
EIGHT = pod("w").asks(MEMORY, "8Gi").needs(cpu="100m")
TWELVE = pod("w").asks(MEMORY, "12Gi").needs(cpu="100m")
NONE = pod("w").needs(cpu="1")


@dataclass(frozen=True)
class Case:
    """A Workload on a cluster, and what happens to it."""

    document: JSON
    found: str
    nodes: list[NodeBuilder] = field(default_factory=lambda: TWO)
    message: str = ""
    flavors: tuple[JSON, ...] = ()
    reading: TemplateReading = field(default_factory=TemplateReading)


def gang(case: Case, waiting: dict[str, SchedulingRequest] | None = None) -> Gang | NotAdmitted:
    read = workloads.workload(workloads.trim(case.document))
    assert read is not None
    flavors = {each["metadata"]["name"]: workloads.flavor(each) for each in case.flavors}
    return judge.gang_of(read, flavors, waiting or {}, case.reading)


def trial(nodes: list[NodeBuilder], *reservations: HeldNode) -> GangTrial:
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(tuple(each.state() for each in nodes), reservations, None))
    return made


TAINTED = [node("a").gpu("T4", mib=T4).tainted("team", "a"), node("b").gpu("T4", mib=T4).labelled("pool", "x")]
CASES = {
    "one pod": Case(workload("w", pod_set("main", 1, EIGHT)), "Ready", message="the pod fits"),
    "a gang that fills all cards": Case(workload("w", pod_set("main", 4, EIGHT)), "Ready", message="all 4 pods fit"),
    "one pod too many": Case(workload("w", pod_set("main", 5, EIGHT)), "Retry", message="4 of 5 pods fit"),
    "the sum of memory is there, and no card for the third": Case(
        workload("w", pod_set("main", 3, pod("w").asks(MEMORY, "9Gi"))),
        "Retry",
        message="2 of 3 pods fit; the next one of pod set main does not: 0 of 2 GPU nodes fit: 2 short of memory",
    ),
    "pod sets count together": Case(
        workload("w", pod_set("driver", 1, EIGHT), pod_set("workers", 2, TWELVE)), "Retry", message="pod set workers"
    ),
    "pod sets fit together": Case(workload("w", pod_set("a", 2, EIGHT), pod_set("b", 1, TWELVE)), "Ready"),
    "pods without a share do not count": Case(
        workload("w", pod_set("launcher", 100, NONE), pod_set("workers", 2, EIGHT)), "Ready", message="all 2 pods fit"
    ),
    "no pod requests a share": Case(
        workload("w", pod_set("main", 3, NONE)), "Ready", message="no pod of the Workload requests"
    ),
    "a part is admitted": Case(workload("w", pod_set("main", 9, EIGHT), counts={"main": 4}), "Ready"),
    "some have succeeded": Case(
        workload("w", pod_set("main", 5, EIGHT), status={"reclaimablePods": [{"name": "main", "count": 1}]}), "Ready"
    ),
    "larger than any card": Case(
        workload("w", pod_set("main", 1, pod("w").asks(MEMORY, "20Gi"))),
        "Rejected",
        message="pod set main: no GPU of this cluster can ever serve it",
    ),
    "the flavor's labels": Case(
        workload("w", pod_set("main", 2, EIGHT), flavors=["x", "cpu"]),
        "Ready",
        TAINTED,
        flavors=(flavor("x", {"pool": "x"}), flavor("cpu", {})),
    ),
    "more than the flavor's nodes": Case(
        workload("w", pod_set("main", 3, EIGHT), flavors=["x"]),
        "Retry",
        TAINTED,
        flavors=(flavor("x", {"pool": "x"}),),
    ),
    "the flavor's tolerations": Case(
        workload("w", pod_set("main", 4, EIGHT), flavors=["x"]),
        "Ready",
        TAINTED,
        flavors=(flavor("x", {}, [{"key": "team", "operator": "Exists"}]),),
    ),
    "without the tolerations": Case(workload("w", pod_set("main", 4, EIGHT)), "Retry", TAINTED),
    "what another check adds": Case(
        workload("w", pod_set("main", 3, EIGHT), updates=[{"name": "main", "nodeSelector": {"pool": "x"}}]),
        "Retry",
        TAINTED,
    ),
    "Aliyun's words": Case(workload("w", pod_set("main", 2, pod("w").asks("aliyun.com/gpu-mem", 9))), "Ready"),
    "Aliyun's words in MiB": Case(
        workload("w", pod_set("main", 2, pod("w").asks("aliyun.com/gpu-mem", 900))),
        "Ready",
        reading=TemplateReading(pool_options({"aliyunUnit": "MiB"})),
    ),
    "the words of the dialects that the program was given": Case(
        workload("w", pod_set("main", 4, pod("w").asks(feathers.FEATHERS, 8))),
        "Ready",
        message="all 4 pods fit",
        reading=TemplateReading(dialects=Dialects((*DIALECTS, feathers.DIALECT))),
    ),
    "the document of options": Case(
        workload("w", pod_set("main", 3, pod("w").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpucores", 10))),
        "Ready",
        reading=TemplateReading(pools=pool_options({"defaultMem": 4000})),
    ),
    "whole cards by default": Case(
        workload("w", pod_set("main", 3, pod("w").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpucores", 10))), "Retry"
    ),
    "a percentage": Case(workload("w", pod_set("main", 5, pod("w").asks("gpufraction.io/gpu-percent", 50))), "Retry"),
    "two cards of one node": Case(
        workload("w", pod_set("main", 1, EIGHT.asks("gpufraction.io/gpu-count", 2))), "Rejected"
    ),
    "what the webhook would refuse": Case(
        workload("w", pod_set("main", 1, pod("w").asks("gpufraction.io/gpu-mem", "8Gi").asks(MEMORY, "8Gi"))),
        "Rejected",
        message="pods of pod set main would be refused",
    ),
    "a claim's share is not placed": Case(
        workload("w", pod_set("main", 9, pod("w").annotated("egpuc.elasticgpu.io/w", "c").needs(cpu="1"))), "Ready"
    ),
    "no node has reported GPUs": Case(workload("w", pod_set("main", 1, EIGHT)), "Retry", [node("a")]),
    "CPU of the nodes counts": Case(
        workload("w", pod_set("main", 3, pod("w").asks(MEMORY, "1Gi").needs(cpu="20"))), "Retry", message="CPU"
    ),
}


RACKS = [node(f"{rack}{n}").gpu("T4", mib=T4).labelled("rack", rack) for rack in "xy" for n in (1, 2)]
LISTED = {"levels": ["rack"], "domains": [{"values": ["x"], "count": 4}, {"values": ["y"], "count": 2}]}
SLICES = {
    "levels": ["rack"],
    "slices": [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"individual": {"roots": ["x", "y"]}}],
            "podCounts": {"individual": [4, 2]},
        }
    ],
}
TOO_MANY = {
    "levels": ["rack", "kubernetes.io/hostname"],
    "slices": [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"universal": "x"}, {"individual": {"prefix": "x", "roots": ["1", "2"]}}],
            "podCounts": {"universal": 3},
        }
    ],
}


@pytest.mark.parametrize(
    ("topology", "placed"),
    [(LISTED, 6), (SLICES, 6), (TOO_MANY, 2), (None, 6)],
    ids=["v1beta1", "v1beta2", "hosts", ""],
)
def test_pods_are_judged_in_the_domains_that_kueue_chose(topology: JSON | None, placed: int) -> None:
    document = workload("w", pod_set("main", 6, EIGHT))
    document["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = topology
    verdict = trial(RACKS).judge(gang_of_document(document))
    assert (verdict.pods if isinstance(verdict, Fits) else getattr(verdict, "placed", None)) == placed


def test_of_the_domains_only_the_pods_that_are_left_count() -> None:
    document = workload("w", pod_set("main", 6, EIGHT), status={"reclaimablePods": [{"name": "main", "count": 3}]})
    document["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = LISTED
    assert gang_of_document(document).pods == 3


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_answer(case: Case) -> None:
    read = gang(case)
    verdict = read if isinstance(read, NotAdmitted) else trial(case.nodes).judge(read)
    answer = answer_to(verdict, rejects=True, retry_after=30)
    assert (answer.state, case.message in answer.message) == (case.found, True), answer
    assert answer.again_after == (30 if case.found == "Retry" else None)


def test_an_answer_names_figures_and_nobody_else() -> None:
    taken = [node("a").gpu("T4", mib=T4, used_mib=10 << 10)]
    verdict = trial(taken).judge(gang_of_document(workload("w", pod_set("main", 1, EIGHT))))
    answer = answer_to(verdict, rejects=True, retry_after=7)
    assert answer.message == (
        "0 of 1 pods fit; the next one of pod set main does not: 0 of 1 GPU nodes fit: 1 short of memory "
        "(largest free 6144 MiB, wanted 8192)"
    )


def gang_of_document(document: JSON) -> Gang:
    found = gang(Case(document, ""))
    assert isinstance(found, Gang)
    return found


def test_what_no_gpu_could_serve_is_tried_again_where_nodes_may_come() -> None:
    verdict = trial(TWO).judge(gang_of_document(workload("w", pod_set("main", 1, pod("w").asks(MEMORY, "20Gi")))))
    assert isinstance(verdict, NeverFits)
    assert answer_to(verdict, rejects=False, retry_after=30).state == "Retry"


def test_a_gang_that_falls_short_takes_nothing_from_the_next_one() -> None:
    made = trial(TWO)
    assert isinstance(made.judge(gang_of_document(workload("w", pod_set("main", 5, EIGHT)))), FallsShort)
    assert made.judge(gang_of_document(workload("w", pod_set("main", 4, EIGHT)))) == Fits(4)


def test_a_gang_that_fits_leaves_the_rest_to_the_next_one() -> None:
    made = trial(TWO)
    three = gang_of_document(workload("w", pod_set("main", 3, EIGHT)))
    assert made.judge(three) == Fits(3)
    assert isinstance(made.judge(gang_of_document(workload("w", pod_set("main", 2, EIGHT)))), FallsShort)
    assert made.judge(gang_of_document(workload("w", pod_set("main", 1, EIGHT)))) == Fits(1)


def test_a_new_trial_is_the_cluster_as_it_is_then() -> None:
    made = trial(TWO)
    four = gang_of_document(workload("w", pod_set("main", 4, EIGHT)))
    assert made.judge(four) == Fits(4)
    states = tuple(each.state() for each in TWO)
    made.begin(FrozenCluster(states, (), None))
    assert made.judge(four) == Fits(4), "nothing stays reserved"
    taken = replace(states[0], usage=(Usage(memory=10 << 30, sharers=1),))
    made.begin(FrozenCluster((taken, states[1]), (), None))
    assert isinstance(made.judge(four), FallsShort)
    made.begin(FrozenCluster(states[:1], (), None))
    assert isinstance(made.judge(four), FallsShort)


def test_what_is_assumed_counts_as_far_as_it_still_fits() -> None:
    made = trial(TWO)
    made.assume(gang_of_document(workload("w", pod_set("a", 9, EIGHT), pod_set("b", 1, EIGHT))))
    assert isinstance(made.judge(gang_of_document(workload("w", pod_set("main", 1, EIGHT)))), FallsShort)


def test_a_node_that_is_reserved_for_a_pod_is_not_counted() -> None:
    closed = HeldNode("a", "somebody", priority=0)
    two = gang_of_document(workload("w", pod_set("main", 3, EIGHT)))
    assert isinstance(trial(TWO, closed).judge(two), FallsShort)
    of_pods = {"priority": 5, "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "p"}}
    higher = workload("w", pod_set("main", 3, EIGHT), spec=of_pods)
    assert trial(TWO, closed).judge(gang_of_document(higher)) == Fits(3)
    older = workload("w", pod_set("main", 3, EIGHT), spec={"priority": 5, "priorityClassSource": "kueue.x-k8s.io/x"})
    assert isinstance(trial(TWO, closed).judge(gang_of_document(older)), FallsShort)


def test_a_large_gang_is_judged_by_as_many_pods_as_are_tried() -> None:
    small = pod("w").asks(MEMORY, "1Gi").needs(cpu="1m")
    verdict = trial(TWO).judge(gang_of_document(workload("w", pod_set("main", 2_000_000_000, small))))
    assert isinstance(verdict, FallsShort)
    assert verdict.placed == 32


POOLS = pool_options(
    {
        "pools": [
            {
                "name": "t4",
                "nodeSelector": {"matchLabels": {"pool": "t4"}},
                "node": {"gpus": 1, "gpuMemory": "16Gi", "model": "T4", "cpu": 8, "memory": "64Gi", "max": 3},
            }
        ]
    }
)


def test_new_nodes_of_a_declared_pool_count_as_far_as_they_may_come() -> None:
    empty = node("t4").gpu("T4", mib=T4).labelled("pool", "t4").state()
    there = node("a").gpu("T4", mib=T4).labelled("pool", "t4").state()
    cluster = FrozenCluster((there,), to_come=(empty,))
    most = judge.may_open(POOLS, cluster.nodes)
    assert most == {"t4": 2}
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    four = gang_of_document(workload("w", pod_set("main", 4, EIGHT)))
    made.begin(cluster)
    assert isinstance(made.judge(four), FallsShort), "nobody is asked for nodes"
    made.begin(cluster, most)
    assert isinstance(made.judge(gang_of_document(workload("w", pod_set("main", 7, EIGHT)))), FallsShort)
    assert made.judge(four) == Fits(4, (("t4", 1),))
    answer = answer_to(Fits(4, (("t4", 1),)), rejects=True, retry_after=30)
    assert (answer.state, answer.message) == ("Ready", "all 4 pods fit, with 1 new node of pool t4")
    assert made.judge(gang_of_document(workload("w", pod_set("main", 2, EIGHT)))) == Fits(2, (("t4", 1),))
    assert isinstance(made.judge(gang_of_document(workload("w", pod_set("main", 1, EIGHT)))), FallsShort)
    made.begin(cluster, most)
    assert made.judge(four) == Fits(4, (("t4", 1),)), "nothing of it stays"
    made.begin(cluster, most)
    made.assume(gang_of_document(workload("w", pod_set("main", 5, EIGHT))))
    assert made.judge(gang_of_document(workload("w", pod_set("main", 1, EIGHT)))) == Fits(1, (("t4", 1),)), (
        "it waits for a node too, though that comes for the other gang"
    )
    assert isinstance(made.judge(gang_of_document(workload("w", pod_set("main", 1, EIGHT)))), FallsShort), (
        "the nodes that were promised to another gang"
    )


def test_what_only_a_new_node_could_serve_is_not_rejected() -> None:
    large = node("t4").gpu("A100", mib=80 << 10).state()
    twenty = gang_of_document(workload("w", pod_set("main", 1, pod("w").asks(MEMORY, "20Gi"))))
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(tuple(each.state() for each in TWO), to_come=(large,)))
    assert isinstance(made.judge(twenty), FallsShort)
    made.begin(FrozenCluster((), to_come=(large,)), {"t4": 1})
    assert made.judge(twenty) == Fits(1, (("t4", 1),)), "a pool at zero nodes"


def test_a_flavor_that_was_not_seen_is_waited_for() -> None:
    with pytest.raises(NotSeen, match="resource flavor x"):
        gang(Case(workload("w", pod_set("main", 1, EIGHT), flavors=["x"]), ""))


def test_pods_that_exist_ask_for_what_they_were_admitted_with() -> None:
    """Kueue's copy of a stored pod has the totals that our webhook wrote, but none of its annotations."""
    stored = pod("w").asks(MEMORY, "16Gi").needs(cpu="100m").json()
    copy = {"name": "main", "count": 1, "template": {"spec": stored["spec"]}}
    launcher = pod_set("launcher", 1, NONE)
    owners = {"ownerReferences": [{"kind": "Pod", "uid": "u"}]}
    document = workload("w", launcher, copy, flavors=["x"], metadata=owners)
    ask = SchedulingRequest(
        request_of(EIGHT.asks("gpufraction.io/gpu-count", 2).json()), needs.needs_of(stored, several=True)
    )
    case = Case(document, "", flavors=(flavor("x", {"pool": "x"}),))
    found = gang(case, {"u": ask})
    assert isinstance(found, Gang)
    (part,) = found.parts
    assert part.ask.request == ask.request
    assert dict(part.ask.needs.node_selector) == {"pool": "x"}, "the flavor counts too"
    assert trial([node("a").gpus(2, mib=12 << 10).labelled("pool", "x")]).judge(found) == Fits(1)
    with pytest.raises(NotSeen, match="a pod of pod set main"):
        gang(case, {})


def test_nodes_that_deliver_by_claims_count_where_pods_will_name_one() -> None:
    """Kueue's template names no ResourceClaim: the webhook adds one when the pods are created."""
    by_claims = tuple(replace(each.state(), delivery=Delivery(("",), "nvidia.com/gpu", dra=True)) for each in TWO)
    answers = []
    for claims in (True, False):
        made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
        made.begin(FrozenCluster(by_claims, (), None))
        read = gang(Case(workload("w", pod_set("main", 4, EIGHT)), "", reading=TemplateReading(claims=claims)))
        assert isinstance(read, Gang)
        answers.append(made.judge(read))
    assert answers[0] == Fits(4)
    assert not isinstance(answers[1], Fits)


def clusters(random: Random) -> list[NodeBuilder]:
    found = []
    for number in range(random.randint(1, 4)):
        made = node(f"n{number}").allocatable(cpu=random.choice([500, 4000]))
        for _ in range(random.randint(1, 3)):
            size = random.choice([8, 16, 24]) << 10
            taken = random.choice([0, 0, 2, 7]) << 10
            made = made.gpu("T4", mib=size, used_mib=taken)
        found.append(made)
    return found


def gangs(random: Random) -> list[tuple[int, PodBuilder]]:
    found = []
    for _ in range(random.randint(1, 3)):
        made = pod("w").asks(MEMORY, f"{random.choice([1, 3, 5, 9])}Gi").needs(cpu=random.choice(["10m", "200m"]))
        if random.random() < 0.3:
            made = made.asks("gpufraction.io/gpu-count", 2)
        found.append((random.randint(1, 4), made))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_gang_fits_where_its_pods_are_placed_one_after_another(seed: int) -> None:
    """The answer is Ready if and only if the scheduler gives each pod a share when they arrive in this order."""
    random = Random(seed)
    nodes, parts = clusters(random), gangs(random)
    document = workload("w", *(pod_set(f"s{n}", count, made) for n, (count, made) in enumerate(parts)))
    states = tuple(each.state() for each in nodes)
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(states))
    verdict = made.judge(gang_of_document(document))

    engine, after = Engine(limits=DEFAULT_LIMITS, policy=DEFAULT_POLICY), {each.name: each for each in states}
    for each in states:
        engine.put(each)
    placed = 0
    for count, builder in parts:
        for _ in range(count):
            ask = SchedulingRequest(request_of(builder.json()), needs.needs_of(builder.manifest()))
            ask = replace(ask, needs=replace(ask.needs, several=ask.request.several))
            decision = reference.decide(after, ask, limits=DEFAULT_LIMITS, policy=DEFAULT_POLICY)
            if not isinstance(decision, Placement):
                expected = "NeverFits" if engine.could_ever(ask) is not None else "FallsShort"
                break
            after[decision.node] = nodeinfo.booked(after[decision.node], ask, decision.containers)
            placed += 1
        else:
            continue
        break
    else:
        expected = "Fits"
    asks = [SchedulingRequest(request_of(b.json()), needs.needs_of(b.manifest())) for _, b in parts]
    if any(engine.could_ever(ask) is not None for ask in asks):
        expected = "NeverFits"
    assert type(verdict).__name__ == expected
    if isinstance(verdict, FallsShort):
        assert verdict.placed == placed
