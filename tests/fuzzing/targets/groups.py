"""What gangs, pods' claims and shadow mode read: plans, groups of pods, questions about claims, recordings."""

from __future__ import annotations

import json

from contract import gangs, names
from contract.encoding import gangplans, protocol
from contract.encoding.reading import Malformed
from contract.model import ClaimEntry, DeviceRequest
from shadow.recording import records
from shadow.recording.records import PodEnded, PodSeen, TemplateSeen
from tests.fuzzing.judge import NotJson, Target, document, mapping, presentable, same
from tests.fuzzing.targets.annotations import ALLOCATIONS

GIB = 1 << 30
QUESTION = protocol.ClaimsQuestion("team-a", (ClaimEntry("gpu", template="small"), ClaimEntry("own", claim="mine")))
ANSWER = protocol.ClaimsAnswer({"gpu": (DeviceRequest("gpu", 2, 8 * GIB, 30),), "nic": ()})


def _plan_seeds() -> tuple[bytes, ...]:
    uids = ("11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-666666666666")
    return (gangplans.to_text(dict(zip(uids, ALLOCATIONS, strict=True))).encode(),)


def _plan(data: bytes) -> None:
    found = gangplans.from_text(data.decode(errors="replace"))
    whole = {uid: allocation for uid, allocation in found.items() if allocation is not None}
    same(gangplans.from_text(gangplans.to_text(whole)), whole, "reading a plan that was written")


def _gang_seeds() -> tuple[bytes, ...]:
    ours = {str(names.GANG): "train", str(names.GANG_MINIMUM): "8"}
    sets = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "2"}
    size = {"leaderworkerset.sigs.k8s.io/size": "4"}
    bodies = (
        {"metadata": {"namespace": "team-a", "annotations": ours}, "spec": {}},
        {"metadata": {"namespace": "team-a", "labels": sets, "annotations": size}, "spec": {}},
        {
            "metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
            "spec": {"schedulingGroup": {"podGroupName": "g"}},
        },
    )
    return tuple(json.dumps(body).encode() for body in bodies)


def _gang(data: bytes) -> None:
    pod = mapping(data)
    found = gangs.read(pod)
    same(gangs.gang_of(pod), found if isinstance(found, gangs.Membership) else None, "asking for the gang alone")
    if isinstance(found, gangs.NoGang):
        presentable(found.why, "why it is no gang")
    if (refused := gangs.refused(pod)) is not None:
        presentable(str(refused), "a refusal")


def _question_seeds() -> tuple[bytes, ...]:
    return (json.dumps(protocol.claims_question_to_json(QUESTION)).encode(),)


def _question(data: bytes) -> None:
    found = protocol.claims_question_from_json(document(data))
    written = protocol.claims_question_to_json(found)
    same(protocol.claims_question_from_json(written), found, "reading a question that was written")


def _answer_seeds() -> tuple[bytes, ...]:
    return (json.dumps(protocol.claims_answer_to_json(ANSWER)).encode(),)


def _answer(data: bytes) -> None:
    found = protocol.claims_answer_from_json(document(data))
    written = protocol.claims_answer_to_json(found)
    same(protocol.claims_answer_from_json(written), found, "reading an answer that was written")


def _record_seeds() -> tuple[bytes, ...]:
    made = (
        TemplateSeen(1, {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": []}}),
        PodSeen(1.0, "u", "team-a", "p", 1),
        PodEnded(2.0, "u", records.DONE),
    )
    return tuple(records.encode(each).encode() for each in made)


def _record(data: bytes) -> None:
    records.decode(data.decode(errors="replace"))


TARGETS = (
    Target("gang-plan", _plan, ("contract.encoding.gangplans:from_text",), _plan_seeds, (Malformed,)),
    Target("gang-pod", _gang, ("contract.gangs:read",), _gang_seeds, (NotJson,), form="typed"),
    Target(
        "claims-question",
        _question,
        ("contract.encoding.protocol:claims_question_from_json",),
        _question_seeds,
        (Malformed, NotJson),
    ),
    Target(
        "claims-answer",
        _answer,
        ("contract.encoding.protocol:claims_answer_from_json",),
        _answer_seeds,
        (Malformed, NotJson),
    ),
    Target("shadow-record", _record, ("shadow.recording.records:decode",), _record_seeds),
)
