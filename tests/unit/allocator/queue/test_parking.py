"""Which waiting pods are kept in memory: the budgets always hold, and every parked pod gets its turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.queue.parking import Order, ParkedPod, Parking, PodCost
from tests.examples import examples

EACH, TOTAL = 100, 250
Op = tuple[str, int, int, int]
operations = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "create", "change", "delete", "place", "tick", "round", "write", "lose"]),
        st.integers(0, 3),
        st.integers(0, 40),
        st.integers(1, 60),
    ),
    max_size=120,
)


@dataclass
class Played:
    """Simulates the part of `SchedulingQueue`, and the pods that wait according to the API server."""

    parking: Parking = field(default_factory=lambda: Parking(each=EACH, total=TOTAL))
    waits: dict[str, tuple[str, Order, PodCost]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    writing: set[str] = field(default_factory=set)
    turns: dict[str, int] = field(default_factory=dict)
    came: int = 0

    def __post_init__(self) -> None:
        self.parking._stays = self.writing.__contains__

    def put(self, uid: str, *, turn: bool = False) -> None:
        namespace, order, cost = self.waits[uid]
        known = uid in self.kept
        self.kept.add(uid)
        for parked in self.parking.put(uid, namespace, order, cost, turn=turn):
            home, its, size = self.waits[parked]
            self.kept.discard(parked)
            had_turn = turn or known if parked == uid else True
            self.parking.park(ParkedPod(parked, parked, its, size.alone, 1, foreign=False), home, had_turn=had_turn)

    def drop(self, uid: str) -> None:
        del self.waits[uid]
        self.kept.discard(uid)
        self.writing.discard(uid)
        self.parking.drop(uid)

    def play(self, op: Op) -> None:
        kind, home, number, size = op
        namespace, uid = f"ns{home}", f"ns{home}/p{number}"
        cost = PodCost(size // 2 + 1, size // 2, f"ask{number % 5}" if number % 2 else uid)
        if kind == "create" and uid not in self.waits:
            self.came += 1
            self.waits[uid] = (namespace, (-(number % 3), 0, number % 4, self.came, uid), cost)
            self.put(uid)
        elif kind == "change" and uid in self.waits:
            self.waits[uid] = (namespace, self.waits[uid][1], cost)
            self.put(uid)
        elif kind == "delete" and uid in self.waits:
            self.drop(uid)
        elif kind == "place" and self.kept - self.writing:
            self.drop(sorted(self.kept - self.writing)[number % len(self.kept - self.writing)])
        elif kind == "write" and uid in self.kept:
            self.writing ^= {uid}
        elif kind == "round":
            self.parking.begin_round()
        elif kind in ("tick", "lose"):
            self.tick(lost=kind == "lose")

    def tick(self, *, lost: bool = False) -> int:
        """Try the kept pods, and read the due ones. Returns how many were read."""
        for uid in self.kept:
            self.parking.tried(uid)
        due = self.parking.due()
        for pod in due:
            if not lost:
                self.turns[pod.uid] = self.turns.get(pod.uid, 0) + 1
                self.put(pod.uid, turn=True)
            self.parking.unread(pod.uid)
        return len(due)

    def check(self) -> None:
        parked = {pod.uid for pod in self.parking.pods()}
        assert parked | self.kept == self.waits.keys()
        assert not parked & self.kept
        assert self.parking.number == len(parked)
        used = {f"ns{at}": self.bytes_of(f"ns{at}") for at in range(4)}
        assert {name: self.parking.uses(name)[0] for name in used} == used
        assert self.parking.used == sum(used.values())
        for name, size in used.items():
            movable = [uid for uid in self.of(name) if uid not in self.writing]
            assert size <= EACH or len(self.of(name)) == 1 or not movable
        several = [name for name in used if len(self.of(name)) > 1 and set(self.of(name)) - self.writing]
        assert self.parking.used <= TOTAL or not several

    def of(self, namespace: str) -> list[str]:
        return [uid for uid in self.kept if self.waits[uid][0] == namespace]

    def bytes_of(self, namespace: str) -> int:
        costs = [self.waits[uid][2] for uid in self.of(namespace)]
        asks: dict[Any, int] = {}
        for cost in costs:
            asks.setdefault(cost.shared, 0)
        return sum(cost.own for cost in costs) + sum(
            {cost.shared: cost.request for cost in costs}[shared] for shared in asks
        )


@given(operations)
@settings(max_examples=examples(60), deadline=None)
def test_no_waiting_pod_is_forgotten_and_the_budgets_hold(ops: list[Op]) -> None:
    played = Played()
    for op in ops:
        played.play(steady(op))
        played.check()


def steady(op: Op) -> Op:
    """Pods with the same request have the same size: what they share has one size."""
    kind, home, number, size = op
    return (kind, home, number, 20 + number % 5 if number % 2 else size)


@given(operations)
@settings(max_examples=examples(50), deadline=None)
def test_every_parked_pod_has_its_turn_in_each_round(ops: list[Op]) -> None:
    played = Played()
    for op in ops:
        played.play(steady(op))
    played.writing.clear()
    for _ in range(2):
        played.parking.begin_round()
        waiting, before = {pod.uid for pod in played.parking.pods()}, dict(played.turns)
        for _ in range(3 * len(played.waits) + 5):
            played.tick()
            played.check()
        assert [uid for uid in waiting if played.turns.get(uid, 0) == before.get(uid, 0)] == []


@given(operations)
@settings(max_examples=examples(50), deadline=None)
def test_a_namespace_within_its_budget_feels_no_other(ops: list[Op]) -> None:
    """This holds as long as all of them together are within their total budget."""
    together, alone = Played(Parking(each=EACH, total=400)), Played(Parking(each=EACH, total=400))
    for op in (steady(op) for op in ops if op[0] in ("create", "change", "delete")):
        together.play(op)
        if op[1] == 0:
            alone.play(op)
    assert set(together.of("ns0")) == set(alone.of("ns0"))


@given(st.permutations(range(12)))
def test_in_whatever_order_pods_come_the_first_in_the_queue_are_kept(order: list[int]) -> None:
    played = Played()
    for at in order:
        played.waits[f"p{at}"] = ("ns0", (0, 0, at, 0, f"p{at}"), PodCost(10, 10, at))
        played.put(f"p{at}")
    assert played.kept == {"p0", "p1", "p2", "p3", "p4"}


def test_a_pod_of_higher_priority_takes_the_place_of_the_last() -> None:
    played = Played()
    for at in range(6):
        played.waits[f"p{at}"] = ("ns0", (0, 0, at, at, f"p{at}"), PodCost(20, 0, at))
        played.put(f"p{at}")
    played.waits["first"] = ("ns0", (-9, 0, 9, 9, "first"), PodCost(20, 0, "first"))
    played.put("first")
    assert played.kept == {"first", "p0", "p1", "p2", "p3"}


def test_a_pod_that_changes_while_parked_stays_parked_until_its_turn() -> None:
    played = Played()
    for at in range(6):
        played.waits[f"p{at}"] = ("ns0", (0, 0, at, at, f"p{at}"), PodCost(20, 0, at))
        played.put(f"p{at}")
    played.waits["p5"] = ("ns0", (0, 0, 5, 5, "p5"), PodCost(1, 0, "p5"))
    played.put("p5")
    assert played.kept == {"p0", "p1", "p2", "p3", "p4"}
    played.drop("p0")
    assert played.tick() == 1
    assert played.kept == {"p1", "p2", "p3", "p4", "p5"}


def test_the_namespace_that_uses_most_gives_way_to_the_others() -> None:
    played = Played()
    for home in range(4):
        for at in range(4 if home else 10):
            uid = f"ns{home}/p{at}"
            played.waits[uid] = (f"ns{home}", (0, 0, at, at, uid), PodCost(20, 0, uid))
            played.put(uid)
    assert [len(played.of(f"ns{home}")) for home in range(4)] == [3, 3, 3, 3]
