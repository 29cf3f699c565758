"""What the API server sends to a mutating webhook, and what it does with each answer."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from playground.api.http.certificates import Authority
from tests.cluster.conformance.asking import JSON, Api, Ask, create, get, op, pod
from tests.cluster.conformance.hooks import Hook, allowed, denied, entry, registered
from tests.versions import Worded, unsaid

DENIED = 'admission webhook "a.gpufraction.io" denied the request'
FAILED = 'Internal error occurred: failed calling webhook "a.gpufraction.io": '
BROKEN = f"{FAILED}received invalid webhook response: "


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _forgetful(hook: Hook) -> None:
    hook.seen.clear()
    hook.answers.clear()


@dataclass(frozen=True)
class Outcome:
    """What the user gets for a webhook's answer; `says` are parts of the message."""

    answer: Any
    code: int
    reason: str = ""
    says: tuple[str | Worded, ...] = ()


def patched(text: str, **more: Any) -> JSON:
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(text.encode()).decode(), **more}


OUTCOMES = {
    "denied with a message": Outcome(
        denied(message="is 0; ask for 1Mi or more"), 400, "", (f"{DENIED}: is 0; ask for",)
    ),
    "denied with code and reason": Outcome(
        denied(code=422, reason="Invalid", message="m"), 422, "Invalid", (f"{DENIED}: m",)
    ),
    "denied as forbidden": Outcome(denied(code=403, message="m"), 403, "", (f"{DENIED}: m",)),
    "denied without a word": Outcome(denied(), 400, "", (f"{DENIED} without explanation",)),
    "denied with a reason alone": Outcome(denied(reason="Because"), 400, "Because", (f"{DENIED}: Because",)),
    "denied as a success": Outcome(denied(code=200, message="m"), 400, "", (f"{DENIED}: m",)),
    "another uid": Outcome(
        {"allowed": True, "uid": "zz"}, 500, "InternalError", (f"{BROKEN}expected response.uid=", '"zz"')
    ),
    "an error": Outcome(
        (500, b"allocator broke"),
        500,
        "InternalError",
        (f'{FAILED}failed to call webhook: an error on the server ("allocator broke") has prevented the request',),
    ),
    "no JSON": Outcome(b"zz", 500, "InternalError", (f"{FAILED}failed to call webhook: ",)),
    "JSON of no kind": Outcome(b"{}", 500, "InternalError", (f"{BROKEN}webhook response was absent",)),
    "a patch without its type": Outcome(
        {"allowed": True, "patch": base64.b64encode(b"[]").decode()},
        500,
        "InternalError",
        (f"{BROKEN}webhook returned response.patch but not response.patchType",),
    ),
    "a type without a patch": Outcome(
        {"allowed": True, "patchType": "JSONPatch"},
        500,
        "InternalError",
        (f"{BROKEN}webhook returned response.patchType but not response.patch",),
    ),
    "a patch that is none": Outcome(
        patched("zz"),
        500,
        "InternalError",
        (
            Worded(
                (1, 34),
                now=f"{FAILED}received undecodable patch in webhook response",
                before="Internal error occurred: invalid character 'z' looking for beginning of value",
            ),
        ),
    ),
    "a patch of what is not there": Outcome(
        allowed(op("remove", "/spec/nothing")), 500, "InternalError", ("Internal error occurred: ", "/spec/nothing")
    ),
    "a patch whose test fails": Outcome(
        allowed(op("test", "/metadata/name", "zz")),
        500,
        "InternalError",
        ("Internal error occurred: testing value /metadata/name failed",),
    ),
    "a patch to a wrong type": Outcome(
        allowed(op("add", "/spec/schedulingGates", "zz")),
        500,
        "InternalError",
        ("Internal error occurred: ", "cannot unmarshal string"),
    ),
    "a patch to what may not be": Outcome(
        allowed(op("add", "/spec/nodeName", "n"), op("add", "/spec/schedulingGates", [{"name": "a.io/b"}])),
        422,
        "Invalid",
        ("spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",),
    ),
    "a field that there is not": Outcome(allowed(op("add", "/spec/bogus", 1)), 201),
    "the node": Outcome(allowed(op("add", "/spec/nodeName", "ghost")), 201),
    "nothing": Outcome(allowed(), 201),
}


@pytest.mark.parametrize("case", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_an_answer(api: Api, hook: Hook, case: Outcome) -> None:
    hook.answers["a"] = lambda _: case.answer
    with registered(api, hook, a={}):
        answer = api.ask(create(pod("p")))
    seen = (answer.code, answer.body.get("reason", ""), unsaid(answer.message, case.says, api.version))
    assert seen == (case.code, case.reason, []), answer.message


CONDITION = [{"name": "c", "expression": "object.metadata.labels['nope'] == 'zz'"}]
FALSE = [{"name": "c", "expression": "object.metadata.name == 'zz'"}]
UNAVAILABLE = {
    "nobody trusts it": ({"caBundle": "other"}, 500, f"{FAILED}failed to call webhook: Post "),
    "nobody trusts it, and it may fail": ({"caBundle": "other", "failurePolicy": "Ignore"}, 201, ""),
    "a condition is false": ({"matchConditions": FALSE}, 201, ""),
    "a condition cannot be told": (
        {"matchConditions": CONDITION},
        403,
        "pods \"p\" is forbidden: expression 'object.metadata.labels['nope'] == 'zz'' resulted in error: ",
    ),
}


@pytest.mark.parametrize("case", UNAVAILABLE.values(), ids=UNAVAILABLE.keys())
def test_it_is_not_called(api: Api, hook: Hook, case: tuple[JSON, int, str]) -> None:
    about, code, message = case
    if "caBundle" in about:
        about = {**about, "caBundle": base64.b64encode(Authority("somebody else").pem).decode()}
    hook.answers |= {"a": lambda _: denied(message="asked"), "first": lambda _: allowed()}
    with registered(api, hook, first={}, a=about):
        answer = api.ask(create(pod("p")))
    assert (answer.code, answer.message[: len(message)]) == (code, message)
    assert [name for name, _ in hook.calls() if name == "a"] == []


UNREACHED = {
    "its authority is another one": ({"authority": "other"}, "tls: ...: x509: certificate signed by unknown authority"),
    "its certificate has ended": ({"days": -0.02}, "tls: ...: x509: certificate has expired or is not yet valid"),
    "nobody listens": ({"port": 1}, "dial tcp 127.0.0.1:1: connect: connection refused"),
}


@pytest.mark.parametrize(("how", "why"), UNREACHED.values(), ids=UNREACHED.keys())
def test_why_it_is_not_reached(api: Api, hook: Hook, how: JSON, why: str) -> None:
    hook.answers["first"] = lambda _: allowed()
    other = Hook(days=how.get("days", 30.0))
    authority = Authority("somebody else") if "authority" in how else other.authority
    host = "127.0.0.1" if "port" in how else "localhost"
    client = {
        "url": f"https://{host}:{how.get('port', other.port)}/a",
        "caBundle": base64.b64encode(authority.pem).decode(),
    }
    try:
        with registered(api, hook, first={}, a={"clientConfig": client}):
            answer = api.ask(create(pod("p")))
    finally:
        other.stop()
    said = why.replace("...", "failed to verify certificate")
    begin = f'{FAILED}failed to call webhook: Post "{client["url"]}?timeout=10s": {said}'
    assert (answer.code, answer.message[: len(begin)]) == (500, begin)


def test_what_it_receives(api: Api, hook: Hook) -> None:
    hook.answers["a"] = lambda _: allowed()
    body = pod("p", {"gpufraction.io/gpu-memory": "8192Mi", "cpu": "1000m"})
    body["metadata"] = {"generateName": "p-", "annotations": {"a": "b"}}
    with registered(api, hook, a={}):
        api.done(create(body))
    ((_, request),) = hook.calls()
    (container,) = request["object"]["spec"]["containers"]
    metadata = {key: request["object"]["metadata"].get(key) for key in ("name", "generateName", "uid", "namespace")}
    assert (request["operation"], request["dryRun"], request.get("name"), request["namespace"]) == (
        "CREATE",
        False,
        None,
        api.namespace,
    )
    assert (request["kind"], request["resource"], request["requestResource"]) == (
        {"group": "", "version": "v1", "kind": "Pod"},
        {"group": "", "version": "v1", "resource": "pods"},
        {"group": "", "version": "v1", "resource": "pods"},
    )
    assert metadata == {"name": None, "generateName": "p-", "uid": None, "namespace": api.namespace}
    held = {"gpufraction.io/gpu-memory": "8Gi", "cpu": "1"}
    assert container["resources"] == {"limits": held, "requests": held}
    assert request["userInfo"]["username"] == "kubernetes-admin"
    assert request["object"]["spec"]["serviceAccountName"] == "default"


def test_requests_follow_the_limits_that_it_sets(api: Api, hook: Hook) -> None:
    ours = {"gpufraction.io/gpu-memory": "1Gi"}
    resources = "/spec/containers/0/resources"
    hook.answers["a"] = lambda _: allowed(op("replace", resources, {"limits": ours}))
    with registered(api, hook, a={}):
        made = api.done(create(pod("p", {"nvidia.com/gpu": "1"})))
    assert made["spec"]["containers"][0]["resources"] == {"limits": ours, "requests": ours}


def test_limits_taken_without_their_requests_are_refused(api: Api, hook: Hook) -> None:
    hook.answers["a"] = lambda _: allowed(op("remove", "/spec/containers/0/resources/limits"))
    with registered(api, hook, a={}):
        answer = api.ask(create(pod("p", {"nvidia.com/gpu": "1"})))
    assert (answer.code, answer.message) == (
        422,
        'Pod "p" is invalid: spec.containers[0].resources.limits: Required value: '
        "Limit must be set for non overcommitable resources",
    )


def test_warnings_reach_the_user_whole_or_cut(api: Api, hook: Hook) -> None:
    hook.answers["a"] = lambda _: allowed(warnings=["waiting: 0 of 3 GPU nodes fit"])
    with registered(api, hook, a={}):
        answer = api.ask(create(pod("p")))
    assert (answer.code, answer.warnings) == (201, '299 - "waiting: 0 of 3 GPU nodes fit"')


def test_a_review_has_the_dry_run(api: Api, hook: Hook) -> None:
    hook.answers["a"] = lambda _: allowed()
    with registered(api, hook, a={}):
        api.done(create(pod("p"), dryRun="All"))
    ((_, request),) = hook.calls()
    assert (request["dryRun"], request["options"]["dryRun"]) == (True, ["All"])
    assert api.ask(get("p")).code == 404


REINVOCATIONS = {
    "a change after it, and it wants to know": ("IfNeeded", True, ["a", "b", "a"]),
    "a change after it": ("Never", True, ["a", "b"]),
    "no change after it": ("IfNeeded", False, ["a", "b"]),
}


@pytest.mark.parametrize("case", REINVOCATIONS.values(), ids=REINVOCATIONS.keys())
def test_it_is_called_again(api: Api, hook: Hook, case: tuple[str, bool, list[str]]) -> None:
    policy, changes, calls = case

    def first(request: JSON) -> JSON:
        done = "annotations" in request["object"]["metadata"]
        return allowed() if done else allowed(op("add", "/metadata/annotations", {"by-a": "1"}))

    hook.answers["a"] = first
    hook.answers["b"] = lambda _: allowed(*([op("add", "/metadata/labels", {"by-b": "1"})] if changes else []))
    with registered(api, hook, a={"reinvocationPolicy": policy}, b={}):
        made = api.done(create(pod("p")))
    assert [name for name, _ in hook.calls()] == calls
    assert len({request["uid"] for _, request in hook.calls()}) == len(calls)
    assert made["metadata"]["annotations"] == {"by-a": "1"}


CONFIGURATIONS = {
    "a timeout of 31": ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds: Invalid value: 31"),
    "side effects": ({"sideEffects": "Some"}, 'webhooks[0].sideEffects: Unsupported value: "Some"'),
    "a short name": ({"name": "short"}, 'webhooks[0].name: Invalid value: "short"'),
    "http": ({"clientConfig": {"url": "http://localhost/"}}, "'https' is the only allowed URL scheme"),
    "a condition that is none": (
        {"matchConditions": [{"name": "c", "expression": "object.spec. =="}]},
        "webhooks[0].matchConditions[0].expression: Invalid value",
    ),
    "a condition that is text": (
        {"matchConditions": [{"name": "c", "expression": "'x'"}]},
        "webhooks[0].matchConditions[0].expression: Invalid value: \"'x'\": must evaluate to bool",
    ),
}


@pytest.mark.parametrize("case", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_a_configuration_that_is_refused(api: Api, hook: Hook, case: tuple[JSON, str]) -> None:
    about, message = case
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    body = {"metadata": {"name": "refused"}, "webhooks": [entry(api, hook, "a", about)]}
    answer = api.ask(Ask("POST", path, body))
    assert (answer.code, message in answer.message) == (422, True), answer.message
