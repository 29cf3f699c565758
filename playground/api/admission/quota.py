"""
ResourceQuota: what a namespace may hold, checked and counted in one step with the storing.

A real API server reserves usage in `status.used` before it stores; here a lock is held from the check to the commit,
which nobody outside can tell apart. Scopes are not evaluated: a quota with scopes counts everything.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
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
    """What a pod uses of a quota, under every name that a quota may use for it."""
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
    """App containers and sidecars add up; an init container needs its own beside the sidecars before it."""
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


class Quotas:
    """Counts what namespaces with a quota hold. `save` stores a quota's new status."""

    def __init__(self, *, store: Store, save: Callable[[JSON, JSON], None]) -> None:
        self._store = store
        self._save = save
        self._lock = threading.RLock()
        self._held: dict[str, dict[str, Usage]] = {}
        self._total: dict[str, Usage] = {}

    @contextlib.contextmanager
    def admit(self, attributes: Attributes) -> Iterator[None]:
        """Around the storing of a new object. Raises 403 when it would exceed a quota."""
        kind, value, namespace = attributes.kind, attributes.object, attributes.namespace
        if not kind.namespaced or value is None or not self._store.scan(QUOTAS.key, namespace):
            yield
            return
        with self._lock:
            self._check(attributes, namespace, usage_of(kind, value))
            yield
            if not attributes.request.dry_run:
                self._count(namespace, value["metadata"]["uid"], usage_of(kind, value))

    def _check(self, attributes: Attributes, namespace: str, wanted: Usage) -> None:
        total = self._total.get(namespace) or Usage()
        for quota in self._store.ordered(QUOTAS.key, namespace)[0]:
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
        """Follow a stored change: count, stop counting, or count anew under a new quota."""
        value = new or old
        if value is None or not kind.namespaced:
            return
        namespace = value["metadata"]["namespace"]
        if kind is QUOTAS and new is not None and dig(old, "spec", "hard") != dig(new, "spec", "hard"):
            with self._lock:
                self._recount(namespace)
        elif namespace in self._held:
            usage = Usage() if new is None else usage_of(kind, new)
            with self._lock:
                self._count(namespace, value["metadata"]["uid"], usage)

    def _recount(self, namespace: str) -> None:
        self._held[namespace] = {}
        self._total[namespace] = Usage()
        for resource, key in self._store.in_namespace(namespace):
            value = self._store.get(resource, key)
            if value is not None:
                kind = PODS if resource == PODS.key else Kind("", "", resource, "")
                self._add(namespace, value["metadata"]["uid"], usage_of(kind, value))
        self._publish(namespace)

    def _count(self, namespace: str, uid: str, usage: Usage) -> None:
        if self._held.get(namespace, {}).get(uid, Usage()) != usage:
            self._add(namespace, uid, usage)
            self._publish(namespace)

    def _add(self, namespace: str, uid: str, usage: Usage) -> None:
        held, total = self._held.setdefault(namespace, {}), self._total.setdefault(namespace, Usage())
        before = held.pop(uid, Usage())
        if usage:
            held[uid] = usage
        for name in {**before, **usage}:
            total[name] = total.get(name, Fraction(0)) + usage.get(name, Fraction(0)) - before.get(name, Fraction(0))

    def _publish(self, namespace: str) -> None:
        total = self._total.get(namespace) or Usage()
        for quota in self._store.scan(QUOTAS.key, namespace):
            hard = dig(quota, "spec", "hard") or {}
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
