"""What happens to a pod after its creation: the binding to its node, and its deletion."""

from __future__ import annotations

import pytest

from tests.cluster.conformance.asking import (
    PLAIN,
    WAITING,
    Api,
    Ask,
    Case,
    bind,
    check,
    create,
    get,
    merge,
    pod,
    titled,
)

BINDING = {
    "a gated pod": Case(
        bind("p", "n1"),
        409,
        "Conflict",
        ('Operation cannot be fulfilled on pods/binding "p": pod p has non-empty .spec.schedulingGates',),
        given=(WAITING,),
    ),
    "another pod of the name": Case(
        bind("p", "n1", metadata={"uid": "11111111-2222-3333-4444-555555555555"}),
        409,
        "Conflict",
        ("Precondition failed: UID in precondition: 11111111-2222-3333-4444-555555555555",),
        given=(PLAIN,),
    ),
    "another version of the pod": Case(
        bind("p", "n1", metadata={"resourceVersion": "1"}),
        409,
        "Conflict",
        ("Precondition failed: ResourceVersion in precondition: 1",),
        given=(PLAIN,),
    ),
    "another name": Case(
        bind("p", "n1", metadata={"name": "q"}),
        400,
        "BadRequest",
        ("name in URL does not match name in Binding object",),
        given=(PLAIN,),
    ),
    "no node": Case(bind("p", ""), 500, "", ("target.name: Required value",), given=(PLAIN,)),
    "a pod": Case(bind("p", "n1"), 201, given=(PLAIN,), shows={"kind": "Status", "status": "Success"}),
    "a pod that is bound": Case(
        bind("p", "n1"),
        409,
        "Conflict",
        ('Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"',),
        given=(create(pod("p", nodeName="n1")),),
    ),
    "no pod": Case(bind("p", "n1"), 404, "NotFound", ('pods "p" not found',)),
    "a dry run": Case(bind("p", "n1", dryRun="All"), 201, given=(PLAIN,), shows={"status": "Success"}),
}

DELETION = {
    "a pod without a node goes at once": Case(
        Ask("DELETE", "pods/p"), 200, given=(PLAIN,), shows={"metadata": {"deletionGracePeriodSeconds": 0}}
    ),
    "a pod with a node stays for its grace": Case(
        Ask("DELETE", "pods/p"),
        200,
        given=(create(pod("p", nodeName="n1")),),
        shows={"metadata": {"deletionGracePeriodSeconds": 30}},
    ),
    "another pod of the name": Case(
        Ask("DELETE", "pods/p", {"preconditions": {"uid": "nope"}}),
        409,
        "Conflict",
        ('Operation cannot be fulfilled on Pod "p": the UID in the precondition (nope) does not match',),
        given=(PLAIN,),
    ),
    "another version of the pod": Case(
        Ask("DELETE", "pods/p", {"preconditions": {"resourceVersion": "1"}}),
        409,
        "Conflict",
        ("the ResourceVersion in the precondition (1) does not match the ResourceVersion in record",),
        given=(PLAIN,),
    ),
    "a dry run": Case(Ask("DELETE", "pods/p", query={"dryRun": "All"}), 200, given=(PLAIN,)),
}


CASES = titled({"bound": BINDING, "deleted": DELETION})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_answer(api: Api, case: Case) -> None:
    check(api, case)


def test_a_binding_puts_its_annotations_on_the_pod(api: Api) -> None:
    # A scheduler that handles the pod at the same time may still write that no node is available.
    api.done(create(pod("p", schedulerName="nobody")))
    api.done(bind("p", "ghost", metadata={"annotations": {"a.io/x": "1"}}))
    found = api.done(get("p"))
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert (found["spec"]["nodeName"], found["metadata"]["annotations"], conditions) == (
        "ghost",
        {"a.io/x": "1"},
        {"PodScheduled": "True"},
    )


def test_a_dry_run_changes_nothing(api: Api) -> None:
    before = api.done(create(pod("p", schedulerName="nobody")))
    api.done(bind("p", "ghost", dryRun="All"))
    api.done(merge("p", {"metadata": {"annotations": {"dry": "run"}}}, dryRun="All"))
    api.done(Ask("DELETE", "pods/p", query={"dryRun": "All"}))
    api.done(create(pod("other"), dryRun="All"))
    assert api.done(get("p"))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert api.ask(get("other")).code == 404


def test_a_terminating_pod_may_still_be_annotated_and_goes_without_grace(api: Api) -> None:
    api.done(create(pod("p", nodeName="ghost")))
    api.done(Ask("DELETE", "pods/p"))
    assert api.done(merge("p", {"metadata": {"annotations": {"a": "b"}}}))["metadata"]["annotations"] == {"a": "b"}
    api.done(Ask("DELETE", "pods/p", query={"gracePeriodSeconds": "0"}))
    assert api.ask(get("p")).code == 404
