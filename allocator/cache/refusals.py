"""
The refusals of kube-scheduler: nodes that the pods of a family avoid for a while.

Some rules are not evaluated here: a plugin's, an extender's, another scheduler's. A pod that is pinned to a node that
such a rule refuses cannot use any other node. Its replacement would be pinned to the same node for the same reasons, so
the node is remembered for its `family`: the pods of one controller, or the next pod of the same name.

Bounded in time and number, since tenants make the pods that are refused. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from contract.encoding.plain import plain
from contract.reasons.nodes import Code, Reason
from contract.scheduling.clusterfilters.objects import PodRules

LASTS = 600.0
"""Seconds for which a refusal counts: then the node is tried again, since what refused it may have changed."""
MOST = 64
"""Refusals of one namespace that are remembered; beyond this, its oldest is forgotten."""
MOST_IN_ALL = 4096
_WORDS = 120
"""Bytes of kube-scheduler's words in a reason."""
_SUMMARY = re.compile(r"0/\d{1,9} nodes are available: ")
_OF_THE_PIN = ("didn't match Pod's node affinity/selector", "didn't satisfy plugin(s) [NodeAffinity]")
"""Kube-scheduler's message about all nodes except the one to which the pod is pinned."""
NOTHING: Mapping[str, Reason] = {}


def family_of(key: str, owner: str, rules: PodRules) -> str:
    """
    The common key of pods that kube-scheduler refuses alike: their controller's uid, or without one their name, and
    their claims. Empty for a pod that has no name yet and no controller. `key`: `namespace/name`.
    """
    namespace, _, name = key.partition("/")
    claims = sorted(volume.claim for volume in rules.volumes if not volume.ephemeral)
    return "/".join((namespace, owner or name, *claims)) if owner or name else ""


def words(message: str) -> str:
    """kube-scheduler's reason for the one node to which a pod is pinned, without its reasons for all others."""
    found = _SUMMARY.match(message)
    if found is not None:
        reasons = message[found.end() :].partition(". ")[0].split(", ")
        own = [each for each in reasons if not each.rstrip(".").endswith(_OF_THE_PIN)]
        message = ", ".join(own or reasons).rstrip(".")
    return plain(message, _WORDS)


@dataclass(frozen=True, slots=True)
class _Refusal:
    namespace: str
    reason: Reason
    until: float


class Refusals:
    """The refusals that are remembered, the oldest first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Refusal] = {}
        """By family and node."""
        self._by_family: dict[str, dict[str, Reason]] = {}
        self._by_namespace: dict[str, dict[tuple[str, str], None]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def learn(self, family: str, node: str, message: str, now: float) -> None:
        """kube-scheduler has refused a pod of the family on the node, with this message."""
        if not family:
            return
        namespace, key = family.split("/", 1)[0], (family, node)
        self._forget(key)
        reason = Reason(Code.REFUSED_BY_SCHEDULER, what=words(message))
        self._found[key] = _Refusal(namespace, reason, now + LASTS)
        self._by_family.setdefault(family, {})[node] = reason
        theirs = self._by_namespace.setdefault(namespace, {})
        theirs[key] = None
        if len(theirs) > MOST:
            self._forget(next(iter(theirs)))
        if len(self._found) > MOST_IN_ALL:
            self._forget(next(iter(self._found)))

    def of(self, family: str) -> Mapping[str, Reason]:
        """The nodes that pods of the family avoid now, and why."""
        return self._by_family.get(family, NOTHING)

    def expire(self, now: float) -> bool:
        """Forget expired refusals. True if there were any."""
        over = [key for key, refusal in self._found.items() if refusal.until <= now]
        for key in over:
            self._forget(key)
        return bool(over)

    def _forget(self, key: tuple[str, str]) -> None:
        removed = self._found.pop(key, None)
        if removed is None:
            return
        family, node = key
        del self._by_family[family][node], self._by_namespace[removed.namespace][key]
        if not self._by_family[family]:
            del self._by_family[family]
        if not self._by_namespace[removed.namespace]:
            del self._by_namespace[removed.namespace]
