"""The reasons of ElasticGPUClaims and ElasticGPUs, of pods that name a claim, and of Events about claims."""

from __future__ import annotations

from contract.reasons.base import NEVER, Cure, ReasonKind, Reasons, Row, either

_ITS_OWN = either(Cure.GPU_CLAIM)
_PAGE = "claims.md#read-a-claims-status"


def _claim(text: str, cure: str = "", cured_by: frozenset[Cure] = _ITS_OWN) -> Row:
    return Row(ReasonKind.CLAIM, text, cure, cured_by, _PAGE)


class ClaimReason(Reasons):
    """
    Reasons in the status of a claim or of its ElasticGPU, besides those of nodes.

    A pod that waits for a claim has the claim's reason behind `Claim`, as `ClaimInvalid`.
    """

    BOUND = "Bound", _claim("The claim has its share.")
    IN_USE = "InUse", _claim("The claim is deleted, and a pod uses it.", "Wait until no pod uses it.")
    GPU_GONE = (
        "GPUGone",
        _claim(
            "The claim's GPU no longer exists.", "The claim is bound again when the GPU returns.", either(Cure.GPUS)
        ),
    )
    ELASTIC_GPU_GONE = (
        "ElasticGPUGone",
        _claim("The claim's ElasticGPU no longer exists.", "Delete the claim and create it again."),
    )
    CLAIM_GONE = (
        "ClaimGone",
        _claim("The claim of this ElasticGPU no longer exists.", "Delete the ElasticGPU to release the share."),
    )
    FIRST_CONSUMER = "WaitForFirstConsumer", _claim("bound when the first pod names it", "Create a pod that names it.")
    NAMES_ELASTIC_GPU = (
        "NamesElasticGPU",
        _claim("spec.elasticGPUName: found ...", "Leave `spec.elasticGPUName` empty; it is filled in when bound."),
    )
    CLASS_MISSING = "ClassMissing", _claim("ElasticGPUClass ... does not exist", "Create the class.")
    INVALID = "Invalid", _claim("A field, what was found in it, and what would work.", "Do what the message says.")
    NAMESPACE_LIMIT = (
        "NamespaceLimit",
        _claim(
            "it needs ... MiB, and the claims of its namespace use ... of the ... MiB that they may use together",
            "Delete a claim, or ask the administrator for more.",
        ),
    )
    WRITE_REFUSED = (
        "WriteRefused",
        _claim(
            "the API server refuses what gpufraction writes for this claim: ...",
            "Change the policy or quota that refuses it. The write is retried.",
            either(Cure.TIME),
        ),
    )
    INTERNAL_ERROR = (
        "InternalError",
        _claim("An internal error of gpufraction, which affects only this claim.", "Report it.", either(Cure.TIME)),
    )


def _of_pod(text: str, cure: str = "") -> Row:
    return Row(ReasonKind.WAITS, text, cure, _ITS_OWN, _PAGE)


class PodOfClaim(Reasons):
    """Reasons of a pod that names a claim; for others see `ClaimReason`."""

    OFF = "ClaimsOff", _of_pod("Claims are not served.", "Have an administrator install the component `claims`.")
    MISSING = "ClaimMissing", _of_pod("ElasticGPUClaim ... is not in the namespace", "Create the claim.")
    DELETED = "ClaimDeleted", _of_pod("ElasticGPUClaim ... is being deleted", "Create the claim again.")
    LOST = "ClaimLost", _of_pod("ElasticGPUClaim ... is lost, or its GPU no longer exists", "Create the claim again.")
    BINDING = "ClaimBinding", _of_pod("ElasticGPUClaim ... is being bound", "Wait a moment.")
    BOUND = "ClaimBound", _of_pod("ElasticGPUClaim ... is bound; the pod is placed shortly", "Wait a moment.")


def _event(text: str, cure: str = "") -> Row:
    return Row(ReasonKind.CLAIM_EVENT, text, cure, NEVER, _PAGE)


class ClaimEventReason(Reasons):
    """Reasons of Events about claims, each when the claim's status changes to it."""

    BOUND = "ClaimBound", _event("The claim has its share.")
    IN_USE = "ClaimInUse", _event("The claim is deleted, and a pod uses it.", "Wait until no pod uses it.")
    LOST = "ClaimLost", _event("The claim's share or GPU is gone.", "Do what the message says.")
    REFUSED = "ClaimRefused", _event("The claim cannot be served in its current form.", "Do what the message says.")
    WAITING = (
        "ClaimWaiting",
        _event("There is no room for the claim's share now. The message lists the reasons per node."),
    )
    WRITE_REFUSED = (
        "ClaimWriteRefused",
        _event(
            "The API server refuses what gpufraction writes for this claim.",
            "Change the policy or quota that refuses it.",
        ),
    )
