"""What is found for one gang serves similar gangs in the same round. Without any memory the decisions are the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from allocator.features.gangs.part import GangScheduling
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import StatusUpdate
from allocator.scheduler.parts import GangWaits
from tests.builders import node
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.features.gangs.played import Replica, created, member, placed


class Forgetful(GangScheduling):
    """The plain way: nothing is remembered about a gang, so it is read and tried for each of its pods."""

    def known(self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float) -> GangWaits | None:
        is_opening = entry.gang is not None and entry.gang.key in self._starting
        return super().known(entry, shape, now) if is_opening else None


@dataclass(frozen=True)
class Gang:
    """This many pods, with this many MiB each, of which this many start together."""

    pods: int
    minimum: int
    mib: int


@dataclass(frozen=True)
class Step:
    """Gangs are created, and then some are deleted, by their number among the existing ones: all their pods, or one."""

    gangs: tuple[Gang, ...]
    deleted: tuple[tuple[int, bool], ...]


GANGS = st.builds(Gang, st.integers(1, 3), st.integers(2, 3), st.sampled_from((6000, 10_000)))
DELETED = st.tuples(st.integers(0, 30), st.booleans())
STEPS = st.builds(
    Step, st.lists(GANGS, min_size=1, max_size=4).map(tuple), st.lists(DELETED, min_size=1, max_size=2).map(tuple)
)


@given(st.lists(STEPS, min_size=2, max_size=4))
def test_what_is_remembered_in_a_round_changes_no_decision(steps: list[Step]) -> None:
    outcomes = [Run(scheduling) for scheduling in (GangScheduling, Forgetful)]
    for number, step in enumerate(steps):
        remembering, plain = (run.after(step, number) for run in outcomes)
        assert remembering == plain


class Run:
    """One replica with its own API server."""

    def __init__(self, scheduling: type[GangScheduling]) -> None:
        self.api = ApiServer()
        nodes = [node("n0").gpus(2), node("n1").gpus(2), node("n2").gpus(1)]
        self.replica = Replica(self.api, nodes, term=1, scheduling=scheduling)

    def after(self, step: Step, number: int) -> tuple[dict[str, str], dict[str, str]]:
        """Where pods are, and the reason why others wait, once nothing more happens."""
        for at, gang in enumerate(step.gangs):
            name = f"g{number}-{at}"
            made = (member(f"{name}-{i}", name, gang.minimum, mib=gang.mib) for i in range(gang.pods))
            created(self.api, *made)
        for chosen, whole in step.deleted:
            gangs = sorted({key.rpartition("-")[0] for key in self.api.pods})
            pods = sorted(key for key in self.api.pods if gangs and key.startswith(gangs[chosen % len(gangs)]))
            for key in pods if whole else pods[:1]:
                self.api.delete(key)
        self.replica.catch_up()
        for _ in range(8):
            self.replica.cycle()
        told = {each.key: str(each.code) for each in self.replica.reports if isinstance(each, StatusUpdate)}
        where = placed(self.api)
        return where, {key: code for key, code in told.items() if key in self.api.pods and key not in where}
