"""The second pass over an admitted pod: it changes only what is stale or forged."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest

from contract import names
from contract.encoding import codec
from contract.encoding.protocol import Answer, Placed, Wait
from contract.model import Allocation, ContainerAllocation
from contract.options import Options
from contract.scheduling import node_pin
from tests.unit.webhook.builders import (
    GIB,
    NOW_NS,
    WAIT,
    admitted_pod,
    allocation,
    container,
    environment,
    placed,
    pod,
    share,
)
from tests.unit.webhook.settling import ASKS, GATE, JSON, PERCENT, admitted, settled
from webhook.admission.admit import Admit, Allocate, Deny, KeepGated, plan, settle

DIALECTS = {
    "native": pod(container(gpufraction_io__gpu_memory="5Gi"), container("side")),
    "a limit above the request": pod(
        container(gpufraction_io__gpu_memory="5Gi", gpufraction_io__gpu_memory_limit="12Gi"), container("side")
    ),
    "aliyun, which stamps the time": pod(container(aliyun_com__gpu_mem="5"), container("side")),
    "hami": pod(container(nvidia_com__gpu="1", nvidia_com__gpumem="5120"), container("side")),
    "percent": PERCENT,
}
TWO = (share("GPU-a", 0), share("GPU-b", 1))


def answer_for(made: JSON, pin: str) -> Placed:
    decided = plan(made, Options())
    assert isinstance(decided, Allocate)
    count = decided.request.containers[0].count
    return placed(pin, main=TWO[:count])


@pytest.mark.parametrize("pin", ["nodeName", "affinity"])
@pytest.mark.parametrize("made", DIALECTS.values(), ids=DIALECTS.keys())
def test_a_confirmed_allocation_changes_nothing(made: JSON, pin: str) -> None:
    once = admitted(made, answer_for(made, pin))
    for second_pin in ("nodeName", "affinity"):
        assert settled(once, answer_for(made, second_pin), NOW_NS + 5) == Admit(once)


FLOOR = Wait("NoRoom", "full", {"main": GIB})
WAITING = {
    f"{name}-{answered}": (made, answer)
    for answered, answer in {"wait": WAIT, "none": None, "floor": FLOOR}.items()
    for name, made in DIALECTS.items()
    if made is not PERCENT or answer is FLOOR
}


@pytest.mark.parametrize(("made", "answer"), WAITING.values(), ids=WAITING.keys())
def test_a_pod_that_waits_comes_out_unchanged(made: JSON, answer: Answer | None) -> None:
    once = admitted(made, answer)
    assert isinstance(plan(once, Options()), Allocate if made is PERCENT else KeepGated)
    again = settled(once, answer if made is PERCENT else None)
    assert isinstance(again, Admit)
    assert again.pod == once


@pytest.mark.parametrize("written", [{}, {"gpufraction.io/gpu-memory": "1"}], ids=["nothing", "a byte"])
def test_a_tenant_does_not_choose_what_a_quota_counts_of_a_percentage(written: dict[str, str]) -> None:
    """The pod looks like an admitted one: it has the annotation, the gate, and an amount that the tenant chose."""
    forged = admitted(PERCENT, FLOOR)
    forged["spec"]["containers"][0]["resources"] = {"limits": dict(written), "requests": dict(written)}
    cores = {"gpufraction.io/gpu-cores": "40"}
    for amounts in forged["spec"]["containers"][0]["resources"].values():
        amounts.update(cores)
    again = admitted(forged, Wait("NoRoom", "full", {"main": 4 * GIB}))
    counted = {"gpufraction.io/gpu-memory": "4Gi", **cores}
    assert again["spec"]["containers"][0]["resources"] == {"limits": counted, "requests": counted}
    assert isinstance(settled(forged, None), Deny), "nor does it count where nobody says how much it is"


def test_a_container_that_another_webhook_added_meanwhile_sees_no_gpu() -> None:
    once = admitted(pod(ASKS), placed())
    once["spec"]["containers"].append(container("mesh", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    again = admitted(once, placed())
    assert environment(again, "mesh") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    again["spec"]["containers"].pop()
    once["spec"]["containers"].pop()
    assert again == once


STALE = {
    "replaced, pinned by name": (placed("nodeName", id_="new", node="gpu-2"), {"nodeName": "gpu-2"}),
    "replaced, pinned by affinity": (
        placed("affinity", id_="new", node="gpu-2"),
        {"affinity": node_pin.pinned({}, "gpu-2")},
    ),
    "no room now": (WAIT, {"schedulingGates": [GATE]}),
    "nobody to ask": (None, {"schedulingGates": [GATE]}),
}


@pytest.mark.parametrize(("answer", "want"), STALE.values(), ids=STALE.keys())
def test_a_stale_allocation_and_its_pin_are_dropped(answer: Answer | None, want: JSON) -> None:
    old = allocation("old", node="gpu-9")
    made = admitted_pod(allocated=old)
    made["metadata"]["annotations"].update(codec.container_annotations(old))
    made["spec"]["affinity"] = node_pin.pinned({}, "gpu-9")
    got = admitted(made, answer)
    assert {key: value for key, value in got["spec"].items() if key != "containers"} == want
    annotations = got["metadata"]["annotations"]
    if isinstance(answer, Placed):
        assert annotations[names.ALLOCATION] == codec.allocation_to_text(answer.allocation)
    else:
        assert set(annotations) == {names.REQUEST, names.RETURNED}
        assert annotations[names.RETURNED] == "old"


def test_an_allocation_of_that_id_but_with_other_gpus_is_put_right() -> None:
    real = placed(main=(share("GPU-real"),))
    once = admitted(pod(ASKS), real)
    forged = copy.deepcopy(once)
    forged["metadata"]["annotations"][str(names.ALLOCATION)] = codec.allocation_to_text(
        allocation(main=(share("GPU-x"),))
    )
    forged["metadata"]["annotations"]["gpufraction.io/devices.main"] = "all"
    assert admitted(forged, real) == once


def bound(once: JSON, node: str) -> JSON:
    return {**once, "spec": {**once["spec"], "nodeName": node}}


@pytest.mark.parametrize("second", ["nodeName", "affinity"])
@pytest.mark.parametrize("first", ["nodeName", "affinity"])
@pytest.mark.parametrize("made", DIALECTS.values(), ids=DIALECTS.keys())
def test_another_place_replaces_the_first_one_and_its_pin(made: JSON, first: str, second: str) -> None:
    once = admitted(made, answer_for(made, first))
    assert once["metadata"]["annotations"][names.PIN] == first
    decided = plan(once, Options())
    assert isinstance(decided, Allocate)
    assert (decided.held, "nodeName" in decided.pod["spec"], "affinity" in decided.pod["spec"]) == (
        "alloc-1",
        False,
        False,
    )
    count = decided.request.containers[0].count
    again = placed(second, id_="new", node="gpu-2", main=TWO[:count])
    assert admitted(once, again) == admitted(made, again)


@pytest.mark.parametrize("answer", [WAIT, None], ids=["wait", "none"])
@pytest.mark.parametrize("pin", ["nodeName", "affinity"])
def test_no_place_the_second_time_takes_the_first_one_and_its_pin_away(answer: Answer | None, pin: str) -> None:
    once = admitted(pod(ASKS), placed(pin))
    again = admitted(once, answer)
    assert again["metadata"]["annotations"].pop(names.RETURNED) == "alloc-1"
    assert again == admitted(pod(ASKS), answer)


def test_what_is_given_back_is_still_named_on_a_third_pass() -> None:
    again = admitted(admitted(pod(ASKS), placed()), WAIT)
    assert admitted(again, None) == again


def test_who_was_never_placed_names_nothing_to_be_given_back() -> None:
    forged = pod(ASKS, annotations={str(names.RETURNED): "another-pods"})
    assert admitted(forged, WAIT)["metadata"]["annotations"].keys() == {names.REQUEST}


@pytest.mark.parametrize("pin", ["nodeName", "affinity"])
def test_a_gate_that_another_webhook_adds_takes_the_share_and_the_pin_away(pin: str) -> None:
    once = admitted(pod(ASKS), placed(pin))
    once["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    again = admitted(once, Wait("ForeignGate", "held by a gate", {"main": 5 * GIB}))
    assert set(again["metadata"]["annotations"]) == {names.REQUEST, names.RETURNED}
    assert again["spec"].keys() == {"containers", "schedulingGates"}
    assert again["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}, GATE]


KEPT = {
    "a node that the author named": (bound(pod(ASKS), "gpu-1"), lambda once: once),
    "a node that another webhook wrote since": (pod(ASKS), lambda once: bound(once, "gpu-7")),
}


@pytest.mark.parametrize(("made", "changed"), KEPT.values(), ids=KEPT.keys())
def test_a_node_that_is_not_ours_is_requested(made: JSON, changed: Callable[[JSON], JSON]) -> None:
    once = changed(admitted(made, placed("nodeName")))
    decided = plan(once, Options())
    assert isinstance(decided, Allocate)
    assert decided.pod["spec"]["nodeName"] == once["spec"]["nodeName"]
    assert isinstance(settle(once, decided, WAIT, now_ns=NOW_NS), Deny)


def test_a_confirmed_allocation_whose_pin_was_taken_out_is_pinned_again() -> None:
    for pin in ("nodeName", "affinity"):
        once = admitted(pod(ASKS), placed(pin))
        stripped = copy.deepcopy(once)
        stripped["spec"].pop("nodeName", None)
        stripped["spec"].pop("affinity", None)
        assert admitted(stripped, placed(pin)) == once


# -- containers with a request that another webhook adds ----------------------------------------------------------


def nano(name: str, percent: str) -> JSON:
    return {**container(name), "resources": {"limits": {"nano-gpu/gpu-percent": percent}}}


ALIYUN = pod(container(aliyun_com__gpu_mem="5"))
ADDED = {
    "aliyun": (ALIYUN, container("mesh", aliyun_com__gpu_mem="2")),
    "native": (pod(ASKS), container("mesh", gpufraction_io__gpu_memory="2Gi", gpufraction_io__gpu_cores="10")),
    "native by count": (pod(ASKS), container("mesh", gpufraction_io__gpu_count="2", gpufraction_io__gpu_memory="1Gi")),
    "native beside several GPUs, whose total is another": (
        pod(container(gpufraction_io__gpu_memory="5Gi", gpufraction_io__gpu_count="2")),
        container("mesh", gpufraction_io__gpu_memory="2Gi"),
    ),
    "hami": (
        pod(container(nvidia_com__gpu="1", nvidia_com__gpumem="5120"), annotations={"nvidia.com/use-gputype": "T4"}),
        container("mesh", nvidia_com__gpumem="1000", nvidia_com__priority="0"),
    ),
    "elastic": (pod(container(elasticgpu_io__gpu_memory="5120")), container("mesh", elasticgpu_com__gpu_core="20")),
    "nano": (pod(nano("main", "20")), nano("mesh", "10")),
}
ROOMS: dict[str, Answer | None] = {"wait": FLOOR, "floors": Wait("NoRoom", "full", {"main": GIB, "mesh": GIB})}


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize(("made", "added"), ADDED.values(), ids=ADDED.keys())
def test_a_container_that_another_webhook_adds_is_read_with_the_first(made: JSON, added: JSON, first: bool) -> None:
    """The result is as if the pod had been created with both containers, whether the first was gated or placed."""
    whole = copy.deepcopy(made)
    whole["spec"]["containers"].insert(0 if first else 1, copy.deepcopy(added))
    wanted = plan(whole, Options())
    assert isinstance(wanted, Allocate)
    for answer in (ROOMS["wait"], answer_for(made, "nodeName"), answer_for(made, "affinity")):
        once = admitted(made, answer)
        once["spec"]["containers"].insert(0 if first else 1, copy.deepcopy(added))
        decided = plan(once, Options())
        assert isinstance(decided, Allocate)
        assert decided.request == wanted.request
        assert decided.held == ("alloc-1" if isinstance(answer, Placed) else "")
        assert "affinity" not in decided.pod["spec"]
        again = settle(once, decided, ROOMS["floors"], now_ns=NOW_NS)
        assert isinstance(again, Admit)
        fresh = settle(whole, wanted, ROOMS["floors"], now_ns=NOW_NS)
        assert isinstance(fresh, Admit)
        returned = again.pod["metadata"]["annotations"].pop(str(names.RETURNED), "")
        assert returned == decided.held, "the allocator is told which share was given back"
        assert again.pod == fresh.pod


REFUSED_SINCE = {
    "another dialect": (
        ALIYUN,
        container("mesh", nvidia_com__gpu="1"),
        "spec.containers[1].resources.limits[nvidia.com/gpu]: found HAMi (nvidia.com/gpu) of container mesh, together "
        "with Aliyun gpushare of container main; use one dialect for all containers, including those that a webhook "
        "adds",
    ),
    "our own beside an older one": (
        ALIYUN,
        container("mesh", gpufraction_io__gpu_memory="1Gi"),
        "spec.containers[1].resources.limits[gpufraction.io/gpu-memory]: found gpufraction.io of container mesh, "
        "together with Aliyun gpushare of container main; use one dialect for all containers, including those that a "
        "webhook adds",
    ),
    "a rule of the dialect for all containers": (
        ALIYUN,
        container("mesh", aliyun_com__gpu_mem="4", aliyun_com__gpu_count="2"),
        "spec.containers[1].resources.limits[aliyun.com/gpu-count]: found 2 GPUs, while container main has 1; "
        "give every container of the pod the same aliyun.com/gpu-count",
    ),
    "what the dialect does not take": (
        ALIYUN,
        container("mesh", aliyun_com__gpu_mem="4Gi"),
        "spec.containers[1].resources.limits[aliyun.com/gpu-mem]: found '4Gi'; give whole GiB without a suffix, such "
        "as 5",
    ),
}


@pytest.mark.parametrize(("made", "added", "wanted"), REFUSED_SINCE.values(), ids=REFUSED_SINCE.keys())
def test_an_added_container_that_does_not_go_with_the_first_is_refused_by_name(
    made: JSON, added: JSON, wanted: str
) -> None:
    once = admitted(made, placed())
    once["spec"]["containers"].append(added)
    assert plan(once, Options()) == Deny(wanted)


def test_a_share_is_not_requested_twice_in_one_container() -> None:
    once = admitted(ALIYUN, placed())
    once["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "5"
    assert plan(once, Options()) == Deny(
        "spec.containers[0].resources.limits[aliyun.com/gpu-mem]: found '5' in container main, whose share has "
        "already been read (Aliyun gpushare); remove it: request a share only once"
    )


def test_of_a_claim_no_container_asks_for_more() -> None:
    once = admitted(pod(container(), annotations={"egpuc.elasticgpu.io/a": "one"}), WAIT)
    once["spec"]["containers"].append(container("mesh", aliyun_com__gpu_mem="5"))
    decided = plan(once, Options())
    assert isinstance(decided, Deny)
    assert (
        "found Aliyun gpushare of container mesh, together with Elastic GPU's claims of container main"
        in decided.message
    )


def test_a_forged_earlier_request_counts_nothing_beside_a_container_that_asks() -> None:
    """
    The annotation says one byte, and the resources say another amount: all of it is read again, and refused or counted.
    """
    once = admitted(ALIYUN, placed())
    once["spec"]["containers"][0]["resources"] = {"limits": {"gpufraction.io/gpu-memory": "1"}}
    once["spec"]["containers"].append(container("mesh", aliyun_com__gpu_mem="5"))
    decided = plan(once, Options())
    assert isinstance(decided, Deny)
    assert "Aliyun gpushare together with gpufraction.io" in decided.message


# -- a LimitRange, which writes again after our webhook -----------------------------------------------------------

NOTE = "kubernetes.io/limit-ranger"
MEMORY, OLDER = "gpufraction.io/gpu-memory", "aliyun.com/gpu-mem"


def limit_ranged(made: JSON, **amounts: str) -> JSON:
    """The pod as LimitRanger leaves it: with amounts that a container does not set, and with a new annotation."""
    changed = copy.deepcopy(made)
    notes = []
    for each in changed["spec"]["containers"]:
        for kind in ("requests", "limits"):
            have = each.setdefault("resources", {}).setdefault(kind, {})
            missing = {_named(key): amount for key, amount in amounts.items() if _named(key) not in have}
            have.update(missing)
            if missing:
                notes.append(f"{', '.join(sorted(missing))} {kind[:-1]} for container {each['name']}")
    if notes:
        annotations = changed["metadata"].setdefault("annotations", {})
        annotations[NOTE] = f"LimitRanger plugin set: {'; '.join(notes)}"
    return changed


def _named(key: str) -> str:
    return {"memory": MEMORY, "older": OLDER}[key]


def both_kinds(made: JSON) -> JSON:
    """Requests as the API server derives them from limits."""
    for each in made["spec"]["containers"]:
        if each.get("resources"):
            each["resources"]["requests"] = dict(each["resources"]["limits"])
    return made


def counted(made: JSON) -> dict[str, JSON]:
    for each in made["spec"]["containers"]:
        assert each["resources"]["limits"] == each["resources"]["requests"]
    return {each["name"]: each["resources"]["limits"] for each in made["spec"]["containers"]}


RANGED = {
    "a default for who asks for nothing": (
        pod(container(), container("side")),
        {"older": "2"},
        {"main": {MEMORY: "2Gi"}, "side": {MEMORY: "2Gi"}},
    ),
    "a default and a max": (
        pod(container(), container("side")),
        {"older": "2", "memory": "4Gi"},
        {"main": {MEMORY: "2Gi"}, "side": {MEMORY: "2Gi"}},
    ),
    "both, beside another dialect": (
        both_kinds(pod(container(nvidia_com__gpumem="1024"), container("side"))),
        {"older": "2", "memory": "4Gi"},
        {"main": {MEMORY: "1Gi"}, "side": {MEMORY: "0"}},
    ),
    "both, beside the same dialect": (
        both_kinds(pod(container(aliyun_com__gpu_mem="1"), container("side"))),
        {"older": "2", "memory": "4Gi"},
        {"main": {MEMORY: "1Gi"}, "side": {MEMORY: "2Gi"}},
    ),
    "a max with a default of 0": (
        both_kinds(pod(container(aliyun_com__gpu_mem="1"), container("side"))),
        {"memory": "0"},
        {"main": {MEMORY: "1Gi"}, "side": {MEMORY: "0"}},
    ),
}


@pytest.mark.parametrize(("made", "amounts", "want"), RANGED.values(), ids=RANGED.keys())
def test_what_a_limit_range_writes_again_is_taken_out_again(
    made: JSON, amounts: dict[str, str], want: dict[str, JSON]
) -> None:
    first = limit_ranged(made, **amounts)
    asked = plan(first, Options())
    assert isinstance(asked, Allocate)
    given = tuple(ContainerAllocation(f.container, (share(memory=f.memory),)) for f in asked.request.containers)
    for answer in (WAIT, Placed(Allocation("alloc-1", "gpu-1", given), "nodeName")):
        once = admitted(first, answer)
        assert counted(once) == want
        written_again = limit_ranged(once, **amounts)
        twice = admitted(written_again, answer)
        assert counted(twice) == want
        twice["metadata"]["annotations"].pop(NOTE)
        once["metadata"]["annotations"].pop(NOTE)
        assert twice == once


def forged(claim: str, **annotations: str) -> JSON:
    """A pod whose author wrote the annotation as for a pod with a claim."""
    request = {"v": 1, "dialect": "claims", "claim": claim, "containers": [{"name": "main", "count": 1}]}
    return pod(container("main"), annotations={str(names.REQUEST): json.dumps(request), **annotations})


BY_CLAIM = "egpuc.elasticgpu.io/x"
CLAIMS = {
    "no annotation names a claim": (forged("team"), None),
    "an annotation names another claim": (forged("others", **{BY_CLAIM: "team"}), "team"),
    "the name is none": (forged("\ud800" * 1_000, **{BY_CLAIM: "team"}), "team"),
    "both name the same": (forged("team", **{BY_CLAIM: "team"}), "team"),
}


@pytest.mark.parametrize(("made", "claim"), CLAIMS.values(), ids=CLAIMS.keys())
def test_a_claim_counts_only_as_an_annotation_of_the_pod_names_it(made: JSON, claim: str | None) -> None:
    decided = plan(made, Options())
    if claim is None:
        assert isinstance(decided, Deny)
    else:
        assert isinstance(decided, Allocate)
        assert (decided.request.dialect, decided.request.claim) == ("claims", claim)


@pytest.mark.parametrize("dialect", ["\ud800", "x" * 200_000, "\x1b[2J", 5, "newer"])
def test_a_dialect_that_nobody_knows_is_stored_as_unknown(dialect: object) -> None:
    once = admitted(pod(ASKS), WAIT)
    annotations = once["metadata"]["annotations"]
    annotations[str(names.REQUEST)] = json.dumps({**json.loads(annotations[names.REQUEST]), "dialect": dialect})
    again = admitted(once, None)
    assert json.loads(again["metadata"]["annotations"][names.REQUEST])["dialect"] == "unknown"
    assert again["spec"] == once["spec"]


def test_a_wish_that_cannot_be_shown_is_refused_by_its_field() -> None:
    decided = plan(pod(ASKS, annotations={str(names.USE_MODELS): "A100,\x1b[2J"}), Options())
    assert isinstance(decided, Deny)
    assert decided.message.startswith(f"metadata.annotations[{names.USE_MODELS}]: found '\\x1b[2J'")
    assert decided.message.isprintable()
