"""Requests that become a value where the user lacks the right, or the API server gives no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from contract import kinds
from kubectl_gpufraction.check.facts import Objects
from kubectl_gpufraction.check.findings import Unseen
from runtime.kubernetes.client import Kube, KubeError, KubeForbidden, KubeNotFound

JSON = dict[str, Any]
T = TypeVar("T")


def tried(what: str, ask: Callable[[], T]) -> T | Unseen:
    """The answer; `Unseen` if the user lacks the right, or the API server gave no answer."""
    try:
        return ask()
    except KubeForbidden:
        return Unseen(f"you may not {what}")
    except KubeError as error:
        return Unseen(str(error))


def listed(kube: Kube, path: str, what: str) -> Objects | Unseen:
    """The objects of a collection. `what`: its description, for users who may not list it."""
    return tried(f"list {what}", lambda: tuple(kube.list(path, of=kinds.SHOWN).items))


def absent(kube: Kube, path: str) -> JSON | None:
    """An object, None if there is none."""
    try:
        return kube.get(path)
    except KubeNotFound:
        return None
