"""The findings about a cluster, by cases: version, rights, labels, device plugins, runtimes, RuntimeClasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpufraction.check import cluster
from kubectl_gpufraction.check.cluster import AGENT_LABELS, GRANTING, INSTALLING
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen
from tests.unit.manifests.kube import one, sources

JSON = dict[str, Any]
VENDOR, MIG, OLDER = {"nvidia.com/gpu": "4"}, {"nvidia.com/mig-1g.5gb": "7"}, {"nano-gpu/gpu-percent": "200"}
MAY = dict.fromkeys((*INSTALLING, GRANTING), True)
OFF = "; NVIDIA's operator removes its plugin by a label; delete the DaemonSet of any other plugin"
GPU_PRESENT = {"nvidia.com/gpu.present": "true"}


def node(
    name: str = "n",
    offers: Mapping[str, str] | None = None,
    *,
    runtime: str = "containerd://2.0.1",
    labels: JSON | None = None,
) -> JSON:
    """A Node on which device plugins offer something."""
    status = {"allocatable": offers or {}, "nodeInfo": {"containerRuntimeVersion": runtime}}
    return {"metadata": {"name": name, "labels": GPU_PRESENT if labels is None else labels}, "status": status}


def facts(**known: Any) -> ClusterFacts:
    base = ClusterFacts(now=0.0, version=(1, 36), rights=MAY, nodes=(node(),))
    return replace(base, **known)


def found(check: str, **known: Any) -> list[Finding]:
    return [each for each in cluster.findings(facts(**known)) if each.check == check]


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ((1, 29), Finding(FAIL, "kubernetes", "Kubernetes 1.29; 1.30 or newer is needed", "upgrade the cluster")),
        (
            (1, 30),
            Finding(OK, "kubernetes", "Kubernetes 1.30; requests of a whole pod (spec.resources) need 1.34"),
        ),
        ((1, 34), Finding(OK, "kubernetes", "Kubernetes 1.34")),
        ((2, 0), Finding(OK, "kubernetes", "Kubernetes 2.0")),
    ],
)
def test_versions(version: tuple[int, int], wanted: Finding) -> None:
    assert found("kubernetes", version=version) == [wanted]


CURE = "have a cluster administrator apply the manifests"


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({}, Finding(OK, "your-rights", "you may install and upgrade")),
        (
            {"rights": MAY | {INSTALLING[2]: False}},
            Finding(FAIL, "your-rights", "to install or upgrade you lack: create clusterroles", CURE),
        ),
        (
            {"rights": MAY | {INSTALLING[7]: False}, "webhook": {}},
            Finding(
                WARN, "your-rights", "to install or upgrade you lack: create deployments in gpufraction-system", CURE
            ),
        ),
        (
            {"rights": MAY | {GRANTING: False}},
            Finding(
                WARN,
                "your-rights",
                "you may create the objects, but you may not grant rights that you do not have (escalate clusterroles)",
                CURE,
            ),
        ),
        ({"rights": Unseen("no answer")}, Finding(UNKNOWN, "your-rights", "unknown: no answer")),
    ],
)
def test_rights_to_install(known: JSON, wanted: Finding) -> None:
    assert found("your-rights", **known) == [wanted]


LABEL = "kubectl label node {} nvidia.com/gpu.present=true"


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ((node(), node("m", labels={})), [(OK, "1 of 2 nodes have a label of GPU nodes", "")]),
        ((node(labels={"gpu": "off"}),), [(WARN, "none of 1 nodes has a label of GPU nodes", LABEL.format("NODE"))]),
        ((), [(WARN, "the cluster has no node", "")]),
        (
            (node("a", VENDOR, labels={}), node("b")),
            [
                (WARN, "no agent will run on a: GPUs, but no label of GPU nodes", LABEL.format("a")),
                (OK, "1 of 2 nodes have a label of GPU nodes", ""),
            ],
        ),
        (Unseen("you may not list nodes"), [(UNKNOWN, "unknown: you may not list nodes", "")]),
    ],
)
def test_labels_of_gpu_nodes(nodes: Any, wanted: list[tuple[str, str, str]]) -> None:
    assert [(each.level, each.found, each.cure) for each in found("node-labels", nodes=nodes)] == wanted


def test_the_labels_are_those_of_the_agents_daemonset() -> None:
    spec = one(sources(), "DaemonSet", "gpufraction-nodeagent")["spec"]["template"]["spec"]
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [term["matchExpressions"][0] for term in affinity["nodeSelectorTerms"]]
    assert {term["key"]: term["values"][0] if term["operator"] == "In" else None for term in terms} == AGENT_LABELS


HELD, DEDICATED = ({**GPU_PRESENT, "gpufraction.io/ownership": word} for word in ("held", "dedicated"))
TURN_OFF = "kubectl label node {} nvidia.com/gpu.deploy.device-plugin=false --overwrite"
DEDICATE = (
    "kubectl label node {} nvidia.com/gpu.deploy.device-plugin=false gpufraction.io/ownership=dedicated --overwrite"
)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ((node(),), [(OK, "no other device plugin offers GPUs", "")]),
        ((node("a", {"nvidia.com/gpu": "0"}),), [(OK, "no other device plugin offers GPUs", "")]),
        (
            (node("a", VENDOR), node("b", MIG), node("c")),
            [(FAIL, f"a device plugin offers the GPUs of a, b, so none is shared{OFF}", DEDICATE.format("a b"))],
        ),
        (
            (node("a", VENDOR, labels={**GPU_PRESENT, "gpufraction.io/ownership": "mine"}),),
            [(FAIL, f"a device plugin offers the GPUs of a, so none is shared{OFF}", DEDICATE.format("a"))],
        ),
        (
            (node("a", VENDOR, labels=DEDICATED), node("b", VENDOR, labels=HELD)),
            [
                (
                    FAIL,
                    f"a: labelled dedicated, but a device plugin still offers the GPUs, so none is shared{OFF}",
                    TURN_OFF.format("a"),
                ),
                (OK, "b: the device plugin stays, holder pods take GPUs from it", ""),
            ],
        ),
        (
            (node("a", OLDER), node("b", OLDER)),
            [
                (
                    FAIL,
                    "another system offers nano-gpu/gpu-percent on a, b, and allocates the same GPUs to its pods",
                    "remove its device plugin from the nodes: docs/migrating.md",
                )
            ],
        ),
        (
            tuple(node(f"n{number}", VENDOR) for number in range(11)),
            [
                (
                    FAIL,
                    f"a device plugin offers the GPUs of n0, n1, n2, n3, n4 and 6 more, so none is shared{OFF}",
                    DEDICATE.format("NODE..."),
                )
            ],
        ),
    ],
)
def test_device_plugins(nodes: Any, wanted: list[tuple[str, str, str]]) -> None:
    assert [(each.level, each.found, each.cure) for each in found("device-plugins", nodes=nodes)] == wanted


@pytest.mark.parametrize(
    ("runtimes", "wanted"),
    [
        (("containerd://2.0.1", "containerd://2.0.1"), "containerd 2.0.1 on 2 GPU nodes"),
        (("cri-o://1.30.4",), "cri-o 1.30.4 on 1 GPU node"),
        (
            ("containerd://1.6.36", "containerd://v1.7.0"),
            "containerd 1.6.36 on 1 GPU node, containerd v1.7.0 on 1 GPU node; no CDI on n0, where GPUs are delivered "
            "only by NVIDIA_VISIBLE_DEVICES",
        ),
        (
            ("docker://27.1.1",),
            "docker 27.1.1 on 1 GPU node; no CDI on n0, where GPUs are delivered only by NVIDIA_VISIBLE_DEVICES",
        ),
        (("",), "of an unknown name on 1 GPU node"),
        ((), "no GPU node to check"),
    ],
)
def test_container_runtimes(runtimes: tuple[str, ...], wanted: str) -> None:
    nodes = tuple(node(f"n{number}", runtime=runtime) for number, runtime in enumerate(runtimes))
    assert found("container-runtime", nodes=nodes) == [Finding(OK, "container-runtime", wanted)]


def webhook(*args: str, **spec: Any) -> JSON:
    container = {"command": ["python", "-m", "webhook", "serve"], "args": list(args)}
    return {"metadata": {"name": "gpufraction"}, "spec": {"template": {"spec": {"containers": [container], **spec}}}}


MADE = (
    "echo '{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}' | "
    "kubectl apply -f -"
)


@pytest.mark.parametrize(
    ("classes", "workload", "wanted"),
    [
        ((), webhook(), (OK, "no RuntimeClass nvidia; NVIDIA's runtime must be the default of the GPU nodes", "")),
        (
            ("nvidia",),
            webhook(),
            (
                OK,
                "the RuntimeClass nvidia exists, but pods with a share do not get it; if pods see no GPU, add the "
                "component nvidia-runtimeclass",
                "",
            ),
        ),
        (
            ("nvidia",),
            webhook("--runtime-class=nvidia"),
            (OK, "pods with a share get the RuntimeClass nvidia, which exists", ""),
        ),
        (
            (),
            webhook("--runtime-class=nvidia"),
            (FAIL, "pods get the RuntimeClass nvidia, which does not exist, so they are refused", MADE),
        ),
        (
            (),
            webhook(runtimeClassName="nvidia"),
            (FAIL, "pods get the RuntimeClass nvidia, which does not exist, so they are refused", MADE),
        ),
    ],
)
def test_runtime_classes(classes: tuple[str, ...], workload: JSON, wanted: tuple[str, str, str]) -> None:
    [each] = found("runtime-class", runtime_classes=frozenset(classes), deployments=(workload,))
    assert (each.level, each.found, each.cure) == wanted
