"""Requests for nodes: what is requested, what has come, what is given up, and what pods can expect."""

from __future__ import annotations

from dataclasses import replace

from allocator.features.provisioning.packing import Packer
from allocator.features.provisioning.wishes import (
    Ended,
    Expectation,
    Memory,
    NodeRequest,
    Pause,
    Plan,
    PoolNode,
    PoolView,
    Unserved,
    reconcile,
)
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, Requirement, SchedulingRequest

GIB = 1 << 30
NOW, PATIENCE = 10_000.0, 900.0


def empty(gpus: int = 1, memory: int = 16 * GIB) -> NodeState:
    cards = tuple(Gpu(f"made-up-{i}", i, "T4", memory, memory) for i in range(gpus))
    room = Compute(cpu=8_000, memory=64 * GIB, storage=1 << 40, pods=110)
    return NodeState("a", cards, (Usage(),) * gpus, allocatable=room)


def pool(*nodes: PoolNode, most: int = 10, name: str = "a", state: NodeState | None = None) -> PoolView:
    return PoolView(name, state or empty(), most, nodes)


def pods(count: int, memory: int = 10 * GIB) -> list[Unserved]:
    request = PodRequest("native", (FractionRequest("main", memory=memory),))
    return [Unserved(f"pod-{i}", SchedulingRequest(request, PodNeeds())) for i in range(count)]


def request(count: int = 1, age: float = 30.0, name: str = "a-1", **more: object) -> NodeRequest:
    return replace(NodeRequest(name, "a", count, NOW - age), **more)  # type: ignore[arg-type]


def node(name: str, age: float, *, ready: bool = False, occupied: bool = False, idle: bool = False) -> PoolNode:
    return PoolNode(name, NOW - age, ready, occupied, idle)


def plan(
    pools: list[PoolView], requests: list[NodeRequest], waiting: list[Unserved], memory: Memory | None = None
) -> Plan:
    return reconcile(NOW, pools, requests, waiting, memory or Memory(), PATIENCE, Packer(Limits(48)))


SETTLED = Memory(ready_since={"n1": NOW - 60, "n2": NOW - 60})


def test_pods_that_an_empty_node_would_serve_bring_the_fewest_nodes() -> None:
    found = plan([pool()], [], pods(3))
    assert (found.make, found.end) == ((("a", 3),), ())
    assert found.expectations == {f"pod-{i}": Expectation("a", NOW) for i in range(3)}


def test_two_pods_that_fit_on_one_card_bring_one_node() -> None:
    assert plan([pool()], [], pods(2, 8 * GIB)).make == (("a", 1),)


def test_nothing_is_requested_for_a_pod_that_no_node_of_a_pool_would_serve() -> None:
    found = plan([pool()], [], pods(1, 17 * GIB))
    assert (found.make, found.expectations) == ((), {})


def test_what_was_requested_is_not_requested_again() -> None:
    first = request(2)
    found = plan([pool()], [first], pods(2))
    assert (found.make, found.end) == ((), ())
    assert found.expectations == {"pod-0": Expectation("a", first.created), "pod-1": Expectation("a", first.created)}


def test_pods_that_come_later_bring_only_what_is_missing() -> None:
    assert plan([pool()], [request(2)], pods(3)).make == (("a", 1),)


def test_a_node_that_has_come_and_is_not_ready_is_waited_for() -> None:
    first = request(1)
    found = plan([pool(node("n1", 10))], [first], pods(1))
    assert (found.make, found.end) == ((), ())
    assert found.expectations == {"pod-0": Expectation("a", first.created, "n1")}


def test_a_request_ends_when_its_nodes_are_ready() -> None:
    first = request(1)
    found = plan([pool(node("n1", 10, ready=True))], [first], [])
    assert found.end == (Ended(first, "brought"),)


def test_a_node_that_was_there_before_fills_no_request() -> None:
    found = plan([pool(node("old", 5_000, ready=True))], [request(1)], pods(1))
    assert (found.make, found.end) == ((), ())


def test_each_node_fills_one_request_and_the_oldest_first() -> None:
    first, second = request(1, age=60, name="a-1"), request(1, age=50, name="a-2")
    found = plan([pool(node("n1", 10, ready=True))], [second, first], pods(1), SETTLED)
    assert found.end == (Ended(first, "brought"),)


def test_a_node_that_has_just_become_ready_still_counts_as_coming() -> None:
    found = plan([pool(node("n1", 10, ready=True))], [], pods(1))
    assert found.make == ()
    assert found.memory.ready_since == {"n1": NOW}


def test_pods_that_wait_beside_a_full_node_bring_another() -> None:
    assert plan([pool(node("n1", 100, ready=True))], [], pods(1), SETTLED).make == (("a", 1),)


def test_a_pool_with_an_idle_node_that_a_pod_does_not_fit_gets_no_request() -> None:
    found = plan([pool(node("n1", 100, ready=True, idle=True))], [], pods(1), SETTLED)
    assert (found.make, found.expectations) == ((), {})


def test_a_pool_has_no_more_nodes_than_it_may_and_the_pod_learns_that() -> None:
    full = pool(node("n1", 5_000, ready=True), most=1)
    found = plan([full], [], pods(1))
    assert (found.make, found.expectations) == ((), {"pod-0": Expectation("a", None, most=1)})


def test_nodes_that_are_late_are_given_up_and_requested_again_after_a_pause() -> None:
    late = request(1, age=PATIENCE)
    found = plan([pool()], [late], pods(1))
    assert (found.make, found.end) == ((), (Ended(late, "too-late"),))
    assert found.memory.pauses == {"a": Pause(1, NOW + 60, "too-late")}
    assert found.expectations == {"pod-0": Expectation("a", None, until=NOW + 60, most=10, failed="too-late")}
    again = reconcile(NOW + 61, [pool()], [], pods(1), found.memory, PATIENCE, Packer(Limits(48)))
    assert again.make == (("a", 1),)


def test_the_pause_doubles_with_each_failure_in_a_row_and_ends_when_nodes_come() -> None:
    before = Memory(pauses={"a": Pause(3, NOW - 1)})
    late = plan([pool()], [request(1, age=PATIENCE)], pods(1), before)
    assert late.memory.pauses == {"a": Pause(4, NOW + 480, "too-late")}
    brought = plan([pool(node("n1", 10, ready=True))], [request(1)], [], before)
    assert brought.memory.pauses == {}


def test_a_node_without_gpus_is_reported_and_given_up() -> None:
    first = request(1, age=PATIENCE + 10)
    found = plan([pool(node("n1", PATIENCE + 5))], [first], pods(1))
    assert (found.make, found.end) == ((), (Ended(first, "without-gpus", ("n1",)),))
    assert found.memory.pauses == {"a": Pause(1, NOW + 60, "without-gpus")}


def test_what_the_autoscaler_refuses_is_given_up_at_once() -> None:
    refused = request(1, refused="Expired: no capacity")
    found = plan([pool()], [refused], pods(1))
    assert found.end == (Ended(refused, "refused"),)
    assert found.memory.pauses == {"a": Pause(1, NOW + 60, "refused", "Expired: no capacity")}


def test_a_request_is_withdrawn_when_no_pod_needs_it() -> None:
    first = request(1)
    assert plan([pool()], [first], []).end == (Ended(first, "withdrawn"),)


def test_a_request_of_a_pool_that_is_declared_no_more_is_withdrawn() -> None:
    first = request(1)
    assert plan([], [first], pods(1)).end == (Ended(first, "withdrawn"),)


def test_a_placeholder_pod_is_filled_by_the_node_to_which_it_is_bound() -> None:
    first, second = request(name="a-0", bound=()), request(name="a-1", bound=("n1",))
    nodes = node("n1", 10, ready=True, occupied=True)
    found = plan([pool(nodes)], [first, second], pods(2))
    assert (found.make, found.end) == ((), (Ended(second, "brought"),))


def test_an_unbound_placeholder_pod_is_kept_until_its_node_is_ready() -> None:
    unbound = request(name="a-0", bound=())
    found = plan([pool(node("n1", 10))], [unbound], pods(1))
    assert (found.make, found.end) == ((), ())
    assert found.expectations["pod-0"] == Expectation("a", unbound.created, "n1")
    ready = plan([pool(node("n1", 10, ready=True))], [unbound], pods(1))
    assert (ready.make, ready.end) == ((), (Ended(unbound, "brought"),))


def test_a_node_belongs_to_the_placeholder_that_is_bound_to_it() -> None:
    older, newer = request(name="a-0", bound=()), request(name="a-1", age=20.0, bound=("n1",))
    found = plan([pool(node("n1", 10), node("n2", 5))], [older, newer], pods(2))
    assert (found.make, found.end) == ((), ())
    assert {each.request.name: [node.name for node in each.came] for each in found.live} == {
        "a-0": ["n2"],
        "a-1": ["n1"],
    }


def test_room_alongside_a_placeholder_counts_as_coming_until_it_is_deleted() -> None:
    found = plan([pool(node("n1", 10, ready=True, occupied=True))], [], pods(1), SETTLED)
    assert found.make == ()


def test_the_first_pool_that_serves_gets_the_request() -> None:
    small, large = pool(name="small"), pool(name="large", state=empty(memory=80 * GIB))
    assert plan([small, large], [], pods(1, 10 * GIB)).make == (("small", 1),)
    assert plan([small, large], [], pods(1, 40 * GIB)).make == (("large", 1),)


def test_no_node_is_requested_where_other_pods_would_refuse_the_pod() -> None:
    kept_from_a = [replace(each, closed=frozenset({"a"})) for each in pods(1)]
    found = plan([pool()], [], kept_from_a)
    assert (found.make, found.expectations, found.needed) == ((), {}, frozenset())
    found = plan([pool(), pool(name="b")], [], [*kept_from_a, replace(pods(1)[0], uid="free")])
    assert found.make == (("a", 1), ("b", 1)), "the other one goes to the first pool"


def test_a_node_that_comes_serves_no_pod_that_others_would_refuse_there() -> None:
    first = request(1)
    kept_from_a = [replace(pods(1)[0], closed=frozenset({"a"}))]
    assert [end.outcome for end in plan([pool()], [first], kept_from_a).end] == ["withdrawn"]


def test_pods_that_must_not_meet_bring_a_node_each() -> None:
    small = pods(3, 1 * GIB)
    assert plan([pool()], [], small).make == (("a", 1),)
    assert plan([pool()], [], [replace(each, apart=7) for each in small]).make == (("a", 3),)
    two_kinds = [replace(each, apart=number % 2) for number, each in enumerate(pods(4, 1 * GIB))]
    assert plan([pool()], [], two_kinds).make == (("a", 2),)


def test_requirements_of_its_own_stay_beside_those_of_others() -> None:
    in_b = Requirement("zone", "In", ("b",))
    own = SchedulingRequest(pods(1)[0].ask.request, PodNeeds(affinity=((in_b,), ())))
    pod = Unserved("u", own, frozenset({"y", "x"}), 3)
    against = Requirement("/pool", "NotIn", ("x", "y"))
    assert pod.as_packed().needs == PodNeeds(affinity=((in_b, against),), host_ports=frozenset({("", "apart", 3)}))
    assert Unserved("u", own).as_packed() is own
