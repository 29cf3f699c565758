"""
The controller of ResourceClaims: creates those of pods' templates, and releases claims whose pods have ended.

As kube-controller-manager 1.36 does it: a claim is made also for a pod that waits behind a scheduling gate; a pod that
has finished or is deleted loses its reservation; a claim that was made for it is deleted; one that stands alone loses
its allocation if it has the finalizer by which it was allocated; and a claim that is deleted while no pod has it
reserved loses both (syncClaim in pkg/controller/resourceclaim/controller.go).
"""

from playground.api.kinds.values import JSON
from playground.machinery.client.client import (
    MERGE,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Refused,
)
from playground.machinery.client.informer import Cache, Name
from playground.machinery.client.recording import WARNING
from playground.machinery.controllers.control import OWNER, Controller, Means

MARK = "resource.kubernetes.io/pod-claim-name"
FINALIZER = "resource.kubernetes.io/delete-protection"
_DONE = ("Succeeded", "Failed")
_NO_POD = ""
"""In the queue's keys, in place of a pod's name: the key is about a claim that no pod has reserved."""


class PodClaims(Controller):
    """The keys of its queue are those of pods."""

    def __init__(self, means: Means, *, pods: Cache, claims: Cache) -> None:
        super().__init__(means, PODS, pods, claims)
        claims.on_change(self._claim_changed)

    def _claim_changed(self, old: JSON | None, new: JSON | None) -> None:
        claim = new or old or {}
        for each in _reserved(claim):
            self.queue.add((claim["metadata"]["namespace"], each["name"]))
        if _held_by_nobody(claim):
            self.queue.add((claim["metadata"]["namespace"], _NO_POD))

    def sync(self, key: Name) -> None:
        pod = self.objects.get(*key)
        if pod is None or (pod.get("status") or {}).get("phase") in _DONE:
            self._release(key, pod)
        elif not pod["metadata"].get("deletionTimestamp"):
            self._release(key, pod)
            self._make(key, pod)

    # -- claims of templates ----------------------------------------------------------------------------------------

    def _make(self, key: Name, pod: JSON) -> None:
        made = {each["name"] for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        statuses = list((pod.get("status") or {}).get("resourceClaimStatuses") or ())
        for entry in pod["spec"].get("resourceClaims") or ():
            template = entry.get("resourceClaimTemplateName")
            if not template or entry["name"] in made:
                continue
            claim = self._own(pod, entry["name"]) or self._created(key, pod, entry["name"], template)
            if isinstance(claim, Refused):
                text = f"PodResourceClaim {entry['name']}: {claim.message}"
                self.recorder.event(pod, WARNING, "FailedResourceClaimCreation", text)
                self.queue.add_after(key, self.timing.retry)
                return
            statuses.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
        if len(statuses) > len(made):
            self.write_status(pod, {"resourceClaimStatuses": statuses})

    def _own(self, pod: JSON, name: str) -> JSON | None:
        """The claim that was already created for this entry."""
        owned = self.children.find(OWNER, pod["metadata"]["uid"])
        return next((each for each in owned if (each["metadata"].get("annotations") or {}).get(MARK) == name), None)

    def _created(self, key: Name, pod: JSON, name: str, template: str) -> JSON | Refused:
        found = self.client.get(RESOURCE_CLAIM_TEMPLATES, key[0], template)
        if isinstance(found, Refused):
            return found
        given = found["spec"].get("metadata") or {}
        metadata = {
            "generateName": f"{key[1]}-{name}-",
            "annotations": {**(given.get("annotations") or {}), MARK: name},
            "labels": given.get("labels") or {},
            "ownerReferences": [self.reference(pod)],
        }
        answer = self.client.create(RESOURCE_CLAIMS, key[0], {"metadata": metadata, "spec": found["spec"]["spec"]})
        if not isinstance(answer, Refused):
            self.children.observe(answer)
        return answer

    # -- pods that have ended ---------------------------------------------------------------------------------------

    def _release(self, key: Name, pod: JSON | None) -> None:
        """Remove the reservations of ended pods with this name."""
        ended = pod is None or (pod.get("status") or {}).get("phase") in _DONE
        alive = "" if ended or pod is None else pod["metadata"]["uid"]
        for claim in self.children.all():
            if claim["metadata"]["namespace"] != key[0]:
                continue
            reserved = _reserved(claim)
            kept = [each for each in reserved if each["name"] != key[1] or each["uid"] == alive]
            if len(kept) < len(reserved) or _held_by_nobody(claim):
                self._unreserve(claim, kept)
        for claim in self.children.find(OWNER, pod["metadata"]["uid"]) if ended and pod is not None else ():
            if not claim["metadata"].get("deletionTimestamp"):
                self.client.delete(RESOURCE_CLAIMS, claim)

    def _unreserve(self, claim: JSON, kept: list[JSON]) -> None:
        finalizers = claim["metadata"].get("finalizers") or []
        releases = not kept and FINALIZER in finalizers
        status = {"reservedFor": kept or None, **({"allocation": None} if releases else {})}
        answer = self.client.patch(RESOURCE_CLAIMS, claim, {"status": status}, sub="status", content_type=MERGE)
        if isinstance(answer, Refused):
            return
        self.children.observe(answer)
        if releases:
            left = [each for each in finalizers if each != FINALIZER]
            gone = {"metadata": {"finalizers": left or None}}
            answer = self.client.patch(RESOURCE_CLAIMS, claim, gone, content_type=MERGE)
            if not isinstance(answer, Refused):
                self.children.observe(answer)


def _reserved(claim: JSON) -> list[JSON]:
    return (claim.get("status") or {}).get("reservedFor") or []


def _held_by_nobody(claim: JSON) -> bool:
    """Whether it is being deleted, and only the finalizer of its allocation keeps it."""
    metadata = claim["metadata"]
    return (
        bool(metadata.get("deletionTimestamp"))
        and FINALIZER in (metadata.get("finalizers") or ())
        and not _reserved(claim)
    )
