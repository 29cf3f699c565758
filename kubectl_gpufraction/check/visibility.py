"""
Rules about pods without a share: whether one can see GPUs, and how.

With the strict profile (the component multitenant) each way is a failure; without it there is one warning, because a
default installation hides nothing and says so. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contract import names
from kubectl_gpufraction.check.facts import ClusterFacts, installed, labels_of, name_of
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen
from kubectl_gpufraction.check.install import APPLY
from kubectl_gpufraction.check.nodes import shared_gpus
from kubectl_gpufraction.check.tenants import ENFORCE
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
CHECK = "hidden-gpus"
STRICT, GUARD = "gpufraction-quota", "gpufraction-guard-gpus"
"""The policies of the components multitenant and guard-gpus."""
HIDING = ("others.gpufraction.io", "debuggers.gpufraction.io")
"""The entries of the webhook configuration that the component hide-gpus adds."""
_ADD = f"kustomize edit add component manifests/components/{{}} && {APPLY}"
_PAGE = "see docs/multitenant.md"
_BY_DEFAULT = "env-plain"
"""The way of delivery where NVIDIA's runtime is the node's default, and gives a container what its image names."""
_TRUSTED = names.UNSERVED_NAMESPACES | {"gpu-operator", "nvidia-gpu-operator"}
"""Namespaces whose pods manage nodes or GPUs, as guard-gpus exempts them."""


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Every way with the strict profile, one line without it; nothing before the installation or without GPUs."""
    if installed(facts) is False or not isinstance(facts.gpunodes, tuple):
        return
    sharing = [each for each in facts.gpunodes if shared_gpus(each)]
    if not sharing:
        return
    for fact in (facts.webhook, facts.policies):
        if isinstance(fact, Unseen):
            yield Finding(UNKNOWN, CHECK, f"unknown: {fact.why}")
            return
    assert not isinstance(facts.policies, Unseen)
    strict = STRICT in facts.policies
    ways = list(_missing(facts))
    if strict:
        ways += [*_by_runtime(sharing), *_by_rights(facts)]
    level = FAIL if strict else WARN
    yield from (Finding(level, CHECK, found, cure) for found, cure in ways)
    if not ways:
        what = "no pod without a share can see a GPU in any known way"
        yield Finding(
            OK, CHECK, what if strict else "GPUs are hidden from pods without a share (hide-gpus, guard-gpus)"
        )


def _missing(facts: ClusterFacts) -> Iterator[tuple[str, str]]:
    """The parts of the two components that are missing or not in effect, as text and cure."""
    assert not isinstance(facts.policies, Unseen)
    webhook = facts.webhook if isinstance(facts.webhook, dict) else {}
    entries = {str(each.get("name")): each for each in webhook.get("webhooks") or []}
    wanting = [name for name in HIDING if name not in entries]
    open_when_down = [name for name in HIDING if (entries.get(name) or {}).get("failurePolicy") == "Ignore"]
    unguarded = GUARD not in facts.policies
    if wanting and unguarded:
        found = "pods without a share may see every GPU of their node: nothing hides them"
        yield found, _ADD.format("hide-gpus") + f"; then the same with guard-gpus: {_PAGE}"
    elif wanting:
        yield "in enabled namespaces, pods without a share may see every GPU of their node", _ADD.format("hide-gpus")
    elif unguarded:
        found = "in namespaces that are not enabled, pods may name GPUs and bypass the scheduler"
        yield found, _ADD.format("guard-gpus")
    if open_when_down:
        found = "while the webhook does not answer, pods without a share are created unchanged and may see every GPU"
        patch = f"set failurePolicy: Fail in the entries {' and '.join(open_when_down)} of {names.CONFIGURATION}"
        yield found, f"{patch} && {APPLY}"


def _by_runtime(sharing: list[JSON]) -> Iterator[tuple[str, str]]:
    """Nodes on which an image alone is enough, in a namespace that the webhook does not see."""
    unknown, plain = list[str](), list[str]()
    for gpunode in sharing:
        modes = ((gpunode.get("status") or {}).get("delivery") or {}).get("modes") or []
        if not modes:
            unknown.append(name_of(gpunode))
        elif any(str(mode).startswith(_BY_DEFAULT) for mode in modes):
            plain.append(name_of(gpunode))
    if plain:
        found = (
            f"on {few(plain)} NVIDIA's runtime is the default: in a namespace that is not enabled, a pod with an image "
            "made for CUDA sees every GPU of the node"
        )
        yield found, f"make NVIDIA's runtime a RuntimeClass, or deliver by CDI or DRA: {_PAGE}"
    if unknown:
        found = f"how GPUs reach containers on {few(unknown)} is unknown, so an image may be enough to see every GPU"
        yield found, f"kubectl get gpunode {unknown[0]} -o 'jsonpath={{.status.delivery}}'; {_PAGE}"


def _by_rights(facts: ClusterFacts) -> Iterator[tuple[str, str]]:
    """Namespaces in which a pod may be privileged or mount the host: it needs no runtime to reach a device."""
    if isinstance(facts.namespaces, Unseen):
        yield f"whether namespaces admit privileged pods is unknown: {facts.namespaces.why}", _PAGE
        return
    open_to_all = [
        name_of(each)
        for each in facts.namespaces
        if name_of(each) not in _TRUSTED
        and labels_of(each).get(ENFORCE) not in ("baseline", "restricted")
        and labels_of(each).get(names.GPUS_LABEL) != names.UNGUARDED
    ]
    if open_to_all:
        found = (
            f"namespaces {few(open_to_all)} enforce no level of Pod Security, so a privileged pod there sees every GPU "
            "of its node"
        )
        label = f"kubectl label namespace {open_to_all[0]} {ENFORCE}=baseline"
        trusted = f"if its pods must be privileged and you trust them, {names.GPUS_LABEL}={names.UNGUARDED}"
        yield found, f"{label}; {trusted}"
