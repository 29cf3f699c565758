"""
ResourceQuota: the limits of a namespace, checked and counted in the same step that stores the object.

A real API server reserves usage in `status.used` before it stores. Here a lock is held from the check to the commit;
clients cannot see a difference. Only scopes of priority classes are evaluated: a quota with another scope counts
everything.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from contract.encoding.quantity import format_bytes, parse
from playground.api.admission.attributes import Attributes
from playground.api.kinds import errors
from playground.api.kinds.kinds import PODS, QUOTAS, Kind
from playground.api.kinds.quantities import canonical
from playground.api.kinds.values import JSON, dig
from playground.api.store.store import Store

Usage = dict[str, Fraction]
_MUST_SPECIFY = ("requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "cpu", "memory")
_FINISHED = ("Succeeded", "Failed")
_COUNTED = ("pods", "services", "configmaps", "secrets", "persistentvolumeclaims", "resourcequotas")


def pod_usage(pod: JSON) -> Usage:
    """The amounts of a quota that a pod uses, under every name that a quota may have for them."""
    usage: Usage = {"pods": Fraction(1), "count/pods": Fraction(1)}
    if dig(pod, "status", "phase") in _FINISHED:
        return {"count/pods": Fraction(1)}
    for field, prefix in (("requests", "requests."), ("limits", "limits.")):
        for name, amount in _effective(pod["spec"], field).items():
            usage[prefix + name] = amount
            if field == "requests" and "/" not in name:
                usage[name] = amount
    return usage


def _effective(spec: JSON, field: str) -> Usage:
    """App containers and sidecars add up; an init container needs its own alongside the sidecars before it."""
    running, peak = _sum(spec.get("containers") or (), field), Usage()
    sidecars = Usage()
    for container in spec.get("initContainers") or ():
        amounts = _amounts(container, field)
        if container.get("restartPolicy") == "Always":
            sidecars = _plus(sidecars, amounts)
            peak = _most(peak, sidecars)
        else:
            peak = _most(peak, _plus(sidecars, amounts))
    total = _most(_plus(running, sidecars), peak)
    overhead = {name: parse(amount) for name, amount in (spec.get("overhead") or {}).items()}
    return _plus(total, overhead)


def _amounts(container: JSON, field: str) -> Usage:
    return {name: parse(amount) for name, amount in (dig(container, "resources", field) or {}).items()}


def _sum(containers: Iterator[JSON] | tuple[JSON, ...] | list[JSON], field: str) -> Usage:
    total = Usage()
    for container in containers:
        total = _plus(total, _amounts(container, field))
    return total


def _plus(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Usage:
    return {name: left.get(name, Fraction(0)) + right.get(name, Fraction(0)) for name in {**left, **right}}


def _most(left: Mapping[str, Fraction], right: Mapping[str, Fraction]) -> Usage:
    return {name: max(left.get(name, Fraction(0)), right.get(name, Fraction(0))) for name in {**left, **right}}


def usage_of(kind: Kind, value: JSON) -> Usage:
    if kind is PODS:
        return pod_usage(value)
    usage: Usage = {f"count/{kind.key}": Fraction(1)}
    if kind.key in _COUNTED:
        usage[kind.key] = Fraction(1)
    return usage


@dataclass(frozen=True, slots=True)
class Counted:
    """The amounts that one object uses, and a pod's priority class: empty if it names none, None for other objects."""

    usage: Usage
    priority: str | None = None


def counted(kind: Kind, value: JSON) -> Counted:
    priority = str(dig(value, "spec", "priorityClassName") or "") if kind is PODS else None
    return Counted(usage_of(kind, value), priority)


def covers(quota: JSON, priority: str | None) -> bool:
    """Whether the quota's selector of priority classes includes the object. Without a selector, it includes all."""
    expressions = dig(quota, "spec", "scopeSelector", "matchExpressions") or ()
    return all(_selects(each, priority) for each in expressions if each["scopeName"] == "PriorityClass")


def _selects(expression: JSON, priority: str | None) -> bool:
    if priority is None:
        return False
    values = expression.get("values") or ()
    found = {"In": priority in values, "NotIn": priority not in values, "Exists": priority != ""}
    return found.get(expression["operator"], priority == "")


class Quotas:
    """Counts the usage of namespaces with a quota. `save` stores a quota's new status."""

    def __init__(self, *, store: Store, save: Callable[[JSON, JSON], None]) -> None:
        self._store = store
        self._save = save
        self._lock = threading.RLock()
        self._held: dict[str, dict[str, Counted]] = {}
        self._total: dict[str, Usage] = {}

    @contextlib.contextmanager
    def admit(self, attributes: Attributes) -> Iterator[None]:
        """A context in which to store a new object. Raises 403 if the object would exceed a quota."""
        kind, value, namespace = attributes.kind, attributes.object, attributes.namespace
        if not kind.namespaced or value is None or not self._store.scan(QUOTAS.key, namespace):
            yield
            return
        with self._lock:
            self._check(attributes, namespace, counted(kind, value))
            yield
            if not attributes.request.dry_run:
                self._count(namespace, value["metadata"]["uid"], counted(kind, value))

    def _check(self, attributes: Attributes, namespace: str, asking: Counted) -> None:
        wanted = asking.usage
        for quota in self._store.ordered(QUOTAS.key, namespace)[0]:
            if not covers(quota, asking.priority):
                continue
            total = self._used(namespace, quota)
            hard = dig(quota, "spec", "hard") or {}
            name = quota["metadata"]["name"]
            self._check_specified(attributes, name, hard, wanted)
            over = [
                resource
                for resource, amount in wanted.items()
                if resource in hard and amount and total.get(resource, Fraction(0)) + amount > parse(hard[resource])
            ]
            if over:
                over.sort()
                used = {resource: total.get(resource, Fraction(0)) for resource in over}
                why = (
                    f"exceeded quota: {name}, requested: {_listed({r: wanted[r] for r in over})}, "
                    f"used: {_listed(used)}, limited: {','.join(f'{r}={hard[r]}' for r in over)}"
                )
                raise errors.forbidden(attributes.kind, attributes.name, why)

    def _check_specified(self, attributes: Attributes, name: str, hard: JSON, wanted: Usage) -> None:
        if attributes.kind is not PODS:
            return
        missing = sorted(r for r in hard if r in _MUST_SPECIFY and r not in wanted)
        if missing:
            raise errors.forbidden(
                attributes.kind, attributes.name, f"failed quota: {name}: must specify {','.join(missing)}"
            )

    def committed(self, kind: Kind, old: JSON | None, new: JSON | None) -> None:
        """Follow a stored change: count, stop counting, or count again under a new quota."""
        value = new or old
        if value is None or not kind.namespaced:
            return
        namespace = value["metadata"]["namespace"]
        if kind is QUOTAS and new is not None and dig(old, "spec", "hard") != dig(new, "spec", "hard"):
            with self._lock:
                self._recount(namespace)
        elif namespace in self._held:
            usage = Counted(Usage()) if new is None else counted(kind, new)
            with self._lock:
                self._count(namespace, value["metadata"]["uid"], usage)

    def reload(self) -> None:
        """Count everything again, after the store was restored to another state."""
        with self._lock:
            self._held.clear()
            self._total.clear()
            for namespace in sorted({quota["metadata"]["namespace"] for quota in self._store.scan(QUOTAS.key)}):
                self._recount(namespace)

    def _recount(self, namespace: str) -> None:
        self._held[namespace] = {}
        self._total[namespace] = Usage()
        for resource, key in self._store.in_namespace(namespace):
            value = self._store.get(resource, key)
            if value is not None:
                kind = PODS if resource == PODS.key else Kind("", "", resource, "")
                self._add(namespace, value["metadata"]["uid"], counted(kind, value))
        self._publish(namespace)

    def _count(self, namespace: str, uid: str, now: Counted) -> None:
        if self._held.get(namespace, {}).get(uid, Counted(Usage())).usage != now.usage:
            self._add(namespace, uid, now)
            self._publish(namespace)

    def _add(self, namespace: str, uid: str, now: Counted) -> None:
        held, total = self._held.setdefault(namespace, {}), self._total.setdefault(namespace, Usage())
        before = held.pop(uid, Counted(Usage())).usage
        if now.usage:
            held[uid] = now
        for name in {**before, **now.usage}:
            total[name] = (
                total.get(name, Fraction(0)) + now.usage.get(name, Fraction(0)) - before.get(name, Fraction(0))
            )

    def _used(self, namespace: str, quota: JSON) -> Usage:
        """The total usage of the objects that the quota counts. With a selector, it is summed on each call."""
        if not dig(quota, "spec", "scopeSelector"):
            return self._total.get(namespace) or Usage()
        total = Usage()
        for each in self._held.get(namespace, {}).values():
            if covers(quota, each.priority):
                total = _plus(total, each.usage)
        return total

    def _publish(self, namespace: str) -> None:
        for quota in self._store.scan(QUOTAS.key, namespace):
            hard = dig(quota, "spec", "hard") or {}
            total = self._used(namespace, quota)
            used = {name: shown(name, total.get(name, Fraction(0))) for name in hard}
            status = {"hard": dict(hard), "used": used}
            if quota.get("status") != status:
                self._save(quota, status)


def shown(name: str, amount: Fraction) -> str:
    """An amount as a quantity: bytes with a binary suffix, anything fractional in thousandths."""
    if amount.denominator != 1:
        return canonical(f"{-(-amount * 1000 // 1)}m")
    whole = format_bytes(amount.numerator) if "memory" in name or "storage" in name else str(amount.numerator)
    return canonical(whole)


def _listed(amounts: Mapping[str, Fraction]) -> str:
    return ",".join(f"{name}={shown(name, amount)}" for name, amount in amounts.items())
