"""
The states of nodes as pods are placed on them, and the most room of each state.

Pure. The rules of placement (`contract.scheduling`) are evaluated once for each pair of a state and a kind of request,
so that a search can use the same pair many times. States that differ only in which of several equal GPUs is used are
one state, and so are nodes that are equal for all of the requests.

Which pods fit on a GPU depends on their order in one case: a pod without a request for cores may not follow pods that
take all the cores, but may precede them. Here such pods precede. So pods share a node if they fit there in some order,
and no more nodes are opened than needed. A pod that came too late for its place is packed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import gt
from typing import Any

from contract.model import WHOLE, Gpu, NodeState, Usage
from contract.reslicing import reslices
from contract.scheduling import counting, fit, nodeinfo
from contract.scheduling.demand import Demand
from contract.scheduling.filters import Limits, node_reason
from contract.scheduling.fit import GpuChoice, Steps, least_free
from contract.scheduling.needs import EVERY_PORT, SchedulingRequest
from contract.scheduling.selecting import named_uuids

_MOST_MEASURED = 8_000
"""Evaluations of shapes on the given nodes, some 50 us each; one with many GPUs or containers counts as several."""
RESERVE = 4_000
"""Evaluations that a search leaves for later searches, and as many again for work without steps."""
EVALUATION = 3
"""The steps of a packing that one evaluation uses."""
_MOST_CHOICES = 256
"""The choices of GPUs that are tried in one evaluation; equal GPUs count once."""
_MOST_CHOICE_STEPS = 1_000
"""The steps of the search for these choices."""
_LEAST_STEPS = 400
"""Steps that every search may take; the first choice for 64 containers takes hardly more than 64."""
_STEPS_EACH = 8
"""Steps of this search that count as one evaluation."""
_FINE = 1 << 30
"""A whole GPU, or all that an empty node has, in the fine units of relative amounts."""
_MOST_THRESHOLDS = 4
_MOST_PORTS = 4

Amounts = tuple[int, ...]


@dataclass(slots=True)
class _Ways:
    """The states found so far after one more pod, and the source of further ones."""

    found: list[int]
    others: Iterator[int]


_NONE = _Ways([], iter(()))
_TOO_MUCH: Amounts = (1 << 63,)


class NodeStates:
    """
    The states by number, and the next states when one more pod is placed on a node.

    `shapes`: the distinct requests, called by their positions. `complete` becomes False when a bound is reached,
    because there may be more ways than were tried.
    """

    def __init__(self, shapes: Sequence[SchedulingRequest], limits: Limits, steps: Steps) -> None:
        self.shapes = shapes
        self.limits = limits
        self.steps = steps
        self.complete = not any(_is_mixed(ask) for ask in shapes)
        self.kinds: list[int] = []
        """The kind of each state's node: the number of the node's initial state."""
        self.reserve = RESERVE
        """Evaluations that are reserved now."""
        self._left = 2 * RESERVE + max(0, steps.left) // EVALUATION
        self._nodes: list[NodeState] = []
        self._sorts: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._outlines: dict[tuple[Any, ...], int] = {}
        self._ways: list[dict[int, _Ways]] = []
        """By state and shape."""
        self._few: dict[tuple[int, int, bool], tuple[NodeState, Sequence[int]]] = {}
        self._sort_numbers: dict[tuple[Any, ...], int] = {}
        self._relevant = _RelevantAttributes(shapes)
        self._without_cores = [not any(f.cores for f in ask.request.containers) for ask in shapes]
        self._shares = [sum(fraction.count for fraction in ask.request.containers) for ask in shapes]
        self.weights = [
            1 + shares // 4 + len(ask.needs.host_ports) // 64 for shares, ask in zip(self._shares, shapes, strict=True)
        ]
        """The number of evaluations for which one of a shape counts; 1 for most."""
        self._measures: Measures | None = None
        self._rooms: dict[int, Amounts] = {}

    def given(self, node: NodeState) -> int:
        """The number of a node's state before any of these pods is on it."""
        sorts = tuple(self._sort(gpu) for gpu in node.gpus)
        outline = (
            self._relevant.attributes(node),
            self._arranged(node, sorts),
            node.requested,
            node.host_ports,
            node.overcount,
        )
        number = self._outlines.get(outline)
        if number is None:
            number = self._outlines[outline] = len(self._nodes)
            self._add(node, sorts, number)
        return number

    def measure(self, most: Sequence[int]) -> Measures:
        """
        Evaluate the shapes on the given nodes, those in the states `most` first, and create the measures of room. Add
        no nodes afterwards.

        Each shape has its part of the evaluations, plus those that earlier shapes left, the lightest first. So no pod
        uses up the evaluations of others.
        """
        kinds = list(dict.fromkeys((*most, *sorted(self._outlines.values()))))
        taken: dict[tuple[int, int], list[dict[int, Demand]]] = {}
        each, before = max(8, _MOST_MEASURED // max(1, len(self.shapes))), (self._left, self.steps.left)
        self._left = _MOST_MEASURED
        for number, shape in enumerate(sorted(range(len(self.shapes)), key=self.weights.__getitem__), 1):
            least = max(0, _MOST_MEASURED - each * number)
            for kind in kinds:
                if self._left <= least:
                    self.complete = False
                    break
                found = self._measured(kind, shape, least)
                if found:
                    taken[kind, shape] = found
        self._left, self.steps.left = before
        nodes = {kind: self._nodes[kind] for kind in kinds}
        self._measures = Measures(self.shapes, nodes, taken, self.limits)
        return self._measures

    def _measured(self, kind: int, shape: int, least: int) -> list[dict[int, Demand]]:
        """The amounts that a pod of this shape takes from the GPUs, for each choice; empty for unknown choices."""
        found: list[dict[int, Demand]] = []
        for chosen in self._choices(kind, shape, max(_LEAST_STEPS, _STEPS_EACH * (self._left - least))):
            if found and self._left <= least:
                self.complete = False
                return [*found, {}]
            found.append(fit.demands_of(self._nodes[kind], self.shapes[shape].request, chosen))
        return found

    def after(self, state: int, shape: int, way: int = 0) -> int | None:
        """
        The node's next state for the given way of placing a pod of this shape, counted from the first; None if there is
        no such way. In the first way it takes the fullest GPUs that have room.
        """
        ways = self._ways[state].get(shape)
        if ways is None:
            may_fit = not any(map(gt, self._need(state, shape), self.room(state)))
            ways = self._ways[state][shape] = _Ways([], self._all_after(state, shape)) if may_fit else _NONE
        while len(ways.found) <= way:
            if ways is _NONE:
                return None
            if self._left <= self.reserve:
                self.complete = False
                return None
            another = next(ways.others, None)
            if another is None:
                return None
            if another not in ways.found:
                ways.found.append(another)
        return ways.found[way]

    def room(self, state: int) -> Amounts:
        """The most room of the state, by each measure."""
        known = self._rooms.get(state)
        if known is None:
            assert self._measures is not None
            known = self._rooms[state] = self._measures.room(self._nodes[state], self.kinds[state])
        return known

    def _need(self, state: int, shape: int) -> Amounts:
        assert self._measures is not None
        return self._measures.needs.get((self.kinds[state], shape), _TOO_MUCH)

    def _all_after(self, state: int, shape: int) -> Iterator[int]:
        node, ask, kind = self._nodes[state], self.shapes[shape], self.kinds[state]
        for chosen in self._choices(state, shape):
            booked = nodeinfo.booked(node, ask, fit.allocate(node, ask.request, chosen))
            yield self._add(booked, self._sorts[state], kind)

    def _choices(self, state: int, shape: int, most: int = _MOST_CHOICE_STEPS) -> Iterator[GpuChoice]:
        """The choices of GPUs for the shape, if it fits on the node at all, found within so many steps."""
        node, ask = self._nodes[state], self.shapes[shape]
        weight = self.weights[shape] + len(node.gpus) // 16
        self._evaluated(weight)
        if node_reason(node, ask.needs) is not None or counting.shortage(node, ask) is not None:
            return
        few, positions = self._fewer(state, self._shares[shape], self._without_cores[shape])
        steps = Steps(allowed := min(most, _MOST_CHOICE_STEPS))
        for number, chosen in enumerate(fit.fitting(few, ask.request, self.limits, least_free, steps)):
            if number == _MOST_CHOICES:
                self.complete = False
                return
            self._evaluated(weight)
            yield tuple(tuple(positions[position] for position in taken) for taken in chosen)
        self._evaluated((allowed - steps.left) // _STEPS_EACH)
        if steps.spent:
            self.complete = False

    def _evaluated(self, times: int) -> None:
        self._left -= times
        self.steps.left -= times * EVALUATION

    def _fewer(self, state: int, most: int, without_cores: bool) -> tuple[NodeState, Sequence[int]]:
        """The node with at most so many of several equal GPUs, and their positions in the whole node."""
        known = self._few.get((state, most, without_cores))
        if known is None:
            node, alike, positions = self._nodes[state], Counter[tuple[int, int, Usage]](), []
            for position, (gpu, sort, usage) in enumerate(zip(node.gpus, self._sorts[state], node.usage, strict=True)):
                kind = (sort, gpu.numa if self._relevant.numa else -1, usage)
                alike[kind] += 1
                if alike[kind] <= most:
                    positions.append(position)
            usages = [node.usage[position] for position in positions]
            if without_cores:
                usages = [replace(usage, cores=0) if usage.cores else usage for usage in usages]
            few = replace(node, gpus=tuple(node.gpus[position] for position in positions), usage=tuple(usages))
            known = self._few[state, most, without_cores] = few, positions
        return known

    def _add(self, node: NodeState, sorts: tuple[int, ...], kind: int) -> int:
        key = (kind, self._arranged(node, sorts), node.requested, node.host_ports, node.overcount)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(node)
            self._sorts.append(sorts)
            self._ways.append({})
            self.kinds.append(kind)
        return number

    def _sort(self, gpu: Gpu) -> int:
        """GPUs of one sort are equal to every request, apart from their NUMA node."""
        uuid = gpu.uuid if gpu.uuid in self._relevant.uuids else ""
        state = gpu.healthy, gpu.withheld, gpu.sharing
        key = (gpu.model, gpu.memory, gpu.usable, gpu.capability, state, bool(gpu.parent), uuid)
        return self._sort_numbers.setdefault(key, len(self._sort_numbers))

    def _arranged(self, node: NodeState, sorts: tuple[int, ...]) -> tuple[Any, ...]:
        """The GPUs with their usage, in an order that does not depend on which of several equal ones is used."""
        groups: dict[int, list[tuple[int, int, int, int, bool, int]]] = {}
        for gpu, sort, usage in zip(node.gpus, sorts, node.usage, strict=True):
            numa = gpu.numa if self._relevant.numa else -1
            taken = usage.memory, usage.cores, usage.sharers, usage.exclusive, usage.burst
            groups.setdefault(numa, []).append((sort, *taken))
        return tuple(sorted(tuple(sorted(group)) for group in groups.values()))


def _is_mixed(ask: SchedulingRequest) -> bool:
    """Whether some containers request cores and others do not, so that no single place in an order is the best."""
    return len({bool(fraction.cores) for fraction in ask.request.containers}) > 1


class _RelevantAttributes:
    """The properties of a node that the requests depend on; nodes that are equal in them are one kind."""

    def __init__(self, shapes: Sequence[SchedulingRequest]) -> None:
        needs = [ask.needs for ask in shapes]
        expressions = {each for need in needs for term in need.affinity or () for each in term}
        labels = {each.key for each in expressions if not each.field}
        self._labels = sorted(labels | {key for need in needs for key, _ in need.node_selector})
        self._name = any(each.field for each in expressions) or any(need.node_name for need in needs)
        wishes = {fraction.wishes for ask in shapes for fraction in ask.request.containers}
        self.numa = any(ask.numa_bound for ask in shapes) or any(wish.selects for wish in wishes)
        self.uuids = {uuid for wish in wishes for uuid in (*wish.use_uuids, *wish.avoid_uuids, *named_uuids(wish))}

    def attributes(self, node: NodeState) -> tuple[Any, ...]:
        labels = tuple(node.labels.get(key) for key in self._labels)
        closed = (node.cordoned, node.ready, node.silent, reslices(node.labels))
        state = (*closed, node.allocatable, node.delivery, node.isolation)
        return (node.name if self._name else "", labels, node.taints, *state)


# -- measures of room ------------------------------------------------------------------------------------------------
#
# A measure assigns an amount to every pod and a room to every state. Placing pods on a node reduces its room by at
# least the sum of their amounts. So pods whose sum exceeds the room of a set of nodes do not fit there. Amounts are
# rounded down and rooms up.
#
# Alongside plain sums there are measures with a threshold t: of a relative amount x (the whole is 1) it counts nothing
# where x < t, all of 1 where x > 1 - t, and x otherwise. They express that two pods of 60 % need two GPUs, and that the
# last 10 % of a GPU are of no use to pods that all need 20 %. (Fekete and Schepers, "New classes of fast lower bounds
# for bin packing problems", 2001.)


@dataclass(frozen=True, slots=True)
class _GpuMeasure:
    """`free`: the relative room of a GPU; `taken`: the part that a demand takes."""

    free: Callable[[Gpu, Usage, Limits], int]
    taken: Callable[[Gpu, Demand, Limits], int]
    threshold: int = 0

    def room(self, gpu: Gpu, usage: Usage, limits: Limits) -> int:
        if usage.exclusive or not gpu.healthy or usage.sharers >= limits.sharers(gpu):
            return 0
        return _stepped(self.free(gpu, usage, limits), self.threshold)

    def need(self, gpu: Gpu, demand: Demand, limits: Limits) -> int:
        return _stepped(self.taken(gpu, demand, limits), self.threshold)


@dataclass(frozen=True, slots=True)
class _NodeMeasure:
    """CPU and the other resources of a node besides GPUs; `relative`: as a part of the given node's free amount."""

    resource: str
    relative: bool = False
    threshold: int = 0

    def room(self, node: NodeState, given: NodeState) -> int:
        has = max(0, self._free(node))
        if not self.relative:
            return has
        return _stepped(-(-has * _FINE // max(1, self._free(given))), self.threshold)

    def need(self, ask: SchedulingRequest, given: NodeState) -> int:
        wanted: int = getattr(ask.needs.compute, self.resource)
        return _stepped(wanted * _FINE // max(1, self._free(given)), self.threshold) if self.relative else wanted

    def _free(self, node: NodeState) -> int:
        return int(getattr(node.allocatable, self.resource) - getattr(node.requested, self.resource))


def _stepped(amount: int, threshold: int) -> int:
    if amount < threshold:
        return 0
    return _FINE if threshold and amount > _FINE - threshold else amount


def _free_bytes(gpu: Gpu, usage: Usage, limits: Limits) -> int:
    return max(0, limits.capacity(gpu) - usage.memory)


def _taken_bytes(gpu: Gpu, demand: Demand, limits: Limits) -> int:
    return limits.capacity(gpu) if demand.exclusive else demand.memory


def _free_memory(gpu: Gpu, usage: Usage, limits: Limits) -> int:
    return -(-_free_bytes(gpu, usage, limits) * _FINE // max(1, limits.capacity(gpu)))


def _taken_memory(gpu: Gpu, demand: Demand, limits: Limits) -> int:
    return _taken_bytes(gpu, demand, limits) * _FINE // max(1, limits.capacity(gpu))


def _free_cores(_gpu: Gpu, usage: Usage, _limits: Limits) -> int:
    return -(-(WHOLE - usage.cores) * _FINE // WHOLE)


def _taken_cores(_gpu: Gpu, demand: Demand, _limits: Limits) -> int:
    return _FINE if demand.exclusive else demand.cores * _FINE // WHOLE


def _free_places(gpu: Gpu, usage: Usage, limits: Limits) -> int:
    return -(-(limits.sharers(gpu) - usage.sharers) * _FINE // limits.sharers(gpu))


def _taken_places(gpu: Gpu, demand: Demand, limits: Limits) -> int:
    return _FINE if demand.exclusive else _FINE // limits.sharers(gpu)


def _unused(_gpu: Gpu, usage: Usage, _limits: Limits) -> int:
    return 0 if usage.sharers else 1


def _taken_whole(_gpu: Gpu, demand: Demand, _limits: Limits) -> int:
    return int(demand.exclusive)


class Measures:
    """
    The measures of these requests on these nodes, and the needs of each request by each measure.

    `by_kind`: per given node and shape, the amount that the pod would take of each GPU, for each choice of GPUs.
    """

    def __init__(
        self,
        shapes: Sequence[SchedulingRequest],
        given: Mapping[int, NodeState],
        by_kind: Mapping[tuple[int, int], Sequence[Mapping[int, Demand]]],
        limits: Limits,
    ) -> None:
        self._given = given
        self._limits = limits
        taken = {
            (given[kind].gpus[at], demand)
            for (kind, _), choices in by_kind.items()
            for chosen in choices
            for at, demand in chosen.items()
        }
        by_memory = _thresholds({_taken_memory(gpu, demand, limits) for gpu, demand in taken})
        by_cores = _thresholds({_taken_cores(gpu, demand, limits) for gpu, demand in taken})
        on_gpus = (
            _GpuMeasure(_free_bytes, _taken_bytes),
            *(_GpuMeasure(_free_memory, _taken_memory, threshold) for threshold in by_memory),
            *(_GpuMeasure(_free_cores, _taken_cores, threshold) for threshold in by_cores),
            _GpuMeasure(_free_places, _taken_places),
            _GpuMeasure(_unused, _taken_whole),
        )
        self._on_gpus = [each for each in on_gpus if any(each.need(*one, limits) for one in taken)]
        self._on_node = [_NodeMeasure("pods")]
        for resource in ("cpu", "memory", "storage"):
            if any(getattr(ask.needs.compute, resource) for ask in shapes):
                self._on_node.append(_NodeMeasure(resource))
        for resource in [each.resource for each in self._on_node if each.resource in ("cpu", "memory")]:
            relative = _NodeMeasure(resource, relative=True)
            amounts = {relative.need(shapes[shape], given[kind]) for kind, shape in by_kind}
            self._on_node += [replace(relative, threshold=threshold) for threshold in _thresholds(amounts)]
        ports = Counter(port for ask in shapes for port in ask.needs.host_ports if not port[0] and port != EVERY_PORT)
        self._ports = [port for port, _ in sorted(ports.items(), key=lambda each: (-each[1], each[0]))[:_MOST_PORTS]]
        self._of_gpu: dict[tuple[Gpu, Usage], Amounts] = {}
        self.needs = {
            (kind, shape): self._need(shapes[shape], given[kind], choices) for (kind, shape), choices in by_kind.items()
        }
        """By kind of node and shape, for the pairs that fit."""

    def room(self, node: NodeState, kind: int) -> Amounts:
        """The most room of a node in this state."""
        by_gpu = [self._room_of(gpu, usage) for gpu, usage in zip(node.gpus, node.usage, strict=True)]
        given = self._given[kind]
        return (
            *map(sum, zip(*by_gpu, strict=True)),
            *(measure.room(node, given) for measure in self._on_node),
            *(int(all(port[1:] != taken[1:] for taken in node.host_ports)) for port in self._ports),
        )

    def _room_of(self, gpu: Gpu, usage: Usage) -> Amounts:
        known = self._of_gpu.get((gpu, usage))
        if known is None:
            known = tuple(measure.room(gpu, usage, self._limits) for measure in self._on_gpus)
            self._of_gpu[gpu, usage] = known
        return known

    def _need(self, ask: SchedulingRequest, given: NodeState, choices: Sequence[Mapping[int, Demand]]) -> Amounts:
        by_choice = [
            [
                sum(measure.need(given.gpus[at], demand, self._limits) for at, demand in chosen.items())
                for measure in self._on_gpus
            ]
            for chosen in choices
        ]
        return (
            *map(min, zip(*by_choice, strict=True)),
            *(measure.need(ask, given) for measure in self._on_node),
            *(int(port in ask.needs.host_ports) for port in self._ports),
        )


def _thresholds(amounts: set[int]) -> list[int]:
    """The threshold 0, and some at which a measure of these relative amounts changes."""
    steps = sorted({min(amount, _FINE - amount + 1) for amount in amounts if 0 < amount < _FINE} | {_FINE // 2})
    kept = [steps[len(steps) * at // _MOST_THRESHOLDS] for at in range(_MOST_THRESHOLDS)]
    return sorted({0, *kept, steps[-1]})
