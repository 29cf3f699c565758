"""
What the ResourceClaims of a pod ask for, read from the API server while the pod is being created.

The webhook has no token, so it asks the allocator in its pod. The allocator reads each claim and template again: a new
one is in no cache yet, and a template may be deleted and created again under its name. Every replica answers, also one
that does not lead.

Must not: decide on anything but whether a claim can be served.
"""

from __future__ import annotations

from contract.dialects.base import Refusal
from contract.dialects.resourceclaims import SINCE, ClaimReading, read_claim
from contract.encoding import protocol
from contract.encoding.protocol import ClaimsAnswer, ClaimsQuestion
from contract.encoding.reading import Malformed
from contract.model import ClaimEntry
from contract.scheduling.gates import Version
from runtime.httpserver import Reply, Request, json_reply
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound

_WITHIN = 0.6
"""Seconds for one claim: less than the webhook waits for the whole answer."""


class ClaimReader:
    """Reads claims and templates. `version`: the cluster's."""

    def __init__(self, kube: Kube, *, version: Version, within: float = _WITHIN) -> None:
        self._kube = kube
        self._version = version
        self._within = within

    def read(self, question: ClaimsQuestion) -> ClaimsAnswer:
        """What each claim asks for; or why the pod cannot be served. Raises `KubeError` for what cannot be read now."""
        readings: dict[str, ClaimReading] = {}
        for entry in question.claims:
            found = self._read(question.namespace, entry)
            if isinstance(found, Refusal):
                return ClaimsAnswer(refused=str(found))
            readings[entry.name] = found
        return ClaimsAnswer(readings)

    def _read(self, namespace: str, entry: ClaimEntry) -> ClaimReading | Refusal:
        path = (
            paths.resourceclaimtemplates(namespace, entry.template)
            if entry.template
            else paths.resourceclaims(namespace, entry.claim)
        )
        what = f"ResourceClaimTemplate {entry.template}" if entry.template else f"ResourceClaim {entry.claim}"
        field = f"spec.resourceClaims[{entry.name}]"
        try:
            document = self._kube.get(path, timeout=self._within)
        except KubeNotFound:
            return Refusal(field, f"{what}, which does not exist", "create it before the pod")
        spec = document.get("spec") or {}
        found = (
            read_claim(spec.get("spec"), f"{what}: spec.spec") if entry.template else read_claim(spec, f"{what}: spec")
        )
        if found and self._version < SINCE:
            version, since = (".".join(map(str, each)) for each in (self._version, SINCE))
            cure = f"it drops capacity.requests; name resources such as gpufraction.io/gpu-memory, or use {since}"
            return Refusal(field, f"{what} for a share of a GPU on Kubernetes {version}", cure)
        return found


def answer(reader: ClaimReader, request: Request) -> Reply:
    """The reply to the webhook's question; 503 where it is to be asked again."""
    try:
        question = protocol.claims_question_from_json(request.json())
    except Malformed as error:
        return json_reply({"error": str(error)}, 400)
    except RecursionError:
        return json_reply({"error": "the body is nested too deeply"}, 400)
    try:
        return json_reply(protocol.claims_answer_to_json(reader.read(question)))
    except KubeError as error:
        return json_reply({"error": str(error)}, 503)
