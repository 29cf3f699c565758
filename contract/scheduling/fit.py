"""
Fit one pod onto the GPUs of one node: which GPUs each container gets, or why none fit.

Pure. The common case, one container on one GPU, is a single pass. For several containers or GPUs the search goes depth
first in the policy's order of preference, so a greedy first choice cannot turn away a pod that fits. The search is
bounded, and a node on which it gives up counts as not fitting. It is a loop rather than a recursion, since tenants
choose the number of containers. Finally `connected` exchanges equal GPUs for those with the best paths between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations

from contract.isolation import SHOWING_CARDS, SHOWING_SHARES
from contract.model import (
    LINKS,
    WHOLE,
    ContainerAllocation,
    Delivery,
    FractionRequest,
    Gpu,
    GpuShare,
    NodeState,
    PodRequest,
    Usage,
)
from contract.reasons.nodes import Code, Reason
from contract.scheduling.demand import ConcurrentDemand, Demand, held_at_most, per_gpu
from contract.scheduling.filters import DEFAULT_LIMITS, Limits, gpu_reason
from contract.scheduling.selecting import Selects, accepted_by, nothing_selected

_MOST_STEPS = 2_000
"""Steps of the search on one node, each one container on its GPUs: some ten milliseconds. 8 GPUs and 3 containers need
a few hundred at worst."""
MOST_STEPS_IN_ALL = 8_000
"""The same for all nodes of one decision. A pod whose containers fit alone and never together would otherwise use up
the bound on each node."""

_NO_DELIVERY = Delivery()

GpuScore = Callable[[int, Usage], int]
"""(usable bytes, usage) -> preference among the GPUs of one node that fit; the smallest wins."""


def least_free(usable: int, usage: Usage) -> int:
    """Best fit: the GPU with the least free memory comes first, so that large requests find room elsewhere."""
    return usable - usage.memory


GpuChoice = tuple[tuple[int, ...], ...]
"""Per container of the request, the positions of its GPUs in `NodeState.gpus`."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The pod's GPUs on one node, and how much it takes of them in all."""

    chosen: GpuChoice
    memory: int
    cores: int


@dataclass(slots=True)
class Steps:
    """The steps that are left for the search over several nodes."""

    left: int = MOST_STEPS_IN_ALL

    @property
    def spent(self) -> bool:
        """Whether none are left, so further nodes are not searched."""
        return self.left <= 0


def fit(
    node: NodeState, request: PodRequest, limits: Limits, score: GpuScore, steps: Steps | None = None
) -> Fit | Reason:
    """
    The preferred GPUs for each container, or the reason why the node's GPUs do not fit.

    `steps` bounds the search over all nodes of one decision; None: only the search on this node is bounded.
    """
    containers = request.containers
    if len(containers) == 1 and containers[0].count == 1:
        return _fit_one(node, containers[0], limits, score)
    if request.same_gpus:
        return _fit_together(node, request, limits, score)
    return _search(node, request, limits, score, steps)


def allocate(
    node: NodeState, request: PodRequest, chosen: GpuChoice, selects: Selects = nothing_selected
) -> tuple[ContainerAllocation, ...]:
    """
    The shares on the chosen GPUs. Those of each container are sorted by the GPUs' index.

    A container sees its GPUs in that order, and limits by position (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`) must mean the
    same card. `selects`: as in `Limits`.
    """
    return tuple(
        ContainerAllocation(
            fraction.container,
            tuple(_share(node, fraction, position) for position in sorted(positions)),
            _alternative(node, fraction, positions, selects),
        )
        for fraction, positions in zip(request.containers, chosen, strict=True)
    )


def _alternative(node: NodeState, fraction: FractionRequest, positions: Iterable[int], selects: Selects) -> int:
    """The index of the first alternative that accepts all of these GPUs; 0 without alternatives."""
    wishes = fraction.wishes
    if not wishes.alternatives:
        return 0
    accepted = [set(accepted_by(node.gpus[position], wishes, selects)) for position in positions]
    return wishes.first + min(set.intersection(*accepted), default=0)


def _share(node: NodeState, fraction: FractionRequest, position: int) -> GpuShare:
    gpu = node.gpus[position]
    way = node.delivery or _NO_DELIVERY
    return GpuShare(
        gpu.uuid,
        gpu.index,
        fraction.memory_on(gpu.usable),
        fraction.cores,
        gpu.memory,
        way.kinds,
        way.nri,
        way.dra,
        gpu.sharing.cores_free,
        shown_as_whole(node, gpu),
        fraction.burst_on(gpu.usable),
    )


def shown_as_whole(node: NodeState, gpu: Gpu) -> bool:
    """
    Whether a container on this GPU sees its share as all of the GPU's memory (`cuMemGetInfo`).

    The driver's limit on a control group and HAMi-core's library show it so. MPS shows the card's memory, whatever else
    limits it; a slice of a card shows its own.
    """
    shows_card = not SHOWING_CARDS.isdisjoint(node.isolation) or (node.delivery is not None and node.delivery.single)
    return not shows_card and not gpu.parent and not SHOWING_SHARES.isdisjoint(node.isolation)


def shown_now(node: NodeState, shares: Iterable[GpuShare]) -> tuple[GpuShare, ...]:
    """Earlier shares, as the node delivers them to a container that starts now."""
    gpus, way = {gpu.uuid: gpu for gpu in node.gpus}, node.delivery or _NO_DELIVERY
    return tuple(
        replace(
            share,
            cdi=way.kinds,
            nri=way.nri,
            dra=way.dra,
            as_whole=share.uuid in gpus and shown_as_whole(node, gpus[share.uuid]),
        )
        for share in shares
    )


def _fit_one(node: NodeState, fraction: FractionRequest, limits: Limits, score: GpuScore) -> Fit | Reason:
    best, best_score, reason = -1, 0, None
    for position, (gpu, usage) in enumerate(zip(node.gpus, node.usage, strict=True)):
        refused = gpu_reason(gpu, usage, fraction, limits)
        if refused is not None:
            reason = further(reason, refused)
            continue
        preference = score(gpu.usable, usage)
        if best < 0 or preference < best_score:
            best, best_score = position, preference
    if best < 0:
        assert reason is not None, "a node without GPUs is filtered before"
        return reason
    return Fit(((best,),), fraction.memory_on(node.gpus[best].usable), fraction.cores)


def further(first: Reason | None, second: Reason) -> Reason:
    """The reason of the GPU that passed more checks; of equal codes, the one with more room."""
    if first is None or (second.code, second.most, second.wanted) > (first.code, first.most, first.wanted):
        return second
    return first


def _fit_together(node: NodeState, request: PodRequest, limits: Limits, score: GpuScore) -> Fit | Reason:
    """All containers on the same GPUs: the sum of their shares is fitted as one share."""
    whole = combined(request)
    found = _search(node, replace(request, containers=(whole,), same_gpus=False), limits, score)
    if isinstance(found, Reason):
        return found
    return Fit(found.chosen * len(request.containers), found.memory, found.cores)


def combined(request: PodRequest) -> FractionRequest:
    """The sum of the shares of containers on the same GPUs; all ask by bytes, or all by percent."""
    by_bytes = bool(request.containers[0].memory)
    each = ((f, f.memory if by_bytes else f.percent) for f in request.containers)
    demand = per_gpu(request, ((f.container, "all", size, max(0, f.limit - size)) for f, size in each))["all"]
    return replace(
        request.containers[0],
        memory=demand.memory if by_bytes else 0,
        percent=0 if by_bytes else demand.memory,
        cores=demand.cores,
        exclusive=demand.exclusive,
        init=False,
        limit=demand.memory + demand.burst if demand.burst else 0,
    )


def joined(request: PodRequest) -> PodRequest | None:
    """
    The pod with its containers on the same GPUs; None if that is not possible.

    It is possible if all request the same number of GPUs of the same kind, in one unit, and their sum is within a GPU.
    A container with a memory limit above its request is one share that a GPU must hold, and stays one.
    """
    containers = request.containers
    if len(containers) < 2 or request.same_gpus or request.bursts or any(each.apart for each in containers):
        return None
    if len({(f.count, f.wishes, bool(f.memory)) for f in containers}) > 1:
        return None
    whole = combined(request)
    return None if max(whole.percent, whole.cores) > WHOLE else replace(request, same_gpus=True)


def _search(
    node: NodeState, request: PodRequest, limits: Limits, score: GpuScore, steps: Steps | None = None
) -> Fit | Reason:
    candidates: list[list[int]] = []
    for fraction in request.containers:
        fitting, reason = _candidates(node, fraction, limits, score)
        if len(fitting) < fraction.count:
            return _shortfall(node, fraction, reason)
        if fraction.one_numa:
            most = max(map(len, _by_numa(node, fitting)))
            if most < fraction.count:
                return Reason(Code.NUMA, fraction.count, most)
        if fraction.alike:
            most = max(map(len, alike_groups(node, fraction, fitting, limits.selects)), default=0)
            if most < fraction.count:
                return Reason(Code.ALIKE, fraction.count, most)
        candidates.append(fitting)
    apart = sum(fraction.count for fraction in request.containers if fraction.apart)
    if apart > len(node.gpus):
        return Reason(Code.TOO_FEW_GPUS, apart, len(node.gpus))
    load = _Load(node, request, limits, steps or Steps())
    chosen = next(choices(node, request, candidates, limits, load), None)
    if chosen is not None:
        demands = demands_of(node, request, chosen)
        memory = sum(demand.memory for demand in demands.values())
        return Fit(chosen, memory, sum(demand.cores for demand in demands.values()))
    most = max(limits.capacity(gpu) - usage.memory for gpu, usage in zip(node.gpus, node.usage, strict=True))
    wanted = sum(f.count * f.memory_on(node.gpus[0].usable) for f in request.containers if not f.init)
    return Reason(Code.MEMORY, wanted, max(0, most))


def _candidates(
    node: NodeState, fraction: FractionRequest, limits: Limits, score: GpuScore
) -> tuple[list[int], Reason | None]:
    """The GPUs on which the container alone fits, preferred first, and the reason of the best of the others."""
    fitting, reason = [], None
    for position, (gpu, usage) in enumerate(zip(node.gpus, node.usage, strict=True)):
        refused = gpu_reason(gpu, usage, fraction, limits)
        if refused is None:
            fitting.append(position)
        else:
            reason = further(reason, refused)
    fitting.sort(key=lambda position: (score(node.gpus[position].usable, node.usage[position]), position))
    return fitting, reason


def _shortfall(node: NodeState, fraction: FractionRequest, reason: Reason | None) -> Reason:
    if reason is None or len(node.gpus) < fraction.count:
        return Reason(Code.TOO_FEW_GPUS, fraction.count, len(node.gpus))
    return reason


def _by_numa(node: NodeState, positions: Iterable[int]) -> list[list[int]]:
    """The positions grouped by NUMA node, in the order of each group's first position."""
    groups: dict[int, list[int]] = {}
    for position in positions:
        groups.setdefault(node.gpus[position].numa, []).append(position)
    return list(groups.values())


def alike_groups(
    node: NodeState, fraction: FractionRequest, positions: Iterable[int], selects: Selects
) -> list[list[int]]:
    """
    Groups of these positions of which one must have all GPUs of the container: those on one NUMA node, of one model, of
    one alternative, as it asks. The order within a group is kept. A position may be in the groups of several
    alternatives.
    """
    wishes, groups = fraction.wishes, [list(positions)]
    if len(wishes.alternatives) > 1 and fraction.count > 1:
        accepted = {at: accepted_by(node.gpus[at], wishes, selects) for at in groups[0]}
        groups = [[at for at in groups[0] if place in accepted[at]] for place in range(len(wishes.alternatives))]
    if fraction.one_numa:
        groups = [part for group in groups for part in _by_numa(node, group)]
    if fraction.one_model:
        groups = [
            [at for at in group if node.gpus[at].model == model]
            for group in groups
            for model in dict.fromkeys(node.gpus[at].model for at in group)
        ]
    return groups


def choices(
    node: NodeState,
    request: PodRequest,
    candidates: Sequence[Sequence[int]],
    limits: Limits = DEFAULT_LIMITS,
    load: _Load | None = None,
) -> Iterator[GpuChoice]:
    """
    Every choice of GPUs for the containers, in the order of preference of the first, then the next.

    With a load, only those that it accepts, until its steps are used up.
    """
    if not candidates:
        yield ()
        return
    chosen: list[tuple[int, ...]] = []
    used: Counter[int] = Counter()
    to_try = [_options(node, request, candidates, chosen, used, limits)]
    while to_try and not (load is not None and load.spent):
        taken = next(to_try[-1], None)
        if taken is None:
            to_try.pop()
            if chosen:
                used.subtract(chosen.pop())
                if load is not None:
                    load.take_back()
        elif load is not None and not load.put(taken):
            continue
        elif len(chosen) + 1 == len(candidates):
            yield (*chosen, taken)
            if load is not None:
                load.take_back()
        else:
            chosen.append(taken)
            used.update(taken)
            to_try.append(_options(node, request, candidates, chosen, used, limits))


def fitting(node: NodeState, request: PodRequest, limits: Limits, score: GpuScore, steps: Steps) -> Iterator[GpuChoice]:
    """Every choice of GPUs on which the pod fits, preferred ones first, until the steps are used up."""
    containers = request.containers
    if request.same_gpus and len(containers) > 1:
        whole = replace(request, containers=(combined(request),), same_gpus=False)
        yield from (chosen * len(containers) for chosen in fitting(node, whole, limits, score, steps))
        return
    candidates = [_candidates(node, fraction, limits, score)[0] for fraction in containers]
    yield from choices(node, request, candidates, limits, _Load(node, request, limits, steps))


def _options(
    node: NodeState,
    request: PodRequest,
    candidates: Sequence[Sequence[int]],
    chosen: Sequence[tuple[int, ...]],
    used: Mapping[int, int],
    limits: Limits,
) -> Iterator[tuple[int, ...]]:
    """
    The GPUs that the next container may get after those that were chosen. GPUs that the pod uses already come first:
    then it uses fewer cards, and init containers need nothing more there.
    """
    place = len(chosen)
    fraction = request.containers[place]
    preferred = sorted(candidates[place], key=lambda position: not used.get(position))
    if fraction.apart:
        others = {at for each, taken in zip(request.containers, chosen, strict=False) if each.apart for at in taken}
        preferred = [position for position in preferred if position not in others]
    groups = alike_groups(node, fraction, preferred, limits.selects) if fraction.alike else [preferred]
    return chain.from_iterable(combinations(group, fraction.count) for group in groups)


class _Load:
    """
    The load of a node's GPUs with the containers placed so far, in the order of the request.

    It grows with each container, so a choice is dropped at the first container that does not fit. The total that the
    pod holds is bounded too: init containers use the cards of the others if a quota could not count the pod otherwise.
    """

    def __init__(self, node: NodeState, request: PodRequest, limits: Limits, steps: Steps) -> None:
        self._node = node
        self._request = request
        self._limits = limits
        self._steps = steps
        self._here = _MOST_STEPS
        self._running: dict[int, ConcurrentDemand] = {}
        self._before: list[dict[int, ConcurrentDemand | None]] = []
        self._most = _held_at_most(request, max(gpu.usable for gpu in node.gpus)) if _waits_for_init(request) else None
        self._held = 0, 0
        self._held_before: list[tuple[int, int]] = []

    @property
    def spent(self) -> bool:
        return self._here <= 0 or self._steps.spent

    def put(self, taken: tuple[int, ...]) -> bool:
        """Put the next container there; False, and no change, if that is too much."""
        self._here -= 1
        self._steps.left -= 1
        fraction = self._request.containers[len(self._before)]
        before = {position: self._running.get(position) for position in taken}
        memory_held, cores_held = self._held
        for position, known in before.items():
            running = known.copy() if known is not None else ConcurrentDemand()
            memory = fraction.memory_on(self._node.gpus[position].usable)
            burst = fraction.burst_on(self._node.gpus[position].usable)
            running.start(memory, fraction.cores, init=fraction.init, exclusive=fraction.exclusive, burst=burst)
            self._running[position] = running
            if not _bears(self._node, position, running.demand(), self._limits):
                self._restore(before)
                return False
            memory_held += running.peak_memory - (known.peak_memory if known is not None else 0)
            cores_held += running.peak_cores - (known.peak_cores if known is not None else 0)
        if self._most is not None and (memory_held > self._most[0] or cores_held > self._most[1]):
            self._restore(before)
            return False
        self._before.append(before)
        self._held_before.append(self._held)
        self._held = memory_held, cores_held
        return True

    def take_back(self) -> None:
        self._restore(self._before.pop())
        self._held = self._held_before.pop()

    def _restore(self, before: Mapping[int, ConcurrentDemand | None]) -> None:
        for position, running in before.items():
            if running is not None:
                self._running[position] = running
            else:
                self._running.pop(position, None)


def _waits_for_init(request: PodRequest) -> bool:
    return any(fraction.init for fraction in request.containers)


@lru_cache(maxsize=64)
def _held_at_most(request: PodRequest, usable: int) -> tuple[int, int]:
    """`held_at_most` for each node of a decision; of a pod with 256 containers it takes a millisecond."""
    return held_at_most(request, lambda fraction: fraction.memory_on(usable))


def demands_of(node: NodeState, request: PodRequest, chosen: GpuChoice) -> dict[int, Demand]:
    """The pod's usage of each chosen GPU, by the GPU's position."""
    positions = {gpu.uuid: position for position, gpu in enumerate(node.gpus)}
    placed = (
        (fraction.container, gpu.uuid, fraction.memory_on(gpu.usable), fraction.burst_on(gpu.usable))
        for fraction, taken in zip(request.containers, chosen, strict=True)
        for gpu in map(node.gpus.__getitem__, taken)
    )
    return {positions[uuid]: demand for uuid, demand in per_gpu(request, placed).items()}


def _bears(node: NodeState, position: int, demand: Demand, limits: Limits) -> bool:
    """Whether the pod's containers together fit on the GPU; each alone was checked before."""
    # The rule of `filters.shortage`, written out: this is the innermost step of the search.
    usage, gpu = node.usage[position], node.gpus[position]
    return (
        usage.memory + demand.memory <= limits.capacity(gpu)
        and (not demand.burst or usage.memory + usage.burst + demand.memory + demand.burst <= limits.in_all(gpu))
        and usage.cores + max(demand.cores, 1) <= WHOLE
        and not (demand.exclusive and usage.sharers)
    )


# -- GPUs with the best paths between them --------------------------------------------------------------------------
#
# The policy has chosen the node and the kinds of GPUs. Here GPUs are only exchanged for others of the same node that
# are equal to every policy, in kind and in usage, so no score changes. The search is exact within a bound that nodes of
# 8 GPUs never reach and nodes of 16 rarely do; beyond it the best set found so far stays.

_MOST_EXCHANGES = 4_000
"""Steps of one search, each one GPU taken or skipped: some milliseconds."""
_MORE_THAN_PAIRS = 1 << 12
"""The factor between a path and the next nearer one, so that one slow pair is worse than any number of faster ones."""
_SAME_NUMA, _FARTHEST = LINKS.index("NumaNode"), len(LINKS) - 1

Paths = list[list[int]]
"""The distance of two GPUs by their positions; only sums have a meaning."""


def connected(node: NodeState, request: PodRequest, chosen: GpuChoice, limits: Limits) -> GpuChoice:
    """
    The choice with GPUs exchanged for equal ones: with the fewest pairs over the farthest path, then over the next one.

    Only a choice with all containers on the same GPUs changes, as that of a single container. Ties go to the lowest
    positions. A pod whose GPUs must be on one NUMA node stays on the chosen one.
    """
    if len(set(chosen)) != 1 or len(chosen[0]) < 2:
        return chosen
    paths = _paths(node.gpus)
    if len({far for row, others in enumerate(paths) for at, far in enumerate(others) if at != row}) < 2:
        return chosen
    one_numa = any(fraction.one_numa for fraction in request.containers)
    chosen_from = [fraction.wishes for fraction in request.containers if len(fraction.wishes.alternatives) > 1]
    alike = [
        None
        if any(gpu_reason(gpu, usage, fraction, limits) for fraction in request.containers)
        else (
            *(gpu.model, gpu.memory, gpu.usable, gpu.sharing, gpu.numa if one_numa else -1, usage),
            *(accepted_by(gpu, wishes, limits.selects) for wishes in chosen_from),
        )
        for gpu, usage in zip(node.gpus, node.usage, strict=True)
    ]
    sorts = [alike[position] for position in chosen[0]]
    found = _Search(paths, [sorts.index(each) if each in sorts else -1 for each in alike], len(sorts))
    for sort in sorts:
        found.wanted[sorts.index(sort)] += 1
    found.go(0, 0, 0)
    return (found.best,) * len(chosen)


def far(gpus: tuple[Gpu, ...], positions: tuple[int, ...]) -> int:
    """The sum of distances within a set of GPUs, which `connected` minimizes."""
    paths = _paths(gpus)
    return sum(paths[a][b] for a in positions for b in positions if a < b)


def _paths(gpus: tuple[Gpu, ...]) -> Paths:
    """Distances from the published paths. Without one, two GPUs count as on one NUMA node if so, else as farthest."""
    published = {(gpu.uuid, peer): LINKS.index(path) for gpu in gpus for peer, path in gpu.links if path in LINKS}

    def between(one: Gpu, other: Gpu) -> int:
        here = [published[pair] for pair in ((one.uuid, other.uuid), (other.uuid, one.uuid)) if pair in published]
        unknown = _SAME_NUMA if one.numa == other.numa >= 0 else _FARTHEST
        return int(_MORE_THAN_PAIRS ** min(here, default=unknown))

    return [[between(one, other) if one is not other else 0 for other in gpus] for one in gpus]


class _Search:
    """The best set with `wanted` GPUs of each sort. `sorts` has -1 for GPUs that may not be taken."""

    def __init__(self, paths: Paths, sorts: list[int], size: int) -> None:
        self.wanted = [0] * size
        self.best: tuple[int, ...] = ()
        self._paths = paths
        self._sorts = sorts
        self._size = size
        self._least = min(far for row, others in enumerate(paths) for at, far in enumerate(others) if at != row)
        self._best_far: int | None = None
        self._taken: list[int] = []
        self._steps = 0

    def go(self, position: int, so_far: int, taken: int) -> None:
        """Take or skip the GPU at this position and those after it."""
        if taken == self._size:
            if self._best_far is None or so_far < self._best_far:
                self.best = tuple(self._taken)
                self._best_far = so_far
            return
        self._steps += 1
        if not self._may_win(position, so_far, taken):
            return
        sort = self._sorts[position]
        if sort >= 0 and self.wanted[sort]:
            row = self._paths[position]
            self.wanted[sort] -= 1
            self._taken.append(position)
            self.go(position + 1, so_far + sum(row[other] for other in self._taken), taken + 1)
            self._taken.pop()
            self.wanted[sort] += 1
        self.go(position + 1, so_far, taken)

    def _may_win(self, position: int, so_far: int, taken: int) -> bool:
        if self._size - taken > len(self._sorts) - position:
            return False
        if self._best_far is None:
            return True
        pairs = self._size * (self._size - 1) // 2 - taken * (taken - 1) // 2
        return self._steps < _MOST_EXCHANGES and so_far + pairs * self._least < self._best_far
