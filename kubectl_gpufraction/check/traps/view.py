"""
The cluster as a trap's condition sees it: the options, ConfigMaps, and whether a template requests a share.

Pure. Objects are users' and may have any shape: if a condition raises, only that object is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from contract import gangs, names, pods
from contract.dialects import DIALECTS
from contract.options import VENDOR, Options, PoolOptions
from kubectl_gpufraction.check.facts import ClusterFacts, labels_of, name_of, settings
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.cluster.unserved import is_served

JSON = dict[str, Any]
CLUSTER, PODS = "cluster", "pods"
"""The objects of a trap in addition to the kinds that are listed for it: the cluster as a whole, and its pods."""
_WITHOUT_WHOLE = Options(whole_gpus=VENDOR)
"""How templates are read for users who may not read the options: whole GPUs may be a vendor's."""


class View:
    """The facts, in the words of the conditions."""

    def __init__(self, facts: ClusterFacts) -> None:
        self.facts = facts
        namespaces = facts.namespaces
        self._served = None if isinstance(namespaces, Unseen) else {name_of(n) for n in namespaces if is_served(n)}
        """None if the user may not list namespaces: then each of them counts as served."""

    def items(self, kind: str) -> Iterator[JSON]:
        """The objects of a kind that have no namespace, or one that is served."""
        if kind == CLUSTER:
            yield {}
            return
        found = self.facts.pods if kind == PODS else self.facts.programs.objects.get(kind, ())
        for each in found if isinstance(found, tuple) else ():
            if self.is_served(each):
                yield each

    def is_served(self, item: JSON) -> bool:
        """Whether the pods of the object's namespace reach the webhook; true of an object without a namespace."""
        namespace = (item.get("metadata") or {}).get("namespace")
        return self._served is None or not namespace or namespace in self._served

    def unseen(self, kind: str) -> Unseen | None:
        """Why the objects of the kind could not be read."""
        if kind == CLUSTER:
            return None
        found = self.facts.pods if kind == PODS else self.facts.programs.objects.get(kind, ())
        return found if isinstance(found, Unseen) else None

    def config(self, configmap: str) -> Mapping[str, str]:
        """The data of a ConfigMap, `namespace/name`; empty where there is none."""
        found = self.facts.programs.configmaps.get(configmap)
        return (found.get("data") or {}) if isinstance(found, Mapping) else {}

    def settings(self) -> Mapping[str, str] | None:
        """The allocator's settings, in the form of its flags; None where its Deployment cannot be read."""
        return None if isinstance(self.facts.deployments, Unseen) else settings(self.facts, "allocator")

    @property
    def options(self) -> PoolOptions | None:
        """The administrator's document; None where it could not be read."""
        return None if isinstance(self.facts.options, Unseen) else self.facts.options

    def asks(self, template: JSON) -> bool:
        """Whether a pod of this template would ask for a share."""
        pod = {"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}}
        if not DIALECTS.detect(pod):
            return False
        reading = _WITHOUT_WHOLE if self.options is None else self.options.base
        return DIALECTS.normalise(pod, reading) is not None


def has_share(pod: JSON) -> bool:
    """Whether the pod asked for a share and has not ended."""
    return names.REQUEST in pods.annotations_of(pod) and not pods.finished(pod)


def waits(pod: JSON) -> bool:
    """Whether the pod waits for its share."""
    return has_share(pod) and names.GATE in pods.gates(pod)


def annotation(template: JSON, key: str) -> str:
    """An annotation of a pod template; empty where there is none."""
    return str(((template.get("metadata") or {}).get("annotations") or {}).get(key, ""))


def is_gang(template: JSON) -> bool:
    """Whether several pods of the template, or of those alongside it, start together."""
    minimum = gangs.number(annotation(template, names.GANG_MINIMUM))
    return minimum is not None and minimum > 1 and annotation(template, names.GANG) != gangs.ALONE


def is_undecided(template: JSON) -> bool:
    """Whether the template does not state if its pods start together."""
    return not annotation(template, names.GANG_MINIMUM) and annotation(template, names.GANG) != gangs.ALONE


def has_labels(item: JSON, labels: Mapping[str, str]) -> bool:
    """Whether the object has all these labels."""
    return labels.items() <= labels_of(item).items()
