"""
The objects that an administrator applies: the shipped manifests without the workloads.

The embedded cluster has no container runtime, so the Deployment and the DaemonSet are run by the playground as child
processes, under the accounts that the manifests give them. Everything else is applied as it is shipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from contract import names
from contract.components import AGENT, agents_namespace
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeNotFound

JSON = dict[str, Any]
BASE = Path(__file__).resolve().parents[2] / "manifests" / "base"
COMPONENTS = BASE.parent / "components"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads manifests with libyaml, which is ten times as fast, if PyYAML was built with it."""
_RUN_AS_PROCESSES = ("Deployment", "DaemonSet")
_OF_THE_AGENT = ("ServiceAccount", "ConfigMap", "NetworkPolicy")
_CLUSTER_SCOPED = (
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "Node",
    "GPUNode",
    "ElasticGPU",
    "ElasticGPUClass",
    "GPU",
    "PriorityClass",
    "DeviceClass",
)


def shipped(base: Path = BASE) -> Iterator[JSON]:
    """Every object of the base, in its order."""
    (top,) = documents(base / "kustomization.yaml")
    for name in top.get("resources", []):
        yield from documents(base / name)
    for component in top.get("components", []):
        yield from shipped(base / component)


def webhook_configuration() -> JSON:
    """The base's webhook configuration: the one that has webhooks."""
    (found,) = (each for each in shipped() if each["kind"] == "MutatingWebhookConfiguration")
    return found


def documents(path: Path) -> Iterator[JSON]:
    """The objects of one YAML file."""
    for document in yaml.load_all(path.read_text(), _LOADER):
        if document:
            yield document


def plural(kind: str) -> str:
    """The resource name of a kind."""
    name = kind.lower()
    if name == "endpoints":
        return name
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


def path_of(document: JSON, *, named: bool = False) -> str:
    """The path of an object's collection, or of the object itself."""
    metadata = document["metadata"]
    namespace = None if document["kind"] in _CLUSTER_SCOPED else metadata.get("namespace", "default")
    name = metadata["name"] if named else None
    return paths.path(document["apiVersion"], plural(document["kind"]), namespace, name)


def apply(kube: Kube, document: JSON, *, within: float | None = None) -> None:
    """Create the object; an existing one stays unchanged. `within`: seconds that a large one may take."""
    try:
        kube.create(path_of(document), document, timeout=within)
    except KubeConflict as error:
        if not error.already_exists:
            raise


def to_apply(base: Path = BASE, components: Iterable[str] = ()) -> Iterator[JSON]:
    """Every shipped object that the playground applies, those of the named components too."""
    chosen = tuple(components)
    agents = agents_namespace(chosen)
    patches = [patch for name in chosen for patch in _patches_of(COMPONENTS / name)]
    for folder in (base, *(COMPONENTS / name for name in chosen)):
        for document in shipped(folder):
            if document["kind"] not in _RUN_AS_PROCESSES:
                yield _placed(_patched(document, patches), agents)


def _patched(document: JSON, patches: Iterable[JSON]) -> JSON:
    """The object with the webhooks that components add to it, and a namespace with the level that they set."""
    metadata = document["metadata"]
    for patch in patches:
        if document["kind"] == patch["kind"] == "MutatingWebhookConfiguration":
            document = {**document, "webhooks": [*document["webhooks"], *patch["webhooks"]]}
        elif document["kind"] == patch["kind"] == "Namespace" and metadata["name"] == patch["metadata"]["name"]:
            labels = {**metadata.get("labels", {}), **patch["metadata"].get("labels", {})}
            document = {**document, "metadata": {**metadata, "labels": labels}}
    return document


def _placed(document: JSON, agents: str) -> JSON:
    """The agent's objects in its namespace, as the components' patches place them."""
    metadata = document["metadata"]
    if document["kind"] in _OF_THE_AGENT and metadata["name"] in (AGENT, names.SETTINGS.format(program="nodeagent")):
        document = {**document, "metadata": {**metadata, "namespace": agents}}
    if document["kind"] == "ClusterRoleBinding":
        subjects = [{**each, "namespace": agents} if each["name"] == AGENT else each for each in document["subjects"]]
        document = {**document, "subjects": subjects}
    return document


def _patches_of(component: Path) -> Iterator[JSON]:
    """The objects that a component's files change in part."""
    (top,) = documents(component / "kustomization.yaml")
    for patch in top.get("patches", []):
        yield from documents(component / patch["path"]) if "path" in patch else ()


def takes_pods(kube: Kube, namespace: str) -> bool:
    """Whether pods can be created there: a new namespace gets its default service account a moment later."""
    try:
        return bool(kube.get(paths.path("v1", "serviceaccounts", namespace, "default")))
    except KubeNotFound:
        return False
