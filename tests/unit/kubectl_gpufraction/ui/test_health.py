"""What the top of the page says while the installation does not work, and which part of that a user may not see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.ui.health import InstallationHealth, LeaseWatch, banners, unseen

JSON = dict[str, Any]
NOW = 1_767_607_200.0
RENEWED = "2026-01-05T10:00:00Z"
LEADS = {"spec": {"holderIdentity": "gpufraction-0_7", "renewTime": RENEWED, "leaseDurationSeconds": 15}}
HOOK = {"webhooks": [{"failurePolicy": "Fail"}]}
LOGS = "kubectl -n gpufraction-system logs -l app.kubernetes.io/component=admission -c allocator --tail=50"
DESCRIBE = "kubectl -n gpufraction-system describe pods -l app.kubernetes.io/component=admission"
AGENTS = "kubectl get pods --all-namespaces -l app.kubernetes.io/component=nodeagent -o wide"
WAIT = "Pods that request a GPU share wait until one leads. Running pods keep their GPUs."


def deployment(ready: int) -> JSON:
    return {"metadata": {"name": "gpufraction"}, "spec": {"replicas": 2}, "status": {"readyReplicas": ready}}


WELL = ClusterFacts(NOW, (0, 0), webhook=HOOK, deployments=(deployment(1),), lease=LEADS, clock_doubt=60.0)


def banner(kind: str, what: str, means: str, cure: str) -> JSON:
    return {"kind": kind, "what": what, "means": means, "cure": cure}


def leader(last: str) -> JSON:
    return banner("leader", "No allocator leads", f"{WAIT}{last}", LOGS)


LAST = f" gpufraction-0 last renewed the Lease gpufraction-allocator at {RENEWED}."


@pytest.mark.parametrize(
    ("facts", "unrenewed", "want"),
    [
        pytest.param(WELL, 3.0, [], id="an allocator renews its Lease"),
        pytest.param(WELL, 20.5, [leader(LAST)], id="the Lease stays as it is"),
        pytest.param(replace(WELL, now=NOW + 76), 0.0, [leader(LAST)], id="the Lease is old"),
        pytest.param(replace(WELL, now=NOW + 70), 0.0, [], id="the Lease is as old as clocks may differ"),
        pytest.param(replace(WELL, lease=None), 0.0, [leader("")], id="no allocator has ever led"),
        pytest.param(replace(WELL, lease=Unseen("you may not")), 99.0, [], id="the Lease may not be read"),
    ],
)
def test_nobody_leads(facts: ClusterFacts, unrenewed: float, want: list[JSON]) -> None:
    assert banners(InstallationHealth(facts, unrenewed), []) == want


NOT_READY = "The webhook does not answer: 0 of 2 replicas of the Deployment gpufraction Ready"
REFUSED = (
    "The API server refuses new pods that request a GPU share; controllers try again. Running pods keep their GPUs."
)
IGNORED = "New pods that request a GPU share are created without one. Running pods keep their GPUs."
NO_HOOK = "The webhook is not installed: there is no MutatingWebhookConfiguration zz-gpufraction-webhook"
NONE = "New pods that request a GPU share get none. Running pods keep their GPUs."


@pytest.mark.parametrize(
    ("ready", "hook", "want"),
    [
        (0, HOOK, [banner("webhook", NOT_READY, REFUSED, DESCRIBE)]),
        (0, {"webhooks": [{"failurePolicy": "Ignore"}]}, [banner("webhook", NOT_READY, IGNORED, DESCRIBE)]),
        (0, Unseen("you may not"), [banner("webhook", NOT_READY, REFUSED, DESCRIBE)]),
        (1, HOOK, []),
        (2, None, [banner("webhook", NO_HOOK, NONE, "kubectl apply -k YOUR_KUSTOMIZATION")]),
    ],
)
def test_the_webhook_does_not_answer(ready: int, hook: Any, want: list[JSON]) -> None:
    assert banners(InstallationHealth(replace(WELL, deployments=(deployment(ready),), webhook=hook)), []) == want


def test_silent_agents_are_named_and_running_pods_are_not_touched() -> None:
    means = "Their nodes accept no new pods, and the figures shown for them may be old. Running pods keep their GPUs."
    assert banners(InstallationHealth(WELL), ["a", "b"]) == [
        banner("agents", "2 agents are silent: a, b", means, AGENTS)
    ]


def test_each_thing_that_may_not_be_read_is_named_with_its_right() -> None:
    facts = replace(
        WELL,
        lease=Unseen("you may not get leases in gpufraction-system"),
        deployments=Unseen("you may not list deployments in gpufraction-system"),
        webhook=Unseen("you may not get the MutatingWebhookConfiguration zz-gpufraction-webhook"),
    )
    assert (banners(InstallationHealth(facts, 99.0), []), unseen(InstallationHealth(facts))) == (
        [],
        [
            "whether an allocator leads: you may not get leases in gpufraction-system",
            "whether the webhook is ready: you may not list deployments in gpufraction-system",
            "whether the webhook is installed: you may not get the MutatingWebhookConfiguration zz-gpufraction-webhook",
        ],
    )


def test_a_lease_counts_as_unchanged_from_when_it_was_first_seen() -> None:
    watch, again = LeaseWatch(), {"spec": LEADS["spec"] | {"renewTime": "2026-01-05T10:00:05Z"}}
    found = [
        watch.unchanged(lease, at) for lease, at in ((LEADS, 100.0), (LEADS, 112.0), (again, 115.0), (None, 116.0))
    ]
    assert found == [0.0, 12.0, 0.0, 0.0]
