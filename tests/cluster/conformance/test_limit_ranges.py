"""What a LimitRange writes into pods and when, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from playground.waiting import wait_for
from tests.cluster.conformance.asking import JSON, Api, Ask, create, op, pod
from tests.cluster.conformance.hooks import Hook, allowed, registered

MEMORY, OLDER = "gpufraction.io/gpu-memory", "aliyun.com/gpu-mem"
NOTE, SEEN = "kubernetes.io/limit-ranger", "example.com/seen"


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.stop()


@contextmanager
def limited(api: Api, **item: JSON) -> Iterator[JSON]:
    """A LimitRange for containers, as it is stored. The API server applies it a moment after its creation."""
    item = {**item, "default": {**item.get("default", {}), SEEN: "1"}}
    body = {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", **item}]}}
    made = api.done(Ask("POST", "limitranges", body))
    try:
        wait_for(lambda: SEEN in _limits(_dry(api, pod("probe"))), "the LimitRange does nothing")
        yield made["spec"]["limits"][0]
    finally:
        api.ask(Ask("DELETE", "limitranges/l"))


def _dry(api: Api, body: JSON) -> JSON:
    answer = api.ask(create(body, dryRun="All"))
    # Refused by the LimitRange, so the API server applies it.
    return answer.body if answer.code < 400 else pod("p", {SEEN: "1"})


def _limits(made: JSON) -> JSON:
    found: JSON = (made["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return found


def _given(made: JSON) -> dict[str, Any]:
    """What each container has of the two resources: requests, then limits."""
    listed = [*made["spec"].get("initContainers", ()), *made["spec"]["containers"]]
    return {
        each["name"]: tuple(
            {key: value for key, value in each["resources"].get(kind, {}).items() if key in (MEMORY, OLDER)}
            for kind in ("requests", "limits")
        )
        for each in listed
    }


def _without_mark(value: Any) -> Any:
    return {key: each for key, each in value.items() if key != SEEN} if isinstance(value, dict) else value


def several(limits: JSON | None = None) -> JSON:
    """A pod with an init container and two others, of which the first has limits."""
    made = pod("p", limits)
    made["spec"]["containers"].append({"name": "side", "image": "x"})
    made["spec"]["initContainers"] = [{"name": "i", "image": "x"}]
    return made


STORED = {
    "a default is a request": ({"default": {OLDER: "2"}}, {"default": {OLDER: "2"}, "defaultRequest": {OLDER: "2"}}),
    "a max is a default": (
        {"max": {MEMORY: "4Gi"}},
        {"max": {MEMORY: "4Gi"}, "default": {MEMORY: "4Gi"}, "defaultRequest": {MEMORY: "4Gi"}},
    ),
    "but where there is one": (
        {"max": {MEMORY: "4Gi"}, "default": {MEMORY: "0"}},
        {"max": {MEMORY: "4Gi"}, "default": {MEMORY: "0"}, "defaultRequest": {MEMORY: "0"}},
    ),
    "a min is a request alone": (
        {"min": {"cpu": "100m"}},
        {"min": {"cpu": "100m"}, "default": {}, "defaultRequest": {"cpu": "100m"}},
    ),
}


@pytest.mark.parametrize(("item", "want"), STORED.values(), ids=STORED.keys())
def test_what_a_limit_range_says_beside_what_was_written(api: Api, item: JSON, want: JSON) -> None:
    with limited(api, **item) as stored:
        assert {key: _without_mark(value) for key, value in stored.items()} == {"type": "Container", **want}


def test_containers_that_name_no_amount_get_the_default_and_the_pod_a_note(api: Api) -> None:
    with limited(api, default={OLDER: "2"}, max={MEMORY: "4Gi"}):
        made = api.done(create(several({OLDER: "3", MEMORY: "1Gi"})))
    both = {OLDER: "2", MEMORY: "4Gi"}
    assert _given(made) == {
        "i": (both, both),
        "c": ({OLDER: "3", MEMORY: "1Gi"}, {OLDER: "3", MEMORY: "1Gi"}),
        "side": (both, both),
    }
    note = made["metadata"]["annotations"][NOTE]
    assert note.startswith("LimitRanger plugin set: ")
    parts = note.removeprefix("LimitRanger plugin set: ").split("; ")
    for each in ("container side", "init container i"):
        for what in ("request", "limit"):
            assert f"{OLDER}, {SEEN}, {MEMORY} {what} for {each}" in parts
    assert f"{SEEN} request for container c" in parts


def test_the_note_is_of_one_limit_range_where_there_are_several(api: Api) -> None:
    other = {"default": {"example.com/other": "1"}}
    body = {"metadata": {"name": "another"}, "spec": {"limits": [{"type": "Container", **other}]}}
    api.done(Ask("POST", "limitranges", body))
    try:
        with limited(api):
            made = api.done(create(pod("p")))
    finally:
        api.ask(Ask("DELETE", "limitranges/another"))
    assert _limits(made).keys() == {SEEN, "example.com/other"}
    notes = {
        f"LimitRanger plugin set: {name} request for container c; {name} limit for container c"
        for name in (SEEN, "example.com/other")
    }
    assert made["metadata"]["annotations"][NOTE] in notes


REFUSED = {
    "more than the most": (
        {"max": {MEMORY: "4Gi"}},
        {MEMORY: "5Gi"},
        "maximum {} usage per Container is 4Gi, but limit is 5Gi",
    ),
    "less than the least": (
        {"min": {MEMORY: "2Gi"}, "default": {MEMORY: "2Gi"}},
        {MEMORY: "1Gi"},
        "minimum {} usage per Container is 2Gi, but request is 1Gi",
    ),
    "nothing where there is a most, said of 0": ({"max": {MEMORY: "4Gi"}}, {MEMORY: "0"}, ""),
}


@pytest.mark.parametrize(("item", "limits", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_bounds(api: Api, item: JSON, limits: JSON, says: str) -> None:
    with limited(api, **item):
        answer = api.ask(create(pod("p", limits)))
    assert answer.code == (403 if says else 201), answer.message
    if says:
        assert answer.message == f'pods "p" is forbidden: {says.format(MEMORY)}'


def taking_out(request: JSON) -> JSON:
    """A webhook that removes the older resource from every container."""
    return allowed(
        *(
            op("remove", f"/spec/containers/{at}/resources/{kind}/aliyun.com~1gpu-mem")
            for at, container in enumerate(request["object"]["spec"]["containers"])
            for kind in ("limits", "requests")
            if OLDER in (container.get("resources") or {}).get(kind, {})
        )
    )


def test_what_a_webhook_removes_is_restored_and_the_webhook_called_again(api: Api, hook: Hook) -> None:
    hook.answers.update(a=taking_out)
    with limited(api, default={OLDER: "2"}), registered(api, hook, a={"reinvocationPolicy": "IfNeeded"}):
        hook.seen.clear()
        made = api.done(create(pod("p")))
        seen = hook.calls()
    assert _given(made) == {"c": ({}, {})}
    assert [_given(request["object"]) for _, request in seen] == [{"c": ({OLDER: "2"}, {OLDER: "2"})}] * 2


def test_a_webhook_that_takes_out_what_has_a_most_has_the_pod_refused(api: Api, hook: Hook) -> None:
    hook.seen.clear()
    hook.answers.update(a=taking_out)
    with limited(api, max={OLDER: "4"}), registered(api, hook, a={"reinvocationPolicy": "IfNeeded"}):
        answer = api.ask(create(pod("p")))
    assert answer.code == 403
    assert answer.message == f'pods "p" is forbidden: maximum {OLDER} usage per Container is 4.  No limit is specified'
