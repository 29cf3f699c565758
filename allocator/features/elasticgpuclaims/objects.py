"""
The objects of `elasticgpu.io/v1alpha1` as values: the parts on which a decision or a next step depends.

Names and words are sanitised when they are read, because they become parts of messages on other objects.

Two fields have two spellings each: the published schemas use `elasticGPUClassName` and `elasticGPUName`, and their
README `egpuClassName` and `egpuName`. Reading never fails: a missing field or one of the wrong type is read as empty,
because a damaged object must affect only its owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from contract.encoding import codec, moments
from contract.encoding.plain import MESSAGE, NAME, plain
from contract.encoding.reading import Malformed
from contract.model import Allocation
from contract.reasons.base import ReasonName

JSON = dict[str, Any]

GROUP_VERSION = "elasticgpu.io/v1alpha1"
CLAIMS, CLASSES, SHARES, CARDS = "elasticgpuclaims", "elasticgpuclasses", "elasticgpus", "gpus"
CLAIM, SHARE, CARD = "ElasticGPUClaim", "ElasticGPU", "GPU"
PROVISIONER = "gpushare.provisioner.elasticgpu.io"
RETAIN, DELETE = "Retain", "Delete"
IMMEDIATE, FIRST_CONSUMER = "Immediate", "WaitForFirstConsumer"
PENDING, BOUND, LOST, RELEASED, FAILED = "Pending", "Bound", "Lost", "Released", "Failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A phase and its reason: a code of the registry and a sentence."""

    phase: str
    reason: ReasonName
    message: str


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """The status of an object."""

    phase: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class GpuClass:
    """An ElasticGPUClass. Unset fields are empty."""

    name: str
    provisioner: str = ""
    reclaim: str = ""
    binding: str = ""
    unit: str = ""
    """The unit of a claim's plain number of memory: `GiB`, which is the default, or `MiB`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An ElasticGPUClaim. `amounts`: the requested amounts, by the full name of the resource."""

    namespace: str
    name: str
    uid: str
    version: int
    class_name: str = ""
    amounts: tuple[tuple[str, object], ...] = ()
    share_name: str = ""
    """The ElasticGPU that its spec names."""
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    status: PublishedStatus = PublishedStatus()
    created: float = 0.0

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def own_share(self) -> str:
        """The name of its ElasticGPU. It contains the claim's uid, so a claim never has two."""
        return f"egpu-{self.uid}"

    @property
    def kept(self) -> bool:
        """Whether it has our finalizer."""
        return names.CLAIM_FINALIZER in self.finalizers

    @property
    def bound(self) -> bool:
        """Whether an ElasticGPU was ever bound to it."""
        return self.share_name == self.own_share


@dataclass(frozen=True, slots=True)
class ElasticShare:
    """An ElasticGPU: the share of a claim. `allocation` is None if we did not create it."""

    name: str
    uid: str
    version: int
    namespace: str = ""
    """The claim that it is for: namespace, name and uid."""
    claim: str = ""
    claim_uid: str = ""
    allocation: Allocation | None = None
    reclaim: str = ""
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    status: PublishedStatus = PublishedStatus()

    @property
    def key(self) -> str:
        """The claim's `namespace/name`."""
        return f"{self.namespace}/{self.claim}"

    @property
    def kept(self) -> bool:
        """Whether it has our finalizer."""
        return names.SHARE_FINALIZER in self.finalizers


def gpu_class(document: Mapping[str, Any]) -> GpuClass:
    """Read an ElasticGPUClass."""
    return GpuClass(
        name=_text(_part(document, "metadata"), "name"),
        provisioner=_text(document, "provisioner"),
        reclaim=_text(document, "reclaimPolicy"),
        binding=_text(document, "egpuBindingMode"),
        unit=_text(_part(document, "parameters"), "memoryUnit"),
    )


def claim(document: Mapping[str, Any]) -> Claim:
    """Read an ElasticGPUClaim."""
    metadata, spec = _part(document, "metadata"), _part(document, "spec")
    resources = _part(spec, "resources")
    amounts = _part(resources, "requests") or _part(resources, "limits")
    return Claim(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        version=pods.version(document) or 0,
        class_name=_text(spec, "elasticGPUClassName") or _text(spec, "egpuClassName"),
        amounts=tuple(sorted(amounts.items())),
        share_name=_text(spec, "elasticGPUName") or _text(spec, "egpuName"),
        finalizers=_texts(metadata, "finalizers"),
        deleting=bool(metadata.get("deletionTimestamp")),
        status=_status(document),
        created=moments.created(document),
    )


def share(document: Mapping[str, Any]) -> ElasticShare:
    """Read an ElasticGPU."""
    metadata, reference = _part(document, "metadata"), _part(_part(document, "spec"), "claimRef")
    annotations = _part(metadata, "annotations")
    return ElasticShare(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        version=pods.version(document) or 0,
        namespace=_text(reference, "namespace"),
        claim=_text(reference, "name"),
        claim_uid=_text(reference, "uid"),
        allocation=_allocation(annotations, _text(metadata, "name")),
        reclaim=_text(annotations, names.RECLAIM),
        finalizers=_texts(metadata, "finalizers"),
        deleting=bool(metadata.get("deletionTimestamp")),
        status=_status(document),
    )


def _allocation(annotations: Mapping[str, Any], name: str) -> Allocation | None:
    try:
        found = codec.allocation_from_text(annotations.get(names.ALLOCATION))
    except Malformed:
        return None
    return found if found.claim == name else None


def _status(document: Mapping[str, Any]) -> PublishedStatus:
    status = _part(document, "status")
    return PublishedStatus(_text(status, "phase"), _text(status, "reason"), _text(status, "message", MESSAGE))


def _part(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(parent: Mapping[str, Any], key: str, most: int = NAME) -> str:
    value = parent.get(key)
    return plain(value, most) if isinstance(value, str) else ""


def _texts(parent: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = parent.get(key)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
