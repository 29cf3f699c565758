"""
The base of all workload controllers: a queue of their objects, the pods they own, and how they create and delete them.

A controller is a function from one object's key to writes, called by worker threads, never twice at once for one key.
Creates that the server refuses (a quota, a webhook's denial) are delayed longer each time, per owner, and reported in
an Event.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playground.api.kinds.values import JSON, timestamp
from playground.machinery.client.client import MERGE, PODS, Client, Refused, Resource
from playground.machinery.client.informer import Cache, Name, name_of
from playground.machinery.client.queueing import Backoff, WorkQueue
from playground.machinery.client.recording import NORMAL, WARNING, Recorder

log = logging.getLogger(__name__)

OWNER = "owner"
"""The index by the uid of the controlling owner; every cache of children has it."""


@dataclass(frozen=True, slots=True)
class ControlTiming:
    """In seconds."""

    refused: float = 1.0  # before a refused create is retried; doubled for each refusal in a row
    refused_cap: float = 30.0
    retry: float = 1.0  # before a key that failed unexpectedly is retried
    failed_pod: float = 1.0  # before a pod that failed is replaced; doubled likewise
    failed_pod_cap: float = 60.0


@dataclass(frozen=True, slots=True)
class Held:
    """Creates of one owner are held back until `until` because of `why`, while the owner is at `generation`."""

    until: float
    why: Refused
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The parts that a controller gets."""

    client: Client
    recorder: Recorder
    clock: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    timing: ControlTiming = ControlTiming()


class Controller(ABC):
    """The base of the controllers, which implement `sync`."""

    def __init__(self, means: Means, resource: Resource, objects: Cache, children: Cache) -> None:
        self.client = means.client
        self.recorder = means.recorder
        self.clock = means.clock
        self.monotonic = means.monotonic
        self.timing = means.timing
        self.resource = resource
        self.objects = objects
        self.children = children
        self.queue: WorkQueue[Name] = WorkQueue(monotonic=means.monotonic)
        self._backoff: Backoff[Name] = Backoff(self.timing.refused, self.timing.refused_cap)
        self._held: dict[Name, Held] = {}
        objects.on_change(lambda old, new: self.queue.add(name_of(new or old or {})))
        children.on_change(self._child_changed)

    @abstractmethod
    def sync(self, key: Name) -> None:
        """Bring the cluster closer to the desired state of the object with this key."""

    def live(self, key: Name) -> JSON | None:
        """The object, unless it is deleted or being deleted."""
        value = self.objects.get(*key)
        if value is None:
            self._held.pop(key, None)
            self._backoff.reset(key)
            return None
        return None if value["metadata"].get("deletionTimestamp") else value

    def owned(self, value: JSON) -> list[JSON]:
        return self.children.find(OWNER, value["metadata"]["uid"])

    def _child_changed(self, old: JSON | None, new: JSON | None) -> None:
        child = new or old or {}
        for owner in child["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner.get("kind") == self.resource.kind:
                self.queue.add((child["metadata"].get("namespace", ""), owner["name"]))

    # -- children -------------------------------------------------------------------------------------------------

    def reference(self, owner: JSON) -> JSON:
        metadata = owner["metadata"]
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def pod_of(self, owner: JSON, template: JSON, **metadata: object) -> JSON:
        """A pod of the template, owned by `owner`. `metadata` overrides the template's."""
        given = template.get("metadata") or {}
        inherited = {key: given[key] for key in ("labels", "annotations", "finalizers") if given.get(key)}
        return {
            "metadata": {**inherited, **metadata, "ownerReferences": [self.reference(owner)]},
            "spec": template.get("spec") or {},
        }

    def held(self, owner: JSON) -> Held | None:
        """Why no pod may be created for the owner now. A changed spec is retried at once."""
        key = name_of(owner)
        held = self._held.get(key)
        if held is None or held.generation != owner["metadata"].get("generation"):
            return None
        return held if self.monotonic() < held.until else None

    def create_pods(self, owner: JSON, pods: Sequence[JSON]) -> Refused | None:
        """Create them one after another, up to the first refusal. Returns it, now and on later calls while it holds."""
        key = name_of(owner)
        if not pods:
            self._held.pop(key, None)
            return None
        held = self.held(owner)
        if held is not None:
            return held.why
        for pod in pods:
            answer = self.client.create(PODS, key[0], pod)
            if isinstance(answer, Refused):
                self._hold(owner, answer)
                return answer
            self.children.observe(answer)
            self._backoff.reset(key)
            self.recorder.event(owner, NORMAL, "SuccessfulCreate", f"Created pod: {answer['metadata']['name']}")
        self._held.pop(key, None)
        return None

    def _hold(self, owner: JSON, why: Refused) -> None:
        key = name_of(owner)
        seconds = self._backoff.failed(key)
        self._held[key] = Held(self.monotonic() + seconds, why, owner["metadata"].get("generation", 0))
        self.queue.add_after(key, seconds)
        self.recorder.event(owner, WARNING, "FailedCreate", f"Error creating: {why.message}")

    def delete_pods(self, owner: JSON, pods: Sequence[JSON]) -> None:
        for pod in pods:
            answer = self.client.delete(PODS, pod)
            if not isinstance(answer, Refused):
                self.children.observe(answer)
                self.recorder.event(owner, NORMAL, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
            elif not answer.gone and not answer.outdated:
                self.recorder.event(owner, WARNING, "FailedDelete", f"Error deleting: {answer.message}")
                self.queue.add_after(name_of(owner), self.timing.retry)

    # -- status ---------------------------------------------------------------------------------------------------

    def now(self) -> str:
        return timestamp(self.clock())

    def write_status(self, value: JSON, status: JSON) -> None:
        """Write the fields of `status` that differ."""
        old = value.get("status") or {}
        changed = {key: part for key, part in status.items() if old.get(key) != part}
        if not changed:
            return
        answer = self.client.patch(self.resource, value, {"status": changed}, sub="status", content_type=MERGE)
        if not isinstance(answer, Refused):
            self.objects.observe(answer)
        elif not answer.outdated and not answer.gone:
            log.warning("status refused", extra={"object": value["metadata"]["name"], "said": answer.message})
