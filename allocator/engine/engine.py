"""
The decisions of `allocator.engine.reference`, fast: it evaluates the whole cluster at once by columns, and a cold cache
does not increase the cost.

For one container, or containers that share their GPUs, the columns alone decide. For several containers on separate
GPUs, the columns narrow down and rank the nodes. These are then fitted one by one, the most promising first, until no
other node can be better. The decisions are those of the plain engine, including ties and the reasons of a "no".

Whether a request can be satisfied at all is checked once for each class of nodes (`NodeClasses`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from allocator.engine import diagnosis, reference
from allocator.engine.diagnosis import FirstReasons, Wished
from allocator.engine.reference import (
    DEFAULT_POLICY,
    FINE,
    NOWHERE,
    Decision,
    Placement,
    Policy,
    Prefer,
    Unschedulable,
    policy_of,
)
from allocator.scoring.ranking import Ranks
from allocator.scoring.tables import Tables
from allocator.table import Amounts, Columns, Flags, StaticFilterResult
from contract.model import WHOLE, FractionRequest, Gpu, GpuKind, NodeState, PoolSharing, Wishes
from contract.reasons.nodes import NodeCode, Reason, ReasonCount
from contract.scheduling import fit
from contract.scheduling.filters import DEFAULT_LIMITS, Limits, kind_accepted, wishes_for_kind
from contract.scheduling.fit import Fit, Steps
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.selecting import is_selected, named_uuids

_NEVER = np.iinfo(np.int64).max
_UP = 1.0 + 1e-12
"""More than what a division in floating point may lose."""
_NOWHERE: Flags = np.zeros(0, np.bool_)
_STEP = 1024
"""Nodes that are evaluated with new tables in one step, which takes about a millisecond."""
_WISHES = 64
"""Wishes for models whose GPUs are cached. Tenants choose them, so there must be a bound."""


Kind = tuple[tuple[str, int, int, PoolSharing, int, bool, str], ...]
"""
For each GPU: its model, total memory, usable memory, sharing options, NUMA node, whether it is a slice, and compute
capability.
"""


@dataclass(frozen=True, slots=True)
class ShareQuery:
    """Compares one container's share with every GPU."""

    fraction: FractionRequest
    wanted: Amounts
    """Bytes of each GPU; one number for all of them if the request is in bytes."""
    limit: Amounts
    """Bytes of each GPU up to its memory limit; `wanted` if that is the limit."""
    wished: Wished
    bears: Flags
    """GPUs that take the share."""
    enough: Flags
    """Nodes with as many of those as the container requests."""
    alike: Amounts | None = None
    """Per node the largest number of those that the container may have together; None if any set is possible."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Compares one pod with every node: the static filter, host ports in use, the pod's shares, the remaining nodes."""

    ask: SchedulingRequest
    static: StaticFilterResult
    conflicts: Mapping[int, str]
    shares: list[ShareQuery]
    passing: Flags
    refused: Mapping[int, Reason]
    """Nodes that are refused because of other nodes or objects, by index."""
    short: Mapping[int, Reason]
    """Nodes that lack a resource other than CPU, memory and storage, or where Kubernetes counts too much, by index."""


class NodeClasses:
    """
    The classes of nodes, and the node of each GPU.

    Nodes whose GPUs are equal except for their UUIDs, position by position, are one class. Whether a request can be
    satisfied at all is the same for all nodes of a class. Only a wish for certain GPUs by UUID distinguishes two nodes
    of a class, so nodes with such GPUs are checked separately. Not thread-safe: one owner calls it.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}
        self._kind_of: dict[str, Kind] = {}
        self._members: dict[Kind, dict[str, None]] = {}
        self._owners: dict[str, tuple[str, ...]] = {}

    def put(self, node: NodeState) -> None:
        """A node is new or changed."""
        before = self._nodes.get(node.name)
        if before is not None and before.gpus is not node.gpus and before.gpus != node.gpus:
            self.drop(node.name)
            before = None
        if before is None and node.gpus:
            kind = tuple(
                (g.model, g.memory, g.usable, g.sharing, g.numa, bool(g.parent), g.capability) for g in node.gpus
            )
            self._kind_of[node.name] = kind
            self._members.setdefault(kind, {})[node.name] = None
            alone = (node.name,)
            for gpu in node.gpus:
                others = self._owners.get(gpu.uuid)
                self._owners[gpu.uuid] = alone if others is None else (*others, node.name)
        self._nodes[node.name] = node

    def drop(self, name: str) -> None:
        """A node was deleted."""
        node, kind = self._nodes.pop(name, None), self._kind_of.pop(name, None)
        if node is None or kind is None:
            return
        del self._members[kind][name]
        if not self._members[kind]:
            del self._members[kind]
        for gpu in node.gpus:
            others = tuple(owner for owner in self._owners.get(gpu.uuid, ()) if owner != name)
            if others:
                self._owners[gpu.uuid] = others
            else:
                self._owners.pop(gpu.uuid, None)

    def owners(self, uuids: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(node, uuid) for each of these GPUs that exists."""
        for uuid in uuids:
            for name in self._owners.get(uuid, ()):
                yield name, uuid

    def could_ever(self, ask: SchedulingRequest, limits: Limits) -> Unschedulable | None:
        """The same as `reference.could_ever` on all nodes."""
        named = {uuid for fraction in ask.request.containers for uuid in _named(fraction)}
        apart = {name for name, _ in self.owners(named)}
        total: dict[NodeCode, ReasonCount] = {}
        for node, number in self._groups(apart):
            found = reference.could_ever({node.name: node}, ask, limits=limits)
            if found is None:
                return None
            for tally in found.reasons:
                total[tally.code] = _plus(total.get(tally.code), tally, number)
        return Unschedulable(tuple(total[code] for code in sorted(total))) if total else None

    def _groups(self, apart: set[str]) -> Iterator[tuple[NodeState, int]]:
        """A node, and how many nodes it represents."""
        for name in apart:
            yield self._nodes[name], 1
        for members in self._members.values():
            number = len(members) - sum(name in members for name in apart)
            if number:
                yield self._nodes[next(name for name in members if name not in apart)], number

    def smallest_accepted(self, fraction: FractionRequest, limits: Limits = DEFAULT_LIMITS) -> int:
        """
        Usable bytes of the smallest GPU that the request accepts by kind, UUID and selectors; 0 if there is none.
        """
        apart = {name for name, _ in self.owners(_named(fraction))}
        gpus = (gpu for node, _ in self._groups(apart) for gpu in node.gpus)
        return min((gpu.usable for gpu in gpus if _accepted(gpu, fraction, limits)), default=0)

    def cards(self) -> set[GpuKind]:
        """The existing kinds of GPUs."""
        return {GpuKind(model, memory, usable) for kind in self._members for model, memory, usable, *_ in kind}


class Engine:
    """Decides for one set of nodes. The owner passes in all changes. Not thread-safe: one owner calls it."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS, policy: Policy = DEFAULT_POLICY) -> None:
        self.limits = limits
        self.policy = policy
        self._nodes: dict[str, NodeState] = {}
        self._classes = NodeClasses()
        self._columns: Columns | None = None
        self._ranks: Ranks | None = None
        self._wished: dict[object, tuple[int, Flags]] = {}
        """The GPUs that a wish for models accepts, and the layout of the columns at that time."""
        self.tables: Tables | None = None
        """The value that was adopted last."""

    # -- what changed ---------------------------------------------------------------------------------------------

    def put(self, node: NodeState) -> None:
        """A node is new or changed."""
        self._nodes[node.name] = node
        self._classes.put(node)
        if self._columns is not None and not self._columns.put(node):
            self._columns = None

    def drop(self, name: str) -> None:
        """A node was deleted."""
        if self._nodes.pop(name, None) is not None:
            self._classes.drop(name)
            if self._columns is not None:
                self._columns.drop(name)

    def abandon(self, name: str) -> None:
        """Drop a node that caused an error, in any state that the error left."""
        self._nodes.pop(name, None)
        self._columns = None
        self._classes = NodeClasses()
        for node in self._nodes.values():
            self._classes.put(node)

    def takes(self, node: NodeState) -> bool:
        """Whether the engine can decide with this node at all."""
        try:
            Columns((node,), self.limits)
        except Exception:
            return False
        return True

    def adopt(self, tables: Tables | None) -> None:
        """Use these tables from now on, if the policy learns. None: nothing is learnt yet."""
        self.tables = tables
        self._ranks = None
        if tables is not None and self._columns is not None:
            self._ranks = Ranks(tables, self._columns)
            self._ranks.warm(0, len(self._columns.nodes))

    def adopting(self, tables: Tables) -> Iterator[None]:
        """
        `adopt` in steps of a few milliseconds at most, so that no decision waits until all nodes are evaluated.

        Between two steps, this engine may decide and get changes. It uses the new tables after the last step.
        """
        columns = self._columns
        if columns is not None:
            ranks = Ranks(tables, columns)
            for start in range(0, len(columns.nodes), _STEP):
                yield
                ranks.warm(start, start + _STEP)
            if self._columns is columns:
                self.tables = ranks.tables = self._awaiting(tables)
                self._ranks = ranks
                return
        self.adopt(self._awaiting(tables))

    def _awaiting(self, tables: Tables) -> Tables:
        """These tables, with the same demand."""
        return tables if self.tables is None else replace(tables, awaited=self.tables.awaited)

    def spare(self, cards: Iterable[int]) -> None:
        """
        Set the numbers of whole cards of one node for which pods wait from now on. Numbers that exceed every node are
        ignored. Meanwhile, `value` prefers nodes with fewer free cards (`allocator.scoring.reference.spared`). The call
        is cheap.
        """
        if self.tables is None or self.tables.policy != "value":
            return
        awaited = max((each for each in cards if 1 < each <= self.tables.largest), default=0)
        if self.tables.awaited == awaited:
            return
        self.tables = replace(self.tables, awaited=awaited)
        if self._ranks is not None:
            self._ranks.tables = self.tables

    def prepare(self) -> Columns:
        """Create missing columns before a decision needs them. This takes a tenth of a second at 5,000 nodes."""
        if self._columns is None:
            self._columns = Columns(self._nodes.values(), self.limits)
            self._wished.clear()
            self.adopt(self.tables)  # the cached values use the slots of these columns
        return self._columns

    # -- questions ------------------------------------------------------------------------------------------------

    def decide(
        self, ask: SchedulingRequest, refused: Mapping[str, Reason] = NOWHERE, prefer: Prefer | None = None
    ) -> Decision:
        """The same as `reference.decide` on these nodes with the engine's limits and policy."""
        columns = self.prepare()
        *firsts, last = reference.forms_of(ask, policy_of(ask, self.policy), self.tables)
        for form in firsts:
            question = self._question(columns, form, refused)
            found = self._answer(columns, question, prefer)
            if found is not None:
                return found
        question = self._question(columns, last, refused)
        return self._answer(columns, question, prefer) or _refusal(columns, question)

    def could_ever(self, ask: SchedulingRequest) -> Unschedulable | None:
        """The same as `reference.could_ever`, with one check for each class of nodes."""
        return self._classes.could_ever(ask, self.limits)

    def smallest_accepted(self, fraction: FractionRequest) -> int:
        """Usable bytes of the smallest GPU whose model the share accepts, in any state; 0 if there is none."""
        return self._classes.smallest_accepted(fraction, self.limits)

    def cards(self) -> set[GpuKind]:
        """The kinds of GPUs of all nodes."""
        return self._classes.cards()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _question(self, columns: Columns, ask: SchedulingRequest, refused: Mapping[str, Reason]) -> NodeQuery:
        static, conflicts = columns.attributes.static_filter(ask.needs), columns.attributes.port_conflicts(ask.needs)
        passing = _passing(columns, static, ask.needs)
        by_row = {columns.row_of[name]: reason for name, reason in refused.items() if name in columns.row_of}
        short = {**columns.counted_shortages(ask), **columns.scalar_shortages(ask.needs.compute)}
        excluded = [*conflicts, *by_row, *short]
        if excluded:
            passing[excluded] = False
        request = ask.request
        fractions = (fit.combined(request),) if ask.together and request.same_gpus else request.containers
        shares = [self._share(columns, fraction) for fraction in fractions]
        for share in shares:
            passing &= share.enough
        return NodeQuery(ask, static, conflicts, shares, passing, by_row, short)

    def _answer(self, columns: Columns, query: NodeQuery, prefer: Prefer | None) -> Placement | None:
        if not query.passing.any():
            return None
        ask, shares, passing = query.ask, query.shares, query.passing
        if reference.tables_of(ask, policy_of(ask, self.policy), self.tables) is not None:
            return self._by_ranks(columns, ask, shares, passing, prefer)
        by_columns = ask.together and shares and not ask.alike
        search = self._by_columns if by_columns else self._node_by_node
        return search(columns, ask, shares, passing, prefer)

    def _share(self, columns: Columns, fraction: FractionRequest) -> ShareQuery:
        wanted = _wanted(columns, fraction)
        limit = _limit(columns, fraction, wanted)
        wished = (
            self._wished_uuids(columns, fraction),
            self._wished_models(columns, fraction),
            self._selected(columns, fraction.wishes),
        )
        bears: Flags = columns.free >= wanted
        bears &= columns.free_cores >= (fraction.cores or 1)
        bears &= columns.open
        if fraction.limit:
            most = np.minimum(columns.allowed_limit(fraction), columns.free_limits)
            bears &= (limit <= most) | (limit == wanted)
        if fraction.exclusive:
            bears &= columns.sharers == 0
        if fraction.alone:
            bears &= columns.starting == 0
        for accepted in wished:
            if accepted is not None:
                bears &= accepted
        enough: Flags = bears.sum(axis=0, dtype=np.int16) >= fraction.count
        if fraction.one_numa:
            enough &= columns.most_on_one_numa(bears) >= fraction.count
        alike = self._most_alike(columns, fraction, bears) if fraction.alike else None
        if alike is not None:
            enough &= alike >= fraction.count
        return ShareQuery(fraction, wanted, limit, wished, bears, enough, alike)

    def _wished_uuids(self, columns: Columns, fraction: FractionRequest) -> Flags | None:
        use, avoid = fraction.wishes.use_uuids, fraction.wishes.avoid_uuids
        if not use and not avoid:
            return None
        accepted: Flags = np.full(columns.exists.shape, not use, np.bool_)
        for uuids, value in ((use, True), (avoid, False)):
            for name, uuid in self._classes.owners(uuids):
                row = columns.row_of[name]
                for position, gpu in enumerate(columns.nodes[row].gpus):
                    if gpu.uuid == uuid:
                        accepted[position, row] = value
        return accepted

    def _wished_models(self, columns: Columns, fraction: FractionRequest) -> Flags | None:
        if not wishes_for_kind(fraction):
            return None
        wishes = fraction.wishes
        key = wishes.use_models, wishes.avoid_models, wishes.least_memory
        layout, wished = self._wished.get(key, (-1, _NOWHERE))
        if layout != columns.layout:
            accepted = [kind_accepted(gpu.model, gpu.memory, fraction) for gpu in columns.models] or [False]
            wished = np.array(accepted, np.bool_)[columns.model]
            if len(self._wished) >= _WISHES:
                self._wished.clear()
            self._wished[key] = columns.layout, wished
        return wished

    def _selected(self, columns: Columns, wishes: Wishes) -> Flags | None:
        """GPUs that the selectors accept; None if they accept all."""
        if not wishes.selects:
            return None
        selects = self.limits.selects
        kinds = [is_selected(replace(gpu, uuid=""), wishes, selects) for gpu in columns.sights] or [False]
        accepted: Flags = np.array(kinds, np.bool_)[columns.sight] & columns.exists
        for name, uuid in self._classes.owners(named_uuids(wishes)):
            row = columns.row_of[name]
            for position, gpu in enumerate(columns.nodes[row].gpus):
                if gpu.uuid == uuid:
                    accepted[position, row] = is_selected(gpu, wishes, selects)
        return accepted

    def _most_alike(self, columns: Columns, fraction: FractionRequest, bears: Flags) -> Amounts:
        """Per node the size of the largest of `fit.alike_groups` among the GPUs that fit the share."""
        wishes, groups = fraction.wishes, [bears]
        if len(wishes.alternatives) > 1:
            groups = []
            for alternative in wishes.alternatives:
                accepted = self._selected(columns, replace(wishes, alternatives=(alternative,)))
                groups.append(bears if accepted is None else bears & accepted)
        if fraction.one_numa:
            groups = [group & (columns.numa == numa) for group in groups for numa in np.unique(columns.numa)]
        if fraction.one_model:
            named: dict[str, list[int]] = {}
            for number, gpu in enumerate(columns.models):
                named.setdefault(gpu.model, []).append(number)
            groups = [group & np.isin(columns.model, numbers) for group in groups for numbers in named.values()]
        most: Amounts = np.zeros(len(columns.nodes), np.int64)
        for group in groups:
            np.maximum(most, np.count_nonzero(group, axis=0), out=most)
        return most

    def _by_ranks(
        self,
        columns: Columns,
        ask: SchedulingRequest,
        shares: list[ShareQuery],
        passing: Flags,
        prefer: Prefer | None,
    ) -> Placement:
        assert self._ranks is not None
        fraction, bears = (shares[0].fraction, shares[0].bears) if shares else (None, passing[None, :])
        choose = None if prefer is None else partial(_preferred, columns, prefer)
        row, positions = self._ranks.best(fraction, ask.needs.compute.cpu, bears, np.flatnonzero(passing), choose)
        node = columns.nodes[row]
        return reference.given(node, ask.request, (positions,) * len(ask.request.containers), self.limits)

    def _by_columns(
        self,
        columns: Columns,
        ask: SchedulingRequest,
        shares: list[ShareQuery],
        passing: Flags,
        prefer: Prefer | None,
    ) -> Placement:
        share, policy = shares[0], policy_of(ask, self.policy)
        policy = DEFAULT_POLICY if policy.learned else policy
        row = _best_node(columns, share, passing, policy, prefer)
        left = columns.left[:, row] if policy.gpu == "binpack" else -columns.left[:, row]
        keys = np.where(share.bears[:, row], left, _NEVER)
        positions = tuple(int(position) for position in keys.argsort(kind="stable")[: share.fraction.count])
        node = columns.nodes[row]
        chosen = (positions,) * len(ask.request.containers)
        return reference.given(node, ask.request, chosen, self.limits)

    def _node_by_node(
        self,
        columns: Columns,
        ask: SchedulingRequest,
        shares: list[ShareQuery],
        passing: Flags,
        prefer: Prefer | None,
    ) -> Placement | None:
        """
        Fit the most promising node first. Ends when no remaining node can be better, or when the search gets too long.

        With preferences, it evaluates every node that can be as good.
        """
        policy = policy_of(ask, self.policy)
        policy = DEFAULT_POLICY if policy.learned else policy
        rows = _room_together(columns, shares, passing)
        bound = _best_possible(columns, shares, policy)[rows]
        least, best = 0, dict[int, Fit]()
        steps = Steps()
        for at in bound.argsort(kind="stable"):
            row = int(rows[at])
            beaten = min(best) if prefer is None and best else len(columns.nodes)
            if steps.spent or (best and (least, beaten) < (int(bound[at]), row)):
                break
            verdict = reference.evaluate(columns.nodes[row], ask, self.limits, policy, steps=steps)
            if isinstance(verdict, Reason) or (best and verdict[0] > least):
                continue
            if verdict[0] < least or not best:
                least, best = verdict[0], {}
            best[row] = verdict[1]
        if not best:
            return None
        chosen = int(_preferred(columns, prefer, np.array(sorted(best), np.int64))[0])
        return reference.given(columns.nodes[chosen], ask.request, best[chosen].chosen, self.limits)


def _refusal(columns: Columns, query: NodeQuery) -> Unschedulable:
    """Why no node takes the pod."""
    found, needs = FirstReasons(columns, query.static), query.ask.needs
    found.add_ports(query.conflicts)
    found.add_refused(query.refused)
    diagnosis.add_compute(found, columns, needs)
    found.add_refused(query.short)
    for share in query.shares:
        diagnosis.add_gpus(found, columns, share.fraction, share.wanted, share.limit, share.bears, share.wished)
        diagnosis.add_numa(found, columns, share.fraction, share.bears)
        diagnosis.add_alike(found, share.fraction, share.alike)
    diagnosis.add_apart(found, columns, query.ask.request.containers)
    diagnosis.add_together(found, columns, query.ask.request.containers)
    return Unschedulable(found.counts())


def _passing(columns: Columns, static: StaticFilterResult, needs: PodNeeds) -> Flags:
    """Nodes that take the pod, without checking GPUs and host ports."""
    compute = needs.compute
    passing: Flags = static.passes & (columns.free_pods >= compute.pods)
    for wanted, free in (
        (compute.cpu, columns.free_cpu),
        (compute.memory, columns.free_memory),
        (compute.storage, columns.free_storage),
    ):
        if wanted:
            passing &= free >= wanted
    return passing


def _wanted(columns: Columns, fraction: FractionRequest) -> Amounts:
    if fraction.memory or not fraction.percent:
        return np.array(fraction.memory, np.int64)
    return _wanted_of(fraction, columns.usable)


def _wanted_of(fraction: FractionRequest, usable: Amounts) -> Amounts:
    """`FractionRequest.memory_on` of GPUs of these sizes, for a share in percent."""
    wanted: Amounts = usable * fraction.percent // WHOLE
    return wanted


def _limit(columns: Columns, fraction: FractionRequest, wanted: Amounts) -> Amounts:
    """`wanted` with `FractionRequest.burst_on`."""
    if not fraction.limit:
        return wanted
    if fraction.memory:
        return np.array(max(fraction.limit, fraction.memory), np.int64)
    limit: Amounts = np.maximum(columns.usable * fraction.limit // WHOLE, wanted)
    return limit


def _preferred(columns: Columns, prefer: Prefer | None, rows: Amounts) -> Amounts:
    """The nodes that the pod prefers most among these, which have the same score."""
    if prefer is None or len(rows) < 2:
        return rows
    liked = np.array(prefer([columns.nodes[int(row)] for row in rows]), np.int64)
    most: Amounts = rows[liked == liked.max()]
    return most


def _best_node(columns: Columns, share: ShareQuery, passing: Flags, policy: Policy, prefer: Prefer | None) -> int:
    """The node that the policy prefers among those that take one share. Of equal ones, the one that the pod prefers."""
    fraction = share.fraction
    rows = np.flatnonzero(passing)
    if not share.wanted.ndim:
        taken = fraction.count * share.wanted
    else:  # the amount depends on which GPUs are preferred
        left = columns.left[:, rows] if policy.gpu == "binpack" else -columns.left[:, rows]
        keys = np.where(share.bears[:, rows], left, _NEVER)
        chosen = keys.argsort(axis=0, kind="stable")[: fraction.count]
        taken = np.take_along_axis(share.wanted[:, rows], chosen, axis=0).sum(axis=0)
    used = _used_share(columns, rows, taken, fraction.count * fraction.cores)
    best = used.argmax() if policy.node == "binpack" else used.argmin()
    if prefer is None:
        return int(rows[best])
    return int(_preferred(columns, prefer, rows[used == used[best]])[0])


def _used_share(columns: Columns, rows: Amounts | slice, memory: Amounts, cores: int) -> Amounts:
    """The `reference.used_share` of these nodes."""
    total = columns.total[rows]
    by_memory = ((columns.taken[rows] + memory) >> 20) * FINE // np.maximum(total >> 20, 1)
    by_cores = (columns.taken_cores[rows] + cores) * FINE // np.maximum(WHOLE * columns.gpus[rows], 1)
    share: Amounts = np.where(total > 0, np.maximum(by_memory, by_cores), 0)
    return share


def _best_possible(columns: Columns, shares: list[ShareQuery], policy: Policy) -> Amounts:
    """
    A bound for each node: the best score that several containers can reach there.

    Containers that end before the others start cost nothing at best and their whole share at worst; a share in percent
    costs that of the node's smallest GPU at best and of its largest at worst. A score is better the more is used under
    `binpack`, the less under `spread`.
    """
    most = policy.node == "binpack"
    memory: Amounts = np.zeros(len(columns.nodes), np.int64)
    cores, sizes = 0, _largest_sizes(columns) if most else _least_sizes(columns)
    for share in shares:
        if most or not share.fraction.init:
            cores += share.fraction.count * share.fraction.cores
            memory += share.fraction.count * (_wanted_of(share.fraction, sizes) if share.wanted.ndim else share.wanted)
    used = _used_share(columns, slice(None), memory, cores)
    return -used if most else used


def _largest_sizes(columns: Columns) -> Amounts:
    """Per node the usable bytes of its largest GPU; 0 without GPUs."""
    sizes: Amounts = columns.usable.max(axis=0)
    return sizes


def _least_sizes(columns: Columns) -> Amounts:
    """Per node the usable bytes of its smallest GPU; 0 without GPUs."""
    sizes: Amounts = np.where(columns.exists, columns.usable, _NEVER).min(axis=0)
    sizes[columns.gpus == 0] = 0
    return sizes


def _room_together(columns: Columns, shares: list[ShareQuery], passing: Flags) -> Amounts:
    """
    The nodes on which several containers may have room. The others certainly have none.

    A GPU takes at most one share of each container, and no more of the smallest share than its free memory and cores
    hold. Without this a search would try every combination on node after node in a full cluster.
    """
    lasting = [share for share in shares if not share.fraction.init]
    if len(lasting) < 2:
        return np.flatnonzero(passing)
    takes: Amounts = np.zeros(columns.exists.shape, np.int64)
    least: Amounts = np.array(_NEVER, np.int64)
    for share in lasting:
        takes += share.bears
        least = np.minimum(least, share.wanted)
    np.minimum(takes, _quotients(columns.free, least), out=takes, where=least > 0)
    cores = min(share.fraction.cores for share in lasting)
    if cores:
        np.minimum(takes, columns.free_cores // cores, out=takes)
    np.maximum(takes, 0, out=takes)
    enough = takes.sum(axis=0) >= sum(share.fraction.count for share in lasting)
    return np.flatnonzero(passing & enough)


def _quotients(amounts: Amounts, sizes: Amounts) -> Amounts:
    """How many of these sizes are in the amounts. At least that: rounding makes it one more, and not one less."""
    quotients: Amounts = (amounts / np.maximum(sizes, 1) * _UP).astype(np.int64)
    return quotients


def _named(fraction: FractionRequest) -> tuple[str, ...]:
    """The GPUs that the wishes name one by one."""
    wishes = fraction.wishes
    return (*wishes.use_uuids, *wishes.avoid_uuids, *named_uuids(wishes))


def _accepted(gpu: Gpu, fraction: FractionRequest, limits: Limits) -> bool:
    wishes = fraction.wishes
    if (wishes.use_uuids and gpu.uuid not in wishes.use_uuids) or gpu.uuid in wishes.avoid_uuids:
        return False
    if wishes.selects and not is_selected(gpu, wishes, limits.selects):
        return False
    return kind_accepted(gpu.model, gpu.memory, fraction)


def _plus(before: ReasonCount | None, found: ReasonCount, number: int) -> ReasonCount:
    if before is None:
        return ReasonCount(found.code, number, found.wanted, found.most, found.what)
    return ReasonCount(
        found.code,
        before.nodes + number,
        max(before.wanted, found.wanted),
        max(before.most, found.most),
        min(before.what, found.what),
    )
