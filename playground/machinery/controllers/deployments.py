"""
The Deployment controller: one ReplicaSet for each pod template, and steps from the old ones to the new.

Rolling updates and `Recreate`, scaling, pausing, revision history (so that `kubectl rollout undo` works), progress and
its deadline. During a rollout, it does not scale several ReplicaSets in proportion, but finishes the rollout.
"""

from playground.api.kinds.values import JSON, seconds_of
from playground.machinery.client.client import DEPLOYMENTS, MERGE, REPLICA_SETS, Refused
from playground.machinery.client.informer import Cache, Name, name_of
from playground.machinery.client.recording import NORMAL, WARNING
from playground.machinery.controllers import replicas
from playground.machinery.controllers.control import Controller, Means
from playground.machinery.controllers.replicas import HASH_LABEL, Bounds, Size
from playground.machinery.objects import conditions

REVISION = "deployment.kubernetes.io/revision"
_DESIRED, _MAX = "deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas"
_FAILURE, _PROGRESS = "ReplicaFailure", "Progressing"
_NOT_INHERITED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION, _DESIRED, _MAX)


class Deployments(Controller):
    def __init__(self, means: Means, *, objects: Cache, replica_sets: Cache) -> None:
        super().__init__(means, DEPLOYMENTS, objects, replica_sets)

    def sync(self, key: Name) -> None:
        value = self.live(key)
        if value is None:
            return
        new, olds = self._sets(value)
        limits = replicas.bounds(value["spec"])
        if not value["spec"].get("paused"):
            new = self._new_set(value, new, olds, limits)
            self._step(value, new, olds, limits)
            self._forget_history(value, olds)
        elif new is not None and new["spec"].get("replicas") != limits.desired:
            self._scale(value, new, limits.desired)
        self._report(value, *self._sets(value), limits)

    def _sets(self, value: JSON) -> tuple[JSON | None, list[JSON]]:
        """The ReplicaSet of the current template, if there is one, and the others, oldest first."""
        owned = sorted(self.owned(value), key=lambda rs: int(rs["metadata"]["resourceVersion"]))
        owned = [rs for rs in owned if not rs["metadata"].get("deletionTimestamp")]
        template = value["spec"]["template"]
        new = next((rs for rs in owned if replicas.same_template(rs["spec"]["template"], template)), None)
        return new, [rs for rs in owned if rs is not new]

    # -- the new ReplicaSet ---------------------------------------------------------------------------------------

    def _new_set(self, value: JSON, new: JSON | None, olds: list[JSON], limits: Bounds) -> JSON | None:
        """The ReplicaSet of the current template, created if needed and marked as the latest revision."""
        newest = max((_revision(rs) for rs in olds), default=0)
        revision = str(max(newest + 1, _revision(new)) if new is not None else newest + 1)
        if new is None:
            new = self._create(value, revision, olds, limits)
        elif str(_revision(new)) != revision:
            new = self._annotate(new, revision)
        if new is not None and (value["metadata"].get("annotations") or {}).get(REVISION) != revision:
            patch = {"metadata": {"annotations": {REVISION: revision}}}
            answer = self.client.patch(DEPLOYMENTS, value, patch, content_type=MERGE)
            if not isinstance(answer, Refused):
                self.objects.observe(answer)
        return new

    def _annotate(self, new: JSON, revision: str) -> JSON:
        patch = {"metadata": {"annotations": {REVISION: revision}}}
        answer = self.client.patch(REPLICA_SETS, new, patch, content_type=MERGE)
        if isinstance(answer, Refused):
            return new
        self.children.observe(answer)
        return answer

    def _create(self, value: JSON, revision: str, olds: list[JSON], limits: Bounds) -> JSON | None:
        made = self._replica_set(value, revision, limits)
        if not olds:
            made["spec"]["replicas"] = limits.desired
        answer = self.client.create(REPLICA_SETS, value["metadata"]["namespace"], made)
        if not isinstance(answer, Refused):
            self.children.observe(answer)
            if limits.desired and not olds:
                self._scaled_message(value, answer, 0, limits.desired)
            return answer
        if answer.outdated:
            self._collided(value)
        elif not answer.gone:
            message = f'Failed to create new replica set "{made["metadata"]["name"]}": {answer.message}'
            self.recorder.event(value, WARNING, "ReplicaSetCreateError", message)
            self.queue.add_after(name_of(value), self.timing.retry)
        return None

    def _collided(self, value: JSON) -> None:
        """Retry with another name: a ReplicaSet with another template, or one not yet in the cache, has this one."""
        status = value.get("status") or {}
        self.write_status(value, {"collisionCount": int(status.get("collisionCount") or 0) + 1})
        self.queue.add_after(name_of(value), self.timing.retry)

    def _replica_set(self, value: JSON, revision: str, limits: Bounds) -> JSON:
        metadata, spec = value["metadata"], value["spec"]
        collisions = int((value.get("status") or {}).get("collisionCount") or 0)
        hashed = replicas.template_hash(spec["template"], collisions)
        template = dict(spec["template"])
        given = template.get("metadata") or {}
        template["metadata"] = {**given, "labels": {**(given.get("labels") or {}), HASH_LABEL: hashed}}
        selector = dict(spec.get("selector") or {})
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH_LABEL: hashed}
        inherited = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _NOT_INHERITED}
        sizes = {_DESIRED: str(limits.desired), _MAX: str(limits.desired + limits.surge)}
        min_ready = spec.get("minReadySeconds")
        return {
            "metadata": {
                "name": f"{metadata['name']}-{hashed}",
                "labels": dict(template["metadata"]["labels"]),
                "annotations": {**inherited, REVISION: revision, **sizes},
                "ownerReferences": [self.reference(value)],
            },
            "spec": {
                "replicas": 0,
                "selector": selector,
                "template": template,
                **({"minReadySeconds": min_ready} if min_ready else {}),
            },
        }

    # -- steps ----------------------------------------------------------------------------------------------------

    def _step(self, value: JSON, new: JSON | None, olds: list[JSON], limits: Bounds) -> None:
        sizes = [_size(rs) for rs in olds]
        if (value["spec"].get("strategy") or {}).get("type") == "Recreate":
            old_pods = sum(int((rs.get("status") or {}).get("replicas") or 0) for rs in olds)
            targets = replicas.recreating(limits, _size(new) if new is not None else None, sizes, old_pods)
        elif new is not None:
            targets = replicas.rolling(limits, _size(new), sizes)
        else:
            targets = {}
        for rs in [*olds, *([new] if new is not None else [])]:
            target = targets.get(rs["metadata"]["name"])
            if target is not None:
                self._scale(value, rs, target)

    def _scale(self, value: JSON, rs: JSON, target: int) -> None:
        answer = self.client.patch(REPLICA_SETS, rs, {"spec": {"replicas": target}}, content_type=MERGE)
        if isinstance(answer, Refused):
            self.queue.add_after(name_of(value), self.timing.retry)
            return
        self.children.observe(answer)
        self._scaled_message(value, rs, int(rs["spec"].get("replicas", 0)), target)

    def _scaled_message(self, value: JSON, rs: JSON, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {rs['metadata']['name']} from {before} to {after}"
        self.recorder.event(value, NORMAL, "ScalingReplicaSet", message)

    def _forget_history(self, value: JSON, olds: list[JSON]) -> None:
        limit = int(value["spec"].get("revisionHistoryLimit", 10))
        empty = [rs for rs in olds if not rs["spec"].get("replicas") and not (rs.get("status") or {}).get("replicas")]
        for rs in sorted(empty, key=_revision)[: max(len(empty) - limit, 0)]:
            self.client.delete(REPLICA_SETS, rs)

    # -- status ---------------------------------------------------------------------------------------------------

    def _report(self, value: JSON, new: JSON | None, olds: list[JSON], limits: Bounds) -> None:
        sets = [*olds, *([new] if new is not None else [])]
        totals = {
            field: sum(int((rs.get("status") or {}).get(field) or 0) for rs in sets)
            for field in ("replicas", "readyReplicas", "availableReplicas")
        }
        updated = int((new.get("status") or {}).get("replicas") or 0) if new is not None else 0
        missing = max(sum(int(rs["spec"].get("replicas", 0)) for rs in sets) - totals["availableReplicas"], 0)
        status: JSON = {
            **totals,
            "updatedReplicas": updated,
            "unavailableReplicas": missing,
            "observedGeneration": value["metadata"].get("generation", 0),
        }
        status["conditions"] = self._conditions(value, status, new, sets, limits)
        self.write_status(value, status)

    def _conditions(self, value: JSON, status: JSON, new: JSON | None, sets: list[JSON], limits: Bounds) -> list[JSON]:
        old = (value.get("status") or {}).get("conditions")
        enough = status["availableReplicas"] >= limits.desired - limits.unavailable
        wanted = [
            conditions.condition(
                "Available",
                enough,
                "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
                f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            )
        ]
        progressing = self._progressing(value, status, new, limits)
        if progressing is not None:
            wanted.append(progressing)
            if self._progressed(value, status):
                # A step restarts the deadline, even if the message stays the same.
                old = [{**c, "message": ""} if c["type"] == _PROGRESS else c for c in old or []]
        failure = next((f for rs in reversed(sets) if (f := conditions.find(rs, _FAILURE)) is not None), None)
        if failure is None:
            old = conditions.without(old, _FAILURE)
        else:
            wanted.append(conditions.condition(_FAILURE, True, failure.get("reason", ""), failure.get("message", "")))
        return conditions.merged(old, wanted, self.now(), touched="lastUpdateTime")

    def _progressing(self, value: JSON, status: JSON, new: JSON | None, limits: Bounds) -> JSON | None:
        if new is None:
            return None
        name, before = new["metadata"]["name"], conditions.find(value, _PROGRESS)
        complete = all(status[f] == limits.desired for f in ("replicas", "updatedReplicas", "availableReplicas"))
        if complete:
            message = f'ReplicaSet "{name}" has successfully progressed.'
            return conditions.condition(_PROGRESS, True, "NewReplicaSetAvailable", message)
        if before is not None and before.get("reason") == "NewReplicaSetAvailable" and name in before["message"]:
            return None  # the rollout was complete before; losing a pod later does not start another
        if not self._progressed(value, status) and self._too_late(value, before):
            message = f'ReplicaSet "{name}" has timed out progressing.'
            return conditions.condition(_PROGRESS, False, "ProgressDeadlineExceeded", message)
        return conditions.condition(_PROGRESS, True, "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')

    def _progressed(self, value: JSON, status: JSON) -> bool:
        old = value.get("status") or {}
        return any(status[f] > int(old.get(f) or 0) for f in ("updatedReplicas", "readyReplicas", "availableReplicas"))

    def _too_late(self, value: JSON, before: JSON | None) -> bool:
        deadline = value["spec"].get("progressDeadlineSeconds")
        since = seconds_of((before or {}).get("lastUpdateTime"))
        if deadline is None or since is None:
            return False
        left = since + float(deadline) - self.clock()
        if left > 0:
            self.queue.add_after(name_of(value), left)
        return left <= 0


def _revision(rs: JSON) -> int:
    try:
        return int((rs["metadata"].get("annotations") or {}).get(REVISION, 0))
    except ValueError:
        return 0


def _size(rs: JSON) -> Size:
    available = int((rs.get("status") or {}).get("availableReplicas") or 0)
    return Size(rs["metadata"]["name"], int(rs["spec"].get("replicas", 0)), available)
