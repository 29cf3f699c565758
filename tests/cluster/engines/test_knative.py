"""Knative Serving's own controllers: a Service says why its pods wait, and continues when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.engines.knative import serving as knative
from playground.engines.knative.serving import IMAGE, SERVICES, Knative
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import pod
from tests.cluster.engines.owned import explained
from tests.cluster.engines.programs import folder_of
from tests.cluster.system import invariants

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
DEADLINE, LEAST = "serving.knative.dev/progress-deadline", "autoscaling.knative.dev/min-scale"
NO_ROOM = "Memory"
CONFIG = {
    "config-features": {"kubernetes.podspec-nodeselector": "enabled"},
    "config-deployment": {"queue-sidecar-image": "dev.local/queue"},
    "config-autoscaler": {"target-burst-capacity": "-1"},
}
"""
The settings of Knative that these tests need: fields of pods that tenants may set, a name for the queue's image, which
never runs here, and an activator on every path, so that the controller does not wait for one.
"""


@pytest.fixture(scope="module")
def serving(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Knative]:
    folder = folder_of(knative.assets())
    with knative.running(us, folder, tmp_path_factory.mktemp("knative") / "run", CONFIG) as found:
        yield found


@pytest.fixture
def full(us: Cluster, serving: Knative) -> Iterator[Cluster]:
    """Two pods have both cards. Afterwards the cluster is empty, and nothing was allocated twice."""
    for number in range(2):
        made = pod(f"first-{number}").asks(names.GPU_MEMORY, "10000Mi")
        made = made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)
        us.kube.create(paths.pods("default"), made.manifest())
    wait_for(lambda: [phase for _, phase in shown(us)] == ["Running"] * 2, lambda: f"{shown(us)}")
    yield us
    invariants.check(us)
    for each in us.kube.list(SERVICES).items:
        us.kube.delete(f"{SERVICES}/{each['metadata']['name']}", {"propagationPolicy": "Background"})
    wait_for(lambda: not served(us), lambda: f"{shown(us)}")
    scenarios.clear(us.kube)
    invariants.check(us)


def engine(memory: str = "10000Mi") -> JSON:
    """A revision's pod that takes a card of the node t4, which has two."""
    limits = {str(names.GPU_MEMORY): memory}
    return {
        "containers": [{"image": IMAGE, "resources": {"limits": limits}}],
        "nodeSelector": {"gpushare": "true"},
        "timeoutSeconds": 1,
    }


def shown(cluster: Cluster) -> list[tuple[str, str]]:
    found = scenarios.all_pods(cluster.kube)
    return sorted((each["metadata"]["name"], scenarios.waits(each) or each["status"]["phase"]) for each in found)


def served(cluster: Cluster) -> list[str]:
    """What the pods of Knative's Services wait for, or their phases."""
    return sorted(state for name, state in shown(cluster) if not name.startswith("first-"))


def free_a_card(cluster: Cluster, number: int = 0) -> None:
    cluster.kube.delete(paths.pods("default", f"first-{number}"))


def is_configured(serving: Knative) -> str:
    """Whether the Service's revision is ready. Its Route is not ready because there is no ingress."""
    return str(serving.conditions("serve").get("ConfigurationsReady", {}).get("status", ""))


def why(serving: Knative) -> str:
    """What the Service itself reports about its revision."""
    return str(serving.conditions("serve").get("ConfigurationsReady", {}).get("message", ""))


def everything(serving: Knative, cluster: Cluster) -> str:
    return f"{shown(cluster)}, {serving.conditions('serve')}, {serving.tail()}"


def await_state(serving: Knative, cluster: Cluster, *states: str, timeout: float = 60.0) -> None:
    wait_for(lambda: served(cluster) == list(states), lambda: everything(serving, cluster), timeout)


def test_a_service_says_why_it_waits_and_is_ready_once_there_is_room(serving: Knative, full: Cluster) -> None:
    serving.create("serve", engine())
    await_state(serving, full, NO_ROOM)
    wait_for(lambda: "GPU nodes fit" in why(serving), lambda: everything(serving, full))
    assert "short of memory" in why(serving)
    assert is_configured(serving) == "False"
    free_a_card(full)
    await_state(serving, full, "Running")
    wait_for(lambda: is_configured(serving) == "True", lambda: everything(serving, full))


def test_a_service_that_is_deleted_while_it_waits_leaves_nothing(serving: Knative, full: Cluster) -> None:
    serving.create("serve", engine())
    await_state(serving, full, NO_ROOM)
    full.kube.delete(f"{SERVICES}/serve", {"propagationPolicy": "Background"})
    await_state(serving, full)
    free_a_card(full)
    serving.create("serve", engine())
    await_state(serving, full, "Running")


def test_a_service_that_is_scaled_waits_with_the_pod_that_does_not_fit(serving: Knative, full: Cluster) -> None:
    free_a_card(full)
    serving.create("serve", engine(), **{LEAST: "2"})
    await_state(serving, full, NO_ROOM, "Running")
    free_a_card(full, 1)
    await_state(serving, full, "Running", "Running")
    wait_for(lambda: is_configured(serving) == "True", lambda: everything(serving, full))


def test_a_service_beyond_its_progress_deadline_is_scaled_to_zero(serving: Knative, full: Cluster) -> None:
    """This happens 30 s after the deadline, as `explain` says before. A new revision starts if there is room."""
    serving.create("serve", engine(), **{DEADLINE: "5s"})
    await_state(serving, full, NO_ROOM)
    told = explained(full)
    assert "then it is marked as failed, and scaled to zero 30 s later" in told or "ended" in told
    assert "serving.knative.dev/progress-deadline in the Service's template (5 s)" in told
    await_state(serving, full, timeout=90)
    wait_for(lambda: is_configured(serving) == "False", lambda: everything(serving, full))
    free_a_card(full)
    template = {"spec": {"template": {"metadata": {"annotations": {DEADLINE: "600s"}}}}}
    full.kube.patch_merge(f"{SERVICES}/serve", template)
    await_state(serving, full, "Running")
    wait_for(lambda: is_configured(serving) == "True", lambda: everything(serving, full))


def test_a_service_with_a_least_scale_waits_beyond_its_progress_deadline(serving: Knative, full: Cluster) -> None:
    serving.create("serve", engine(), **{DEADLINE: "1s", LEAST: "1"})
    await_state(serving, full, NO_ROOM)
    wait_for(lambda: has_timed_out(full), lambda: everything(serving, full))
    wait_for(lambda: "GPU nodes fit" in why(serving), lambda: everything(serving, full))
    free_a_card(full)
    await_state(serving, full, "Running")
    wait_for(lambda: is_configured(serving) == "True", lambda: everything(serving, full))


def has_timed_out(cluster: Cluster) -> bool:
    """Whether the revision's Deployment says that its deadline has passed."""
    (found,) = cluster.kube.list(paths.path("apps/v1", "deployments", "default")).items
    reasons = {each["reason"] for each in (found.get("status") or {}).get("conditions") or ()}
    return "ProgressDeadlineExceeded" in reasons


def test_knative_refuses_node_affinity_unless_the_administrator_allows_it(serving: Knative, full: Cluster) -> None:
    term = {"matchExpressions": [{"key": "gpushare", "operator": "Exists"}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    with pytest.raises(KubeError, match="affinity"):
        serving.create("serve", {**engine(), "affinity": required})
