"""
Handwritten plans: each tests a promise that drawn plans seldom test, and all of them pass without a mutant.

Most of them have one small node, so that pods compete. Times are seconds after the cluster has come up.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.plan import Plan, Step

CARD = "1 x Tesla T4 15109MiB"
TEAM = "team-a"
SLOW = (0.5, 0.5)
"""Seconds for one direction on a slow network, so that faults can hit writes in progress."""
_QUICK = (0.001, 0.005)


def plan(
    name: str,
    *steps: Step | list[Step],
    cards: dict[str, str] | None = None,
    latency: tuple[float, float] = _QUICK,
    replicas: int = 2,
    preempt: float = 0.0,
    flags: dict[str, list[str]] | None = None,
) -> Plan:
    """A plan whose seed is its name."""
    found = [step for each in steps for step in (each if isinstance(each, list) else [each])]
    shape: dict[str, Any] = {"cards": cards or {"n1": CARD}, "replicas": replicas, "latency": latency}
    if flags:
        shape["flags"] = flags
    return Plan(name, tuple(sorted(found, key=lambda step: step.at)), shape, preempt)


def memory(mib: int) -> dict[str, str]:
    """A share of this many MiB."""
    return {"gpufraction.io/gpu-memory": f"{mib}Mi"}


def pod(at: float, name: str, limits: dict[str, str], **more: Any) -> Step:
    """A user creates a pod. `more`: further arguments of `pod.create`."""
    return Step(at, "pod.create", {"namespace": TEAM, "name": name, "limits": limits, **more})


def pods(at: float, names: list[str], limits: dict[str, str]) -> Step:
    """A controller creates these pods at the same time."""
    return Step(at, "pods.create", {"pods": [{"namespace": TEAM, "name": name, "limits": limits} for name in names]})


def gone(at: float, name: str, **how: Any) -> Step:
    """A user deletes the pod. how: `grace` in seconds."""
    return Step(at, "pod.delete", {"namespace": TEAM, "name": name, **how})


def runs(at: float, name: str) -> Step:
    """The pod runs by then."""
    return Step(at, "pod.runs", {"namespace": TEAM, "name": name})


def says(at: float, name: str, **wanted: str) -> Step:
    """The pod's condition says that by then."""
    return Step(at, "pod.says", {"namespace": TEAM, "name": name, **wanted})


def program(at: float, kind: str, name: str, away: float = 1.0) -> Step:
    """A program is `killed`, `stopped` or `paused`."""
    return Step(at, f"program.{kind}", {"program": name, "away": away})


def fault(at: float, seconds: float, what: str, /, **arguments: Any) -> Step:
    """A fault that lasts this long."""
    return Step(at, what, arguments, seconds)


def requests(at: float, seconds: float, fate: str, kind: str, hosts: str = "leader", **more: Any) -> Step:
    """Every request of that kind has that fate."""
    aim = {"hosts": hosts, "kind": kind, "probability": 1.0, "name": f"strike-{at}"}
    return fault(at, seconds, f"requests.{fate}", **aim, **more)


def watches(at: float, seconds: float, what: str, kind: str = "pods", hosts: str = "leader", **more: Any) -> Step:
    """Watches of that kind are `frozen`, `lagging` and so on."""
    return fault(at, seconds, f"watches.{what}", hosts=hosts, kind=kind, **more)


def claim(at: float, name: str, gib: int) -> Step:
    """A user claims this many GiB, with immediate binding."""
    amounts = {"elasticgpu.io/gpu-memory": gib}
    return Step(at, "claim.create", {"namespace": TEAM, "name": name, "class": "at-once", "amounts": amounts})


def of_claim(at: float, name: str, claim: str) -> Step:
    """A user creates a pod that names the claim."""
    annotations = {"egpuc.elasticgpu.io/data": claim}
    return Step(at, "claim.pod", {"namespace": TEAM, "name": name, "limits": {}, "annotations": annotations})


def about(at: float, what: str, name: str) -> Step:
    """`claim.delete`, `share.delete` or `share.stays`, of the claim of that name."""
    return Step(at, what, {"namespace": TEAM, "name": name})


SECOND_LEADS = program(0.1, "killed", "allocator-0", 30.0)
"""From then on the second replica leads. The first one follows half a minute later."""
THROUGH_SECOND = fault(0.2, 240.0, "admission.one", webhook="webhook-1")
"""Every review goes to the second replica's webhook."""

A_RENEWAL_THAT_IS_ANSWERED_LATE = plan(
    "a renewal that is answered late",
    *(program(at, "paused", "leader", 20.0) for at in (5.1, 45.9, 86.7, 127.5, 168.3, 209.1)),
    latency=SLOW,
)
"""A leader counts its time from before it requested the renewal."""

ROOM_IS_GIVEN_AT_ONCE = plan(
    "room is given at once",
    pod(1, "first", memory(15000)),
    pod(20, "second", memory(15000)),
    says(24, "second", status="False"),
    gone(40, "first"),
    runs(44, "second"),
    pod(45, "third", memory(15000)),
    gone(60, "second"),
    runs(64, "third"),
)
"""A waiting pod runs within seconds after another pod is deleted."""

ROOM_OF_A_FINISHED_POD = plan(
    "room of a finished pod",
    pod(1, "first", memory(15000), runs=30),
    pod(10, "second", memory(15000)),
    runs(45, "second"),
)
"""A waiting pod runs within seconds after another pod has ended."""

EACH_POD_THAT_FITS_RUNS_AT_ONCE = plan(
    "each pod that fits runs at once",
    *(step for i in range(8) for step in (pod(10 * i + 1.3, f"p{i}", memory(1000)), runs(10 * i + 5, f"p{i}"))),
)
"""This holds whichever replica is asked at the pod's admission."""

BOTH_REPLICAS_ARE_ASKED = plan(
    "both replicas are asked",
    *(pods(5 + 10 * i, [f"p{i}-{j}" for j in range(5)], memory(7000)) for i in range(3)),
)
"""Only one of them gives shares."""

A_CREATION_THAT_IS_REFUSED = plan(
    "a creation that is refused",
    pod(1, "first", memory(7000)),
    *(pod(10 + i, "first", memory(7000)) for i in range(3)),
    pod(60, "second", memory(8000)),
    runs(65, "second"),
)
"""What admission reserves for a pod that is never stored is released within a minute."""

DELETED_WHILE_ITS_BINDING_IS_WRITTEN = plan(
    "deleted while its binding is written",
    *(
        step
        for i in range(6)
        for step in (
            pod(60 * i + 1, f"holder-{i}", memory(15000)),
            pod(60 * i + 8, f"short-lived-{i}", memory(15000)),
            pod(60 * i + 14, f"patient-{i}", memory(15000)),
            gone(60 * i + 30, f"holder-{i}"),
            gone(60 * i + 30.7 + 0.3 * i, f"short-lived-{i}"),
            runs(60 * i + 40, f"patient-{i}"),
            gone(60 * i + 45, f"patient-{i}"),
        )
    ),
    latency=SLOW,
)
"""The share goes to the next pod at once."""

A_LEADER_THAT_STOPS_HANDS_OVER = plan(
    "a leader that stops hands over",
    program(20, "stopped", "leader"),
    pod(22, "first", memory(1000)),
    runs(30, "first"),
)
"""Another replica leads within seconds, not only after the Lease has expired."""

ADMITTED_AS_THE_LEADER_STOPS = plan(
    "admitted as the leader stops",
    program(0.1, "killed", "allocator-0", 30.0),
    fault(0.2, 50.3, "admission.one", webhook="webhook-1"),
    fault(49.5, 0.9, "admission.late", probability=1.0, name="late", delay=4.0),
    pod(50, "admitted", memory(15000)),
    program(51, "stopped", "leader", 60.0),
    *(pod(52 + 0.3 * i, f"other-{i}", memory(15000)) for i in range(9)),
)
"""Pods that got a share are stored before the next leader gives any share."""

A_CARD_IS_FILLED_TO_ITS_LAST_MEBIBYTE = plan(
    "a card is filled to its last mebibyte",
    pod(1, "first", memory(8000)),
    pod(10, "too-large", memory(7110)),
    pod(20, "just-right", memory(7109)),
    runs(25, "just-right"),
)

A_CARD_HAS_SO_MANY_SHARERS = plan(
    "a card has so many sharers",
    *(pods(1 + 4 * i, [f"p{i}-{j}" for j in range(10)], memory(100)) for i in range(5)),
    latency=(0.001, 0.001),
)
"""At most 48 pods."""

CORES_OF_A_CARD = plan(
    "cores of a card",
    pod(1, "first", {**memory(1000), "gpufraction.io/gpu-cores": "60"}),
    pod(10, "second", {**memory(1000), "gpufraction.io/gpu-cores": "60"}),
    pod(20, "third", {**memory(1000), "gpufraction.io/gpu-cores": "40"}),
)

ADMITTED_AT_ONE_MOMENT = plan(
    "admitted at one moment",
    SECOND_LEADS,
    THROUGH_SECOND,
    pods(40, [f"p{i}" for i in range(6)], {**memory(100), "cpu": "10"}),
    latency=SLOW,
)
"""They count against each other before any of them is seen; otherwise a kubelet refuses some."""

BESIDE_PODS_WITHOUT_A_SHARE = plan(
    "beside pods without a share",
    SECOND_LEADS,
    THROUGH_SECOND,
    *(
        step
        for i in range(5)
        for step in (
            pods(40 + 50 * i, [f"p{i}-{j}" for j in range(2)], {**memory(100), "cpu": "10"}),
            pod(50 + 50 * i, f"third-{i}", {**memory(100), "cpu": "5"}),
            pod(50.5 + 50 * i, f"plain-{i}", {"cpu": "8"}),
            *(gone(70 + 50 * i, f"{name}-{i}", grace=0) for name in ("third", "plain")),
            *(gone(70 + 50 * i, f"p{i}-{j}", grace=0) for j in range(2)),
        )
    ),
    latency=SLOW,
)
"""Kube-scheduler assigns room at the same moment, so pods are bound at admission only if much is left."""


def _traffic(at: float) -> list[Step]:
    """Small pods, so that something is written while two lead."""
    return [pod(at + 0.3 * i, f"p{at}-{i}", memory(100)) for i in range(7)]


A_LEASE_IS_EMPTIED = plan(
    "a lease is emptied",
    *(fault(10.3 + 30 * i, 0.0, "lease.edited", patch={"spec": {"holderIdentity": ""}}) for i in range(5)),
    *(_traffic(10.4 + 30 * i) for i in range(5)),
)
"""Only a leader can release it."""

A_LEASE_IS_DELETED = plan(
    "a lease is deleted",
    *(fault(10.3 + 30 * i, 0.0, "lease.deleted", times=1) for i in range(5)),
    *(_traffic(10.4 + 30 * i) for i in range(5)),
)
"""A replica that creates another Lease waits for as long as the last holder may lead."""

A_LEADER_IS_PAUSED = plan(
    "a leader is paused",
    *(program(10.3 + 30 * i, "paused", "leader", 9.0) for i in range(3)),
    *(_traffic(17 + 30 * i) for i in range(3)),
)
"""It still leads when it wakes, and so no other replica does."""

DELETED_WITHOUT_GRACE = plan(
    "deleted without grace",
    *(
        step
        for i in range(3)
        for step in (
            pod(40 * i + 1, f"first-{i}", memory(15000)),
            pod(40 * i + 10, f"second-{i}", memory(15000)),
            gone(40 * i + 20, f"first-{i}", grace=0),
            runs(40 * i + 24, f"second-{i}"),
            gone(40 * i + 30, f"second-{i}", grace=0),
        )
    ),
)
"""Nothing sees such a pod end, but its share goes to the next pod at once."""

A_FOLLOWER_BEHIND = plan(
    "a follower behind",
    SECOND_LEADS,
    watches(50, 60, "frozen", hosts="allocator-0"),
    pods(52, ["a", "b", "c"], memory(7000)),
    program(56, "killed", "allocator-1", 60.0),
    *(pod(66 + 0.4 * i, f"late-{i}", memory(7000)) for i in range(40)),
    latency=SLOW,
)
"""
It becomes the leader before its watch has shown what the previous leader gave away, and knows no pod with a share.
"""

A_FOLLOWER_BEHIND_KNOWS_ONE = plan(
    "a follower behind knows one",
    SECOND_LEADS,
    pod(45, "early", memory(300)),
    watches(50, 60, "frozen", hosts="allocator-0"),
    pods(52, ["a", "b", "c"], memory(7000)),
    program(56, "killed", "allocator-1", 60.0),
    *(pod(66 + 0.4 * i, f"late-{i}", memory(7000)) for i in range(40)),
    latency=SLOW,
)
"""The same, and it knows a pod with a share, on which it writes its barrier."""

TWO_STREAMS = plan(
    "two streams",
    SECOND_LEADS,
    fault(0.2, 200.0, "admission.one", webhook="webhook-0"),
    *(
        step
        for i in range(12)
        for step in (
            pods(45 + 10 * i, [f"p{i}-{j}" for j in range(6)], memory(7000)),
            *(gone(51 + 10 * i + 0.3 * j, f"p{i}-{j}", grace=0) for j in range(6)),
        )
    ),
    latency=(0.01, 0.8),
)
"""Every pod is gated, and placed as soon as it is seen."""

A_BINDING_ARRIVES_LATE = plan(
    "a binding arrives late",
    SECOND_LEADS,
    THROUGH_SECOND,
    pod(38, "other", memory(300)),
    pod(40, "holder", memory(14000)),
    pod(45, "patient", memory(14000)),
    requests(50, 6, "late", "writes of pods", "allocator-1", delay=32.0),
    gone(50.5, "holder", grace=0),
    program(55, "killed", "allocator-1", 100.0),
    pod(60, "urgent", memory(14000), priority="sim-high"),
    runs(79, "urgent"),
)
"""
Another replica leads by then, and has given the share to a pod of higher priority. It has written its barrier on the
pod that holds a share already, so the waiting pod has a later version only by the fence.
"""

A_BINDING_SEEMS_LOST = plan(
    "a binding seems lost",
    SECOND_LEADS,
    THROUGH_SECOND,
    pod(40, "holder", memory(15000)),
    pod(45, "patient", memory(15000)),
    pod(46, "next", memory(15000)),
    requests(50, 1.5, "late", "writes of pods", "allocator-1", delay=25.0),
    gone(50.5, "holder", grace=0),
)
"""It may still be carried out, so no other pod gets its share."""


def _in_doubt(at: float, number: int, *beside: Step) -> list[Step]:
    """
    On a slow network the binding of `patient` is decided a second after `holder` goes, and its answer is lost. It is
    carried out half a second later, but the watch does not show that for a while.
    """
    return [
        pod(at - 12, f"holder-{number}", memory(15000)),
        pod(at - 8, f"patient-{number}", memory(15000)),
        pod(at - 5, f"next-{number}", memory(15000)),
        gone(at, f"holder-{number}", grace=0),
        requests(at + 0.9, 0.7, "unanswered", "writes of pods", "allocator-1"),
        watches(at + 1.6, 12, "frozen", hosts="allocator-1"),
        *beside,
        *(gone(at + 30, f"{kind}-{number}", grace=0) for kind in ("patient", "next")),
    ]


AN_ANSWER_IS_LOST = plan(
    "an answer is lost",
    SECOND_LEADS,
    THROUGH_SECOND,
    *(_in_doubt(52 + 60 * i, i) for i in range(3)),
    latency=SLOW,
)
"""The pod is read before its share is given to others."""

NOTHING_IS_KNOWN_OF_A_BINDING = plan(
    "nothing is known of a binding",
    SECOND_LEADS,
    THROUGH_SECOND,
    *(_in_doubt(52 + 60 * i, i, requests(53.05 + 60 * i, 6, "unsent", "reads", "allocator-1")) for i in range(3)),
    latency=SLOW,
)
"""Its answer does not arrive, and the pod cannot be read."""

A_PLACED_POD_IS_NOT_SEEN = plan(
    "a placed pod is not seen",
    SECOND_LEADS,
    THROUGH_SECOND,
    watches(50, 55, "frozen", hosts="allocator-1"),
    pod(52, "unseen", memory(15000)),
    pod(98, "other", memory(15000), namespace="team-b"),
)
"""Before its reservation ends, the allocator asks the API server."""

PODS_GO_WHILE_NOBODY_LOOKS = plan(
    "pods go while nobody looks",
    pods(1, ["a", "b"], memory(7000)),
    watches(10, 10, "coalesced", hosts="allocators"),
    gone(12, "a", grace=0),
    gone(12, "b", grace=0),
    pod(30, "c", memory(15000)),
    runs(36, "c"),
)
"""A list without them is enough."""

A_CONDITION_IS_REFUSED = plan(
    "a condition is refused",
    pod(1, "holder", memory(15000)),
    requests(10, 20, "refused", "writes of status", status=403, retry_after=0),
    pod(12, "patient", memory(15000)),
    says(60, "patient", status="False"),
)
"""It is written again as soon as that is allowed."""

A_POD_GETS_ITS_TURN = plan(
    "a pod gets its turn",
    pod(1, "holder", memory(15000)),
    pod(5, "patient", memory(15000)),
    says(15, "patient", status="False"),
    gone(20, "holder"),
    says(40, "patient", status="True"),
)
"""Its condition said that it waits, so the condition then says that it no longer waits."""

A_TERM_LAPSES = plan(
    "a term lapses as a pod gets its turn",
    pod(1, "holder", memory(15000)),
    pod(5, "patient", memory(15000)),
    says(15, "patient", status="False"),
    watches(18, 30, "lagging", lag=4.0),
    requests(20, 20, "unsent", "writes of the Lease", "allocators"),
    gone(22.5, "holder"),
    requests(26, 2, "unanswered", "writes of pods", "allocators"),
    requests(26.5, 6, "unsent", "reads", "allocators"),
    says(70, "patient", status="True"),
    replicas=1,
)
"""The leader learns that the share is written while its term has lapsed. It continues if no other takes the Lease."""

A_CARD_FAILS = plan(
    "a card fails",
    fault(5, 60, "card.changed", node="n1", card=0, what="fails"),
    pod(30, "patient", memory(1000)),
    says(40, "patient", status="False"),
    runs(90, "patient"),
)
"""It takes no pods until it is healthy again."""

CARDS_COME_BACK = plan(
    "cards come back",
    fault(5, 25, "driver.broken", node="n1", failure="DriverGone"),
    requests(25, 40, "slow", "writes", "nodeagent-n1", delay=2.0),
    *(pod(30 + 0.3 * i, f"p{i}", memory(100)) for i in range(60)),
    runs(70, "p0"),
)
"""The Node has its resources before the allocator assigns any of them."""

A_NODE_LOSES_ITS_INVENTORY = plan(
    "a node loses its inventory",
    fault(5, 10, "crd.deleted"),
    pod(20, "first", memory(1000)),
    runs(50, "first"),
)
"""Its agent publishes it again within seconds."""

AN_INVENTORY_IS_CREATED_WITHOUT_AN_ANSWER = plan(
    "an inventory is created without an answer",
    fault(5, 4, "crd.deleted"),
    requests(9, 6, "unanswered", "writes", "nodeagent-n1"),
    watches(8, 80, "frozen", "gpunodes", "nodeagent-n1"),
    pod(20, "first", memory(1000)),
    runs(80, "first"),
)
"""The agent reads what exists before it continues."""

A_NODE_IS_CORDONED = plan(
    "a node is cordoned",
    Step(10, "node.cordon", {"node": "n1"}),
    pod(20, "patient", memory(1000)),
    says(25, "patient", status="False"),
    Step(30, "node.uncordon", {"node": "n1"}),
    runs(35, "patient"),
)

AN_AGENT_IS_SILENT = plan(
    "an agent is silent",
    fault(5, 120, "agent.silent", node="n1"),
    pod(70, "patient", memory(1000)),
    runs(140, "patient"),
    flags={"allocator": ["--agent-silence=30s"], "nodeagent": ["--heartbeat=10s"]},
)
"""Its node takes no pods until it writes again."""

A_DRY_RUN_LEAVES_NOTHING = plan(
    "a dry run leaves nothing",
    SECOND_LEADS,
    THROUGH_SECOND,
    Step(50, "pod.tried", {"namespace": TEAM, "name": "dry", "limits": memory(15000)}),
    pod(51, "wet", memory(15000), namespace="team-b"),
    Step(55, "pod.runs", {"namespace": "team-b", "name": "wet"}),
)

THE_URGENT_COME_FIRST = plan(
    "the urgent come first",
    pod(1, "holder", memory(15000)),
    pod(5, "patient", memory(15000)),
    pod(10, "urgent", memory(15000), priority="sim-high"),
    gone(20, "holder", grace=0),
    runs(25, "urgent"),
)

PODS_THAT_WAIT_GO_UNSEEN = plan(
    "pods that wait go unseen",
    pod(1, "too-large", {"cpu": "60"}),
    pod(2, "first", memory(15000)),
    pod(4, "second", memory(15000)),
    watches(20, 15, "coalesced", hosts="allocators"),
    gone(25, "too-large", grace=0),
    gone(25, "second", grace=0),
)
"""Nothing remembers them."""

SHARES_ARE_WHERE_THEIR_PODS_ARE = plan(
    "shares are where their pods are",
    SECOND_LEADS,
    fault(0.2, 200.0, "admission.one", webhook="webhook-0"),
    *(pod(40 + 3 * i, f"p{i}", memory(5000)) for i in range(6)),
    cards={"n1": CARD, "n2": CARD, "n3": CARD},
)
"""Gated pods are pinned to the node of their share, and learn which card they have."""

A_CLAIM_IS_USED = plan(
    "a claim is used",
    claim(5, "one", 5),
    of_claim(10, "user", "one"),
    runs(18, "user"),
    about(20, "share.delete", "one"),
    about(25, "claim.delete", "one"),
    gone(40, "user"),
)
"""Its share stays until its last pod has gone, and then nothing remains of it."""

A_CLAIM_AND_PODS = plan(
    "a claim and pods",
    claim(5, "one", 8),
    *(pod(10 + i, f"p{i}", memory(4000)) for i in range(4)),
    about(30, "claim.delete", "one"),
    runs(40, "p2"),
)
"""Pods get what the claim leaves."""

A_CLAIMS_WATCH_IS_BEHIND = plan(
    "a claim's watch is behind",
    SECOND_LEADS,
    watches(50, 60, "frozen", "elasticgpuclaims", "allocator-0"),
    claim(52, "one", 5),
    program(60, "killed", "allocator-1", 60.0),
    about(100, "share.stays", "one"),
)
"""A new leader sees the share of a claim that it has not heard about yet."""

A_CLAIMS_SHARE_IS_CREATED_LATE = plan(
    "a claim's share is created late",
    SECOND_LEADS,
    THROUGH_SECOND,
    requests(50.2, 0.8, "late", "writes", "allocator-1", delay=25.0),
    claim(50, "one", 14),
    *(pod(52 + 0.3 * i, f"p{i}", memory(7000)) for i in range(3)),
    latency=(0.2, 0.2),
)
"""A write that seems to have failed may still arrive, so its share stays allocated."""

LEADERS_COME_AND_GO = plan(
    "leaders come and go",
    *(
        step
        for i in range(6)
        for step in (
            program(30 * i + 5, "killed", "leader", 1.0),
            pods(30 * i + 4.9, [f"a{i}-{j}" for j in range(4)], memory(7000)),
            pods(30 * i + 22, [f"b{i}-{j}" for j in range(4)], memory(7000)),
            *(gone(30 * i + 25 + 0.1 * j, f"{kind}{i}-{j}") for j in range(4) for kind in "ab"),
        )
    ),
    latency=(0.01, 0.5),
)
"""Each new leader knows what the previous one gave away."""
