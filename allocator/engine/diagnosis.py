"""
Why a pod fits nowhere, added up over all nodes at once.

The counts are those of `reasons.tally` over the reasons that `reference.evaluate` gives node by node. In a full cluster
the result is mostly "no", so a "no" must not cost more than a "yes".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from allocator.table import Amounts, Columns, Flags, StaticFilterResult
from contract.model import WHOLE, FractionRequest
from contract.reasons.nodes import CODES, Code, NodeCode, Reason, ReasonCount
from contract.scheduling.needs import PodNeeds

Amount = Amounts | int
Wished = tuple[Flags | None, Flags | None, Flags | None]
"""GPUs that the wishes accept by UUID, by model and by selectors; None if they accept all."""


class FirstReasons:
    """Per node the first reason found: its code, the wanted amount and the largest amount available."""

    def __init__(self, columns: Columns, static: StaticFilterResult) -> None:
        self._columns = columns
        self._static = static
        self.codes: Amounts = static.codes.astype(np.int64)
        self._wanted: Amounts = np.zeros_like(self.codes)
        self._most: Amounts = np.zeros_like(self.codes)
        self._ports: Mapping[int, str] = {}
        self._refused: dict[int, Reason] = {}

    @property
    def without_reason(self) -> Flags:
        """Nodes for which no reason was found yet."""
        found: Flags = self.codes == 0
        return found

    def add(self, where: Flags, code: Code | Amounts, wanted: Amount = 0, most: Amount = 0) -> None:
        """Add a reason to those of these nodes that have none yet."""
        new = where & (self.codes == 0)
        if not new.any():
            return
        for column, value in ((self.codes, code), (self._wanted, wanted), (self._most, most)):
            column[new] = value[new] if isinstance(value, np.ndarray) and value.ndim else value

    def add_ports(self, conflicts: Mapping[int, str]) -> None:
        """Add host ports in use, by the node's index."""
        where: Flags = np.zeros(len(self.codes), np.bool_)
        where[list(conflicts)] = True
        self.add(where, Code.PORTS)
        self._ports = conflicts

    def add_refused(self, refused: Mapping[int, Reason]) -> None:
        """Add refusals for reasons that are not in the columns, by the node's index."""
        for row, reason in refused.items():
            if not self.codes[row]:
                self.codes[row], self._wanted[row], self._most[row] = reason.code, reason.wanted, reason.most
                self._refused[row] = reason

    def counts(self) -> tuple[ReasonCount, ...]:
        """All reasons, added up by code."""
        found = []
        for number in np.flatnonzero(np.bincount(self.codes, minlength=1)):
            here = self.codes == number
            if number:
                code, nodes = self._code(int(number), here), int(np.count_nonzero(here))
                figures = int(self._wanted[here].max()), int(self._most[here].max())
                found.append(ReasonCount(code, nodes, *figures, self._what(code, here)))
        return tuple(found)

    def _code(self, number: int, here: Flags) -> NodeCode:
        """The code with this number. A filter's code that is not in the table is in its reason."""
        known = CODES.get(number)
        return known or next(reason.code for row, reason in self._refused.items() if here[row])

    def _what(self, code: NodeCode, here: Flags) -> str:
        if code is Code.TAINT:
            return min(self._static.taints[int(number)] for number in np.unique(self._columns.attributes.taints[here]))
        if code is Code.PORTS:
            return min(self._ports[int(row)] for row in np.flatnonzero(here))
        beyond = (reason.what for row, reason in self._refused.items() if here[row] and reason.code is code)
        return min(beyond, default="")


def add_compute(found: FirstReasons, columns: Columns, needs: PodNeeds) -> None:
    """`filters.compute_reason` of every node."""
    wanted = needs.compute
    for code, amount, free in (
        (Code.CPU, wanted.cpu, columns.free_cpu),
        (Code.MEMORY_OF_NODE, wanted.memory, columns.free_memory),
        (Code.STORAGE, wanted.storage, columns.free_storage),
        (Code.PODS, wanted.pods, columns.free_pods),
    ):
        if amount or code is Code.PODS:
            found.add(free < amount, code, amount, np.maximum(free, 0))


def add_gpus(
    found: FirstReasons,
    columns: Columns,
    fraction: FractionRequest,
    wanted: Amounts,
    limit: Amounts,
    bears: Flags,
    wished: Wished,
) -> None:
    """Add nodes on which too few GPUs take the share, with the reason of the GPU that passed the most checks."""
    short = np.count_nonzero(bears, axis=0) < fraction.count
    found.add(short & (columns.gpus < fraction.count), Code.TOO_FEW_GPUS, fraction.count, columns.gpus)
    found.add(short, *_furthest(columns, fraction, wanted, limit, wished))


def add_numa(found: FirstReasons, columns: Columns, fraction: FractionRequest, bears: Flags) -> None:
    """Add nodes on which enough GPUs take the share, but not on one NUMA node."""
    if fraction.one_numa:
        most = columns.most_on_one_numa(bears)
        found.add(most < fraction.count, Code.NUMA, fraction.count, most)


def add_alike(found: FirstReasons, fraction: FractionRequest, alike: Amounts | None) -> None:
    """Add nodes on which enough GPUs take the share, but not of one model or alternative."""
    if alike is not None:
        found.add(alike < fraction.count, Code.ALIKE, fraction.count, alike)


def add_apart(found: FirstReasons, columns: Columns, fractions: Iterable[FractionRequest]) -> None:
    """Add nodes with fewer GPUs than containers on different GPUs request together."""
    wanted = sum(fraction.count for fraction in fractions if fraction.apart)
    if wanted:
        found.add(columns.gpus < wanted, Code.TOO_FEW_GPUS, wanted, columns.gpus)


def _furthest(
    columns: Columns, fraction: FractionRequest, wanted: Amounts, limit: Amounts, wished: Wished
) -> tuple[Amounts, Amounts, Amounts]:
    """Per node the furthest code among GPUs that do not take the share, the wanted amount, and the most free there."""
    found = _Furthest(columns)
    for code, refuses, *figures in _stages(columns, fraction, wanted, limit, wished):
        found.refuse(code, refuses, *figures)
        if not found.left.any():
            break
    return found.code, found.want, found.most


def _stages(
    columns: Columns, fraction: FractionRequest, wanted: Amounts, limit: Amounts, wished: Wished
) -> Iterator[tuple[Code, Flags, Amounts, Amounts]]:
    """In the order of `filters.gpu_reason`: the code, the GPUs that do not pass, the amounts wanted and free."""
    for code, accepted in zip((Code.UUID, Code.MODEL, Code.GPU_SELECTOR), wished, strict=True):
        if accepted is not None:
            yield code, ~accepted, _NONE, _NONE
    if fraction.limit:
        allowed = columns.allowed_limit(fraction)
        yield Code.LIMIT_TOO_LARGE, (limit > wanted) & (limit > allowed), limit, allowed
    yield Code.EXCLUSIVE, columns.exclusive, _NONE, _NONE
    if fraction.exclusive:
        yield Code.BUSY, columns.sharers > 0, _NONE, _NONE
    yield Code.SHARERS, columns.sharers >= columns.most_sharers, columns.most_sharers, _NONE
    yield Code.MEMORY, columns.free < wanted, wanted, columns.free
    if fraction.limit:
        beyond = (limit > wanted) & (columns.free_limits < limit)
        yield Code.LIMITS_IN_ALL, beyond, limit, columns.free_limits
    cores = np.array(fraction.cores or 1, np.int64)
    yield Code.CORES, columns.free_cores < cores, cores, columns.free_cores
    if fraction.alone:
        yield Code.NEIGHBOUR_STARTING, columns.starting > 0, _NONE, _NONE


_NONE: Amounts = np.array(0, np.int64)
"""Where there are no figures."""


class _Furthest:
    """The reasons of the GPUs of each node, stage by stage. The latest counts."""

    def __init__(self, columns: Columns) -> None:
        height = len(columns.nodes)
        self.code: Amounts = columns.withheld.max(axis=0)
        self.want: Amounts = np.zeros(height, np.int64)
        self.most: Amounts = np.zeros(height, np.int64)
        self.left: Flags = columns.exists & columns.healthy
        """GPUs for which no reason was found yet."""

    def refuse(self, code: Code, refuses: Flags, wanted: Amounts, free: Amounts) -> None:
        """Set the reason of these GPUs. Of GPUs with the same room, the one with the larger wanted amount counts."""
        refused = self.left & refuses
        self.left ^= refused
        nodes = refused.any(axis=0)
        if not nodes.any():
            return
        here = slice(None) if nodes.all() else nodes
        most, largest = free, refused[:, here]
        if free.ndim:
            room = np.where(largest, np.maximum(free[:, here], 0), -1)
            most = room.max(axis=0)
            largest = room == most
        self.code[here], self.most[here] = code, most
        self.want[here] = np.where(largest, wanted[:, here], 0).max(axis=0) if wanted.ndim else wanted


def add_together(found: FirstReasons, columns: Columns, fractions: Iterable[FractionRequest]) -> None:
    """Add all remaining nodes: their GPUs take each container alone, but not all of them together."""
    wanted: Amounts = np.zeros(len(columns.nodes), np.int64)
    for fraction in fractions:
        if not fraction.init:
            wanted += fraction.count * (fraction.memory or columns.usable[0] * fraction.percent // WHOLE)
    most = np.where(columns.exists, columns.free, 0).max(axis=0)
    found.add(found.without_reason, Code.MEMORY, wanted, most)
