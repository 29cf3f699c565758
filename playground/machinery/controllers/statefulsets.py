"""
The StatefulSet controller: numbered pods with stable names, created one after another or all at once.

Rolling updates replace pods from the highest number down to the partition. There are no volumes in the embedded
cluster, so claim templates are ignored, and no revision objects: a pod carries its template's hash.
"""

from playground.api.kinds.values import JSON
from playground.machinery.client.client import STATEFUL_SETS
from playground.machinery.client.informer import Cache, Name
from playground.machinery.controllers import replicas
from playground.machinery.controllers.control import Controller, Means

HASH_LABEL = "controller-revision-hash"
_NAME, _INDEX = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


class StatefulSets(Controller):
    def __init__(self, means: Means, *, objects: Cache, pods: Cache) -> None:
        super().__init__(means, STATEFUL_SETS, objects, pods)

    def sync(self, key: Name) -> None:
        value = self.live(key)
        if value is None:
            return
        pods = {number: pod for pod in self.owned(value) if (number := _number(value, pod)) is not None}
        self._step(value, pods)
        self._report(value)

    def _step(self, value: JSON, pods: dict[int, JSON]) -> None:
        """One step: remove failed pods, then fill the gaps, then shrink, then update."""
        wanted = range(int(value["spec"].get("replicas", 1)))
        in_order = value["spec"].get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        over = [pod for number, pod in pods.items() if replicas.phase(pod) in ("Failed", "Succeeded")]
        self.delete_pods(value, [pod for pod in over if not pod["metadata"].get("deletionTimestamp")])
        missing = [number for number in wanted if number not in pods]
        if in_order:
            unready = next((n for n in wanted if n in pods and not _is_well(pods[n])), len(wanted))
            missing = [number for number in missing if number < unready][:1]
        self.create_pods(value, [self._pod(value, number) for number in missing])
        if over or missing or (in_order and not all(n in pods and _is_well(pods[n]) for n in wanted)):
            return
        surplus = sorted((number for number in pods if number not in wanted), reverse=True)
        if surplus:
            # The highest number goes first, and alone, even while it is still terminating.
            chosen = surplus[:1] if in_order else surplus
            self.delete_pods(value, [p for n in chosen if replicas.is_active(p := pods[n])])
            return
        self._update(value, pods)

    def _update(self, value: JSON, pods: dict[int, JSON]) -> None:
        strategy = value["spec"].get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        for number in sorted(pods, reverse=True):
            if number >= partition and not _is_current(value, pods[number]):
                self.delete_pods(value, [pods[number]] if replicas.is_active(pods[number]) else [])
                return
            if not _is_well(pods[number]):
                return

    def _pod(self, value: JSON, number: int) -> JSON:
        template, name = value["spec"]["template"], f"{value['metadata']['name']}-{number}"
        given = (template.get("metadata") or {}).get("labels") or {}
        ours = {HASH_LABEL: _hash(value), _NAME: name, _INDEX: str(number)}
        pod = self.pod_of(value, template, name=name, labels={**given, **ours})
        return {**pod, "spec": {**pod["spec"], "hostname": name, "subdomain": value["spec"].get("serviceName", "")}}

    def _report(self, value: JSON) -> None:
        active = [pod for pod in self.owned(value) if replicas.is_active(pod)]
        ready = sum(replicas.is_ready(pod) for pod in active)
        current = sum(_is_current(value, pod) for pod in active)
        self.write_status(
            value,
            {
                "replicas": len(active),
                "readyReplicas": ready,
                "availableReplicas": ready,
                "currentReplicas": current,
                "updatedReplicas": current,
                "updateRevision": _hash(value),
                "collisionCount": 0,
                "observedGeneration": value["metadata"].get("generation", 0),
                **({"currentRevision": _hash(value)} if current == len(active) else {}),
            },
        )


def _hash(value: JSON) -> str:
    return f"{value['metadata']['name']}-{replicas.template_hash(value['spec']['template'])}"


def _is_current(value: JSON, pod: JSON) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(HASH_LABEL) == _hash(value))


def _is_well(pod: JSON) -> bool:
    return replicas.is_active(pod) and replicas.is_ready(pod)


def _number(value: JSON, pod: JSON) -> int | None:
    """The pod's ordinal; None for a name that this controller does not make."""
    prefix, _, number = str(pod["metadata"]["name"]).rpartition("-")
    return int(number) if prefix == value["metadata"]["name"] and number.isdecimal() else None
