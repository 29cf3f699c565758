"""
The annotations that protect a pod's node from autoscalers, and which of them are ours.

Cluster Autoscaler removes no node with a pod of `safe-to-evict: "false"`, and Karpenter disrupts none with a pod of
`do-not-disrupt: "true"`. Values of the pod's author under these names stay. The annotation `gpufraction.io/protected`
lists those that we wrote, so that they end with the share.

Cluster Autoscaler also removes no node with a pod that has an emptyDir or a hostPath, unless an annotation names the
volume. The volumes that we add to pods hold no data that justifies keeping a node, so `evictable` names them there.

Pure. Must not: change any other annotation, even if that list names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from contract import names
from contract.encoding.reading import words

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
AGAINST_SCALE_DOWN: Mapping[str, str] = {
    SAFE_TO_EVICT: "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""By Cluster Autoscaler's name and by Karpenter's: the value that keeps the node."""
_LONGEST = 512
"""Characters of the list of those that are ours; a longer one is not ours."""


LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Names of volumes, separated by commas without spaces, that do not keep Cluster Autoscaler from removing the node."""


def evictable(annotations: Mapping[str, str], volumes: Iterable[str]) -> dict[str, str]:
    """
    These annotations, in which Cluster Autoscaler finds our `volumes` alongside those that the pod's author named.
    """
    listed = annotations.get(LOCAL_VOLUMES, "")
    named = listed.split(",") if listed else []
    return {**annotations, LOCAL_VOLUMES: ",".join([*named, *(name for name in volumes if name not in named)])}


def written(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The annotations of a pod that are ours, including the list itself, except those that were changed since."""
    text = annotations.get(names.PROTECTED, "")
    listed = words(text) if len(text) <= _LONGEST else ()
    ours = tuple(key for key, value in AGAINST_SCALE_DOWN.items() if key in listed and annotations.get(key) == value)
    return (*ours, str(names.PROTECTED)) if names.PROTECTED in annotations else ()


def stays(annotations: Mapping[str, str]) -> bool:
    """
    Whether the pod's author forbids moving it. Our own annotation protects a node from scale-down, but lets the pod
    make room for another.
    """
    return annotations.get(SAFE_TO_EVICT) == "false" and SAFE_TO_EVICT not in written(annotations)


def added(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations to write with a share, on a pod with these annotations; empty if its author wrote all of them."""
    before = written(annotations)
    ours = {key: value for key, value in AGAINST_SCALE_DOWN.items() if key in before or key not in annotations}
    return {**ours, str(names.PROTECTED): ",".join(ours)} if ours else {}


def without(annotations: Mapping[str, str]) -> dict[str, str]:
    """These annotations without those that we wrote."""
    removed = written(annotations)
    return {key: value for key, value in annotations.items() if key not in removed}


def read_of(annotations: Mapping[str, str]) -> dict[str, str]:
    """The part of a pod's annotations that this module reads."""
    return {key: annotations[key] for key in (*AGAINST_SCALE_DOWN, str(names.PROTECTED)) if key in annotations}
