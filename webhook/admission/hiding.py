"""
Hiding the GPUs of a node from pods that ask for none, where an administrator wants that.

On a node whose default container runtime is NVIDIA's, an image made for CUDA says `NVIDIA_VISIBLE_DEVICES=all` of
itself, and a pod that asks for nothing sees every GPU. `void` in the container's own environment hides them. Where
NVIDIA's NRI plugin is on, an annotation of the pod names them just as well, and is taken off. Off by default, since
then every pod of the labelled namespaces depends on the webhook.

A container that NVIDIA's own device plugin gives a GPU is left to the plugin, whose choice comes in the same variable.
Only the plugin's own names count (`contract.nodes.capacity`), and of a pod that names its node only those that the node
has: kube-scheduler never looks at such a pod, and kubelet takes in a pod that asks for a resource of which its node has
never heard, so that anybody could make up a name.

Cannot help with privileged containers, which see the devices of their node whatever their environment says. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from contract import names
from contract.encoding.reading import shown
from contract.nodes.capacity import VENDOR_GPU, vendor_gpus
from contract.scheduling import needs

JSON = dict[str, Any]
NOTHING: frozenset[str] = frozenset()


def asked_of_vendor(pod: Mapping[str, Any], *, whole: bool) -> frozenset[str]:
    """
    The resources by which containers of the pod ask NVIDIA's own plugin for a GPU.

    `whole`: whether `nvidia.com/gpu` is the plugin's here; else a pod that asks for it asks for a share.
    """
    found = [_devices(container) for container, _ in needs.containers(pod.get("spec") or {})]
    return NOTHING.union(*found) - (NOTHING if whole else {VENDOR_GPU})


def hidden(pod: Mapping[str, Any], believed: Set[str] = NOTHING) -> JSON:
    """
    The pod with no GPU visible in its containers; shares structure with `pod`, which is not changed.

    A container that asks for one of the resources `believed` sees what NVIDIA's plugin gives it for that.
    """
    spec = dict(pod.get("spec") or {})
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_left(c) if _devices(c) & believed else _hidden(c) for c in spec[kind]]
    return {**_unnamed(pod), "spec": spec}


def unbelieved(node: str, resources: Set[str]) -> str:
    """The warning about resources that a pod asks for and its node does not offer; empty where there are none."""
    if not resources:
        return ""
    first = min(resources)
    return (
        f"spec.nodeName: found {shown(node)}, which is not known to have {first}, so containers that ask for it see no "
        "GPU; remove spec.nodeName (a nodeSelector can choose the node)"
    )


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
    # In front, where it stays in one place however often a pod comes by.
    return {**container, "env": [{"name": str(names.VISIBLE_DEVICES), "value": names.NO_DEVICES}, *_others(container)]}


def _left(container: JSON) -> JSON:
    """Without the tenant's own choice, which would go before the plugin's."""
    kept = _others(container)
    return container if len(kept) == len(container.get("env") or []) else {**container, "env": kept}


def _others(container: Mapping[str, Any]) -> list[JSON]:
    return [entry for entry in container.get("env") or [] if entry.get("name") != names.VISIBLE_DEVICES]


def _devices(container: Mapping[str, Any]) -> frozenset[str]:
    """The plugin's GPUs that the container asks for; an amount of nothing is none."""
    resources = container.get("resources") or {}
    named = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return vendor_gpus(named)
