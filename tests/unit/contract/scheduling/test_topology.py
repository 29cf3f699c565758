"""Several GPUs of one container: among equal GPUs, the set with the best connections, as brute force finds it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement
from contract.encoding.quantity import GIB
from contract.model import LINKS, Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.reasons.nodes import Reason
from contract.scheduling import fit as fitting
from contract.scheduling.filters import DEFAULT_LIMITS, gpu_reason
from contract.scheduling.fit import connected, far
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.examples import examples

WHOLE = FractionRequest("main", percent=100, cores=100, exclusive=True)
Links = dict[tuple[int, int], str]


def _node(count: int, links: Links, *, usage: dict[int, Usage] | None = None, numa: tuple[int, ...] = ()) -> NodeState:
    def of(index: int) -> tuple[tuple[str, str], ...]:
        return tuple(
            (f"GPU-{b if a == index else a}", path) for (a, b), path in sorted(links.items()) if index in (a, b)
        )

    gpus = tuple(
        Gpu(f"GPU-{i}", i, "A100", 80 * GIB, 80 * GIB, links=of(i), numa=numa[i] if numa else -1) for i in range(count)
    )
    taken = tuple((usage or {}).get(i, Usage()) for i in range(count))
    return NodeState("n", gpus, taken, allocatable=Compute(pods=9))


def _pairs(*groups: tuple[int, ...], path: str = "NVLink") -> Links:
    return {pair: path for group in groups for pair in combinations(group, 2)}


def _chosen(node: NodeState, fraction: FractionRequest) -> tuple[int, ...]:
    """The answer of both engines."""
    ask = SchedulingRequest(PodRequest("any", (fraction,)), PodNeeds())
    found = reference.decide({"n": node}, ask)
    fast = Engine()
    fast.put(node)
    assert fast.decide(ask) == found
    assert isinstance(found, Placement)
    return tuple(share.index for share in found.containers[0].shares)


def _asks(count: int, fraction: FractionRequest = WHOLE, *, wishes: Wishes = Wishes()) -> FractionRequest:  # noqa: B008
    return FractionRequest(
        "main", count, fraction.memory, fraction.percent, fraction.cores, fraction.exclusive, wishes=wishes
    )


BUSY = Usage(10 * GIB, 10, 1)
CASES = {
    "nothing is known of links: the first ones": (_node(4, {}), _asks(2), (0, 1)),
    "all alike: the first ones": (_node(4, _pairs((0, 1, 2, 3))), _asks(2), (0, 1)),
    "a pair with NVLink": (_node(4, _pairs((1, 3))), _asks(2), (1, 3)),
    "no pair with a slow path where there is a set without": (
        _node(6, _pairs((0, 1)) | _pairs((3, 4, 5), path="HostBridge")),
        _asks(3),
        (3, 4, 5),
    ),
    "the free ones only": (_node(4, _pairs((0, 1), (2, 3)), usage={0: BUSY}), _asks(2), (2, 3)),
    "the fuller card first, whatever its links": (
        _node(3, _pairs((1, 2)), usage={0: BUSY}),
        _asks(2, FractionRequest("main", memory=GIB)),
        (0, 1),
    ),
    "beside the fuller card the one that reaches it": (
        _node(4, _pairs((0, 3)), usage={0: BUSY}),
        _asks(2, FractionRequest("main", memory=GIB)),
        (0, 3),
    ),
    "one NUMA node, where no path is told": (_node(4, {}, numa=(0, 1, 0, 1)), _asks(2), (0, 2)),
    "one NUMA node, where it must be one": (
        _node(4, _pairs((1, 2)), numa=(0, 0, 1, 1)),
        replace(_asks(2), one_numa=True),
        (0, 1),
    ),
    "a wish for certain GPUs is kept": (
        _node(4, _pairs((0, 1))),
        _asks(2, wishes=Wishes(avoid_uuids=("GPU-0",))),
        (1, 2),
    ),
    "one GPU needs no links": (_node(4, _pairs((2, 3))), _asks(1), (0,)),
}


@pytest.mark.parametrize(("node", "fraction", "want"), CASES.values(), ids=CASES)
def test_which_gpus(node: NodeState, fraction: FractionRequest, want: tuple[int, ...]) -> None:
    assert _chosen(node, fraction) == want


def test_containers_on_the_same_gpus_get_the_same_connected_ones() -> None:
    containers = tuple(FractionRequest(name, 2, memory=GIB) for name in "ab")
    ask = SchedulingRequest(PodRequest("any", containers, same_gpus=True), PodNeeds())
    found = reference.decide({"n": _node(4, _pairs((1, 2)))}, ask)
    assert isinstance(found, Placement)
    assert [[share.index for share in c.shares] for c in found.containers] == [[1, 2], [1, 2]]


def test_a_search_without_an_end_keeps_the_best_set_so_far() -> None:
    """40 GPUs whose links have no order: there are far more sets than the search examines."""
    links = {(a, b): LINKS[(a * 7 + b * 13) % len(LINKS)] for a, b in combinations(range(40), 2)}
    node = _node(40, links)
    request = PodRequest("any", (_asks(12),))
    first = (tuple(range(12)),)
    found = connected(node, request, first, DEFAULT_LIMITS)
    assert len(set(found[0])) == 12
    assert far(node.gpus, found[0]) <= far(node.gpus, first[0])


@st.composite
def nodes(draw: st.DrawFn) -> NodeState:
    count = draw(st.integers(2, 7))
    links = {
        pair: path
        for pair in combinations(range(count), 2)
        if (path := draw(st.sampled_from(("", "NVLink", "NVLink", "Switch", "NumaNode", "System", "unheard of"))))
    }
    usage = {
        at: draw(st.sampled_from((Usage(), BUSY, Usage(10 * GIB, 20, 1), Usage(70 * GIB, 10, 2))))
        for at in range(count)
    }
    return _node(count, links, usage=usage, numa=tuple(draw(st.sampled_from((-1, 0, 1))) for _ in range(count)))


@settings(max_examples=examples(60), deadline=None)
@given(nodes(), st.integers(1, 4), st.sampled_from((WHOLE, FractionRequest("main", memory=GIB, cores=5))))
def test_no_set_of_like_gpus_is_connected_better(node: NodeState, count: int, fraction: FractionRequest) -> None:
    fraction_of = _asks(count, fraction)
    request = PodRequest("any", (fraction_of,))
    fit = fitting.fit(node, request, DEFAULT_LIMITS, fitting.least_free)
    if isinstance(fit, Reason):
        return
    (found,) = connected(node, request, fit.chosen, DEFAULT_LIMITS)
    sets = [
        positions
        for positions in combinations(range(len(node.gpus)), count)
        if sorted(map(repr, (node.usage[at] for at in positions)))
        == sorted(map(repr, (node.usage[at] for at in fit.chosen[0])))
        and all(gpu_reason(node.gpus[at], node.usage[at], fraction_of, DEFAULT_LIMITS) is None for at in positions)
    ]
    assert tuple(sorted(found)) == min(sets, key=lambda each: (far(node.gpus, each), each))
