"""Selectors, alternatives and GPUs of one model: on small clusters an exhaustive search is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement, Policy
from allocator.selectors import holds
from contract.encoding.quantity import GIB
from contract.model import FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.selecting import kind_seen
from tests.builders import node

LIMITS = Limits(selects=holds)
A = "device.attributes['gpufraction.io']"
EXPRESSIONS = (
    f"{A}.productName.contains('A10')",
    f"{A}.productName.contains('T4')",
    f"{A}.numa == 1",
    f"{A}.uuid in ['GPU-a-0', 'GPU-b-1']",
    "device.capacity['gpufraction.io'].memory.isGreaterThan(quantity('20Gi'))",
)
lists = st.lists(st.sampled_from(EXPRESSIONS), max_size=2).map(tuple)
wishes = st.builds(Wishes, selectors=lists, alternatives=st.lists(lists, max_size=3).map(tuple))
fractions = st.builds(
    FractionRequest,
    container=st.just("x"),
    count=st.integers(1, 2),
    memory=st.sampled_from((8 * GIB, 14 * GIB)),
    wishes=wishes,
    one_model=st.booleans(),
    one_numa=st.integers(0, 3).map(lambda drawn: drawn == 0),
    apart=st.booleans(),
)


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    first = draw(fractions)
    second = [replace(draw(fractions), container="y", wishes=draw(st.just(Wishes()) | wishes))]
    found = PodRequest("any", (first, *(second if draw(st.booleans()) else ())))
    return found if found.excess is None else replace(found, containers=(first,))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeState:
    made = node(name)
    for _ in range(draw(st.integers(1, 3))):
        model, mib = draw(st.sampled_from((("Tesla T4", 15109), ("NVIDIA A10", 23028))))
        made = made.gpu(model, mib=mib, numa=draw(st.integers(-1, 1)), used_mib=draw(st.sampled_from((0, 0, 9000))))
    return made.state()


def accepted(gpu: Gpu, expressions: tuple[str, ...]) -> bool:
    """The expressions, evaluated for exactly this GPU."""
    return all(holds(each, kind_seen(gpu)._replace(uuid=gpu.uuid)) for each in expressions)


def takes(state: NodeState, fraction: FractionRequest, positions: tuple[int, ...], alternative: int) -> bool:
    gpus = [state.gpus[position] for position in positions]
    some = fraction.wishes.alternatives
    expressions = (*fraction.wishes.selectors, *(some[alternative] if some else ()))
    if not all(accepted(gpu, expressions) for gpu in gpus):
        return False
    if fraction.one_numa and len({gpu.numa for gpu in gpus}) > 1:
        return False
    return not fraction.one_model or len({gpu.model for gpu in gpus}) == 1


def ways(state: NodeState, request: PodRequest, combination: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every choice of cards with which the pod fits with these alternatives."""
    every = range(len(state.gpus))
    for chosen in product(*(combinations(every, fraction.count) for fraction in request.containers)):
        apart = [at for each, taken in zip(request.containers, chosen, strict=True) if each.apart for at in taken]
        if len(set(apart)) < len(apart):
            continue
        together: dict[int, int] = {}
        for fraction, positions in zip(request.containers, chosen, strict=True):
            for position in positions:
                together[position] = together.get(position, state.usage[position].memory) + fraction.memory
        if all(taken <= state.gpus[at].usable for at, taken in together.items()) and all(
            takes(state, fraction, positions, alternative)
            for fraction, positions, alternative in zip(request.containers, chosen, combination, strict=True)
        ):
            yield chosen


@given(request=pods(), data=st.data())
def test_a_pod_gets_the_first_alternatives_by_which_it_fits_anywhere(request: PodRequest, data: st.DataObject) -> None:
    cluster = {name: data.draw(nodes(name)) for name in ("a", "b")[: data.draw(st.integers(1, 2))]}
    engine = Engine(limits=LIMITS, policy=data.draw(st.sampled_from((Policy(), Policy("spread", "spread")))))
    for state in cluster.values():
        engine.put(state)
    ask = SchedulingRequest(request, PodNeeds())
    found = reference.by_preference(engine.decide, ask)
    orders = product(*(range(max(1, len(f.wishes.alternatives))) for f in request.containers))
    first = next(
        (order for order in orders if any(next(ways(s, request, order), None) is not None for s in cluster.values())),
        None,
    )
    assert isinstance(found, Placement) == (first is not None)
    if isinstance(found, Placement) and first is not None:
        assert tuple(each.alternative for each in found.containers) == first
        state = cluster[found.node]
        places = {gpu.uuid: at for at, gpu in enumerate(state.gpus)}
        chosen = tuple(tuple(sorted(places[share.uuid] for share in each.shares)) for each in found.containers)
        assert chosen in set(ways(state, request, first))
    elif engine.could_ever(ask) is not None:
        empty = [replace(state, usage=(Usage(),) * len(state.gpus)) for state in cluster.values()]
        orders = product(*(range(max(1, len(f.wishes.alternatives))) for f in request.containers))
        assert not any(next(ways(state, request, order), None) for order in orders for state in empty)
