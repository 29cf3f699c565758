"""Where a manifest's pods would be placed: its templates, the verdict on the first pod, and the replicas after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpufraction.advice import hosts
from kubectl_gpufraction.advice.rehearsal import Rehearsal
from kubectl_gpufraction.cluster.manifests import PER_NODE, Template, templates
from kubectl_gpufraction.commands.dryrun import UNTRIED, Verdict, row, totals, verdict
from tests.builders import pod
from tests.unit.kubectl_gpufraction.objects import admitted, by_claim, gpunode, node, share_of_claim

JSON = dict[str, Any]
SPEC = {"containers": [{"name": "c"}]}
POD = {"metadata": {"labels": {"app": "x"}}, "spec": SPEC}


def made(name: str, namespace: str = "mine", **metadata: Any) -> JSON:
    named = {"generateName": f"{name}-", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, **named}, "spec": SPEC}


def of(name: str, replicas: int = 1, *, part: str = "", note: str = "", namespace: str = "mine") -> Template:
    own = name.partition("/")[2]
    return Template(f"{name}{part}", made(own, namespace, labels={"app": "x"}), replicas, note)


def workload(kind: str, **spec: Any) -> JSON:
    return {"kind": kind, "metadata": {"name": "w"}, "spec": {"template": POD, **spec}}


MANIFESTS: dict[str, tuple[Any, list[Template]]] = {
    "nothing": (None, []),
    "a text": ("Pod", []),
    "no pods": ({"kind": "Namespace", "metadata": {"name": "team"}}, [Template("Namespace/team")]),
    "a pod": (
        {"kind": "Pod", "metadata": {"name": "p", "annotations": {"a": "b"}}, "spec": SPEC},
        [Template("Pod/p", made("p", annotations={"a": "b"}))],
    ),
    "a generated name": ({"kind": "Pod", "metadata": {"generateName": "p-"}}, [Template("Pod/p-", None)]),
    "one replica": (workload("Deployment"), [of("Deployment/w")]),
    "several": (workload("StatefulSet", replicas=3), [of("StatefulSet/w", 3)]),
    "none": (workload("ReplicaSet", replicas=0), [of("ReplicaSet/w", 0)]),
    "a DaemonSet": (workload("DaemonSet"), [of("DaemonSet/w", note=PER_NODE)]),
    "a Job": (workload("Job"), [of("Job/w")]),
    "a parallel Job": (workload("Job", parallelism=4), [of("Job/w", 4)]),
    "a Job with less to do": (workload("Job", parallelism=4, completions=2), [of("Job/w", 2)]),
    "another namespace": (
        {**workload("Deployment"), "metadata": {"name": "w", "namespace": "team"}},
        [of("Deployment/w", namespace="team")],
    ),
    "a CronJob": (
        {"kind": "CronJob", "metadata": {"name": "w"}, "spec": {"jobTemplate": {"spec": {"template": POD}}}},
        [of("CronJob/w")],
    ),
    "a list": ({"kind": "List", "items": [workload("Job"), None]}, [of("Job/w")]),
    "an operator's": (
        {
            "kind": "PyTorchJob",
            "metadata": {"name": "w"},
            "spec": {
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": POD},
                    "Worker": {"replicas": 3, "template": POD},
                }
            },
        },
        [of("PyTorchJob/w", part=" Master"), of("PyTorchJob/w", 3, part=" Worker")],
    ),
    "of one template": (
        {"kind": "Rollout", "metadata": {"name": "w"}, "spec": {"replicas": 2, "template": POD}},
        [of("Rollout/w", 2)],
    ),
    "odd": ({"kind": "Odd", "metadata": None, "spec": {"template": {"spec": {"containers": 3}}}}, [Template("Odd/")]),
}


@pytest.mark.parametrize(("document", "want"), MANIFESTS.values(), ids=MANIFESTS.keys())
def test_the_templates_of_a_manifest(document: Any, want: list[Template]) -> None:
    if want and want[0].name == "Pod/p-":
        want = [Template("Pod/p-", made("pod") | {"spec": {}})]
    assert list(templates([document], "mine")) == want


RUNS = admitted("p", "gpufraction.io/gpu-percent", 50, on="n1", gpu=1)
WAITS = admitted("w", "gpufraction.io/gpu-memory", "10Gi", waits="no")
PLAIN = pod("other").container("main").json()
VERDICTS = {
    "placed": (RUNS, (), ("Placed", "")),
    "placed with a warning": (RUNS, ("take care",), ("Placed", "take care")),
    "waits": (WAITS, ("waiting: 0 of 1", "GPU nodes fit"), ("Waiting", "0 of 1 GPU nodes fit")),
    "not ours": (PLAIN, (), ("Untouched", "requests no GPU share, or its namespace is not labelled")),
}


@pytest.mark.parametrize(("answer", "warnings", "want"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdicts(answer: JSON, warnings: tuple[str, ...], want: tuple[str, str]) -> None:
    found = verdict(answer, warnings)
    assert (found.word, found.reason, found.pod) == (*want, answer)


def cluster(*pods: JSON, claims: Sequence[JSON] = ()) -> Rehearsal:
    """Two nodes, one with one T4 and one with two, with plenty of CPU."""
    much = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    inventories, nodes = [gpunode("n1", 15109), gpunode("n2", 15109, 15109)], [node("n1", much), node("n2", much)]
    return Rehearsal(hosts.advice_input(inventories, nodes, list(pods), [], claims).hosts)


def would(name: str, memory: str, on: str = "n1") -> Verdict:
    return verdict(admitted(name, "gpufraction.io/gpu-memory", memory, on=on), ())


def shown(found: Any) -> tuple[Any, ...]:
    return found["verdict"], found["placed"], found["replicas"], [(p["node"], p["gpus"]) for p in found["placements"]]


FULL = "0 of 2 GPU nodes fit: 2 short of memory (largest free 4869 MiB, wanted 10240)"
REPLICAS = {
    1: ("Placed", 1, 1, [("n1", [0])]),
    3: ("Placed", 3, 3, [("n1", [0]), ("n2", [0]), ("n2", [1])]),
    5: ("Partly", 3, 5, [("n1", [0]), ("n2", [0]), ("n2", [1])]),
}


@pytest.mark.parametrize(("replicas", "want"), REPLICAS.items(), ids=map(str, REPLICAS))
def test_replicas_are_placed_one_after_another(replicas: int, want: tuple[Any, ...]) -> None:
    found = row(Template("Job/w", {}, replicas), would("w", "10Gi"), cluster())
    assert shown(found) == want
    assert found["reason"] == (FULL if replicas == 5 else "")


def test_objects_of_one_manifest_see_those_before_them() -> None:
    rehearsal = cluster()
    first = row(Template("Job/a", {}, 3), would("a", "10Gi"), rehearsal)
    second = row(Template("Job/b", {}, 1), would("b", "10Gi"), rehearsal)
    third = row(Template("Pod/c", {}), would("c", "4Gi"), rehearsal)
    assert [each["verdict"] for each in (first, second, third)] == ["Placed", "Waiting", "Placed"]
    assert totals([first, second, third]) == [f"4 of 5 pods placed, 1 waits: {FULL}"]


def test_pods_that_run_are_seen() -> None:
    found = row(Template("Job/w", {}, 3), would("w", "10Gi"), cluster(admitted("x", "nvidia.com/gpu", 1, on="n2")))
    assert (found["verdict"], found["placed"]) == ("Partly", 2)


def test_a_user_who_may_not_see_the_cluster_learns_that_one_pod_was_tested() -> None:
    found = row(Template("Job/w", {}, 3), would("w", "10Gi"), None)
    assert (found["verdict"], found["placed"], found["untried"], found["reason"]) == ("Placed", 1, 2, UNTRIED)
    assert totals([found]) == ["1 of 3 pods placed, 2 not tried"]


def test_pods_of_one_claim_share_what_it_has() -> None:
    users = verdict(by_claim("p", "used", on="n1"), ())
    found = row(Template("Job/w", {}, 20), users, cluster(claims=[share_of_claim("used", "n1")]))
    assert (found["verdict"], found["placed"]) == ("Placed", 20)


def test_a_pod_that_is_refused_is_counted_with_all_its_replicas() -> None:
    refused = row(Template("Job/w", {}, 3), Verdict("Denied", reason="too much"), cluster())
    assert shown(refused) == ("Denied", 0, 3, [])
    untouched = row(replace(Template("Job/w", {}, 3)), Verdict("Untouched"), cluster())
    assert totals([refused, untouched]) == ["3 pods refused"]
