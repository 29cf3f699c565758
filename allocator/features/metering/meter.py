"""
Counts how much of the cards shares held, in seconds times the part of a card.

A share holds the larger of its parts of the card's promised memory and of its cores, or the whole card if it is
exclusive. If the shares of a card add up to more than the card, because one has much memory and another many cores,
each counts for proportionally less. So the held and the free parts always add up exactly to the time for which the card
existed: amounts are whole numbers, millionths of a card times microseconds.

Every replica sees every change, and only the one responsible for a moment counts it (`Span`). Changes are kept until
the responsible replica for their time is known. So a replica that begins to lead counts from where the former leader
stopped, by the changes that it saw meanwhile, or else by the times on the pods.

The number of accounts is bounded for each namespace, and for each node's agent, which reports models. So none uses up
another's. The rest is counted in one more account under the namespace's own name.

The cost of a change does not depend on the number of shares; a reading costs one step for each account. Pure: times are
passed in. Not thread-safe: one owner calls it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from allocator.cache.ledger import CardsChanged, Change, ShareMoved, SharesIdle
from contract.model import WHOLE, Gpu
from contract.scheduling.demand import Demand

CARD = 1_000_000
"""All of a card."""
_SECOND = 1_000_000
_LONG = 3600 * _SECOND
"""The time for which an account without shares is kept; Prometheus has read it by then."""
MOST_ACCOUNTS = 10_000
MOST_OF_NAMESPACE = 256
"""Accounts of one namespace: more than the models of a node in each dialect, so one node alone does not fill them."""
MOST_MODELS = 16
"""The most models of one node while accounts are kept. A node has one or two, and some kinds of slices."""
A = TypeVar("A", bound=tuple[object, ...])
OTHERS = "(others)"
"""The name of the rest beyond that number; no namespace and no dialect has it."""


class Span(NamedTuple):
    """
    The time for which this replica is responsible: from `since` until `until`, by the injected clock. If `since` is
    None, another replica is responsible for the time before `until`.
    """

    since: float | None
    until: float


class Account(NamedTuple):
    """The key by which shares are counted together."""

    namespace: str
    model: str
    dialect: str


class FreeAccount(NamedTuple):
    """The key by which cards are counted together: `takes_pods` is false for unhealthy and withheld ones."""

    model: str
    takes_pods: bool


_NO_ACCOUNT, _NO_CARD = Account("", "", ""), FreeAccount("", False)


@dataclass(slots=True)
class Counted:
    """Seconds of a card: held by shares, the idle part of these, and free."""

    held: dict[Account, float] = field(default_factory=dict)
    idle: dict[Account, float] = field(default_factory=dict)
    free: dict[FreeAccount, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Flow:
    """The current holdings of an account, and their total until `at` on the clock of the responsible time."""

    rate: int = 0
    total: int = 0
    at: int = 0
    changed: int = 0

    def turn(self, by: int, run: int, now: int) -> None:
        self.total += self.rate * (run - self.at)
        self.rate += by
        self.at = run
        self.changed = now

    def until(self, run: int) -> float:
        return (self.total + self.rate * (run - self.at)) / (CARD * _SECOND)

    def ended(self, now: int) -> bool:
        return not self.rate and now - self.changed > _LONG


@dataclass(slots=True)
class _Share:
    namespace: str
    dialect: str
    demand: Demand
    number: int
    """Of the change that brought it."""
    part: int
    idle: bool = False
    account: Account = _NO_ACCOUNT
    """In which it is counted now."""
    counted: int = 0
    """The part of its card with which it is counted now."""
    settled: int = 0
    """The time up to which its idle time is counted, on the clock of the responsible time."""


@dataclass(slots=True)
class _Card:
    number: int = -1
    """Of the change that brought it."""
    model: str = ""
    takes_pods: bool = False
    capacity: int | None = None
    """Bytes that the card may promise; None while the card does not exist, and then no share of it is held."""
    shares: dict[str, _Share] = field(default_factory=dict)
    parts: int = 0
    """The sum of its shares, which may exceed the card."""
    free: FreeAccount = _NO_CARD
    """In which it is counted now."""


class Meter:
    """
    The account. `capacity` returns the total bytes that a card may promise; `dialect` returns the name under which a
    dialect is counted: a request may contain any name.
    """

    def __init__(
        self,
        capacity: Callable[[Gpu], int],
        *,
        dialect: Callable[[str], str] = lambda name: name,
        most: int = MOST_ACCOUNTS,
    ) -> None:
        self._capacity = capacity
        self._dialect = dialect
        self._most = most
        self._pending: list[tuple[int, int, Change]] = []
        self._number = 0
        self._now: int | None = None
        """The time up to which every change is counted; None before the first span."""
        self._run = 0
        """The total microseconds for which this replica was responsible."""
        self._cards: dict[str, dict[str, _Card]] = {}
        self._idle_pods: dict[str, frozenset[str]] = {}
        self._accounts: dict[Account, Account] = {}
        """One object for each, shared by its shares."""
        self._of_namespace: Counter[str] = Counter()
        """The accounts of each namespace."""
        self._models: dict[str, dict[str, int]] = {}
        """When each model was last reported, by node, including former models."""
        self._held: dict[Account, _Flow] = {}
        self._idle: dict[Account, _Flow] = {}
        self._free: dict[FreeAccount, _Flow] = {}

    def advance(self, changes: Iterable[tuple[float, Change]], span: Span | None) -> None:
        """
        Add the changes with their times, and count up to the end of the span. Without a span only store the changes.

        A change before the end of the last span counts from that end.
        """
        for at, change in changes:
            self._number += 1
            self._pending.append((_whole(at), self._number, change))
        if span is None:
            return
        since, until = None if span.since is None else _whole(span.since), _whole(span.until)
        if self._now is None:
            self._now = until if since is None else min(since, until)
        self._pending.sort()  # nearly in order; numbers differ, so no changes are compared
        upto = bisect.bisect_right(self._pending, max(until, self._now), key=lambda pending: pending[0])
        due, self._pending = self._pending[:upto], self._pending[upto:]
        for at, number, change in due:
            self._pass(since, at)
            match change:
                case CardsChanged():
                    self._change_cards(change, number)
                case ShareMoved():
                    self._move(change, number)
                case SharesIdle():
                    self._change_idle(change)
        self._pass(since, until)

    def counted(self) -> Counted:
        """The counts so far, including accounts without idle time. Forgets the accounts that ended long ago."""
        now = self._now or 0
        for account in _forget(self._held, now):
            self._of_namespace[account.namespace] -= 1
        self._of_namespace = +self._of_namespace
        removed = [node for node in self._models if node not in self._cards and not _recent(self._models[node], now)]
        for node in removed:
            del self._models[node]
        _forget(self._free, now)
        if len(self._accounts) > 2 * len(self._held) + 100:
            self._accounts = {account: account for account in self._held}
        self._idle = {account: self._idle.get(account) or _Flow() for account in self._held}
        return Counted(
            {account: flow.until(self._run) for account, flow in self._held.items()},
            {account: flow.until(self._run) for account, flow in self._idle.items()},
            {account: flow.until(self._run) for account, flow in self._free.items()},
        )

    def answered(self) -> float:
        """The total seconds for which this replica was responsible."""
        return self._run / _SECOND

    # -- inside ---------------------------------------------------------------------------------------------------

    def _pass(self, since: int | None, to: int) -> None:
        now = self._now
        if now is None or to <= now:
            return
        if since is not None and since < to:
            self._run += to - max(now, since)
        self._now = to

    def _change_cards(self, change: CardsChanged, number: int) -> None:
        cards, found = self._cards.setdefault(change.node, {}), {gpu.uuid: gpu for gpu in change.gpus}
        for uuid in cards.keys() | found.keys():
            card = cards.setdefault(uuid, _Card())
            if number < card.number:
                continue
            self._count(card, -1)
            gpu = found.get(uuid)
            card.number, card.capacity = number, None if gpu is None else self._capacity(gpu)
            if gpu is not None:
                card.model = self._model(change.node, gpu.model)
                card.takes_pods = gpu.healthy
            for share in card.shares.values():
                share.part = _part(share.demand, card.capacity)
            card.parts = sum(share.part for share in card.shares.values())
            self._count(card, 1)
        for uuid in tuple(cards):
            self._tidy(change.node, uuid)

    def _move(self, change: ShareMoved, number: int) -> None:
        card = self._cards.setdefault(change.node, {}).setdefault(change.uuid, _Card())
        known, came = card.shares.get(change.key), None
        if known is not None and number < known.number:
            return
        if change.demand is not None:
            part, idle = _part(change.demand, card.capacity), change.key in self._idle_pods.get(change.node, ())
            came = _Share(change.namespace, change.dialect, change.demand, number, part, idle)
        after = card.parts + (came.part if came is not None else 0) - (known.part if known is not None else 0)
        if max(card.parts, after) <= CARD:
            # All others count as before, so the cost of a change does not depend on their number.
            self._swap(card, change.key, known, came)
            self._turn(self._free, card.free, card.parts - after)
            card.parts = after
        else:
            self._count(card, -1)
            card.shares.pop(change.key, None)
            if came is not None:
                card.shares[change.key] = came
            card.parts = after
            self._count(card, 1)
        self._tidy(change.node, change.uuid)

    def _swap(self, card: _Card, key: str, known: _Share | None, came: _Share | None) -> None:
        if known is not None:
            self._take(known)
            del card.shares[key]
        if came is not None:
            self._add(card, came, came.part)
            card.shares[key] = came

    def _count(self, card: _Card, sign: int) -> None:
        """Add the card's held and free parts to the accounts, or subtract them."""
        if card.capacity is None:
            return
        whole, before = max(CARD, card.parts), 0
        for share in card.shares.values():
            if sign < 0:
                self._take(share)
            else:
                # The bounds are rounded, not the parts, so that the parts add up to the card.
                self._add(card, share, (before + share.part) * CARD // whole - before * CARD // whole)
                before += share.part
        if sign > 0:
            card.free = self._free_account(card)
        self._turn(self._free, card.free, sign * (CARD - min(CARD, card.parts)))

    def _add(self, card: _Card, share: _Share, part: int) -> None:
        share.account = self._account(card, share)
        share.counted = part
        share.settled = self._run
        self._turn(self._held, share.account, part)
        if share.idle:
            self._turn(self._idle, share.account, part)

    def _take(self, share: _Share) -> None:
        self._turn(self._held, share.account, -share.counted)
        if share.idle:
            self._turn(self._idle, share.account, -share.counted)
        share.counted = 0

    def _change_idle(self, change: SharesIdle) -> None:
        before = self._idle_pods.get(change.node, frozenset())
        self._idle_pods[change.node] = frozenset(change.since)
        if not change.since:
            del self._idle_pods[change.node]
        for pod in before ^ frozenset(change.since):
            for card in self._cards.get(change.node, {}).values():
                share = card.shares.get(pod)
                if share is not None and share.idle != (pod in change.since):
                    self._turn_idle(share, change.since.get(pod))

    def _turn_idle(self, share: _Share, since: float | None) -> None:
        """The share is idle, and was idle before the report: count at most the time since its part last changed."""
        share.idle = since is not None
        self._turn(self._idle, share.account, share.counted if share.idle else -share.counted)
        if since is not None and share.counted and self._now is not None:
            known_late = min(self._now - _whole(since), self._run - share.settled)
            self._idle[share.account].total += share.counted * max(0, known_late)
        share.settled = self._run

    def _turn(self, flows: dict[A, _Flow], account: A, by: int) -> None:
        if by:
            flow = flows.get(account)
            if flow is None:
                flow = flows[account] = _Flow()
                if isinstance(account, Account) and flows is self._held:
                    self._of_namespace[account.namespace] += 1
            flow.turn(by, self._run, self._now or 0)

    def _account(self, card: _Card, share: _Share) -> Account:
        account = Account(share.namespace, card.model, self._dialect(share.dialect))
        if account not in self._held:
            if self._of_namespace[share.namespace] >= MOST_OF_NAMESPACE - 1:
                account = Account(share.namespace, OTHERS, OTHERS)
            if len(self._held) >= self._most and account not in self._held:
                account = Account(OTHERS, OTHERS, OTHERS)
        return self._accounts.setdefault(account, account)

    def _model(self, node: str, model: str) -> str:
        """The model under which it is counted: the rest, if the node has recently reported too many models."""
        models, now = self._models.setdefault(node, {}), self._now or 0
        if model not in models and len(models) >= MOST_MODELS:
            here = {card.model for card in self._cards.get(node, {}).values()}
            recent = _recent(models, now)
            models = self._models[node] = {each: at for each, at in models.items() if each in here or each in recent}
            if len(models) >= MOST_MODELS:
                return OTHERS
        models[model] = now
        return model

    def _free_account(self, card: _Card) -> FreeAccount:
        account = FreeAccount(card.model, card.takes_pods)
        full = account not in self._free and len(self._free) >= self._most
        return FreeAccount(OTHERS, False) if full else account

    def _tidy(self, node: str, uuid: str) -> None:
        card = self._cards[node][uuid]
        if card.capacity is None and not card.shares:
            del self._cards[node][uuid]
            if not self._cards[node]:
                del self._cards[node]


def _recent(models: Mapping[str, int], now: int) -> frozenset[str]:
    return frozenset(model for model, at in models.items() if now - at <= _LONG)


def _forget(flows: dict[A, _Flow], now: int) -> list[A]:
    """Drop the accounts that ended long ago; returns them."""
    ended = [account for account, flow in flows.items() if flow.ended(now)]
    for account in ended:
        del flows[account]
    return ended


def _whole(seconds: float) -> int:
    return int(seconds * _SECOND)


def _part(demand: Demand, capacity: int | None) -> int:
    """The part of a card with this capacity that the demand holds, in millionths."""
    if capacity is None:
        return 0
    if demand.exclusive or capacity <= 0:
        return CARD
    return min(CARD, max(demand.memory * CARD // capacity, demand.cores * CARD // WHOLE))
