"""
Rules about namespaces: which are served, which should be, and what excludes their pods. Facts in, findings out.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from contract import names, pods
from contract.dialects import DIALECTS
from contract.options import VENDOR
from contract.scheduling import consent, fairness
from kubectl_gpufraction.check.facts import ClusterFacts, installed, labels_of, name_of, settings
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen, number
from kubectl_gpufraction.cluster.unserved import INJECT, asks_in_vain, is_served
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
ENFORCE = "pod-security.kubernetes.io/enforce"
_REFUSES_HOST_PATHS = ("baseline", "restricted")
_MOST = 20
"""Namespaces that are named, each in a line of its own."""


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """The findings about the namespaces. An object that cannot be read is reported once for each rule."""
    yield from _served(facts)
    yield from _weights(facts)
    yield from _consents(facts)
    yield from _pod_security(facts)
    yield from _unserved_pods(facts)


def _served(facts: ClusterFacts) -> Iterator[Finding]:
    check, namespaces = "namespaces", facts.namespaces
    if isinstance(namespaces, Unseen):
        yield Finding(UNKNOWN, check, f"unknown: {namespaces.why}")
        return
    served = sorted(name_of(each) for each in namespaces if is_served(each))
    never = [
        name_of(each)
        for each in namespaces
        if labels_of(each).get(names.INJECT_LABEL) == names.INJECT_ENABLED and not is_served(each)
    ]
    odd = [
        f"{name_of(each)} ({labels_of(each)[names.INJECT_LABEL]})"
        for each in namespaces
        if labels_of(each).get(names.INJECT_LABEL, names.INJECT_ENABLED) != names.INJECT_ENABLED
    ]
    if never:
        cure = f"kubectl label namespace {never[0]} {names.INJECT_LABEL}-"
        yield Finding(WARN, check, f"{few(never)}: labelled, but never served", cure)
    if odd:
        first = odd[0].partition(" ")[0]
        cure = f"kubectl label namespace {first} {INJECT} --overwrite"
        yield Finding(WARN, check, f"{few(odd)}: only the value {names.INJECT_ENABLED} counts", cure)
    if served:
        yield Finding(OK, check, f"served: {few(served)}")
    else:
        cure = f"kubectl label namespace NAMESPACE {INJECT}"
        yield Finding(WARN if installed(facts) else OK, check, "no namespace is labelled yet", cure)


def _weights(facts: ClusterFacts) -> Iterator[Finding]:
    """Unreadable weights in the fair queue; nothing if there are none, or the namespaces are not visible."""
    for each in facts.namespaces if isinstance(facts.namespaces, tuple) else ():
        weight = labels_of(each).get(names.QUEUE_WEIGHT)
        if weight is not None and fairness.weight_of(weight) is None:
            cure = f"kubectl label namespace {name_of(each)} {names.QUEUE_WEIGHT}=1 --overwrite"
            yield Finding(WARN, "namespaces", fairness.misread(name_of(each), weight), cure)


def _consents(facts: ClusterFacts) -> Iterator[Finding]:
    """Unreadable labels of namespaces about idle pods; nothing if there are none, or the namespaces are not visible."""
    for each in facts.namespaces if isinstance(facts.namespaces, tuple) else ():
        after = labels_of(each).get(names.IDLE_AFTER)
        if after is not None and consent.seconds_of(after) is None:
            cure = f"kubectl label namespace {name_of(each)} {names.IDLE_AFTER}=2h --overwrite"
            yield Finding(WARN, "namespaces", consent.misread(name_of(each), after), cure)


def _pod_security(facts: ClusterFacts) -> Iterator[Finding]:
    check, namespaces = "pod-security", facts.namespaces
    if isinstance(namespaces, Unseen):
        return  # reported of `namespaces` already
    paths = settings(facts, "webhook").get("host-paths", "")
    if not paths:
        return
    refusing = [each for each in namespaces if is_served(each) and labels_of(each).get(ENFORCE) in _REFUSES_HOST_PATHS]
    for each in refusing[:_MOST]:
        name, level = name_of(each), labels_of(each)[ENFORCE]
        found = f"namespace {name} enforces {level}, which refuses the hostPath volumes that pods get for {paths}"
        cure = f"kubectl label namespace {name} {ENFORCE}=privileged --overwrite"
        yield Finding(FAIL, check, found, cure)
    if not refusing:
        yield Finding(OK, check, f"no served namespace refuses the hostPath volumes that pods get for {paths}")


def _unserved_pods(facts: ClusterFacts) -> Iterator[Finding]:
    check = "unserved-pods"
    for fact in (facts.pods, facts.namespaces):
        if isinstance(fact, Unseen):
            yield Finding(UNKNOWN, check, f"unknown: {fact.why}")
            return
    assert isinstance(facts.pods, tuple)
    assert isinstance(facts.namespaces, tuple)
    served = {name_of(each) for each in facts.namespaces if is_served(each)}
    requesting = defaultdict[str, list[JSON]](list)
    for pod in facts.pods:
        if _asks_in_vain(pod, facts):
            requesting[str((pod.get("metadata") or {}).get("namespace", ""))].append(pod)
    for namespace, found in sorted(requesting.items())[:_MOST]:
        yield _unserved(namespace, found, namespace in served)
    if len(requesting) > _MOST:
        yield Finding(WARN, check, f"{number(len(requesting) - _MOST, 'more namespace')} with such pods")
    if not requesting:
        yield Finding(OK, check, "no pod requests a share in a namespace that is not served")


def _asks_in_vain(pod: JSON, facts: ClusterFacts) -> bool:
    """Whether a pod requests a share and did not pass admission. Whole GPUs of a vendor's plugin do not count."""
    if asks_in_vain(pod):
        return True
    if pods.finished(pod) or names.REQUEST in pods.annotations_of(pod) or not DIALECTS.detect(pod):
        return False
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return not (bound or isinstance(facts.options, Unseen)) and facts.options.base.whole_gpus != VENDOR


def _unserved(namespace: str, found: list[JSON], served: bool) -> Finding:
    titles = sorted({dialect.title for pod in found for dialect in DIALECTS.detect(pod)})
    who = f"namespace {namespace}: {number(len(found), 'pod')} requested a share ({', '.join(titles)})"
    if served:
        message = f"{who} before the namespace was labelled; their controllers create them again"
        return Finding(
            WARN, "unserved-pods", message, f"kubectl -n {namespace} delete pod {' '.join(map(name_of, found))}"
        )
    if namespace in names.UNSERVED_NAMESPACES:
        return Finding(
            WARN, "unserved-pods", f"{who}, but that namespace is never served", "create them in another namespace"
        )
    message = f"{who}, but it is not labelled; create them again when it is"
    return Finding(WARN, "unserved-pods", message, f"kubectl label namespace {namespace} {INJECT}")
