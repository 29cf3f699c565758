"""
The dry run of a pod that asks for a share: where to try it, the pod, and what the answer means.

Pure. It is the only look at what lies between the API server and the webhook: firewall, Service, certificate. A dry
run stores nothing and reserves nothing.
"""

from __future__ import annotations

from typing import Any

from contract import names, pods
from contract.encoding import codec
from contract.encoding.reading import Malformed
from kubectl_gpufraction.check.facts import CERTS, ClusterFacts, DryRun, is_served, name_of
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen, unknown

JSON = dict[str, Any]
_WEBHOOK = "pods.gpufraction.io"
_ASKS = "1Gi"
"""GPU memory on one GPU, which any card has."""
_PODS = f"kubectl -n {names.NAMESPACE} get pods -o wide"
_FAULTS = (
    ("x509", f"kubectl -n {names.NAMESPACE} logs deployment/{CERTS}"),
    ("connection refused", _PODS),
    ("no endpoints available", _PODS),
    ("not found", "kubectl apply -k YOUR_KUSTOMIZATION"),
    (
        "context deadline exceeded",
        "open TCP port 9443 from the API server to the pods: the page of your cloud, docs/installing.md",
    ),
    ("i/o timeout", "open TCP port 9443 from the API server to the pods: the page of your cloud, docs/installing.md"),
    (
        "no route to host",
        "open TCP port 9443 from the API server to the pods: the page of your cloud, docs/installing.md",
    ),
)
"""Words of the API server's failure to call the webhook, and the cure; the first that fits counts."""


def namespace(facts: ClusterFacts, wished: str = "") -> str:
    """Where to try it: the namespace that the user named, else the first that is served; empty if there is none."""
    if wished or isinstance(facts.namespaces, Unseen):
        return wished
    return min((name_of(each) for each in facts.namespaces if is_served(each)), default="")


def pod(where: str) -> JSON:
    """A pod that any GPU node can take: at Pod Security's Restricted level, small, and with every toleration."""
    counted = {str(names.GPU_MEMORY): _ASKS, "cpu": "1m", "memory": "1Mi"}
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "check", "image": "gpufraction-check", "resources": {"limits": counted}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpufraction-check-", "namespace": where},
        "spec": {
            "containers": [{**container, "securityContext": confined}],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [{"operator": "Exists"}],
        },
    }


def answered(facts: ClusterFacts) -> bool:
    """Whether the webhook has answered the dry run."""
    return isinstance(facts.dry_run, DryRun) and meaning(facts.dry_run).level == OK


def finding(facts: ClusterFacts) -> Finding:
    """What the dry run shows."""
    check, tried = "dry-run", facts.dry_run
    if isinstance(tried, Unseen):
        return unknown(check, tried) or Finding(OK, check, "")
    if tried is None:
        found = "not tried, because no namespace is labelled; so the way from the API server to the webhook is unknown"
        return Finding(
            UNKNOWN, check, found, f"kubectl label namespace NAMESPACE {names.INJECT_LABEL}={names.INJECT_ENABLED}"
        )
    return meaning(tried)


def meaning(tried: DryRun) -> Finding:
    """What an answer means."""
    check, where = "dry-run", f"a pod in namespace {tried.namespace}"
    if tried.pod is None:
        return _refused(tried, where)
    text = " ".join(tried.warnings).removeprefix("waiting: ")
    if names.GATE in pods.gates(tried.pod):
        if "does not answer" in text:
            logs = f"kubectl -n {names.NAMESPACE} logs deployment/gpufraction -c allocator --tail=50"
            return Finding(FAIL, check, f"{where}: the webhook answers, and its allocator does not", logs)
        return Finding(OK, check, f"{where}: the webhook answers; the pod would wait ({text or 'without a reason'})")
    try:
        allocation = codec.allocation_from_text(pods.annotations_of(tried.pod).get(names.ALLOCATION))
    except Malformed:
        found = f"{where} asked for a share, and the webhook was not called"
        cure = f"kubectl label namespace {tried.namespace} {names.INJECT_LABEL}={names.INJECT_ENABLED}"
        return Finding(FAIL, check, found, f"{cure}; if it is labelled, kubectl apply -k YOUR_KUSTOMIZATION")
    return Finding(OK, check, f"{where}: the webhook answers; the pod would run on {allocation.node}")


def _refused(tried: DryRun, where: str) -> Finding:
    check, text = "dry-run", tried.refused
    if "failed calling webhook" in text and _WEBHOOK in text:
        why = text.partition("failed to call webhook: ")[2] or text
        cure = next((cure for word, cure in _FAULTS if word in why), _PODS)
        return Finding(FAIL, check, f"{where}: the API server cannot call the webhook: {why}", cure)
    if "did not see it" in text or "are given only in namespaces" in text:
        found = f"{where} asked for a share, and the webhook was not called"
        cure = f"kubectl label namespace {tried.namespace} {names.INJECT_LABEL}={names.INJECT_ENABLED}"
        return Finding(FAIL, check, found, f"{cure}; if it is labelled, kubectl apply -k YOUR_KUSTOMIZATION")
    if f'"{_WEBHOOK}" denied' in text or "exceeded quota" in text:
        return Finding(OK, check, f"{where}: the webhook answers; such a pod is refused there: {text}")
    return Finding(WARN, check, f"{where} is refused by something else, so the way to the webhook is unknown: {text}")
