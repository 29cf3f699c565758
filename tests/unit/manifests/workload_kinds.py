"""
The samples of `samples/workloads`: what each states, the pods that its objects lead to, and schemas of other projects'
kinds.

Kinds that neither control plane of the tests serves are read here as their controllers read them: which pods they
create, with which containers. The schemas contain the fields that we use of each kind, so that a misspelt field is
found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.manifests.kube import SAMPLES, documents

JSON = dict[str, Any]
FOLDER = SAMPLES / "workloads"
FILES = sorted(FOLDER.glob("*.yaml"))
_RESULT = re.compile(r"^# Result: (\d+) pods?\.$", re.MULTILINE)
_QUEUE_PROXY = {"name": "queue-proxy", "image": "gcr.io/knative-releases/queue:latest"}
_ARGO_WAIT = {"name": "wait", "image": "quay.io/argoproj/argoexec:latest"}

_ANY: JSON = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_ANYTHINGS: JSON = {"type": "array", "items": _ANY}
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS: JSON = {"type": "array", "items": _TEXT}


def _object(required: tuple[str, ...] = (), **properties: JSON) -> JSON:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(item: JSON) -> JSON:
    return {"type": "array", "items": item}


_PARAMETERS = _object(parameters=_list(_object(("name",), name=_TEXT, value=_TEXT)))
_REPLICAS = _object(("template",), replicas=_NUMBER, restartPolicy=_TEXT, template=_object(("spec",), spec=_ANY))
SCHEMAS: dict[str, JSON] = {
    "serving.kserve.io/v1beta1 InferenceService": _object(
        ("predictor",),
        predictor=_object(
            minReplicas=_NUMBER,
            maxReplicas=_NUMBER,
            tolerations=_ANYTHINGS,
            model=_object(
                ("modelFormat",),
                modelFormat=_object(("name",), name=_TEXT, version=_TEXT),
                runtimeVersion=_TEXT,
                storageUri=_TEXT,
                args=_TEXTS,
                resources=_ANY,
            ),
        ),
    ),
    "serving.knative.dev/v1 Service": _object(
        ("template",),
        template=_object(
            ("spec",),
            metadata=_object(annotations=_ANY),
            spec=_object(
                ("containers",),
                containerConcurrency=_NUMBER,
                timeoutSeconds=_NUMBER,
                tolerations=_ANYTHINGS,
                containers=_ANYTHINGS,
            ),
        ),
    ),
    "argoproj.io/v1alpha1 Workflow": _object(
        ("entrypoint", "templates"),
        entrypoint=_TEXT,
        ttlStrategy=_object(secondsAfterCompletion=_NUMBER),
        tolerations=_ANYTHINGS,
        templates=_list(
            _object(
                ("name",),
                name=_TEXT,
                inputs=_PARAMETERS,
                container=_ANY,
                steps=_list(
                    _list(
                        _object(
                            ("name", "template"), name=_TEXT, template=_TEXT, arguments=_PARAMETERS, withItems=_TEXTS
                        )
                    )
                ),
            )
        ),
    ),
    "kubeflow.org/v1 PyTorchJob": _object(
        ("pytorchReplicaSpecs",),
        runPolicy=_object(cleanPodPolicy=_TEXT, backoffLimit=_NUMBER),
        pytorchReplicaSpecs=_object(("Master",), Master=_REPLICAS, Worker=_REPLICAS),
    ),
}
"""The fields of a kind's `spec` that we use, by version and kind."""


def stated(sample: Path) -> int:
    """How many pods with a share the header states. Raises ValueError if it states none."""
    found = _RESULT.search(sample.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{sample.name} states no result")
    return int(found[1])


def kind_of(document: JSON) -> str:
    """An object's version and kind."""
    return f"{document['apiVersion']} {document['kind']}"


def is_foreign(document: JSON) -> bool:
    """Whether the object's kind is not one of Kubernetes' own."""
    return kind_of(document) in SCHEMAS


def pods_of(document: JSON) -> Iterator[JSON]:
    """The pods with a share that the object's controller creates, as they are created; none for a kind without pods."""
    name = document["metadata"]["name"]
    for number, (metadata, spec) in enumerate(_templates(document)):
        made = {**metadata, "name": f"{name}-{number}"}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def _templates(document: JSON) -> Iterator[tuple[JSON, JSON]]:
    spec = document.get("spec", {})
    match document["kind"]:
        case "Deployment" | "StatefulSet" | "Job":
            template = spec["template"]
            yield from [(template.get("metadata", {}), template["spec"])] * spec.get("replicas", 1)
        case "InferenceService":
            yield from _kserve(spec["predictor"])
        case "Service" if is_foreign(document):
            yield from _knative(spec["template"])
        case "Workflow":
            yield from _argo(spec)
        case "PyTorchJob":
            for replicas in spec["pytorchReplicaSpecs"].values():
                template = {**replicas["template"]["spec"], "restartPolicy": replicas["restartPolicy"]}
                yield from [({}, template)] * replicas["replicas"]


def _kserve(predictor: JSON) -> Iterator[tuple[JSON, JSON]]:
    """KServe creates one container from the model's fields, with the runtime's image at the named version."""
    model = predictor["model"]
    image = f"docker.io/kserve/huggingfaceserver:{model['runtimeVersion']}"
    container = {"name": "kserve-container", "image": image, "args": model["args"], "resources": model["resources"]}
    spec = {"containers": [container], "tolerations": predictor.get("tolerations", [])}
    yield from [({}, spec)] * predictor["minReplicas"]


def _knative(template: JSON) -> Iterator[tuple[JSON, JSON]]:
    """Knative removes its own two fields and adds its proxy. It keeps as many replicas as the annotation says."""
    own = ("containerConcurrency", "timeoutSeconds")
    spec = {key: value for key, value in template["spec"].items() if key not in own}
    spec["containers"] = [*spec["containers"], _QUEUE_PROXY]
    metadata = template.get("metadata", {})
    yield from [(metadata, spec)] * int(metadata["annotations"]["autoscaling.knative.dev/min-scale"])


def _argo(spec: JSON) -> Iterator[tuple[JSON, JSON]]:
    """Argo creates a pod for each container of a step, for each item. Its own container waits next to it."""
    templates = {template["name"]: template for template in spec["templates"]}
    for group in templates[spec["entrypoint"]]["steps"]:
        for step in group:
            container = {"name": "main", **templates[step["template"]]["container"]}
            made = {"containers": [container, _ARGO_WAIT], "tolerations": spec["tolerations"], "restartPolicy": "Never"}
            if any("gpu" in name for name in container["resources"].get("limits", {})):
                yield from [({}, made)] * len(step.get("withItems", ["once"]))


def all_documents() -> Iterator[tuple[Path, JSON]]:
    """Every object of every sample, with its file."""
    return ((path, document) for path in FILES for document in documents(path))
