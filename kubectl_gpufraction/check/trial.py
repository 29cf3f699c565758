"""
The dry run of a pod that requests a share: its namespace, the pod, and the meaning of the answer.

Pure. It is the only test of the path from the API server to the webhook: firewall, Service, certificate. A dry
run stores nothing and reserves nothing.
"""

from __future__ import annotations

from typing import Any

from contract import names, pods
from contract.encoding import codec
from contract.encoding.plain import plain
from contract.encoding.reading import Malformed
from contract.reasons.pods import UNANSWERED
from kubectl_gpufraction.check.facts import (
    CERTS,
    CONFIGURATION,
    ClusterFacts,
    DryRun,
    certificates_by_another,
    labels_of,
    name_of,
    named,
    settings,
)
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen, unknown
from kubectl_gpufraction.cluster.unserved import INJECT, is_served

JSON = dict[str, Any]
_WEBHOOK = "pods.gpufraction.io"
_POLICY = "gpufraction-pod-create"
"""It refuses a pod of the dry run only if the webhook did not see it."""
_PORT = "9443"
_ASKS = "1Gi"
"""GPU memory on one GPU, which any card has."""
_PODS = f"kubectl -n {names.NAMESPACE} get pods -o wide"
_LOGS = f"kubectl -n {names.NAMESPACE} logs deployment/{CERTS}"
_SECRET = "gpufraction-webhook-certs"
_RENEW = f"kubectl -n {names.NAMESPACE} patch secret {_SECRET} --type merge -p '{{\"data\":null}}'"
_MOST_SAID = 300
"""Bytes of the API server's own message."""
_UNREACHED = "no answer in time: a firewall, or an overloaded webhook"
_FIREWALL = "open TCP port {port} from the API server to the pods (the page of your cloud in docs/installing.md)"
_FAULTS = (
    ("expired", "the webhook's certificate has expired or is not yet valid", _RENEW),
    ("x509", "it does not trust the webhook's certificate", _LOGS),
    ("certificate", "it does not trust the webhook's certificate", _LOGS),
    ("refused", "connection refused, so no webhook runs", _PODS),
    ("EOF", "the connection is closed at once, so no webhook runs", _PODS),
    ("reset by peer", "the connection is closed at once, so no webhook runs", _PODS),
    ("no endpoints available", "no webhook is Ready", _PODS),
    ("not found", "the Service gpufraction-webhook does not exist", "kubectl apply -k YOUR_KUSTOMIZATION"),
    ("deadline exceeded", _UNREACHED, _FIREWALL),
    ("timeout", _UNREACHED, _FIREWALL),
    ("no route to host", _UNREACHED, _FIREWALL),
)
"""Words of the API server's failure to call the webhook, what they mean, and the cure; the first that fits counts."""


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


def certificate_cure(facts: ClusterFacts, cure: str = _LOGS) -> str:
    """Where to look for what is wrong with a certificate."""
    if certificates_by_another(facts):
        return f"kubectl -n {names.NAMESPACE} describe secret {_SECRET}"
    return cure


def answered(facts: ClusterFacts) -> bool:
    """Whether the webhook has answered the dry run."""
    return isinstance(facts.dry_run, DryRun) and finding(facts).level == OK


def finding(facts: ClusterFacts) -> Finding:
    """The findings of the dry run."""
    check, tried = "dry-run", facts.dry_run
    if isinstance(tried, Unseen):
        return unknown(check, tried) or Finding(OK, check, "")
    if tried is None and isinstance(facts.namespaces, Unseen):
        found = f"unknown: not tried, because {facts.namespaces.why}; -n names a namespace to try it in"
        return Finding(UNKNOWN, check, found, "kubectl gpufraction check -n NAMESPACE")
    if tried is None:
        found = "unknown: not tried, because no namespace is labelled"
        return Finding(UNKNOWN, check, found, f"kubectl label namespace NAMESPACE {INJECT}")
    return _meaning(tried, facts)


def _meaning(tried: DryRun, facts: ClusterFacts) -> Finding:
    """The findings of an answer."""
    check, where = "dry-run", f"a pod in namespace {tried.namespace}"
    if tried.pod is None:
        return _refused(tried, facts)
    text = " ".join(tried.warnings).removeprefix("waiting: ")
    if names.GATE in pods.gates(tried.pod):
        if UNANSWERED in text:
            logs = f"kubectl -n {names.NAMESPACE} logs deployment/gpufraction -c allocator --tail=50"
            return Finding(FAIL, check, f"{where}: the webhook answers, but its allocator does not", logs)
        return Finding(OK, check, f"{where}: the webhook answers; the pod would wait ({text or 'without a reason'})")
    try:
        allocation = codec.allocation_from_text(pods.annotations_of(tried.pod).get(names.ALLOCATION))
    except Malformed:
        return _not_called(tried, facts)
    return Finding(OK, check, f"{where}: the webhook answers; the pod would run on {allocation.node}")


def _not_called(tried: DryRun, facts: ClusterFacts) -> Finding:
    """Why the webhook was not called, if that is visible, and the cure."""
    why, cure = _why_not_called(tried.namespace, facts)
    found = f"a pod in namespace {tried.namespace} requested a share, but the webhook was not called: {why}"
    return Finding(FAIL, "dry-run", found, cure)


def _why_not_called(where: str, facts: ClusterFacts) -> tuple[str, str]:
    apply, space = "kubectl apply -k YOUR_KUSTOMIZATION", named(facts.namespaces, where)
    if where in names.UNSERVED_NAMESPACES:
        return "that namespace is never served", "kubectl gpufraction check -n ANOTHER_NAMESPACE"
    if space is not None and not is_served(space):
        label, value = f"kubectl label namespace {where} {INJECT}", labels_of(space).get(names.INJECT_LABEL)
        if value is None:
            return f"the namespace lacks the label {INJECT}", label
        odd = f"{names.INJECT_LABEL}={value}, and only the value {names.INJECT_ENABLED} counts"
        return f"the namespace has the label {odd}", f"{label} --overwrite"
    if facts.webhook is None:
        return f"the MutatingWebhookConfiguration {CONFIGURATION} does not exist", apply
    if isinstance(facts.webhook, Unseen):
        return f"{facts.webhook.why}, so the reason is unknown", apply
    entry = next((each for each in facts.webhook.get("webhooks") or () if each.get("name") == _WEBHOOK), None)
    if entry is None:
        return f"{CONFIGURATION} has no webhook {_WEBHOOK}", apply
    if entry.get("failurePolicy") == "Ignore":
        logs = f"kubectl -n {names.NAMESPACE} get pods -o wide"
        return f"{CONFIGURATION} has failurePolicy Ignore, so a failed call goes unnoticed", logs
    if space is None:
        return "whether the namespace is enabled is unknown", f"kubectl label namespace {where} {INJECT}"
    return f"{CONFIGURATION} selects other namespaces or pods than the manifests do", apply


def _refused(tried: DryRun, facts: ClusterFacts) -> Finding:
    check, where, text = "dry-run", f"a pod in namespace {tried.namespace}", tried.refused
    if "failed calling webhook" in text and _WEBHOOK in text:
        why = text.partition("failed to call webhook: ")[2] or text
        called = why.rpartition("?timeout=")[2]
        explanation, cure = next(
            ((explanation, cure) for word, explanation, cure in _FAULTS if word in called), (why, _PODS)
        )
        found = f"{where}: the API server cannot call the webhook: {explanation}"
        said = plain(called.partition('": ')[2], _MOST_SAID)
        if said and explanation != why:
            found += f" (it says: {said})"
        port = settings(facts, "webhook").get("bind", "").rpartition(":")[2] or _PORT
        if cure in (_LOGS, _RENEW):
            cure = certificate_cure(facts, cure)
        return Finding(FAIL, check, found, cure.replace("{port}", port))
    if f"ValidatingAdmissionPolicy '{_POLICY}'" in text:
        return _not_called(tried, facts)
    if f'"{_WEBHOOK}" denied' in text or "exceeded quota" in text:
        return Finding(OK, check, f"{where}: the webhook answers, but such a pod is refused there: {text}")
    return Finding(WARN, check, f"{where} is refused by something else, so the way to the webhook is unknown: {text}")
