"""
Each team's manifests as they would be: the pod of every recorded workload as the webhook stores it, alongside the pod
as it was recorded, in the form of a diff.

The webhook's own admission makes them, with an allocator that has every pod wait: so a manifest does not depend on
which cards were free. No manual steps are needed: the diff shows what admission changes. A refused manifest is shown
with admission's message, which names the field and what would work. Pure.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from contract.encoding.plain import LINE, plain, plain_values
from contract.encoding.protocol import Answer, Question, Wait
from contract.options import NO_OPTIONS, PoolOptions
from contract.reasons.pods import AnswerReason
from shadow.replay.demand import DemandWindow, PodDemand
from shadow.replay.patches import patched
from webhook.admission import admit
from webhook.admission.review import Review

JSON = dict[str, Any]
MOST_WORKLOADS = 2_000
"""Workloads whose manifests are shown, at most."""


@dataclass(frozen=True, slots=True)
class WorkloadManifest:
    """One workload. `before`, `after`: its pod as YAML; `refused`: the words of the refusal, `after` is empty then."""

    namespace: str
    kind: str
    name: str
    pods: int
    before: str
    after: str
    refused: str = ""
    warnings: tuple[str, ...] = ()
    cut: bool = False
    """Only resources and annotations of the pod were recorded, since it is large."""

    @property
    def diff(self) -> str:
        """A unified diff, empty where admission leaves the pod as it is."""
        what = f"{self.namespace}/{self.kind}/{self.name}"
        found = difflib.unified_diff(
            self.before.splitlines(),
            self.after.splitlines(),
            f"{what} as it is",
            f"{what} with gpufraction",
            lineterm="",
        )
        return "\n".join(found)


def manifests(
    window: DemandWindow,
    *,
    namespace: str = "",
    options: PoolOptions = NO_OPTIONS,
    translate: Callable[[PodDemand], JSON] = lambda pod: dict(pod.pod),
) -> Iterator[WorkloadManifest]:
    """The workloads of one namespace, or of all. Of each the template of its last pod."""
    found: dict[tuple[str, str, str], list[PodDemand]] = {}
    for pod in window.asking:
        if not namespace or pod.namespace == namespace:
            found.setdefault((pod.namespace, *pod.workload), []).append(pod)
    for (space, kind, name), pods in sorted(found.items())[:MOST_WORKLOADS]:
        yield _manifest(space, kind, name, pods, options, translate)


def _manifest(
    namespace: str,
    kind: str,
    name: str,
    found: list[PodDemand],
    options: PoolOptions,
    translate: Callable[[PodDemand], JSON],
) -> WorkloadManifest:
    pod = found[-1]
    before = _pod(pod.pod, namespace, name)
    created = _pod(translate(pod), namespace, name)
    try:
        allowed, document, words, warnings = admitted(created, namespace, options)
    except Exception as error:  # of one workload, and of no other
        allowed, document, words, warnings = False, {}, f"it cannot be read: {type(error).__name__}", ()
    return WorkloadManifest(
        namespace,
        kind,
        name,
        len(found),
        _yaml(before),
        _yaml(document) if allowed else "",
        "" if allowed else words,
        warnings,
        pod.pod.get("cut") is True,
    )


def admitted(pod: JSON, namespace: str, options: PoolOptions) -> tuple[bool, JSON, str, tuple[str, ...]]:
    """Whether admission takes the pod, the pod as it is stored, the words of a refusal, and warnings."""
    review = Review("manifest", "CREATE", namespace, True, pod, {}, "Pod")
    answered = admit.admit(review, admit.Configuration(pools=options), _waits, lambda node: frozenset(), now_ns=0)
    response = json.loads(answered.body)["response"]
    warnings = tuple(plain(str(each)) for each in response.get("warnings") or ())
    if not response["allowed"]:
        return False, {}, plain(str((response.get("status") or {}).get("message", ""))), warnings
    operations = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return True, patched(pod, operations), "", tuple(each for each in warnings if _WHEN not in each)


_WHEN = "it is placed when it is created"
"""In place of a reason to wait: a manifest, unlike a pod, needs no card."""


def _waits(question: Question) -> Answer | None:
    return Wait(AnswerReason.QUEUED, _WHEN)


def _pod(template: JSON, namespace: str, name: str) -> JSON:
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": name, "namespace": namespace},
        "spec": template.get("spec") or {},
    }


def _yaml(document: JSON) -> str:
    return str(yaml.safe_dump(plain_values(document, LINE), sort_keys=True, default_flow_style=False))


def shown(found: Iterator[WorkloadManifest]) -> str:
    """All of them as text."""
    parts = []
    for each in found:
        head = f"# {each.namespace}: {each.kind} {each.name}, {each.pods} pod{'' if each.pods == 1 else 's'}"
        lines = [plain(head, LINE)]
        if each.cut:
            lines.append("# Only its resources and annotations were recorded: the pod is large.")
        lines += [f"# Warning: {warning}" for warning in each.warnings]
        if each.refused:
            lines.append(f"# Refused until it is changed: {each.refused}")
        else:
            lines.append(each.diff or "# Admission leaves it as it is.")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n" if parts else "No pod that requests a GPU was recorded there.\n"
