"""
Pods that ask for a GPU share and have none because admission did not see them, and what their author does about it.

Usually a manifest for an older system was applied in a namespace that is not enabled: nothing refuses the pod there,
and nothing gives it a GPU. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from contract.dialects import DIALECTS
from contract.encoding.plain import NAME, plain
from contract.options import VENDOR, Options

JSON = dict[str, Any]
INJECT = f"{names.INJECT_LABEL}={names.INJECT_ENABLED}"
"""The label of enabled namespaces, as kubectl takes it."""
_MOST_NAMED = 5
_MOST = 20
"""Pods that a command names; those that are left are shown by the next call."""
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class UnservedPod:
    """A pod that asks for a share and did not pass admission. `titles`: of the dialects that it is written in."""

    namespace: str
    name: str
    titles: tuple[str, ...]
    controlled: bool
    """Whether a controller creates it again."""


def is_served(namespace: Mapping[str, Any]) -> bool:
    """Whether pods of the namespace reach the webhook."""
    metadata = namespace.get("metadata") or {}
    enabled = (metadata.get("labels") or {}).get(names.INJECT_LABEL) == names.INJECT_ENABLED
    return enabled and metadata.get("name") not in names.UNSERVED_NAMESPACES


def asks_in_vain(pod: JSON) -> bool:
    """
    Whether a pod asks for a share and did not pass admission. A whole GPU of the vendor's device plugin is not meant.
    """
    if not pod.get("spec") or names.REQUEST in pods.annotations_of(pod) or pods.finished(pod):
        return False
    return bool(DIALECTS.detect(pod)) and DIALECTS.normalise(pod, Options(whole_gpus=VENDOR)) is not None


def unserved_pod(pod: JSON) -> UnservedPod | None:
    """The pod if it asks for a share in vain; else None."""
    if not asks_in_vain(pod):
        return None
    metadata = pod["metadata"]
    return UnservedPod(
        plain(str(metadata.get("namespace", "")), NAME),
        plain(str(metadata.get("name", "")), NAME),
        tuple(dialect.title for dialect in DIALECTS.detect(pod)),
        any(each.get("controller") for each in metadata.get("ownerReferences") or ()),
    )


def cure(namespace: str, found: Iterable[UnservedPod], *, served: bool | None) -> list[str]:
    """
    What to do about these pods of one namespace, as lines with the commands. `served`: whether their namespace is
    enabled by now; None where the user may not see it.
    """
    listed = list(found)
    these, them = ("the pod", "it") if len(listed) == 1 else ("the pods", "them")
    titles = ", ".join(sorted({title for pod in listed for title in pod.titles}))
    more = len(listed) - _MOST_NAMED
    who = ", ".join(pod.name for pod in listed[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    one = f"{len(listed)} pod requests" if len(listed) == 1 else f"{len(listed)} pods request"
    have = "has" if len(listed) == 1 else "have"
    head = f"{one} a GPU share ({titles}) and {have} none, since "
    if namespace in names.UNSERVED_NAMESPACES:
        return [f"{head}namespace {namespace} is never served: create {them} in another namespace: {who}"]
    if served:
        why = f"{these} came before namespace {namespace} was enabled, or while the webhook was not configured: {who}"
        lines = [f"{head}{why}", f"Recreate {these}:"]
    else:
        known = "is not enabled" if served is False else f"was not enabled when {these} came"
        lines = [f"{head}namespace {namespace} {known}: {who}", f"Label the namespace, then recreate {these}:"]
        lines.append(f"{_INDENT}kubectl label namespace {namespace} {INJECT}    # needs the right to edit namespaces")
    again = [pod.name for pod in listed if pod.controlled][:_MOST]
    if again:
        comes = "its controller creates it again" if len(again) == 1 else "their controllers create them again"
        lines.append(f"{_INDENT}kubectl -n {namespace} delete pod {' '.join(again)}    # {comes}")
    bare = [pod.name for pod in listed if not pod.controlled][:_MOST]
    if bare:
        lines.append(f"{_INDENT}kubectl -n {namespace} replace --force -f FILE    # the manifest of {' '.join(bare)}")
    return lines


def without_share(pod: JSON, served: Callable[[str], bool | None]) -> str:
    """
    Why a pod neither waits for a share nor has one, and what to do: a sentence, or lines with the commands. `served`:
    whether a namespace is enabled.
    """
    phase = str((pod.get("status") or {}).get("phase", ""))
    if pods.finished(pod):
        return f"it has finished ({phase}) and no longer holds a share"
    if names.GATE in pods.gates(pod):
        return "its request annotation contradicts its resources, so it is never placed; delete it"
    found = unserved_pod(pod)
    if found is not None:
        return "\n".join(cure(found.namespace, [found], served=served(found.namespace)))
    titles = ", ".join(dialect.title for dialect in DIALECTS.detect(pod))
    if titles:
        return f"it requests whole GPUs ({titles}), which the vendor's device plugin allocates"
    return "it requests no GPU share"
