"""
Rules about the cluster itself, which hold before the installation and after it: facts in, findings out.

Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from contract import names
from contract.components import Access
from contract.dialects import DIALECTS
from contract.encoding.quantity import integer_or
from kubectl_gpufraction.check.facts import (
    ClusterFacts,
    installed,
    labels_of,
    name_of,
    settings,
    workloads,
)
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen, number, unknown
from kubectl_gpufraction.cluster.programs import pod_spec
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
OLDEST = (1, 30)
_WHOLE_PODS = (1, 34)
"""From this version on, pods can request resources as a whole (`spec.resources`), unless that is switched off."""
NVIDIA_CLASS = "nvidia"
_OFF = "; NVIDIA's operator removes its plugin by a label; delete the DaemonSet of any other plugin"
_MOST_NAMED = 10
"""Nodes that a cure names."""
_CDI_FROM = {"containerd": (1, 7), "cri-o": (1, 23)}
"""The versions from which container runtimes read CDI's descriptions."""

_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
INSTALLING = (
    Access("create", "", "namespaces"),
    Access("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    Access("create", _RBAC, "clusterroles"),
    Access("create", _RBAC, "clusterrolebindings"),
    Access("create", _ADMISSION, "mutatingwebhookconfigurations"),
    Access("create", _ADMISSION, "validatingadmissionpolicies"),
    Access("create", _ADMISSION, "validatingadmissionpolicybindings"),
    Access("create", "apps", "deployments", names.NAMESPACE),
    Access("create", "apps", "daemonsets", names.NAMESPACE),
    Access("create", "apps", "daemonsets", names.NODES_NAMESPACE),
)
"""The permissions that applying the manifests needs."""
GRANTING = Access("escalate", _RBAC, "clusterroles")
"""Without it, RBAC lets a user create only roles whose rights the user has too."""

AGENT_LABELS: Mapping[str, str | None] = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0300_10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
    "cloud.google.com/gke-accelerator": None,
    "kubernetes.azure.com/accelerator": "nvidia",
    "eks.amazonaws.com/instance-gpu-manufacturer": "nvidia",
    "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
    "gpu-node": "true",
    "gpu": "on",
    "gpushare": "true",
    "nvidia-device-enable": "enable",
}
"""The labels by which the node agent finds its nodes, as in manifests/base/daemonset.yaml; None is any value."""

_VENDOR = ("nvidia.com/gpu", "nvidia.com/mig-")
_OTHERS = frozenset(
    name for name in DIALECTS.resources if not name.startswith((f"{names.GROUP}/", "nvidia.com/"))
) | frozenset(("nvidia.com/gpumem", "nvidia.com/gpucores"))
"""Resources of the systems that gpufraction replaces. Their device plugins offer the same GPUs."""


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """All findings about the cluster, in the order in which an administrator meets it."""
    yield _version(facts.version)
    yield _rights(facts)
    yield from _labels(facts)
    yield from _device_plugins(facts)
    yield _runtimes(facts)
    yield _runtime_class(facts)


def gpu_nodes(nodes: Iterable[JSON]) -> list[JSON]:
    """The nodes on which the agent runs, by their labels."""
    return [node for node in nodes if has_agent_label(labels_of(node))]


def has_agent_label(labels: Mapping[str, str]) -> bool:
    """Whether the agent runs on a node with these labels."""
    return any(key in labels and value in (None, labels[key]) for key, value in AGENT_LABELS.items())


def _version(version: tuple[int, int]) -> Finding:
    found = ".".join(map(str, version))
    if version < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return Finding(FAIL, "kubernetes", f"Kubernetes {found}; {needed} or newer is needed", "upgrade the cluster")
    if version < _WHOLE_PODS:
        return Finding(OK, "kubernetes", f"Kubernetes {found}; requests of a whole pod (spec.resources) need 1.34")
    return Finding(OK, "kubernetes", f"Kubernetes {found}")


def _rights(facts: ClusterFacts) -> Finding:
    check, rights = "your-rights", facts.rights
    if isinstance(rights, Unseen):
        return unknown(check, rights) or Finding(OK, check, "")
    missing = [str(each) for each in INSTALLING if not rights.get(each)]
    cure = "have a cluster administrator apply the manifests"
    if missing:
        level = FAIL if installed(facts) is False else WARN
        return Finding(level, check, f"to install or upgrade you lack: {few(missing)}", cure)
    if not rights.get(GRANTING):
        why = "you may not grant rights that you do not have (escalate clusterroles)"
        return Finding(WARN, check, f"you may create the objects, but {why}", cure)
    return Finding(OK, check, "you may install and upgrade")


def _labels(facts: ClusterFacts) -> Iterator[Finding]:
    check, nodes = "node-labels", facts.nodes
    if isinstance(nodes, Unseen):
        yield Finding(UNKNOWN, check, f"unknown: {nodes.why}")
        return
    labelled = gpu_nodes(nodes)
    known = {name_of(node) for node in labelled}
    bare = [name_of(node) for node in nodes if _offers(node, _is_gpu) and name_of(node) not in known]
    if bare:
        cure = f"kubectl label node {_on(bare)} nvidia.com/gpu.present=true"
        yield Finding(WARN, check, f"no agent will run on {few(bare)}: GPUs, but no label of GPU nodes", cure)
    if labelled:
        yield Finding(OK, check, f"{len(labelled)} of {len(nodes)} nodes have a label of GPU nodes")
    elif not nodes:
        yield Finding(WARN, check, "the cluster has no node")
    elif not bare:
        cure = "kubectl label node NODE nvidia.com/gpu.present=true"
        yield Finding(WARN, check, f"none of {len(nodes)} nodes has a label of GPU nodes", cure)


def _is_gpu(resource: str) -> bool:
    return resource.startswith(_VENDOR) and resource not in _OTHERS


def _offers(node: JSON, wanted: Callable[[str], bool]) -> dict[str, int]:
    """A node's resources of device plugins, if more than 0. Allocatable counts, since capacity outlives a plugin."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    amounts = {str(name): integer_or(value, 0) for name, value in allocatable.items() if wanted(str(name))}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _device_plugins(facts: ClusterFacts) -> Iterator[Finding]:
    check, nodes = "device-plugins", facts.nodes
    if isinstance(nodes, Unseen):
        yield Finding(UNKNOWN, check, f"unknown: {nodes.why}")
        return
    unchosen, still_on, held = list[str](), list[str](), list[str]()
    others = defaultdict[str, list[str]](list)
    for node in nodes:
        name, choice = name_of(node), labels_of(node).get(names.OWNERSHIP)
        if _offers(node, _is_gpu):
            {"held": held, "dedicated": still_on}.get(str(choice), unchosen).append(name)
        for resource in _offers(node, _OTHERS.__contains__):
            others[resource].append(name)
    for resource, where in sorted(others.items()):
        found = f"another system offers {resource} on {few(where)}, and allocates the same GPUs to its pods"
        yield Finding(FAIL, check, found, "remove its device plugin from the nodes: docs/migrating.md")
    if unchosen:
        found = f"a device plugin offers the GPUs of {few(unchosen)}, so none is shared{_OFF}"
        yield Finding(FAIL, check, found, _plugin_off(unchosen, f"{names.OWNERSHIP}=dedicated"))
    if still_on:
        found = (
            f"{few(still_on)}: labelled dedicated, but a device plugin still offers the GPUs, so none is shared{_OFF}"
        )
        yield Finding(FAIL, check, found, _plugin_off(still_on))
    if held:
        yield Finding(OK, check, f"{few(held)}: the device plugin stays, holder pods take GPUs from it")
    if not (others or unchosen or still_on or held):
        yield Finding(OK, check, "no other device plugin offers GPUs")


def _on(nodes: list[str]) -> str:
    """Nodes as a command takes them; a placeholder if they are too many for a line."""
    return " ".join(nodes) if len(nodes) <= _MOST_NAMED else "NODE..."


def _plugin_off(nodes: list[str], *more: str) -> str:
    labels = " ".join(("nvidia.com/gpu.deploy.device-plugin=false", *more))
    return f"kubectl label node {_on(nodes)} {labels} --overwrite"


def _runtimes(facts: ClusterFacts) -> Finding:
    check, nodes = "container-runtime", facts.nodes
    if isinstance(nodes, Unseen):
        return Finding(UNKNOWN, check, f"unknown: {nodes.why}")
    counted, old = defaultdict[str, int](int), list[str]()
    for node in gpu_nodes(nodes):
        info = (node.get("status") or {}).get("nodeInfo") or {}
        runtime = str(info.get("containerRuntimeVersion") or "of an unknown name")
        counted[runtime.replace("://", " ")] += 1
        if not _reads_cdi(runtime):
            old.append(name_of(node))
    if not counted:
        return Finding(OK, check, "no GPU node to check")
    found = ", ".join(f"{runtime} on {number(count, 'GPU node')}" for runtime, count in sorted(counted.items()))
    if old:
        found += f"; no CDI on {few(old)}, where GPUs are delivered only by NVIDIA_VISIBLE_DEVICES"
    return Finding(OK, check, found)


def _reads_cdi(runtime: str) -> bool:
    """Whether the runtime reads CDI's descriptions; one that is not known counts as able to."""
    found = re.match(r"([a-z-]+)://v?(\d+)\.(\d+)", runtime)
    if found is None:
        return not runtime.startswith("docker")
    name, version = found[1], (int(found[2]), int(found[3]))
    return name != "docker" and version >= _CDI_FROM.get(name, (0, 0))


def _runtime_class(facts: ClusterFacts) -> Finding:
    check, classes = "runtime-class", facts.runtime_classes
    if isinstance(classes, Unseen):
        return Finding(UNKNOWN, check, f"unknown: {classes.why}")
    used = {str(pod_spec(each).get("runtimeClassName") or "") for _, each in workloads(facts)}
    used = {name for name in {*used, settings(facts, "webhook").get("runtime-class", "")} if name}
    for name in sorted(used - classes):
        found = f"pods get the RuntimeClass {name}, which does not exist, so they are refused"
        made = f"{{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {{name: {name}}}, handler: {name}}}"
        return Finding(FAIL, check, found, f"echo '{made}' | kubectl apply -f -")
    if used:
        return Finding(OK, check, f"pods with a share get the RuntimeClass {', '.join(sorted(used))}, which exists")
    if NVIDIA_CLASS in classes:
        found = "the RuntimeClass nvidia exists, but pods with a share do not get it"
        return Finding(OK, check, f"{found}; if pods see no GPU, add the component nvidia-runtimeclass")
    return Finding(OK, check, "no RuntimeClass nvidia; NVIDIA's runtime must be the default of the GPU nodes")
