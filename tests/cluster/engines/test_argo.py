"""Argo Workflows' own controller: a step that waits for its share says why, and continues or ends as it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from playground.cluster import Cluster
from playground.engines import argo
from playground.engines.argo import ARGO, VERSION, WORKFLOWS
from playground.machinery.kubelet.podrun import RUN_SECONDS
from playground.waiting import wait_for
from tests.cluster.engines.owned import booked, cleared, leave, members, occupy, running, shown, template, worker
from tests.cluster.engines.programs import folder_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
SHORT = 12
"""Seconds of a time limit that is short enough for tests."""


@pytest.fixture(scope="module")
def workflows(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with argo.running(us, folder_of(ARGO.assets()), tmp_path_factory.mktemp("argo") / "run"):
        yield us


@pytest.fixture(autouse=True)
def in_order(us: Cluster) -> Iterator[None]:
    """Each test leaves the cluster empty; nothing is allocated twice before and after."""
    yield
    cleared(us, WORKFLOWS)


def submit(cluster: Cluster, count: int, *, seconds: int = 0, of_a_step: JSON | None = None, **spec: Any) -> None:
    """
    A workflow with this many trainings at once, each on its own card.

    `seconds`: after which a training ends; 0 for never. `of_a_step`: further fields of the training's template.
    """
    made = worker("train").annotated(RUN_SECONDS, str(seconds)) if seconds else worker("train")
    pod = template(made)
    container = {**pod["spec"]["containers"][0], "command": ["train"]}
    train = {
        "name": "train",
        "metadata": pod["metadata"],
        "nodeSelector": pod["spec"]["nodeSelector"],
        "container": container,
        **(of_a_step or {}),
    }
    each = {"name": "train", "template": "train", "withSequence": {"count": str(count)}}
    document = {
        "apiVersion": VERSION,
        "kind": "Workflow",
        "metadata": {"name": "sweep"},
        "spec": {
            "entrypoint": "sweep",
            "podSpecPatch": '{"terminationGracePeriodSeconds": 0}',
            "templates": [{"name": "sweep", "steps": [[each]]}, train],
            **spec,
        },
    }
    cluster.kube.create(WORKFLOWS, document)


def workflow(cluster: Cluster) -> JSON:
    return cluster.kube.get(f"{WORKFLOWS}/sweep")


def phase(cluster: Cluster) -> str:
    return str((workflow(cluster).get("status") or {}).get("phase", ""))


def phases(cluster: Cluster) -> list[str]:
    """The phases of the steps, as Argo shows them."""
    return sorted(phase for phase, _ in argo.steps(workflow(cluster)).values())


def why(cluster: Cluster) -> str:
    """What Argo shows for the only pending step; empty if there is none."""
    found = [message for phase, message in argo.steps(workflow(cluster)).values() if phase == "Pending"]
    return found[0] if len(found) == 1 else ""


def said(cluster: Cluster) -> str:
    return f"{shown(cluster)}, {argo.steps(workflow(cluster))}"


def waits_with_its_reason(cluster: Cluster) -> bool:
    return why(cluster).startswith("Unschedulable: waiting: 0 of ") and "short of memory" in why(cluster)


def test_a_step_that_waits_says_why_and_goes_on_when_a_card_is_free(workflows: Cluster) -> None:
    occupy(workflows)
    submit(workflows, 2)
    wait_for(lambda: waits_with_its_reason(workflows), lambda: said(workflows), 30)
    assert (phases(workflows), len(booked(workflows))) == (["Pending", "Running"], 1)
    leave(workflows)
    wait_for(lambda: phases(workflows) == ["Running"] * 2, lambda: said(workflows), 30)
    assert {message for _, message in argo.steps(workflow(workflows)).values()} == {""}


def test_more_trainings_than_cards_go_through_them_and_the_workflow_succeeds(workflows: Cluster) -> None:
    submit(workflows, 5, seconds=2)
    wait_for(lambda: phase(workflows) == "Succeeded", lambda: said(workflows), 90)
    assert phases(workflows) == ["Succeeded"] * 5


def test_a_workflow_that_is_deleted_while_a_step_waits_leaves_nothing(workflows: Cluster) -> None:
    occupy(workflows)
    submit(workflows, 2)
    wait_for(lambda: waits_with_its_reason(workflows), lambda: said(workflows), 30)
    workflows.kube.delete(f"{WORKFLOWS}/sweep", {"propagationPolicy": "Background"})
    wait_for(lambda: not members(workflows), lambda: f"{shown(workflows)}", 30)
    occupy(workflows, "second")


def test_a_workflow_that_is_stopped_while_a_step_waits_gives_its_place_up(workflows: Cluster) -> None:
    occupy(workflows)
    occupy(workflows, "second")
    submit(workflows, 1)
    wait_for(lambda: waits_with_its_reason(workflows), lambda: said(workflows), 30)
    workflows.kube.patch_merge(f"{WORKFLOWS}/sweep", {"spec": {"shutdown": "Terminate"}})
    wait_for(lambda: phase(workflows) == "Failed" and not members(workflows), lambda: said(workflows), 30)


LIMITS: dict[str, JSON] = {
    "of the workflow": {"activeDeadlineSeconds": SHORT},
    "of a pending step": {"of_a_step": {"pendingTimeout": f"{SHORT}s"}},
    "of a step": {"of_a_step": {"timeout": f"{SHORT}s"}},
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
def test_a_time_limit_that_ends_while_a_step_waits_fails_it(workflows: Cluster, limit: JSON) -> None:
    """As docs/workloads/argo-workflows.md warns, these limits include the wait."""
    occupy(workflows)
    occupy(workflows, "second")
    submit(workflows, 1, **limit)
    wait_for(lambda: waits_with_its_reason(workflows), lambda: said(workflows), 30)
    wait_for(lambda: phase(workflows) == "Failed" and not members(workflows), lambda: said(workflows), 60)
    leave(workflows)
    occupy(workflows, "third")


def test_the_deadline_of_a_step_does_not_count_the_time_for_which_it_waits(workflows: Cluster) -> None:
    occupy(workflows)
    occupy(workflows, "second")
    submit(workflows, 1, seconds=1, of_a_step={"activeDeadlineSeconds": SHORT})
    wait_for(lambda: waits_with_its_reason(workflows), lambda: said(workflows), 30)
    (pod,) = members(workflows)
    assert pod["spec"]["activeDeadlineSeconds"] == SHORT
    leave(workflows)
    wait_for(lambda: phase(workflows) == "Succeeded", lambda: said(workflows), 60)


def test_steps_that_are_allowed_in_parallel_run_alongside_each_other(workflows: Cluster) -> None:
    submit(workflows, 3, parallelism=1)
    wait_for(lambda: running(workflows) == 1, lambda: said(workflows), 30)
    assert len(members(workflows)) == 1
    workflows.kube.patch_merge(f"{WORKFLOWS}/sweep", {"spec": {"parallelism": 3}})
    wait_for(lambda: running(workflows) == 2 and waits_with_its_reason(workflows), lambda: said(workflows), 60)
