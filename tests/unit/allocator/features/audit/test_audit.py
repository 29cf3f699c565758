"""The audit's lines: each share that a pod gets or loses, with the fields that docs/audit.md names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.audit.lines import FIELDS, GRANTED, RELEASED, line
from allocator.features.audit.part import AuditPart, Granted, Released
from allocator.queue.records import Eviction
from allocator.scheduler.events import PodDeleted, TickPhase
from contract.encoding.protocol import Placed
from contract.model import Compute
from contract.scheduling.demand import Demand
from contract.scheduling.nodeinfo import AllocatedPod
from tests.builders import node, pod
from tests.simulation.features import leftovers
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.manifests.kube import ROOT

POD = AllocatedPod(
    "u1",
    "team/train",
    "n1",
    7,
    0,
    {"GPU-b": Demand(1 << 30, 50, exclusive=False), "GPU-a": Demand(0, 100, exclusive=True)},
    Compute(),
)


class Bench(SchedulerHarness):
    """A controller with the feature's part."""

    def _parts(self) -> Any:
        yield from super()._parts()
        yield self._audit

    def _audit(self, core: Any) -> Any:
        self.audit = AuditPart(core, None)
        return self.audit.part()

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """The lines that are logged at the next look."""
        self.now += 1
        found = self.controller.tick(TickPhase.UPKEEP)
        return [line(each) for each in found if isinstance(each, Granted | Released)]


def bench() -> tuple[Bench, Any]:
    """A pod that was placed at its admission."""
    made = Bench([node("n1").gpu(mib=16384)])
    assert made.lines() == []
    builder = pod("train").uid("u1").asks("gpufraction.io/gpu-memory", "8Gi")
    answer = made.controller.reserve(question(builder))
    assert isinstance(answer, Placed)
    made.controller.handle(pod_event(admitted(builder, allocation=answer.allocation)))
    return made, answer


def test_a_share_that_is_granted_and_released_is_a_line_each() -> None:
    made, answer = bench()
    [(message, fields)] = made.lines()
    uuid = answer.allocation.containers[0].shares[0].uuid
    about: dict[str, Any] = {"pod": "default/train", "uid": "u1", "owner": "", "node": "n1", "cards": f"{uuid}:8192MiB"}
    about |= {"allocation": answer.allocation.id, "priority": 0}
    assert (message, fields) == (GRANTED, {**about, "dialect": "native", "by": "admission"})
    assert made.lines() == []
    made.controller.handle(PodDeleted("u1"))
    [(message, fields)] = made.lines()
    end = {"end": "deleted", "cause": "", "reason": "", "held": 2}
    assert (message, fields) == (RELEASED, {**about, **end})


def test_an_evicted_pod_says_for_what() -> None:
    made, _ = bench()
    made.lines()
    made.audit.part().evicted(Eviction("default/train", "u1", None, "preemption", "another needs it"), "", made.now)  # type: ignore[misc]
    made.controller.handle(PodDeleted("u1"))
    [(_, fields)] = made.lines()
    assert (fields["end"], fields["cause"], fields["reason"]) == ("evicted", "preemption", "another needs it")


def test_a_new_leader_repeats_nothing() -> None:
    made, _ = bench()
    made.leads = False
    assert made.lines() == []
    made.leads = True
    assert made.lines() == []


def test_who_leads_no_more_remembers_no_pod() -> None:
    made, _ = bench()
    big = pod("big").uid("u2").asks("gpufraction.io/gpu-memory", "12Gi")
    made.controller.handle(pod_event(admitted(big, gated=True)))
    made.lines()
    assert {"u1", "u2"} <= remembered(made.audit)
    made.leads = False
    made.lines()
    assert remembered(made.audit) == set()


def remembered(part: AuditPart) -> set[str]:
    """Every text that the part itself holds."""
    own = ("_known", "_waited", "_evicted")
    return {found for way, found in leftovers.walk(part) if isinstance(found, str) and way.startswith(own)}


@pytest.mark.parametrize(
    "what", [Granted(POD, "native", "id", "queue"), Released(POD, "id", "finished", "", "", 3.2)], ids=["got", "lost"]
)
def test_each_line_has_the_fields_of_its_table(what: Granted | Released) -> None:
    message, fields = line(what)
    assert tuple(fields) == FIELDS[message]
    assert fields["cards"] == "GPU-a:whole,GPU-b:1024MiB:50%"


def test_many_cards_are_cut() -> None:
    demands = {f"GPU-{number:03}": Demand(1 << 20, 0, exclusive=False) for number in range(1000)}
    _, fields = line(Granted(AllocatedPod("u", "t/p", "n", 0, 0, demands, Compute()), "native", "id", "queue"))
    assert fields["cards"].endswith(",and 984 more")


def test_the_page_has_every_field() -> None:
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    part = text.partition("## The allocator's lines")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
    assert sorted(listed) == sorted({field for fields in FIELDS.values() for field in fields})
    assert all(f"`{message}`" in part for message in FIELDS)
