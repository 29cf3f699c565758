"""
The faults of the installation, for the top of the page: each with its effect on pods and a command.

The facts and the rules are those of `check`. An object that the user may not read is named with the missing right.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contract import names
from kubectl_gpufraction.check import install
from kubectl_gpufraction.check.facts import CONFIGURATION, ClusterFacts
from kubectl_gpufraction.check.findings import FAIL, Unseen
from kubectl_gpufraction.cluster.leadership import leader
from kubectl_gpufraction.output.wording import few, many

JSON = dict[str, Any]
_TERM = 15.0
"""Seconds of a Lease that does not state its duration."""
_LATE = 5.0
"""Seconds that a renewal may take to be seen."""
_LOGS = f"kubectl -n {names.NAMESPACE} logs -l app.kubernetes.io/component=admission -c allocator --tail=50"
_DESCRIBE = f"kubectl -n {names.NAMESPACE} describe pods -l app.kubernetes.io/component=admission"
_AGENTS = "kubectl get pods --all-namespaces -l app.kubernetes.io/component=nodeagent -o wide"
_RUNNING = "Running pods keep their GPUs."
_REFUSED = {
    "Fail": "The API server refuses new pods that request a GPU share; controllers try again.",
    "Ignore": "New pods that request a GPU share are created without one.",
}
"""The effect on pods while the webhook does not answer, by its `failurePolicy`."""


@dataclass(frozen=True, slots=True)
class InstallationHealth:
    """The facts that were read. `unrenewed`: for how many seconds the Lease has been seen unchanged."""

    facts: ClusterFacts
    unrenewed: float = 0.0


class LeaseWatch:
    """
    For how long a Lease has been seen unchanged, by this machine's own clock.

    It may differ from the cluster's by more than a Lease lasts, so the time in the Lease alone is not enough.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] | None = None
        self._since = 0.0

    def unchanged(self, lease: JSON | Unseen | None, at: float) -> float:
        """Seconds since it was first seen as it is. `at`: seconds of a clock that never goes back."""
        spec = (lease.get("spec") or {}) if isinstance(lease, dict) else {}
        now = (spec.get("holderIdentity"), spec.get("renewTime"))
        if now != self._seen:
            self._seen, self._since = now, at
        return at - self._since


def banners(health: InstallationHealth, silent: Sequence[str]) -> list[JSON]:
    """The faults, the worst first. `silent`: nodes whose agents have not written for long, or never."""
    found = [_leader(health), _webhook(health.facts), _silent(silent)]
    return [banner for banner in found if banner is not None]


def unseen(health: InstallationHealth) -> list[str]:
    """The parts that the page cannot show, and the rights that would allow them."""
    facts = health.facts
    about = (
        ("whether an allocator leads", facts.lease),
        ("whether the webhook is ready", facts.deployments),
        ("whether the webhook is installed", facts.webhook),
    )
    return [f"{what}: {fact.why}" for what, fact in about if isinstance(fact, Unseen)]


def _banner(kind: str, what: str, means: str, cure: str) -> JSON:
    return {"kind": kind, "what": what, "means": means, "cure": cure}


def _leader(health: InstallationHealth) -> JSON | None:
    facts, lease = health.facts, health.facts.lease
    if isinstance(lease, Unseen):
        return None
    spec = (lease or {}).get("spec") or {}
    term = float(spec.get("leaseDurationSeconds") or _TERM) + _LATE
    leads, _ = leader(lease, facts.now, facts.clock_doubt)
    if leads and health.unrenewed <= term:
        return None
    holder = str(spec.get("holderIdentity") or "").partition("_")[0]
    last = f" {holder} last renewed the Lease {names.LEASE} at {spec.get('renewTime')}." if holder else ""
    means = f"Pods that request a GPU share wait until one leads. {_RUNNING}{last}"
    return _banner("leader", "No allocator leads", means, _LOGS)


def _webhook(facts: ClusterFacts) -> JSON | None:
    if facts.webhook is None:
        what = f"The webhook is not installed: there is no MutatingWebhookConfiguration {CONFIGURATION}"
        return _banner("webhook", what, f"New pods that request a GPU share get none. {_RUNNING}", install.APPLY)
    failed = [found for found in install.programs(facts) if found.check == "webhook" and found.level == FAIL]
    if not failed:
        return None
    entries = (facts.webhook.get("webhooks") or [{}]) if isinstance(facts.webhook, dict) else [{}]
    means = _REFUSED.get(str(entries[0].get("failurePolicy")), _REFUSED["Fail"])
    return _banner("webhook", f"The webhook does not answer: {failed[0].found}", f"{means} {_RUNNING}", _DESCRIBE)


def _silent(nodes: Sequence[str]) -> JSON | None:
    if not nodes:
        return None
    what = f"{many(len(nodes), 'agent is', 'agents are')} silent: {few(nodes)}"
    means = f"Their nodes accept no new pods, and the figures shown for them may be old. {_RUNNING}"
    return _banner("agents", what, means, _AGENTS)
