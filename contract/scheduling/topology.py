"""
Which of several GPUs that are alike a container gets: those that reach each other best.

The policy has chosen the node and what each GPU there is like; this only exchanges GPUs for others of the same node
that are the same to every policy, in kind and in what is taken of them, so no score changes by it. Pure. The search is
exact within a bound that nodes of 8 GPUs never reach and of 16 seldom do; beyond it the best set found so far stays.
"""

from __future__ import annotations

from contract.model import LINKS, Gpu, NodeState, PodRequest
from contract.scheduling.filters import Limits, gpu_reason
from contract.scheduling.fit import GpuChoice

_MOST_STEPS = 4_000
"""GPUs taken up or passed over in one search: some milliseconds."""
_MORE_THAN_PAIRS = 1 << 12
"""So many times worse is a path than the next nearer one: one slow pair is worse than any number of faster ones."""
_SAME_NUMA, _FARTHEST = LINKS.index("NumaNode"), len(LINKS) - 1

Paths = list[list[int]]
"""By two positions how far the GPUs are apart; only sums of it mean anything."""


def connected(node: NodeState, request: PodRequest, chosen: GpuChoice, limits: Limits) -> GpuChoice:
    """
    The choice with GPUs exchanged for like ones: the fewest pairs over the farthest path, then over the next nearer.

    Only where all containers are on the same GPUs, which one container always is. Ties go to the lowest positions. A
    pod whose GPUs must be on one NUMA node keeps the one that was chosen.
    """
    if len(set(chosen)) != 1 or len(chosen[0]) < 2:
        return chosen
    paths = _paths(node.gpus)
    if len({far for row, others in enumerate(paths) for at, far in enumerate(others) if at != row}) < 2:
        return chosen
    one_numa = any(fraction.one_numa for fraction in request.containers)
    alike = [
        None
        if any(gpu_reason(gpu, usage, fraction, limits) for fraction in request.containers)
        else (gpu.model, gpu.memory, gpu.usable, gpu.sharing, gpu.numa if one_numa else -1, usage)
        for gpu, usage in zip(node.gpus, node.usage, strict=True)
    ]
    sorts = [alike[position] for position in chosen[0]]
    found = _Search(paths, [sorts.index(each) if each in sorts else -1 for each in alike], len(sorts))
    for sort in sorts:
        found.wanted[sorts.index(sort)] += 1
    found.go(0, 0, 0)
    return (found.best,) * len(chosen)


def far(gpus: tuple[Gpu, ...], positions: tuple[int, ...]) -> int:
    """How far a set of GPUs is apart: what `connected` makes least."""
    paths = _paths(gpus)
    return sum(paths[a][b] for a in positions for b in positions if a < b)


def _paths(gpus: tuple[Gpu, ...]) -> Paths:
    """Two GPUs that tell nothing of each other count as on one NUMA node where they are, else as the farthest apart."""
    told = {(gpu.uuid, peer): LINKS.index(path) for gpu in gpus for peer, path in gpu.links if path in LINKS}

    def between(one: Gpu, other: Gpu) -> int:
        here = [told[pair] for pair in ((one.uuid, other.uuid), (other.uuid, one.uuid)) if pair in told]
        unknown = _SAME_NUMA if one.numa == other.numa >= 0 else _FARTHEST
        return int(_MORE_THAN_PAIRS ** min(here, default=unknown))

    return [[between(one, other) if one is not other else 0 for other in gpus] for one in gpus]


class _Search:
    """Sets with so many GPUs of each sort, the lowest positions first. `sorts` has -1 for what may not be taken."""

    def __init__(self, paths: Paths, sorts: list[int], size: int) -> None:
        self.wanted = [0] * size
        self.best: tuple[int, ...] = ()
        self._paths, self._sorts, self._size = paths, sorts, size
        self._least = min(far for row, others in enumerate(paths) for at, far in enumerate(others) if at != row)
        self._best_far: int | None = None
        self._taken: list[int] = []
        self._steps = 0

    def go(self, position: int, so_far: int, taken: int) -> None:
        """Decide on the GPU at this position and those after it."""
        if taken == self._size:
            if self._best_far is None or so_far < self._best_far:
                self.best, self._best_far = tuple(self._taken), so_far
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
        return self._steps < _MOST_STEPS and so_far + pairs * self._least < self._best_far
