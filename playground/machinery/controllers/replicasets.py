"""
The ReplicaSet controller: keeps the requested number of pods, and reports in the status why there are fewer.
"""

from playground.api.kinds.values import JSON, seconds_of
from playground.machinery.client.client import REPLICA_SETS, Refused
from playground.machinery.client.informer import Cache, Name, name_of
from playground.machinery.controllers import replicas
from playground.machinery.controllers.control import Controller, Means
from playground.machinery.objects import conditions

BURST = 500
"""Pods that one pass creates or deletes at most (`burstReplicas` of the real controller)."""
FREE_FAILURES = 3
"""Failed pods that are replaced at once."""
FAILURE = "ReplicaFailure"


class ReplicaSets(Controller):
    def __init__(self, means: Means, *, objects: Cache, pods: Cache) -> None:
        super().__init__(means, REPLICA_SETS, objects, pods)

    def sync(self, key: Name) -> None:
        value = self.live(key)
        if value is None:
            return
        owned = self.owned(value)
        active = [pod for pod in owned if replicas.is_active(pod)]
        missing = int(value["spec"].get("replicas", 1)) - len(active)
        refused = None
        if missing < 0:
            self.delete_pods(value, replicas.going_first(active)[: min(-missing, BURST)])
        elif not self._cooling_down(value, owned):
            template, prefix = value["spec"]["template"], f"{value['metadata']['name']}-"
            wanted = [self.pod_of(value, template, generateName=prefix) for _ in range(min(missing, BURST))]
            refused = self.create_pods(value, wanted)
        self._report(value, refused)

    def _cooling_down(self, value: JSON, owned: list[JSON]) -> bool:
        """
        Whether pods that failed one after another are replaced later.

        The real controller replaces at once, which is harmless at the pace of a real cluster. Here a node that refuses
        every pod would fill the memory of one process within a minute.
        """
        failed = [pod for pod in owned if replicas.phase(pod) == "Failed"]
        if len(failed) <= FREE_FAILURES:
            return False
        power = min(len(failed) - FREE_FAILURES - 1, 32)
        wait = min(self.timing.failed_pod * 2.0**power, self.timing.failed_pod_cap)
        last = max(seconds_of(pod["metadata"]["creationTimestamp"]) or 0.0 for pod in failed)
        left = last + wait - self.clock()
        if left > 0:
            self.queue.add_after(name_of(value), left)
        return left > 0

    def _report(self, value: JSON, refused: Refused | None) -> None:
        active = [pod for pod in self.owned(value) if replicas.is_active(pod)]
        template = (value["spec"]["template"].get("metadata") or {}).get("labels") or {}
        labelled = [pod for pod in active if template.items() <= (pod["metadata"].get("labels") or {}).items()]
        min_ready = int(value["spec"].get("minReadySeconds") or 0)
        waits = [replicas.available_in(pod, min_ready, self.clock()) for pod in active]
        soon = [wait for wait in waits if wait]
        if soon:
            self.queue.add_after(name_of(value), min(soon))
        self.write_status(
            value,
            {
                "replicas": len(active),
                "fullyLabeledReplicas": len(labelled),
                "readyReplicas": sum(wait is not None for wait in waits),
                "availableReplicas": sum(wait == 0 for wait in waits),
                "observedGeneration": value["metadata"].get("generation", 0),
                "conditions": self._conditions(value, refused),
            },
        )

    def _conditions(self, value: JSON, refused: Refused | None) -> list[JSON]:
        old = (value.get("status") or {}).get("conditions")
        if refused is None:
            return conditions.without(old, FAILURE)
        wanted = conditions.condition(FAILURE, True, "FailedCreate", refused.message)
        return conditions.merged(old, [wanted], self.now())
