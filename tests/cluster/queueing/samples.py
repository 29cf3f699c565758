"""The samples for Kueue: the result that each header states, and the result on an API server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract import pods
from contract.encoding import quantity
from playground import scenarios
from playground.programs import installing
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
FOLDER = scenarios.SAMPLES / "kueue"
CONFIGURATION, QUEUES = FOLDER / "configuration.yaml", FOLDER / "queues.yaml"
WORKLOADS = sorted(set(FOLDER.glob("*.yaml")) - {CONFIGURATION, QUEUES})
ADMISSION_GATE = "kueue.x-k8s.io/admission"
_RESULT = re.compile(
    r"^# Result: (?P<running>\d+) pods? Running(?:, (?P<waiting>\d+) waits? for quota)?; charged: (?P<charged>.+)\.$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Result:
    """Pods that run, pods behind Kueue's gate, and the amounts of GPU resources that the queue is charged."""

    running: int
    waiting: int = 0
    charged: dict[str, int] = field(default_factory=dict)


def stated(sample: Path) -> Result:
    """The result in the header of a sample. Raises ValueError if it has none."""
    found = _RESULT.search(sample.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{sample.name} states no result")
    amounts = (each.split(" of ") for each in found["charged"].split(", "))
    charged = {name: int(quantity.parse(amount)) for amount, name in amounts}
    return Result(int(found["running"]), int(found["waiting"] or 0), charged)


def apply(kube: Kube, sample: Path) -> list[JSON]:
    """Create the objects of a sample. Returns the objects as created."""
    return [kube.create(_collection(document), document) for document in installing.documents(sample)]


def _collection(document: JSON) -> str:
    if document["apiVersion"].startswith("kueue."):
        namespace = document["metadata"].get("namespace")  # only namespaced kinds have a namespace in our samples
        return paths.path(document["apiVersion"], installing.plural(document["kind"]), namespace)
    return installing.path_of(document)


def come_to(kube: Kube, charged: Iterable[JSON]) -> Result:
    """The state of the pods in `default`. `charged`: amounts by resource, one mapping for each admitted pod set."""
    found = [pod for pod in scenarios.all_pods(kube) if "deletionTimestamp" not in pod["metadata"]]
    total: Counter[str] = Counter()
    for amounts in charged:
        for name, amount in amounts.items():
            total[name] += int(quantity.parse(str(amount)))
    gpu = {name: amount for name, amount in total.items() if "gpu" in name and amount}
    behind = [pod for pod in found if ADMISSION_GATE in pods.gates(pod)]
    return Result(sum(map(scenarios.is_running, found)), len(behind), gpu)
