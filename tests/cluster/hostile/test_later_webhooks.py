"""Other webhooks, such as Kyverno and VPA, that change a pod after its placement: it goes where its new spec says."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.programs.otherwebhook import patching
from playground.scenarios import Outcome
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import TENANT, Hostile
from tests.cluster.system import another

pytestmark = pytest.mark.hostile
JSON = dict[str, Any]
LABEL, SEEN = "changed", "changed-by"
REPLICAS = 6
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HELD = "example.com/held"
T4, V100, A10 = {"gpushare": "true"}, {"gpu": "on"}, {"gpu-node": "true"}
SMALL = pod("small").asks("gpufraction.io/gpu-memory", "1Gi").needs(cpu="100m")
OLDER = pod("small").asks("aliyun.com/gpu-mem", 1).needs(cpu="100m")
TOLERANT = SMALL.spec(nodeSelector=A10).tolerates("nvidia.com/gpu")
ZONE: JSON = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["on"]}]}


@dataclass(frozen=True)
class Case:
    """What is submitted, what the other webhook puts into its spec, and the expected result without reasons."""

    submitted: PodBuilder
    spec: Mapping[str, Any]
    want: Outcome
    container: Mapping[str, Any] | None = None
    """What the other webhook puts into the first container."""


def everybody(node: str) -> Outcome:
    return Outcome(running=REPLICAS, nodes=(node,), gpus=1)


NOBODY = Outcome(running=0, waiting=REPLICAS)
ONE = Outcome(running=1, waiting=REPLICAS - 1, nodes=("t4",), gpus=1)


AFFINITY = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [ZONE]}}}
CASES: dict[str, Case] = {
    "another selector": Case(SMALL.spec(nodeSelector=T4), {"nodeSelector": V100}, everybody("v100")),
    "another selector, an older dialect": Case(OLDER.spec(nodeSelector=T4), {"nodeSelector": V100}, everybody("v100")),
    "required affinity": Case(SMALL, {"affinity": AFFINITY}, everybody("v100")),
    "a selector that no node has": Case(SMALL, {"nodeSelector": {"no": "where"}}, NOBODY),
    "a toleration less": Case(TOLERANT, {"tolerations": []}, NOBODY),
    "more CPU": Case(
        SMALL.spec(nodeSelector=T4),
        {},
        ONE,
        {"requests": {"cpu": "20"}},
    ),
    "more memory": Case(
        SMALL.spec(nodeSelector=T4),
        {},
        ONE,
        {"requests": {"memory": "200Gi"}},
    ),
    "a host port": Case(
        SMALL.spec(nodeSelector=T4),
        {},
        ONE,
        {"ports": [{"containerPort": 8080, "hostPort": 8080, "protocol": "TCP"}]},
    ),
    "another scheduler's demand": Case(
        SMALL.spec(nodeSelector=T4),
        {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {LABEL: "yes"}},
                }
            ]
        },
        everybody("t4"),
    ),
}


@pytest.mark.parametrize("pin", ["auto", pytest.param("affinity", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_pod_that_is_changed_after_us_goes_where_it_says_now(hostile: Hostile, case: Case, pin: str) -> None:
    """C1: a webhook after ours changes selector, affinity, tolerations, CPU, memory and ports."""
    with changing(hostile, case.spec, case.container or {}):
        deployment(hostile, case.submitted.annotated(names.PLACEMENT, pin))
        found = scenarios.settled(hostile.kube, REPLICAS, TENANT, running=case.want.running)
        assert dataclasses.replace(scenarios.outcome(found), waits=()) == case.want
        assert [p["metadata"]["name"] for p in hostile.pods() if p["status"].get("phase") == "Failed"] == []
        owners = hostile.kube.list(paths.path("apps/v1", "replicasets", TENANT)).items
        assert len(found) == sum(owner["spec"]["replicas"] for owner in owners), "no pod took another's place"


@pytest.mark.parametrize("pin", ["auto", pytest.param("affinity", marks=pytest.mark.long)])
def test_a_gate_that_is_added_after_us_takes_the_share_back_at_once(hostile: Hostile, pin: str) -> None:
    """C1: our second pass finds another system's gate: no share, no pin, and our gate, until that gate is removed."""
    with changing(hostile, {"schedulingGates": [{"name": HELD}]}, {}):
        hostile.create(SMALL.labelled(LABEL, "yes").annotated(names.PLACEMENT, pin))
    (found,) = hostile.pods()
    assert pods.gates(found) == (HELD, names.GATE)
    assert names.ALLOCATION not in pods.annotations_of(found)
    assert not found["spec"].get("nodeName")
    assert not found["spec"].get("affinity")
    wait_for(lambda: scenarios.waits(hostile.pods()[0]) == "ForeignGate", "it is not told")
    for replica in (0, 1):
        assert hostile.figures(replica).get('gpufraction_reservations{state="assumed"}', 0) == 0
    hostile.kube.patch_merge(paths.pods(TENANT, "small"), {"spec": {"schedulingGates": [{"name": str(names.GATE)}]}})
    scenarios.settled(hostile.kube, 1, TENANT, running=1)


def deployment(hostile: Hostile, made: PodBuilder) -> None:
    """This many pods from a controller, which replaces each pod that fails."""
    template = made.manifest()
    labels = {LABEL: "yes", "app": "many"}
    metadata = {"labels": labels, "annotations": template["metadata"].get("annotations", {})}
    spec = {
        "replicas": REPLICAS,
        "selector": {"matchLabels": labels},
        "template": {"metadata": metadata, "spec": template["spec"]},
    }
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": spec}
    hostile.kube.create(paths.path("apps/v1", "deployments", TENANT), document)


@contextlib.contextmanager
def changing(hostile: Hostile, spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[None]:
    """Another user's webhook after ours, which puts these fields into the spec and into the first container."""

    def change(request: JSON) -> JSON:
        patch: list[JSON] = [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]
        for key, value in container.items():
            if key == "requests":
                before = request["object"]["spec"]["containers"][0].get("resources") or {}
                resources = {**before, "requests": {**(before.get("requests") or {}), **value}}
                patch.append({"op": "add", "path": "/spec/containers/0/resources", "value": resources})
            else:
                patch.append({"op": "add", "path": f"/spec/containers/0/{key}", "value": value})
        annotations = {**(request["object"]["metadata"].get("annotations") or {}), SEEN: "us"}
        patch.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
        return patching(patch)

    probe = pod("probe").labelled(LABEL, "yes")
    with another.registered(hostile.kube, change, label=LABEL):
        wait_for(
            lambda: SEEN in pods.annotations_of(hostile.create(probe, dry_run=True)),
            "the other webhook is not called",
        )
        yield
