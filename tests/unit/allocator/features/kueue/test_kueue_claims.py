"""Workloads whose pods request shares by ResourceClaims: the check evaluates their templates and claims."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from allocator.cache.cache import FrozenCluster
from allocator.engine.reference import DEFAULT_POLICY
from allocator.features.kueue import judge, workloads
from allocator.features.kueue.answers import CheckAnswer, answer_to
from allocator.features.kueue.claims import TemplateClaimReader
from allocator.features.kueue.judge import Fits, GangTrial, NotAdmitted, NotSeen, TemplateReading
from allocator.features.kueue.workloads import Workload
from allocator.workers.claim_reader import ClaimReader
from contract.model import DeviceRequest
from contract.scheduling.clusterfilters import objects
from contract.scheduling.clusterfilters.neighbourhood import NeighbourSnapshot
from contract.scheduling.clusterfilters.objects import DeviceObjects
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.gates import Version
from playground.api.api import Api
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.features.kueue.objects import pod_set, workload
from tests.unit.allocator.workers.test_share_claims import spec_of
from tests.wires import Wire

JSON = dict[str, Any]
MEMORY = "gpufraction.io/gpu-memory"
GIB = 1 << 30
T4 = 16 << 10
TWO = [node("a").gpu("T4", mib=T4), node("b").gpu("T4", mib=T4)]
"""Two cards of 16 GiB on two nodes."""
TEMPLATES = {
    "8gi": spec_of(DeviceRequest("gpu", 1, 8 * GIB)),
    "two": spec_of(DeviceRequest("gpu", 2, 8 * GIB)),
    "nic": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]}},
    "bad": {
        "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "share.gpufraction.io", "count": 0}}]}
    },
}
EIGHT = pod("w").uses("gpu", template="8gi")
TOGETHER = pod("w").uses("gpu", claim="one")
NIC = pod("w").uses("nic", template="nic")


class Bench:
    """An API server with templates and claims, and a reader that queries it."""

    def __init__(self, version: Version = (1, 36)) -> None:
        self.wire = Wire(Api())
        self.kube = Kube(self.wire)
        for name, spec in TEMPLATES.items():
            self.kube.create(
                paths.resourceclaimtemplates("default"), {"metadata": {"name": name}, "spec": {"spec": spec}}
            )
        for name in ("one", "held"):
            spec = TEMPLATES["8gi"]
            self.kube.create(paths.resourceclaims("default"), {"metadata": {"name": name}, "spec": spec})
        allocation: JSON = {"status": {"allocation": {"devices": {"results": []}}}}
        self.kube.patch_merge(paths.resourceclaims("default", "held", "status"), allocation)
        self.reader = TemplateClaimReader(ClaimReader(self.kube, version=version))

    def answer(self, document: JSON) -> CheckAnswer:
        """What the check says about a Workload on the two cards."""
        read = read_workload(document)
        gang = judge.gang_of(read, {}, {}, TemplateReading(), self.reader.read(read), by_copy=True)
        made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
        made.begin(FrozenCluster(tuple(each.state() for each in TWO), (), None))
        verdict = gang if isinstance(gang, NotAdmitted) else made.judge(gang)
        return answer_to(verdict, rejects=True, retry_after=30)


def read_workload(document: JSON) -> Workload:
    read = workloads.workload(workloads.trim(document))
    assert read is not None
    return read


@dataclass(frozen=True)
class Case:
    """The pod sets of a Workload, and the answer."""

    pod_sets: tuple[tuple[str, int, PodBuilder], ...]
    state: str
    message: str


SHORT = "0 of 2 GPU nodes fit: 2 short of memory (largest free 0 MiB, wanted 8192)"
CASES = {
    "claims of a template fill all cards": Case((("main", 4, EIGHT),), "Ready", "all 4 pods fit"),
    "one pod too many": Case(
        (("main", 5, EIGHT),), "Retry", f"4 of 5 pods fit; the next one of pod set main does not: {SHORT}"
    ),
    "more cards than a node has": Case(
        (("main", 1, pod("w").uses("gpu", template="two")),),
        "Rejected",
        "pod set main: no GPU of this cluster can ever serve it, even when free: 0 of 2 GPU nodes fit: 2 with too "
        "few GPUs (most 1, wanted 2)",
    ),
    "claims count along with shares in other words": Case(
        (("claims", 2, EIGHT), ("words", 3, pod("w").asks(MEMORY, "8Gi"))),
        "Retry",
        f"4 of 5 pods fit; the next one of pod set words does not: {SHORT}",
    ),
    "a claim that stands alone is one share for all its pods": Case((("main", 9, TOGETHER),), "Ready", "the pod fits"),
    "also for those of another pod set": Case(
        (("a", 3, TOGETHER), ("b", 3, TOGETHER), ("c", 3, EIGHT)), "Ready", "all 4 pods fit"
    ),
    "a claim that has its cards needs no others": Case(
        (("main", 9, pod("w").uses("gpu", claim="held")), ("more", 4, EIGHT)), "Ready", "all 4 pods fit"
    ),
    "claims of other drivers": Case((("main", 9, NIC),), "Ready", "no pod of the Workload requests a GPU share"),
    "a claim of another driver alongside a share in other words": Case(
        (("main", 4, NIC.asks(MEMORY, "8Gi")),), "Ready", "all 4 pods fit"
    ),
    "a template that does not exist yet": Case(
        (("main", 1, pod("w").uses("gpu", template="later")),),
        "Retry",
        "pods of pod set main would be refused: spec.resourceClaims[gpu]: found ResourceClaimTemplate later, which "
        "does not exist; create it before the pod",
    ),
    "a template that cannot be served": Case(
        (("main", 1, pod("w").uses("gpu", template="bad")),),
        "Retry",
        "pods of pod set main would be refused: ResourceClaimTemplate bad: spec.spec.devices.requests[0].exactly."
        "count: found 0; give a whole number from 1 to 32",
    ),
    "two ways in one pod": Case(
        (("main", 1, EIGHT.asks(MEMORY, "8Gi")),),
        "Retry",
        "pods of pod set main would be refused: spec.resourceClaims: found GPU shares together with gpufraction.io; "
        "use only one dialect: remove one of the two",
    ),
    "very many claims": Case(
        (
            (
                "main",
                1,
                pod("w").spec(resourceClaims=[{"name": f"c{at}", "resourceClaimName": "x"} for at in range(65)]),
            ),
        ),
        "Retry",
        "pods of pod set main would be refused: spec.resourceClaims: found 65 claims; give at most 64 in all pod sets",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_claims_of_a_workload_are_judged(case: Case) -> None:
    found = Bench().answer(workload("w", *(pod_set(*each) for each in case.pod_sets)))
    assert found == CheckAnswer(case.state, case.message, 30 if case.state == "Retry" else None)


def test_a_template_that_came_later_is_read_by_the_next_look() -> None:
    bench = Bench()
    document = workload("w", pod_set("main", 1, pod("w").uses("gpu", template="later")))
    assert bench.answer(document).state == "Retry"
    body = {"metadata": {"name": "later"}, "spec": {"spec": TEMPLATES["8gi"]}}
    bench.kube.create(paths.resourceclaimtemplates("default"), body)
    assert bench.answer(document).state == "Retry", "one look at the cluster reads each template once"
    bench.reader.forget()
    assert bench.answer(document) == CheckAnswer("Ready", "the pod fits")


@pytest.mark.parametrize("fate", ["dropped", "refused"])
def test_what_cannot_be_read_now_is_not_judged(fate: Any) -> None:
    bench = Bench()
    bench.wire.fates = [fate]
    with pytest.raises(NotSeen):
        bench.answer(workload("w", pod_set("main", 1, EIGHT)))
    assert bench.answer(workload("w", pod_set("main", 1, EIGHT))).state == "Ready"


def test_the_copy_of_a_pod_with_totals_is_read_by_its_claims() -> None:
    """Kueue's copy has the accounting resources that the webhook wrote, which are not a second request."""
    copy = workload("w", pod_set("main", 1, EIGHT.asks(MEMORY, "8Gi")))
    read = replace(read_workload(copy), pods=("uid",))
    found = judge.gang_of(read, {}, {}, TemplateReading(), Bench().reader.read(read), by_copy=True)
    assert not isinstance(found, NotAdmitted)
    [part] = found.parts
    assert (part.count, part.ask.request.own_claims, part.ask.request.containers[0].memory) == (1, True, 8 * GIB)


def test_claims_of_others_that_stand_alone_are_judged_once_read() -> None:
    read = read_workload(workload("w", pod_set("main", 1, pod("w").uses("nic", claim="nic").asks(MEMORY, "8Gi"))))
    gang = judge.gang_of(read, {}, {}, TemplateReading())
    assert not isinstance(gang, NotAdmitted)
    assert gang.has_devices
    states = tuple(each.state() for each in TWO)
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(states, neighbours=NeighbourSnapshot(devices=None)))
    with pytest.raises(NotSeen):
        made.judge(gang)
    nic = objects.read_device_claim({"metadata": {"name": "nic", "namespace": "default"}, "spec": {}})
    known = NeighbourSnapshot(devices=DeviceObjects({("default", "nic"): nic}))
    made.begin(FrozenCluster(states, neighbours=known))
    assert made.judge(gang) == Fits(1)
