"""Pods that request no GPU see none, if the administrator requires that."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.metrics import metrics_of
from contract.options import DEFAULTS, Options, PoolOptions
from runtime.metrics import Metrics
from tests.unit.webhook.builders import container, environment, patched, pod, review
from webhook.admission.admit import Configuration, Offers
from webhook.admission.containers import hidden, vendor_resources
from webhook.serving.application import create_app
from webhook.serving.asking import UNREACHABLE, Allocator, NoAnswer, nothing_offered
from webhook.serving.health import Health

JSON = dict[str, Any]
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VISIBLE, "value": "void"}
MIG = "nvidia.com/mig-1g.10gb"


def answered(
    made: JSON, *, hide_gpus: bool, options: Options = DEFAULTS, offers: Offers = nothing_offered, **request: Any
) -> JSON:
    app = create_app(
        lambda: Configuration(pools=PoolOptions(base=options), hide_gpus=hide_gpus),
        Allocator(lambda question, within: NoAnswer(UNREACHABLE), offers),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    reply = app.test_client().post("/mutate", data=json.dumps(review(made, **request)))
    assert reply.status_code == 200
    response: JSON = json.loads(reply.data)["response"]
    return response


def asking(resource: str, amount: str) -> JSON:
    return {**container(), "resources": {"limits": {resource: amount}}}


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
    "a slice of NVIDIA's own plugin": (pod(asking(MIG, "1")), None),
    "a slice, and a tenant who wants all": (
        with_env(pod(asking(MIG, "1")), {"name": VISIBLE, "value": "all"}, {"name": "A", "value": "1"}),
        [{"name": "A", "value": "1"}],
    ),
    "no slice of that plugin": (pod(asking(MIG, "0")), [VOID]),
    "a GPU that several share by that plugin": (pod(asking("nvidia.com/gpu.shared", "1")), None),
    "a slice of a slice": (pod(asking("nvidia.com/mig-1c.3g.20gb.shared", "2")), None),
    "a name that somebody made up": (pod(container(nvidia_com__foo="1")), [VOID]),
    "a NIC": (pod(container(nvidia_com__hostdev="1")), [VOID]),
    "no amount": (pod(asking(MIG, "many")), [VOID]),
    "less than none": (pod(asking(MIG, "-1")), [VOID]),
}


@pytest.mark.parametrize(("made", "want"), SEEN.values(), ids=SEEN.keys())
def test_what_a_container_has_in_its_environment(made: JSON, want: list[JSON] | None) -> None:
    before = copy.deepcopy(made)
    assert hidden(made, vendor_resources(made, whole=False))["spec"]["containers"][0].get("env") == want
    assert made == before


def wants_all(resource: str, amount: str = "1", **spec: Any) -> JSON:
    return with_env(pod(asking(resource, amount), **spec), {"name": VISIBLE, "value": "all"})


def of_node(*resources: str) -> Offers:
    """A node `t4` that has these."""
    return lambda node: frozenset(resources if node == "t4" else ())


BOUND: dict[str, tuple[JSON, Offers, dict[str, str]]] = {
    "the node has it": (wants_all(MIG, nodeName="t4"), of_node(MIG), {}),
    "the node has another": (wants_all(MIG, nodeName="t4"), of_node("nvidia.com/gpu"), {VISIBLE: "void"}),
    "another node has it": (wants_all(MIG, nodeName="n1"), of_node(MIG), {VISIBLE: "void"}),
    "nobody can say": (wants_all(MIG, nodeName="t4"), nothing_offered, {VISIBLE: "void"}),
    "no GPU, whatever the node has": (
        wants_all("nvidia.com/foo", nodeName="t4"),
        of_node("nvidia.com/foo"),
        {VISIBLE: "void"},
    ),
    "kube-scheduler knows what nodes have": (wants_all(MIG), nothing_offered, {}),
}


@pytest.mark.parametrize(("made", "offers", "want"), BOUND.values(), ids=BOUND.keys())
def test_a_pod_that_names_its_node_is_believed_what_the_node_has(
    made: JSON, offers: Offers, want: dict[str, str]
) -> None:
    answer = answered(made, hide_gpus=True, offers=offers)
    assert environment(patched(made, answer), "main") == want


def test_an_untrusted_user_gets_a_warning() -> None:
    answer = answered(wants_all(MIG, nodeName="t4"), hide_gpus=True)
    assert " ".join(answer["warnings"]) == (
        f"spec.nodeName: found 't4', which may not have {MIG}, so containers that request it see no GPU; remove "
        f"spec.nodeName (a nodeSelector can choose the node)"
    )


OF_THE_VENDOR: dict[str, tuple[JSON, dict[str, str]]] = {
    "a whole GPU": (wants_all("nvidia.com/gpu"), {}),
    "none, written out": (wants_all("nvidia.com/gpu", "0"), {VISIBLE: "void"}),
    "on a node that has some": (wants_all("nvidia.com/gpu", nodeName="t4"), {}),
    "on a node that has none": (wants_all("nvidia.com/gpu", nodeName="n1"), {VISIBLE: "void"}),
}


@pytest.mark.parametrize(("made", "want"), OF_THE_VENDOR.values(), ids=OF_THE_VENDOR.keys())
def test_pods_that_are_left_to_the_vendors_plugin_see_what_that_gives(made: JSON, want: dict[str, str]) -> None:
    made["spec"]["containers"].append(container("beside", env=[{"name": VISIBLE, "value": "all"}]))
    options = Options(whole_gpus="vendor")
    answer = answered(made, hide_gpus=True, options=options, offers=of_node("nvidia.com/gpu"))
    changed = patched(made, answer)
    assert [environment(changed, name) for name in ("main", "beside")] == [want, {VISIBLE: "void"}]
    assert "patch" not in answered(changed, hide_gpus=True, options=options, offers=of_node("nvidia.com/gpu"))
    assert "patch" not in answered(made, hide_gpus=False, options=options)


def test_a_vendors_pod_that_is_none_is_refused() -> None:
    made = wants_all("nvidia.com/gpu")
    made["metadata"] = []
    response = answered(made, hide_gpus=True, options=Options(whole_gpus="vendor"))
    assert response["status"]["message"] == "metadata: found a list; give an object"


def test_every_container_of_the_pod_is_closed() -> None:
    made = pod(container("a"), container("b"))
    made["spec"]["initContainers"] = [container("i")]
    changed = patched(made, answered(made, hide_gpus=True))
    assert [environment(changed, name) for name in ("i", "a", "b")] == [{VISIBLE: "void"}] * 3
    assert "patch" not in answered(changed, hide_gpus=True)


def test_devices_that_the_pod_names_to_the_runtime_are_taken_off() -> None:
    """This was found on a real node: NVIDIA's NRI plugin gives devices to any pod, whatever its environment says."""
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


DEBUGS: dict[str, Any] = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": debugging("first")}


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
