"""Pods that ask for no GPU see none, where the administrator wants that."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.dialects import Options
from contract.metrics import metrics_of
from runtime.metrics import Metrics
from tests.webhook.builders import container, environment, patched, pod, review
from webhook.app import create_app
from webhook.asking import UNREACHABLE, Silence
from webhook.hiding import hidden

JSON = dict[str, Any]
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VISIBLE, "value": "void"}


def answered(made: JSON, *, hide_gpus: bool, **request: Any) -> JSON:
    app = create_app(
        ask=lambda question: Silence(UNREACHABLE),
        metrics=Metrics(metrics_of("webhook")),
        options=Options(),
        ready=lambda: None,
        hide_gpus=hide_gpus,
    )
    reply = app.test_client().post("/mutate", data=json.dumps(review(made, **request)))
    assert reply.status_code == 200
    response: JSON = json.loads(reply.data)["response"]
    return response


def with_env(made: JSON, *entries: JSON) -> JSON:
    made["spec"]["containers"][0]["env"] = list(entries)
    return made


SEEN = {
    "nothing said": (pod(container()), [VOID]),
    "a tenant who wants all": (
        with_env(pod(container()), {"name": "A", "value": "1"}, {"name": VISIBLE, "value": "all"}),
        [VOID, {"name": "A", "value": "1"}],
    ),
    "no GPU, written out": (pod(container(nvidia_com__gpu="0")), [VOID]),
    "a slice of NVIDIA's own plugin": (pod(container(nvidia_com__mig_1g_10gb="1")), None),
    "no slice of that plugin": (pod(container(nvidia_com__mig_1g_10gb="0")), [VOID]),
}


@pytest.mark.parametrize(("made", "want"), SEEN.values(), ids=SEEN.keys())
def test_what_a_container_has_in_its_environment(made: JSON, want: list[JSON] | None) -> None:
    before = copy.deepcopy(made)
    assert hidden(made)["spec"]["containers"][0].get("env") == want
    assert made == before


def test_every_container_of_the_pod_is_closed() -> None:
    made = pod(container("a"), container("b"))
    made["spec"]["initContainers"] = [container("i")]
    changed = patched(made, answered(made, hide_gpus=True))
    assert [environment(changed, name) for name in ("i", "a", "b")] == [{VISIBLE: "void"}] * 3
    assert "patch" not in answered(changed, hide_gpus=True)


def test_devices_that_the_pod_names_to_the_runtime_are_taken_off() -> None:
    """Found on a real node: NVIDIA's NRI plugin gives them to any pod, whatever its environment says."""
    named = {"nvidia.cdi.k8s.io/container.c": "nvidia.com/gpu=all", "cdi.k8s.io/a": "nvidia.com/gpu=0"}
    made = pod(container(), annotations={**named, "team/a": "b"})
    assert patched(made, answered(made, hide_gpus=True))["metadata"]["annotations"] == {"team/a": "b"}
    assert "patch" not in answered(made, hide_gpus=False)


def test_without_the_setting_nothing_is_touched() -> None:
    assert "patch" not in answered(pod(container()), hide_gpus=False)


def test_a_mirror_pod_and_other_requests_are_left_alone() -> None:
    mirror = pod(container(), annotations={"kubernetes.io/config.mirror": "1"})
    assert "patch" not in answered(mirror, hide_gpus=True)
    assert "patch" not in answered(pod(container()), hide_gpus=True, operation="UPDATE")


def debugging(*names_of_containers: str) -> JSON:
    made = pod(container(gpufraction_io__gpu_memory="8Gi"))
    made["spec"]["ephemeralContainers"] = [{"name": name, "image": "cuda"} for name in names_of_containers]
    return made


DEBUGS = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": debugging("first")}


def test_what_is_put_into_a_running_pod_sees_nothing_and_what_was_there_stays() -> None:
    made = debugging("first", "second")
    changed = patched(made, answered(made, hide_gpus=True, **DEBUGS))
    assert changed["spec"]["ephemeralContainers"] == [
        {"name": "first", "image": "cuda"},
        {"name": "second", "image": "cuda", "env": [VOID]},
    ]
    assert {**changed["spec"], "ephemeralContainers": []} == {**made["spec"], "ephemeralContainers": []}
    assert "patch" not in answered(made, hide_gpus=False, **DEBUGS)
    assert "patch" not in answered(made, hide_gpus=True, **{**DEBUGS, "subResource": "status"})


def test_ephemeral_containers_that_are_none_are_refused() -> None:
    made = debugging()
    made["spec"]["ephemeralContainers"] = ["x"]
    assert answered(made, hide_gpus=True, **DEBUGS)["status"]["message"] == (
        "spec.ephemeralContainers[0]: found text; give an object"
    )


ENVIRONMENTS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from([VISIBLE, "A", "CUDA_VISIBLE_DEVICES"]), "value": st.text()}),
    max_size=4,
)


@given(ENVIRONMENTS)
def test_once_is_as_good_as_twice_and_only_our_variable_changes(entries: list[JSON]) -> None:
    made = with_env(pod(container()), *entries)
    once = hidden(made)
    assert hidden(once) == once
    kept = [entry for entry in entries if entry["name"] != VISIBLE]
    assert once["spec"]["containers"][0]["env"] == [VOID, *kept]
