"""
The Job controller: runs pods to completion, with the requested completions and parallelism.

Non-indexed completion only; no pod failure policy, no success policy. The controller keeps the uids of ended pods while
this program runs, so a finished pod that is deleted stays counted. After a restart, it counts the pods that are left.
"""

from collections.abc import Sequence

from playground.api.kinds.values import JSON, seconds_of
from playground.machinery.client.client import JOBS, Refused
from playground.machinery.client.informer import Cache, Name, name_of
from playground.machinery.client.queueing import Backoff
from playground.machinery.client.recording import NORMAL, WARNING
from playground.machinery.controllers import jobplan, replicas
from playground.machinery.controllers.control import Controller, Means
from playground.machinery.controllers.jobplan import Tally, Verdict
from playground.machinery.objects import conditions

_NAMES = ("job-name", "batch.kubernetes.io/job-name")
_UIDS = ("controller-uid", "batch.kubernetes.io/controller-uid")


class Jobs(Controller):
    def __init__(self, means: Means, *, objects: Cache, pods: Cache) -> None:
        super().__init__(means, JOBS, objects, pods)
        self._ended: dict[str, dict[str, set[str]]] = {}  # job uid -> phase -> uids of its pods
        self._dismissed: dict[str, set[str]] = {}  # job uid -> uids of pods that it removed, which have no result
        self._failures: Backoff[str] = Backoff(self.timing.failed_pod, self.timing.failed_pod_cap)
        self._not_before: dict[str, float] = {}
        objects.on_change(self._forget)

    def _forget(self, old: JSON | None, new: JSON | None) -> None:
        if new is None and old is not None:
            uid = old["metadata"]["uid"]
            self._ended.pop(uid, None)
            self._dismissed.pop(uid, None)
            self._not_before.pop(uid, None)
            self._failures.reset(uid)

    def sync(self, key: Name) -> None:
        value = self.live(key)
        if value is None:
            return
        if _is_over(value):
            self._clean_up(value)
            return
        counted = self._count(value)
        started = (value.get("status") or {}).get("startTime")
        seconds = self.clock() - (seconds_of(started) or self.clock())
        over = jobplan.verdict(value["spec"], counted, seconds)
        pods = [pod for pod in self.owned(value) if replicas.is_active(pod)]
        if over is not None:
            self._dismiss(value, pods)
        else:
            self._adjust(value, counted, pods)
            self._await_deadline(value, seconds)
        self._report(value, self._count(value), over)

    def _count(self, value: JSON) -> Tally:
        uid, status, pods = value["metadata"]["uid"], value.get("status") or {}, self.owned(value)
        ended = self._ended.setdefault(uid, {"Succeeded": set(), "Failed": set()})
        before = len(ended["Failed"])
        dismissed = self._dismissed.get(uid, set())
        for pod in pods:
            if replicas.phase(pod) in ended and pod["metadata"]["uid"] not in dismissed:
                ended[replicas.phase(pod)].add(pod["metadata"]["uid"])
        if len(ended["Failed"]) > before:
            self._not_before[uid] = self.monotonic() + self._failures.failed(uid)
        return jobplan.tally(
            pods,
            succeeded=max(len(ended["Succeeded"]), int(status.get("succeeded") or 0)),
            failed=max(len(ended["Failed"]), int(status.get("failed") or 0)),
        )

    def _adjust(self, value: JSON, counted: Tally, pods: Sequence[JSON]) -> None:
        missing = jobplan.wanted(value["spec"], counted) - len(pods)
        if missing < 0:
            self._dismiss(value, replicas.going_first(pods)[:-missing])
            return
        wait = self._not_before.get(value["metadata"]["uid"], 0.0) - self.monotonic()
        if missing and wait > 0:
            self.queue.add_after(name_of(value), wait)
            return
        self.create_pods(value, [self._pod(value) for _ in range(missing)])

    def _dismiss(self, value: JSON, pods: Sequence[JSON]) -> None:
        known = self._dismissed.setdefault(value["metadata"]["uid"], set())
        known.update(pod["metadata"]["uid"] for pod in pods)
        self.delete_pods(value, pods)

    def _pod(self, value: JSON) -> JSON:
        metadata, template = value["metadata"], value["spec"]["template"]
        ours = {**dict.fromkeys(_NAMES, metadata["name"]), **dict.fromkeys(_UIDS, metadata["uid"])}
        labels = {**((template.get("metadata") or {}).get("labels") or {}), **ours}
        return self.pod_of(value, template, generateName=f"{metadata['name']}-", labels=labels)

    def _await_deadline(self, value: JSON, seconds: float) -> None:
        deadline = value["spec"].get("activeDeadlineSeconds")
        if deadline is not None:
            self.queue.add_after(name_of(value), max(float(deadline) - seconds, 0.0))

    def _clean_up(self, value: JSON) -> None:
        ttl = value["spec"].get("ttlSecondsAfterFinished")
        finished = next((c for c in value["status"]["conditions"] if c["type"] in ("Complete", "Failed")), None)
        since = seconds_of((finished or {}).get("lastTransitionTime"))
        if ttl is None or since is None:
            return
        left = since + float(ttl) - self.clock()
        if left > 0:
            self.queue.add_after(name_of(value), left)
        elif isinstance(answer := self.client.delete(JOBS, value), Refused) and not answer.gone:
            self.queue.add_after(name_of(value), self.timing.retry)

    def _report(self, value: JSON, counted: Tally, over: Verdict | None) -> None:
        old, now = value.get("status") or {}, self.now()
        suspended = bool(value["spec"].get("suspend"))
        status: JSON = {
            "active": counted.active,
            "ready": counted.ready,
            "succeeded": counted.succeeded,
            "failed": counted.failed,
            "terminating": sum(bool(pod["metadata"].get("deletionTimestamp")) for pod in self.owned(value)),
        }
        if not suspended and not old.get("startTime"):
            status["startTime"] = now
        if over is not None:
            wanted = [conditions.condition(over.type, True, over.reason, over.message)]
            early = "SuccessCriteriaMet" if over.type == "Complete" else "FailureTarget"
            wanted.insert(0, conditions.condition(early, True, over.reason, over.message))
            status["conditions"] = conditions.merged(old.get("conditions"), wanted, now)
            if over.type == "Complete":
                status["completionTime"] = now
            good = over.type == "Complete"
            outcome = ("Completed", "Job completed") if good else (over.reason, over.message)
            self.recorder.event(value, NORMAL if good else WARNING, *outcome)
        elif suspended or conditions.find(value, "Suspended") is not None:
            reason = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
            wanted = [conditions.condition("Suspended", suspended, *reason)]
            status["conditions"] = conditions.merged(old.get("conditions"), wanted, now)
        self.write_status(value, status)


def _is_over(value: JSON) -> bool:
    return conditions.holds(value, "Complete") or conditions.holds(value, "Failed")
