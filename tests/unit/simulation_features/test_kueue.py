"""A wrong answer to Kueue, and a missing one, are found."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.features.kueue.workloads import GROUP
from contract import names
from tests.simulation.features import kueue
from tests.simulation.features.kueue import Answers
from tests.unit.simulation_features.fakes import FakeStore, change, run

JSON = dict[str, Any]


def workload(state: str, *, memory: int = 5000, count: int = 1, message: str = "the pod fits") -> JSON:
    limits = {str(names.GPU_MEMORY): f"{memory}Mi"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    return {
        "metadata": {"name": "gang", "namespace": "team-a"},
        "spec": {"podSets": [{"name": "main", "count": count, "template": template}]},
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admissionChecks": [{"name": kueue.CHECK, "state": state, "message": message}],
        },
    }


def judging(**objects: Any) -> Any:
    found = run(FakeStore(**objects))
    found.plan.shape["components"] = (kueue.COMPONENT,)
    return found


def answered(before: JSON, after: JSON) -> str:
    return Answers(judging()).holds(change(f"workloads.{GROUP}", after, previous=before)) or ""


@pytest.mark.parametrize("state", ["Ready", "Retry", "Rejected"])
def test_an_answer_that_is_changed_is_found(state: str) -> None:
    other = "Retry" if state != "Retry" else "Ready"
    assert "Kueue did not ask again" in answered(workload(other), workload(state))


def test_an_answer_without_words_is_found() -> None:
    assert "nothing is said of why" in answered(workload("Pending"), workload("Retry", message=""))


def test_ready_without_room_is_found() -> None:
    assert "of 1 pods 0 fit" in answered(workload("Pending"), workload("Ready"))
    assert answered(workload("Pending"), workload("Ready", message="no pod of the Workload requests a GPU share")) == ""


def test_a_check_that_nobody_answers_is_found() -> None:
    missing = kueue._answered(judging(workloads__kueue__x_k8s_io=[]))
    assert missing == ["nobody says that he answers the check: None"]
    active = {"metadata": {"name": kueue.CHECK}, "status": {"conditions": [{"type": "Active", "status": "True"}]}}
    store = FakeStore()
    store.objects = {f"workloads.{GROUP}": [workload("Pending")], f"admissionchecks.{GROUP}": [active]}
    found = judging()
    found.world.api.store = store
    assert kueue._answered(found) == ["team-a/gang has had no answer"]
