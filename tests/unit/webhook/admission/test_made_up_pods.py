"""Every pod, whatever it looks like, gets an answer and never a fault, and never a GPU without an allocation."""

from __future__ import annotations

import functools
import json
from typing import Any

from flask.testing import FlaskClient
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from contract import names, pods
from contract.dialects import DIALECTS
from contract.encoding.protocol import Never, Placed, Question, Wait
from contract.metrics import metrics_of
from contract.model import Allocation, ContainerAllocation, GpuShare
from runtime.metrics import Metrics
from tests.examples import examples
from tests.unit.webhook.builders import GIB, T4, environment, patched, review
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import Allocator, NoAnswer
from webhook.serving.health import Health

JSON = dict[str, Any]

RESERVED_ENV = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_X", "NVIDIA_GPU_MEMORY_LIMIT")
SOURCES: tuple[JSON, ...] = ({"value": "tenant"}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {})
amounts = st.sampled_from(["0", "1", "5", "20", "100", "101", "3Gi", "-1", "1.5", "x", 2, 0.5, ""])
limits = st.dictionaries(st.sampled_from([*sorted(DIALECTS.resources), "cpu"]), amounts, max_size=3)
environments = st.lists(
    st.builds(
        lambda name, source: {"name": name, **source},
        st.sampled_from([*RESERVED_ENV, "A", "ALIYUN_COM_GPU_MEM_CONTAINER"]),
        st.sampled_from(SOURCES),
    ),
    max_size=4,
)


SERVED: dict[str, list[JSON]] = {
    "native": [
        {"gpufraction.io/gpu-memory": "3Gi"},
        {"gpufraction.io/gpu-percent": "20", "gpufraction.io/gpu-count": 2},
        {"gpufraction.io/gpu-cores": "30", "cpu": "1"},
        {"gpufraction.io/gpu-count": "1"},
    ],
    "aliyun": [{"aliyun.com/gpu-mem": "5"}, {"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-count": "1"}],
    "hami": [{"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "10"}],
    "nano": [{"nano-gpu/gpu-percent": "20"}, {"nano-gpu/gpu-percent": 100}],
}
"""Limits that each dialect serves."""


def containers(*listed: str, limits: st.SearchStrategy[JSON] = limits) -> st.SearchStrategy[list[JSON]]:
    one = st.fixed_dictionaries(
        {"name": st.sampled_from(listed)},
        optional={
            "resources": st.fixed_dictionaries({}, optional={"limits": limits, "requests": limits}),
            "env": environments,
            "restartPolicy": st.sampled_from(["Always", None]),
        },
    )
    return st.lists(one, max_size=3, unique_by=lambda c: c["name"])


made_annotations = st.dictionaries(
    st.sampled_from(
        [
            *map(str, names.RESERVED_ANNOTATIONS),
            *(f"{prefix}a" for prefix in names.CONTAINER_PREFIXES),
            str(names.NODE_POLICY),
            "nvidia.com/use-gputype",
            "other",
        ]
    ),
    st.sampled_from(
        [
            "all",
            "binpack",
            "{",
            '{"v":1,"dialect":"native","containers":[{"name":"a","count":1,"percent":5}]}',
            '{"v":1,"dialect":"?","containers":[{"name":"a","count":1,"memory":5}]}',
            '{"v":1,"id":"x","node":"n","containers":[{"name":"a","gpus":[{"uuid":"u","index":0,"memory":1,"cores":0,"of":2}]}]}',
        ]
    ),
)


def pods_with(limits: st.SearchStrategy[JSON]) -> st.SearchStrategy[JSON]:
    return st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": st.just("p")}, optional={"annotations": made_annotations}),
            "spec": st.fixed_dictionaries(
                {"containers": containers("a", "b", "c", limits=limits)},
                optional={
                    "initContainers": containers("i", "j", limits=limits),
                    "nodeName": st.sampled_from(["", "n"]),
                    "schedulingGates": st.lists(
                        st.sampled_from([{"name": str(names.GATE)}, {"name": "other"}]), max_size=2
                    ),
                    "affinity": st.sampled_from([None, {}, {"nodeAffinity": {}}]),
                },
            ),
        }
    )


made_up_pods = pods_with(limits)


@st.composite
def asking_pods(draw: st.DrawFn) -> JSON:
    """A pod that uses one dialect in its first container at least, so that most are admitted."""
    served = SERVED[draw(st.sampled_from(sorted(SERVED)))]
    made: JSON = json.loads(json.dumps(draw(pods_with(st.sampled_from([*served, {}, {"cpu": "1"}])))))
    first = {"name": "first", "resources": {"limits": draw(st.sampled_from(served))}, "env": draw(environments)}
    made["spec"]["containers"].insert(0, first)
    return made


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "spec", "containers", "env", "name", "resources", "limits", "annotations", "affinity"]
            )
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@st.composite
def damaged_pods(draw: st.DrawFn) -> JSON:
    """A generated pod with one of its parts replaced."""
    made: JSON = json.loads(json.dumps(draw(made_up_pods | asking_pods())))
    at: Any = made
    while True:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return made
        key = draw(st.sampled_from(keys))
        if draw(st.booleans()) or not isinstance(at[key], dict | list):
            at[key] = draw(junk)
            return made
        at = at[key]


def place(question: Question) -> Placed:
    """Everything fits, each container on separate cards."""
    number = iter(range(1000))
    listed = []
    for fraction in question.request.containers:
        shares = tuple(
            GpuShare(f"GPU-{n}", n, fraction.memory or GIB, fraction.cores, T4)
            for n, _ in zip(number, range(fraction.count), strict=False)
        )
        listed.append(ContainerAllocation(fraction.container, shares))
    return Placed(Allocation(question.held or "id", "n", tuple(listed)), "nodeName")


ANSWERS: dict[str, Any] = {
    "placed": place,
    "wait": lambda question: Wait("NoRoom", "full", {"a": GIB}),
    "never": lambda question: Never("TooLarge", "too large"),
    "silence": lambda question: NoAnswer("unreachable"),
}
answers = st.sampled_from(sorted(ANSWERS))
admitting = st.sampled_from(["placed", "wait", "silence"])


def client(ask: Any) -> FlaskClient:
    app = create_app(
        Configuration,
        Allocator(lambda question, within: ask(question)),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    return app.test_client()


class Webhook:
    """One application for each answer, created once."""

    def __init__(self) -> None:
        self._clients = {name: client(ask) for name, ask in ANSWERS.items()}

    def response(self, made: JSON, answer: str) -> JSON:
        got = self._clients[answer].post("/mutate", data=json.dumps(review(made)))
        assert got.status_code == 200, got.get_data()
        response: JSON = got.get_json()["response"]
        return response


@functools.cache
def webhook() -> Webhook:
    return Webhook()


quick = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@quick
@given(damaged_pods(), answers)
def test_a_damaged_pod_gets_an_answer(made: JSON, answer: str) -> None:
    assert webhook().response(made, answer)["allowed"] in (True, False)


@quick
@given(asking_pods(), admitting)
def test_only_an_allocation_gives_a_container_its_gpus(made: JSON, answer: str) -> None:
    response = webhook().response(made, answer)
    assume("patch" in response)
    got = patched(made, response)
    allocation = pods.allocation_of(got, pods.admitted(got) or no_request())
    devices = {c.container: ",".join(s.uuid for s in c.shares) for c in allocation.containers} if allocation else {}
    assert (allocation is not None) == (answer == "placed")
    for kind in ("initContainers", "containers"):
        for container in got["spec"].get(kind) or []:
            name = container["name"]
            resolved = environment(got, name)
            asked = names.VISIBLE_DEVICES in resolved and resolved[names.VISIBLE_DEVICES] != names.NO_DEVICES
            assert resolved[names.VISIBLE_DEVICES] == devices.get(name, "" if asked else names.NO_DEVICES)
            assert "tenant" not in [resolved.get(variable) for variable in RESERVED_ENV]


def no_request() -> Any:
    raise AssertionError("what was admitted is not recognised as admitted")


@quick
@given(asking_pods(), admitting)
def test_nothing_of_a_dialect_is_left_and_the_rest_is_kept(made: JSON, answer: str) -> None:
    response = webhook().response(made, answer)
    assume("patch" in response)
    got = patched(made, response)
    accounting = {str(names.GPU_MEMORY), str(names.GPU_CORES)}
    for kind in ("initContainers", "containers"):
        before, after = made["spec"].get(kind) or [], got["spec"].get(kind) or []
        assert [c["name"] for c in before] == [c["name"] for c in after]
        for old, new in zip(before, after, strict=True):
            for part in ("limits", "requests"):
                was, now = ((c.get("resources") or {}).get(part) or {} for c in (old, new))
                assert not set(now) & (DIALECTS.resources - accounting)
                assert {k: v for k, v in was.items() if k not in DIALECTS.resources} == {
                    k: v for k, v in now.items() if k not in DIALECTS.resources
                }
            assert [e for e in new["env"] if e["name"] == "A"] == [e for e in old.get("env") or [] if e["name"] == "A"]


@quick
@given(asking_pods(), admitting)
def test_a_second_pass_changes_nothing(made: JSON, answer: str) -> None:
    response = webhook().response(made, answer)
    assume("patch" in response)
    got = patched(made, response)
    again = webhook().response(got, answer)
    assert (again["allowed"], again.get("patch")) == (True, None)
