"""
Elastic GPU's claims: the pod annotation `egpuc.elasticgpu.io/<key>: <name>` gives a pod an ElasticGPUClaim's share.

Any key works. The [claim](claims.md) has the amounts, so the pod's containers name no resources: every app container
sees the claim's GPUs; init containers and sidecars see none. A pod has one claim, and waits for one that does not exist
yet. Several pods may use one claim's share together, which counts once.
"""

from __future__ import annotations

from contract import names
from contract.dialects.base import (
    ANNOTATION,
    Dialect,
    Example,
    PodReader,
    ReadingRefused,
    Word,
    annotation_field,
    assumed,
    pod_request,
)
from contract.encoding.reading import is_subdomain, shown
from contract.model import FractionRequest, PodRequest

PREFIX = "egpuc.elasticgpu.io/"
ASSUMED, CONTAINER_PREFIX = "elasticgpu.io/assumed", "elasticgpu.io/container-"


def _read(context: PodReader) -> PodRequest | None:
    found = {key: context.annotation(key) for key in sorted(context.annotations) if key.startswith(PREFIX)}
    if not found:
        return None
    for key, name in found.items():
        if not is_subdomain(name):
            raise ReadingRefused(
                annotation_field(key), shown(name), "give the name of an ElasticGPUClaim in the pod's namespace"
            )
    first, *others = found
    for key in others:
        if found[key] != found[first]:
            raise ReadingRefused(
                annotation_field(key),
                f"{shown(found[key])}, together with {shown(found[first])}",
                "a pod has only one claim: keep one, or request the sum of both in one claim",
            )
    containers = [FractionRequest(a.name) for a in context.containers() if a.path.startswith("spec.containers")]
    warnings = [
        f"{annotation_field(key)}: ignored, since the claim chooses the GPU"
        for key in names.CONTAINER_WISHES
        if context.annotation(key)
    ]
    return pod_request("claims", context, containers, claim=found[first], warnings=warnings)


DIALECT = Dialect(
    name="claims",
    title="Elastic GPU's claims",
    resources=(),
    annotation_prefixes=(PREFIX,),
    read=_read,
    render=lambda decided: assumed(ASSUMED, CONTAINER_PREFIX, decided),
    about=__doc__ or "",
    glossary=(Word(f"{PREFIX}<key>", ANNOTATION, "name of the ElasticGPUClaim, in the pod's namespace"),),
    examples=(
        Example({}, annotations={f"{PREFIX}test1": "gpushare-egpuc-1"}),
        Example({}, annotations={f"{PREFIX}a": "one", f"{PREFIX}b": "two"}),
        Example({"elasticgpu.io/gpu-memory": "256"}, annotations={f"{PREFIX}a": "one"}),
    ),
)
