"""
Hiding the GPUs of a node from pods that ask for none, where an administrator wants that.

On a node whose default container runtime is NVIDIA's, an image made for CUDA says `NVIDIA_VISIBLE_DEVICES=all` of
itself, and a pod that asks for nothing sees every GPU. `void` in the container's own environment hides them. Where
NVIDIA's NRI plugin is on, an annotation of the pod names them just as well, and is taken off. Off by default, since
then every pod of the labelled namespaces depends on the webhook.

Cannot help with privileged containers, which see the devices of their node whatever their environment says. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import dialects, names, quantity, scheduling

JSON = dict[str, Any]

_VENDOR = "nvidia.com/"


def hidden(pod: Mapping[str, Any]) -> JSON:
    """
    The pod with no GPU visible in its containers; shares structure with `pod`, which is not changed.

    A container that is given a device by NVIDIA's own device plugin, such as a MIG slice, is left alone: the plugin's
    choice comes in the same variable.
    """
    spec = dict(pod.get("spec") or {})
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [c if _has_device(c) else _hidden(c) for c in spec[kind]]
    return {**_unnamed(pod), "spec": spec}


def debugged(pod: Mapping[str, Any], before: Mapping[str, Any]) -> JSON:
    """
    The pod with no GPU visible in ephemeral containers that `before` does not have; those that are there cannot change.

    They ask for nothing, whatever the pod has: a container that is put into a pod with a share, from an image of the
    tenant's choice, must not see the cards of others.
    """
    spec = dict(pod.get("spec") or {})
    known = {c.get("name") for c in (before.get("spec") or {}).get("ephemeralContainers") or []}
    if spec.get("ephemeralContainers"):
        spec["ephemeralContainers"] = [c if c.get("name") in known else _hidden(c) for c in spec["ephemeralContainers"]]
    return {**pod, "spec": spec}


def _unnamed(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the annotations that name devices to the container runtime."""
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    kept = {key: value for key, value in annotations.items() if not key.startswith(names.DEVICE_ANNOTATION_PREFIXES)}
    return pod if kept == annotations else {**pod, "metadata": {**metadata, "annotations": kept}}


def _hidden(container: JSON) -> JSON:
    kept = [entry for entry in container.get("env") or [] if entry.get("name") != names.VISIBLE_DEVICES]
    # In front, where it stays in one place however often a pod comes by.
    return {**container, "env": [{"name": str(names.VISIBLE_DEVICES), "value": names.NO_DEVICES}, *kept]}


def _has_device(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    foreign = {
        name
        for kind in ("limits", "requests")
        for name in resources.get(kind) or {}
        if name.startswith(_VENDOR) and not dialects.ours(name)
    }
    return any(_amount(scheduling.request_of(container, name)) for name in foreign)


def _amount(value: object) -> int:
    try:
        return quantity.integer(value)
    except quantity.BadQuantity:
        return 1
