"""Reads the owners of pods that wait, with the user's rights, for the time that they give their pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kubectl_gpufraction.cluster import timelimits
from kubectl_gpufraction.cluster.state import Pod
from kubectl_gpufraction.cluster.timelimits import Owner, TimeLimit
from kubectl_gpufraction.output.wording import many
from kubectl_gpufraction.session import Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeForbidden

JSON = dict[str, Any]
_MOST_OWNERS = 20
"""Owners of pods that one call reads; each may have an owner itself."""
_SOON = 600
"""Seconds before its end from which `waiting` names a limit."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class PodLimits:
    """The limits of one pod, and why they are not known."""

    limits: tuple[TimeLimit, ...] = ()
    unknown: str = ""

    def lines(self, now: float) -> list[str]:
        """The limits as sentences."""
        return [each.sentence(now) for each in self.limits] + ([self.unknown] if self.unknown else [])

    def rows(self) -> list[JSON]:
        """The same for programs."""
        return [
            {"who": each.who, "setting": each.setting, "ends": timelimits.moment(each), "length": each.length}
            for each in self.limits
        ]


NONE = PodLimits()


class LimitReader:
    """Reads each owner once, and at most this many."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._read: dict[tuple[str, Owner], PodLimits] = {}
        self.left_out = 0
        """Owners that were not read."""

    def of(self, pod: Pod) -> PodLimits:
        """The limits of a pod that waits; none of one that does not."""
        if not pod.waits:
            return NONE
        own = timelimits.of_program(pod.creator, pod.created, self._session.now())
        owner = pod.creator.owner
        found = self._of(pod.namespace, owner) if owner is not None and owner.plural else NONE
        return PodLimits((*own, *found.limits), found.unknown)

    def _of(self, namespace: str, owner: Owner) -> PodLimits:
        key = namespace, owner
        if key not in self._read:
            if len(self._read) >= _MOST_OWNERS:
                self.left_out += 1
                return NONE
            self._read[key] = self._chain(namespace, owner)
        return self._read[key]

    def _chain(self, namespace: str, owner: Owner) -> PodLimits:
        """The limits of an owner and of its owners; a deleted owner has none."""
        found, at = list[tuple[Owner, JSON]](), owner
        while True:
            try:
                path = paths.path(at.version, at.plural, namespace, at.name)
                found.append((at, self._session.kube.get(path)))
            except KubeForbidden:
                why = f"Whether {at} sets a time limit for its pods is unknown: you may not get {at.plural}."
                return PodLimits(tuple(timelimits.of_owners(found)), why)
            except KubeError:
                break
            above = timelimits.next_owner(at, found[-1][1])
            if above is None or len(found) > 2:
                break
            at = above
        return PodLimits(tuple(timelimits.of_owners(found)))


def soon(session: Session, pods: Sequence[Pod]) -> list[str]:
    """Of these pods, in the order of the queue, those whose time ends soon or has ended: a line for each limit."""
    reader, now = LimitReader(session), session.now()
    by_limit: dict[TimeLimit, list[Pod]] = {}
    for pod in pods:
        for limit in reader.of(pod).limits:
            if limit.ends - now < _SOON:
                by_limit.setdefault(limit, []).append(pod)
    ordered = sorted(by_limit.items(), key=lambda each: each[0].ends)
    lines = [f"{_named(pods)}: {limit.sentence(now)}" for limit, pods in ordered[:_MOST_NAMED]]
    more = len(ordered) - _MOST_NAMED
    lines += [f"{many(more, 'more time limit')}: kubectl gpufraction explain POD names a pod's own"] if more > 0 else []
    if reader.left_out:
        lines.append(f"Time limits of {many(reader.left_out, 'more pod')} were not checked")
    return lines


def _named(pods: Iterable[Pod]) -> str:
    first, *others = pods
    return first.key + (f" and {many(len(others), 'more pod')}" if others else "")
