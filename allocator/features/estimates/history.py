"""
How long pods ran, by owner: the pods of a namespace whose names differ only in their generated parts.

A controller's uid would not do, since each Job and each rollout has a new one. Invented names cost a namespace only its
own history: families, samples and namespaces are bounded, and the least recently used goes first. It is only in memory;
a new leader learns it from finished pods that still exist and from pods that end later. Pure: times are passed in. Not
thread-safe: one owner calls it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict, deque

NAMESPACES, FAMILIES, SAMPLES = 200, 32, 16
"""The most of each: namespaces, families of a namespace, durations of a family."""
LEAST_OF_FAMILY, LEAST_OF_NAMESPACE = 3, 8
"""Durations that must be known before one is expected; more for a namespace, because its pods differ more."""
_GENERATED = re.compile(r"(?:[-.](?:[0-9]+|[0-9a-f]{8,10}|[bcdfghjklmnpqrstvwxz2456789]{5,10}))+$")
"""What controllers add to a name: numbers, a template's hash, and random letters (Kubernetes leaves out vowels)."""


def family_of(key: str) -> tuple[str, str]:
    """The namespace and the name without what a controller added, of `namespace/name`."""
    namespace, _, name = key.partition("/")
    return namespace, _GENERATED.sub("", name) or name


class DurationHistory:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, OrderedDict[str, deque[float]]] = OrderedDict()

    def ended(self, key: str, ran: float) -> None:
        """The pod `namespace/name` ran for this long."""
        namespace, family = family_of(key)
        families = self._namespaces.setdefault(namespace, OrderedDict())
        samples = families.setdefault(family, deque(maxlen=SAMPLES))
        samples.append(max(0.0, ran))
        families.move_to_end(family)
        self._namespaces.move_to_end(namespace)
        if len(families) > FAMILIES:
            families.popitem(last=False)
        if len(self._namespaces) > NAMESPACES:
            self._namespaces.popitem(last=False)

    def left(self, key: str, ran: float = 0.0) -> tuple[float, ...]:
        """
        For how long a pod that has run for `ran` may go on, by similar pods: seconds, ascending, each as likely as the
        others. Empty if too few similar pods have ended, or all of them sooner.
        """
        namespace, family = family_of(key)
        families = self._namespaces.get(namespace)
        if families is None:
            return ()
        own = families.get(family, ())
        if len(own) >= LEAST_OF_FAMILY:
            return _left(sorted(own), ran)
        everything = sorted(each for samples in families.values() for each in samples)
        return _left(everything, ran) if len(everything) >= LEAST_OF_NAMESPACE else ()

    def size(self) -> int:
        """How many durations are kept."""
        return sum(len(samples) for families in self._namespaces.values() for samples in families.values())


def _left(lasted: list[float], ran: float) -> tuple[float, ...]:
    longer = lasted[bisect_right(lasted, ran) :]
    step = max(1, -(-len(longer) // SAMPLES))
    return tuple(each - ran for each in longer[step // 2 :: step])
