"""
The pods that a user names: `x`, `pod/x`, `ns/x`, `deployment/x`, `ns/deployment/x`. Pure.

A word before the slash is a kind if it is one that has pods, else a namespace; a namespace of such a name is named by
`-n`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]
_APPS = "apps/v1"
_KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "pod": ("v1", "pods", ("po",)),
    "deployment": (_APPS, "deployments", ("deploy",)),
    "replicaset": (_APPS, "replicasets", ("rs",)),
    "statefulset": (_APPS, "statefulsets", ("sts",)),
    "daemonset": (_APPS, "daemonsets", ("ds",)),
    "job": ("batch/v1", "jobs", ()),
}
_BY_WORD = {
    word: kind
    for kind, (version, plural, short) in _KINDS.items()
    for group in [f".{version.partition('/')[0]}"]
    for word in (kind, plural, *short, f"{kind}{group}", f"{plural}{group}")
}
KINDS = tuple(_KINDS)
"""The kinds that can be named."""


class BadTarget(ValueError):
    """The name cannot be read. The message says what would be."""


@dataclass(frozen=True, slots=True)
class Target:
    """An object that a user named."""

    kind: str
    namespace: str
    name: str

    @property
    def api_version(self) -> str:
        """Its API version."""
        return _KINDS[self.kind][0]

    @property
    def plural(self) -> str:
        """Its kind in the API's paths."""
        return _KINDS[self.kind][1]

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} in namespace {self.namespace!r}"


def read(text: str, namespace: str) -> Target:
    """The object that the text names, in `namespace` if the text has none. Raises `BadTarget`."""
    parts = text.split("/")
    if not all(parts) or len(parts) > 3 or (len(parts) == 3 and parts[1].lower() not in _BY_WORD):
        kinds = ", ".join(KINDS)
        raise BadTarget(f"{text!r}: give POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME; KIND is one of {kinds}")
    kind = _BY_WORD.get(parts[-2].lower()) if len(parts) > 1 else "pod"
    if len(parts) == 3 or (len(parts) == 2 and kind is None):
        namespace = parts[0]
    return Target(kind or "pod", namespace, parts[-1])


def pods_of(owner: JSON, replicasets: Iterable[JSON], pods: Iterable[JSON]) -> list[JSON]:
    """The pods that the workload, or a ReplicaSet of it, controls, in the order of their names."""
    uids = {_uid(owner), *(_uid(each) for each in replicasets if _controller(each) == _uid(owner))}
    return sorted((pod for pod in pods if _controller(pod) in uids), key=lambda pod: str(pod["metadata"].get("name")))


def trouble(owner: JSON) -> str:
    """Why a workload has no pods, as its controller says; empty where it does not say."""
    conditions = (owner.get("status") or {}).get("conditions") or []
    found = (each for each in conditions if each.get("type") in ("ReplicaFailure", "FailureTarget", "Failed"))
    return next((str(each.get("message") or "") for each in found if each.get("status") == "True"), "")


def _uid(found: JSON) -> str:
    return str((found.get("metadata") or {}).get("uid", ""))


def _controller(found: JSON) -> str:
    owners = (found.get("metadata") or {}).get("ownerReferences") or []
    return next((str(each.get("uid", "")) for each in owners if each.get("controller")), "-")
