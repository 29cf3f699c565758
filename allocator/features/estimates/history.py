"""
How long pods ran, by owner. Pods of a namespace have the same owner if only generated parts of their names differ.

A controller's uid does not work, because each Job and each rollout has a new one. A namespace with many invented names
loses only its own history: families, samples and namespaces are bounded, and the least recently used is dropped first.
The history is only in memory; a new leader learns it from finished pods that still exist and from pods that end later.
Pure: times are passed in. Not thread-safe: one owner calls it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict, deque

NAMESPACES, FAMILIES, SAMPLES = 200, 32, 16
"""The maximum numbers of namespaces, families of a namespace, and durations of a family."""
LEAST_OF_FAMILY, LEAST_OF_NAMESPACE = 3, 8
"""Durations needed for an expectation; a namespace needs more, because its pods differ more."""
_GENERATED = re.compile(r"(?:[-.](?:[0-9]+|[0-9a-f]{8,10}|[bcdfghjklmnpqrstvwxz2456789]{5,10}))+$")
"""What controllers add to a name: numbers, a template's hash, and random letters (Kubernetes leaves out vowels)."""


def family_of(key: str) -> tuple[str, str]:
    """The namespace of `namespace/name`, and the name without the controller's additions."""
    namespace, _, name = key.partition("/")
    return namespace, _GENERATED.sub("", name) or name


class DurationHistory:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, OrderedDict[str, deque[float]]] = OrderedDict()

    def ended(self, key: str, ran: float) -> None:
        """Record that the pod `namespace/name` ran for this long."""
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
        The remaining times of a pod that has run for `ran`, by similar pods: seconds, ascending, equally likely. Empty
        if too few similar pods have ended, or all of them ended sooner.
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
        """The number of stored durations."""
        return sum(len(samples) for families in self._namespaces.values() for samples in families.values())


def _left(lasted: list[float], ran: float) -> tuple[float, ...]:
    longer = lasted[bisect_right(lasted, ran) :]
    step = max(1, -(-len(longer) // SAMPLES))
    return tuple(each - ran for each in longer[step // 2 :: step])
