"""The findings about pods without a share that can see GPUs: one warning by default, failures in the strict profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.check import visibility
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Unseen

JSON = dict[str, Any]
APPLY = "kubectl apply -k YOUR_KUSTOMIZATION"
HIDE = f"kustomize edit add component manifests/components/hide-gpus && {APPLY}"
GUARD = f"kustomize edit add component manifests/components/guard-gpus && {APPLY}"
SEEN = "pods without a share may see every GPU of their node: nothing hides them"
SERVED = "in enabled namespaces, pods without a share may see every GPU of their node"
NAMED = "in namespaces that are not enabled, pods may name GPUs and bypass the scheduler"


def gpunode(name: str, *modes: str) -> JSON:
    status = {
        "delivery": {"modes": list(modes)},
        "gpus": [{"health": "Healthy", "usableBytes": 1}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name}, "status": status}


def webhook(*entries: str, policy: str = "Fail") -> JSON:
    return {"webhooks": [{"name": name, "failurePolicy": policy} for name in ("pods.gpufraction.io", *entries)]}


def namespace(name: str, **labels: str) -> JSON:
    keys = {"enforce": "pod-security.kubernetes.io/enforce", "gpus": str(names.GPUS_LABEL)}
    return {"metadata": {"name": name, "labels": {keys[key]: value for key, value in labels.items()}}}


BASE = ClusterFacts(0.0, (1, 36), gpunodes=(gpunode("a", "dra"),), webhook=webhook())
HIDDEN = replace(BASE, webhook=webhook(*visibility.HIDING))
GUARDED = frozenset((visibility.GUARD,))
STRICT = replace(
    HIDDEN,
    policies=frozenset((visibility.GUARD, visibility.STRICT)),
    namespaces=(
        namespace("team", enforce="restricted"),
        namespace("kube-system"),
        namespace("gpufraction-nodes", enforce="privileged"),
        namespace("storage", gpus="unguarded"),
    ),
)
CASES: dict[str, tuple[ClusterFacts, list[tuple[str, str, str]]]] = {
    "nothing is installed": (ClusterFacts(0.0, (1, 36)), []),
    "no GPU is shared": (replace(BASE, gpunodes=()), []),
    "a default installation": (BASE, [(WARN, SEEN, f"{HIDE}; then the same with guard-gpus: see docs/multitenant.md")]),
    "only guarded": (replace(BASE, policies=GUARDED), [(WARN, SERVED, HIDE)]),
    "only hidden": (HIDDEN, [(WARN, NAMED, GUARD)]),
    "both": (
        replace(HIDDEN, policies=GUARDED),
        [(OK, "GPUs are hidden from pods without a share (hide-gpus, guard-gpus)", "")],
    ),
    "the profile": (STRICT, [(OK, "no pod without a share can see a GPU in any known way", "")]),
    "the profile without its entries": (replace(STRICT, webhook=webhook()), [(FAIL, SERVED, HIDE)]),
    "the profile with an entry for debuggers alone": (
        replace(STRICT, webhook=webhook(visibility.HIDING[1])),
        [(FAIL, SERVED, HIDE)],
    ),
    "the profile without its guard": (
        replace(STRICT, policies=frozenset((visibility.STRICT,))),
        [(FAIL, NAMED, GUARD)],
    ),
    "the profile that lets pods by while the webhook is down": (
        replace(STRICT, webhook=webhook(*visibility.HIDING, policy="Ignore")),
        [
            (
                FAIL,
                "while the webhook does not answer, pods without a share are created unchanged and may see every GPU",
                "set failurePolicy: Fail in the entries others.gpufraction.io and debuggers.gpufraction.io of "
                f"zz-gpufraction-webhook && {APPLY}",
            )
        ],
    ),
    "the profile where NVIDIA's runtime is the default": (
        replace(STRICT, gpunodes=(gpunode("a", "env-plain-cdi"), gpunode("b", "env-class"))),
        [
            (
                FAIL,
                "on a NVIDIA's runtime is the default: in a namespace that is not enabled, a pod with an image made "
                "for CUDA sees every GPU of the node",
                "make NVIDIA's runtime a RuntimeClass, or deliver by CDI or DRA: see docs/multitenant.md",
            )
        ],
    ),
    "the profile where the way is unknown": (
        replace(STRICT, gpunodes=(gpunode("a"),)),
        [
            (
                FAIL,
                "how GPUs reach containers on a is unknown, so an image may be enough to see every GPU",
                "kubectl get gpunode a -o 'jsonpath={.status.delivery}'; see docs/multitenant.md",
            )
        ],
    ),
    "the profile and a namespace with privileged pods": (
        replace(STRICT, namespaces=(namespace("team"), namespace("dev", enforce="privileged"))),
        [
            (
                FAIL,
                "namespaces team, dev enforce no level of Pod Security, so a privileged pod there sees every GPU of "
                "its node",
                "kubectl label namespace team pod-security.kubernetes.io/enforce=baseline; if its pods must be "
                "privileged and you trust them, gpufraction.io/gpus=unguarded",
            )
        ],
    ),
    "the profile, and namespaces that may not be seen": (
        replace(STRICT, namespaces=Unseen("you may not list namespaces")),
        [
            (
                FAIL,
                "whether namespaces admit privileged pods is unknown: you may not list namespaces",
                "see docs/multitenant.md",
            )
        ],
    ),
    "policies that may not be seen": (
        replace(BASE, policies=Unseen("you may not list policies")),
        [(UNKNOWN, "unknown: you may not list policies", "")],
    ),
    "a webhook that may not be seen": (
        replace(BASE, webhook=Unseen("you may not read it")),
        [(UNKNOWN, "unknown: you may not read it", "")],
    ),
}


@pytest.mark.parametrize(("facts", "want"), CASES.values(), ids=CASES.keys())
def test_what_is_found(facts: ClusterFacts, want: list[tuple[str, str, str]]) -> None:
    found = [(each.level, each.found, each.cure) for each in visibility.findings(facts)]
    assert found == want
    assert {each.check for each in visibility.findings(facts)} <= {visibility.CHECK}
