"""The gate and the pin: what one JSON patch may do to a waiting pod, and what no patch may do."""

from __future__ import annotations

import pytest

from tests.cluster.conformance.asking import (
    GATE,
    JSON,
    PLAIN,
    WAITING,
    Api,
    Ask,
    Case,
    by_name,
    by_zone,
    check,
    create,
    gated,
    merge,
    op,
    patch,
    pod,
    required,
    titled,
)

GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
TERMS = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
UNCHANGEABLE = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
OURS = "the server rejected our request due to an error in our request"
NO_CHANGE_OF_TERMS = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
ONLY_ADDITIONS = "only additions are allowed (no mutations or deletions)"
MODIFIED = 'Operation cannot be fulfilled on pods "p": the object has been modified'

ANY_GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def stays(state: str) -> JSON:
    """The toleration that every pod gets."""
    return {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }


TWO_TERMS = create(gated("p", affinity=required([by_zone("a", "b"), by_zone("c")])))
ZONE = create(gated("p", affinity=required([by_zone("a", "b")])))
SELECTS = create(gated("p", nodeSelector={"a": "b"}))


def commit(version: str) -> Ask:
    """The write that ends a pod's wait."""
    return patch(
        "p",
        op("test", "/metadata/resourceVersion", version),
        op("add", "/metadata/annotations", {"gpufraction.io/allocation": "{}"}),
        op("add", "/spec/affinity", required([by_name("n1")])),
        op("remove", "/spec/schedulingGates/0"),
    )


AT_CREATION = {
    "a gate and a node exclude each other": Case(
        create(gated("p", nodeName="n1")),
        422,
        "Invalid",
        ('Pod "p" is invalid: spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared',),
    ),
    "one gate twice": Case(
        create(pod("p", schedulingGates=[GATE, GATE])),
        422,
        "Invalid",
        ('spec.schedulingGates[1]: Duplicate value: "gpufraction.io/allocation"',),
    ),
    "a gate whose name is none": Case(
        create(pod("p", schedulingGates=[{"name": "not a gate/x/y"}])),
        422,
        "Invalid",
        ('spec.schedulingGates[0]: Invalid value: "not a gate/x/y"',),
    ),
    "a gated pod says so": Case(
        WAITING, 201, shows={"status": {"phase": "Pending", "conditions": [GATED]}, "spec": {"schedulingGates": [GATE]}}
    ),
    "a node that does not exist": Case(
        create(pod("p", nodeName="ghost")), 201, shows={"spec": {"nodeName": "ghost"}, "status": {"phase": "Pending"}}
    ),
    "matchFields of another field": Case(
        create(
            gated(
                "p", affinity=required([{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["n"]}]}])
            )
        ),
        422,
        "Invalid",
        ('matchFields[0].key: Invalid value: "metadata.uid": not a valid field selector key',),
    ),
}

BY_JSON_PATCH = {
    "the commit": Case(
        lambda given: commit(given["p"]["metadata"]["resourceVersion"]),
        200,
        given=(WAITING,),
        shows={
            "metadata": {"annotations": {"gpufraction.io/allocation": "{}"}},
            "spec": {"affinity": required([by_name("n1")]), "schedulingGates": None},
        },
    ),
    "the commit on another version": Case(commit("1"), 422, "Invalid", (OURS,), given=(WAITING,)),
    "another version by replace": Case(
        patch("p", op("replace", "/metadata/resourceVersion", "1"), op("add", "/metadata/annotations", {"x": "y"})),
        409,
        "Conflict",
        (MODIFIED,),
        given=(WAITING,),
    ),
    "another version in a merge patch": Case(
        merge("p", {"metadata": {"resourceVersion": "1", "annotations": {"x": "y"}}}),
        409,
        "Conflict",
        (MODIFIED,),
        given=(WAITING,),
    ),
    "a test that fails": Case(
        patch("p", op("test", "/metadata/uid", "nope")), 422, "Invalid", (OURS,), given=(WAITING,)
    ),
    "a test of what is not there": Case(
        patch("p", op("test", "/spec/nodeSelector", {})), 422, "Invalid", (OURS,), given=(WAITING,)
    ),
    "a remove of what is not there": Case(
        patch("p", op("remove", "/metadata/annotations/none")), 422, "Invalid", (OURS,), given=(WAITING,)
    ),
    "an add under nothing": Case(
        patch("p", op("add", "/metadata/nolabels/x", "1")), 422, "Invalid", (OURS,), given=(WAITING,)
    ),
    "an operation that there is not": Case(
        patch("p", op("frob", "/metadata")), 422, "Invalid", (OURS,), given=(WAITING,)
    ),
    "no list": Case(
        Ask("PATCH", "pods/p", {"a": 1}, "application/json-patch+json"),
        400,
        "BadRequest",
        ("error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",),
        given=(WAITING,),
    ),
    "a pod that is not there": Case(commit("1"), 404, "NotFound", ('pods "p" not found',)),
    "one more gate": Case(
        patch("p", op("add", "/spec/schedulingGates/-", {"name": "other.io/gate"})),
        422,
        "Invalid",
        ("spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate",),
        given=(WAITING,),
    ),
    "the gate and the node at once": Case(
        patch("p", op("remove", "/spec/schedulingGates"), op("add", "/spec/nodeName", "n1")),
        422,
        "Invalid",
        (UNCHANGEABLE,),
        given=(WAITING,),
    ),
    "the node of a gated pod": Case(
        patch("p", op("add", "/spec/nodeName", "n1")), 422, "Invalid", (UNCHANGEABLE,), given=(WAITING,)
    ),
    "the gate by a merge patch": Case(
        merge("p", {"spec": {"schedulingGates": None}}),
        200,
        given=(WAITING,),
        shows={"spec": {"schedulingGates": None}},
    ),
    "resources of a gated pod": Case(
        patch("p", op("add", "/spec/containers/0/resources/limits", {"gpufraction.io/gpu-memory": "1Gi"})),
        422,
        "Invalid",
        (UNCHANGEABLE,),
        given=(WAITING,),
    ),
    "environment of a gated pod": Case(
        patch("p", op("add", "/spec/containers/0/env", [{"name": "A", "value": "b"}])),
        422,
        "Invalid",
        (UNCHANGEABLE,),
        given=(WAITING,),
    ),
}

TERMS_OF_A_WAITING_POD = {
    "a term more": Case(
        patch("p", op("add", f"{TERMS}/-", by_name("n1"))), 422, "Invalid", (NO_CHANGE_OF_TERMS,), given=(ZONE,)
    ),
    "a term less": Case(
        patch("p", op("remove", f"{TERMS}/1")), 422, "Invalid", (NO_CHANGE_OF_TERMS,), given=(TWO_TERMS,)
    ),
    "all terms replaced by one": Case(
        patch("p", op("replace", TERMS, [by_name("n1")])), 422, "Invalid", (NO_CHANGE_OF_TERMS,), given=(TWO_TERMS,)
    ),
    "no affinity any more": Case(
        patch("p", op("remove", "/spec/affinity")), 422, "Invalid", (NO_CHANGE_OF_TERMS,), given=(ZONE,)
    ),
    "other values of an expression": Case(
        patch("p", op("replace", f"{TERMS}/0/matchExpressions/0/values", ["a"])),
        422,
        "Invalid",
        (f"{TERMS[1:].replace('/', '.')}[0]: Invalid value", ONLY_ADDITIONS),
        given=(ZONE,),
    ),
    "an expression before the others": Case(
        patch("p", op("add", f"{TERMS}/0/matchExpressions/0", {"key": "k", "operator": "Exists"})),
        422,
        "Invalid",
        (ONLY_ADDITIONS,),
        given=(ZONE,),
    ),
    "an expression after the others": Case(
        patch("p", op("add", f"{TERMS}/0/matchExpressions/-", {"key": "k", "operator": "Exists"})), 200, given=(ZONE,)
    ),
    "a node by name in one of two terms": Case(
        patch("p", op("add", f"{TERMS}/0/matchFields", by_name("n1")["matchFields"])),
        200,
        given=(TWO_TERMS,),
        shows={"spec": {"affinity": required([{**by_zone("a", "b"), **by_name("n1")}, by_zone("c")])}},
    ),
    "a node by name in every term, and the gate": Case(
        patch(
            "p",
            *(op("add", f"{TERMS}/{n}/matchFields", by_name("n1")["matchFields"]) for n in range(2)),
            op("remove", "/spec/schedulingGates"),
        ),
        200,
        given=(TWO_TERMS,),
        shows={"spec": {"schedulingGates": None}},
    ),
    "two nodes by name in one requirement": Case(
        patch("p", op("add", f"{TERMS}/0/matchFields", by_name("n1", "n2")["matchFields"])),
        422,
        "Invalid",
        ("must be only one value when `operator` is 'In' or 'NotIn' for node field selector",),
        given=(ZONE,),
    ),
    "a selector's key more": Case(
        merge("p", {"spec": {"nodeSelector": {"c": "d"}}}),
        200,
        given=(SELECTS,),
        shows={"spec": {"nodeSelector": {"a": "b", "c": "d"}}},
    ),
    "a selector's value changed": Case(
        merge("p", {"spec": {"nodeSelector": {"a": "z"}}}),
        422,
        "Invalid",
        ("only additions to spec.nodeSelector are allowed (no mutations or deletions)",),
        given=(SELECTS,),
    ),
    "a selector's key less": Case(
        merge("p", {"spec": {"nodeSelector": {"a": None}}}),
        422,
        "Invalid",
        ("only additions to spec.nodeSelector are allowed (no mutations or deletions)",),
        given=(SELECTS,),
    ),
}

WITHOUT_A_GATE = {
    "a selector's key more": Case(
        merge("p", {"spec": {"nodeSelector": {"c": "d"}}}), 422, "Invalid", (UNCHANGEABLE,), given=(PLAIN,)
    ),
    "an affinity": Case(
        patch("p", op("add", "/spec/affinity", required([by_name("n1")]))),
        422,
        "Invalid",
        (UNCHANGEABLE,),
        given=(PLAIN,),
    ),
    "the node": Case(merge("p", {"spec": {"nodeName": "n1"}}), 422, "Invalid", (UNCHANGEABLE,), given=(PLAIN,)),
    "a gate": Case(
        patch("p", op("add", "/spec/schedulingGates", [GATE])),
        422,
        "Invalid",
        ("only deletion is allowed, but found new scheduling gate 'gpufraction.io/allocation'",),
        given=(PLAIN,),
    ),
    "the image": Case(
        patch("p", op("replace", "/spec/containers/0/image", "y")),
        200,
        given=(PLAIN,),
        shows={"spec": {"containers": [{"image": "y"}]}},
    ),
    "a container more": Case(
        patch("p", op("add", "/spec/containers/-", {"name": "d", "image": "x"})),
        422,
        "Invalid",
        ("spec.containers: Forbidden: pod updates may not add or remove containers",),
        given=(PLAIN,),
    ),
    "the tolerations that it had before every pod got two": Case(
        merge("p", {"spec": {"tolerations": [ANY_GPU]}}),
        200,
        given=(create(pod("p", tolerations=[ANY_GPU])),),
        shows={"spec": {"tolerations": [ANY_GPU, stays("not-ready"), stays("unreachable")]}},
    ),
    "a toleration less": Case(
        merge("p", {"spec": {"tolerations": None}}),
        422,
        "Invalid",
        ("spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",),
        given=(create(pod("p", tolerations=[ANY_GPU])),),
    ),
    "the name": Case(
        merge("p", {"metadata": {"name": "other"}}),
        400,
        "BadRequest",
        ("the name of the object (other) does not match the name on the URL (p)",),
        given=(PLAIN,),
    ),
    "the status beside the object": Case(
        merge("p", {"status": {"phase": "Running"}}), 200, given=(PLAIN,), shows={"status": {"phase": "Pending"}}
    ),
    "the object beside the status": Case(
        merge("p", {"spec": {"nodeSelector": {"q": "r"}}, "metadata": {"annotations": {"z": "z"}}}, sub="/status"),
        200,
        given=(PLAIN,),
        shows={"spec": {"nodeSelector": None}, "metadata": {"annotations": {"z": "z"}}},
    ),
}

CASES = titled(
    {
        "created": AT_CREATION,
        "patched": BY_JSON_PATCH,
        "terms": TERMS_OF_A_WAITING_POD,
        "ungated": WITHOUT_A_GATE,
    }
)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_answer(api: Api, case: Case) -> None:
    check(api, case)


def test_a_patch_that_changes_nothing_keeps_the_version(api: Api) -> None:
    before = api.done(create({**gated("p"), "metadata": {"name": "p", "annotations": {"a": "b"}}}))
    after = api.done(merge("p", {"metadata": {"annotations": {"a": "b"}}}))
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
