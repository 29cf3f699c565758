"""Admission webhooks, over real TLS."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from playground.api.admission.webhookcaller import CallFailed
from playground.api.admission.webhookclient import WebhookClient
from playground.api.api import Api, User
from playground.api.store.store import Store
from tests.unit.playground.api.conftest import Clock
from tests.unit.playground.api.hooks import Answer, Hook, allowed, publish, register
from tests.unit.playground.api.manifests import MERGE, PODS, create_pod, ok, pod, refusal

MakeHook = Callable[..., Hook]
ADD_LABEL = {"op": "add", "path": "/metadata/labels", "value": {"hooked": "yes"}}


@pytest.fixture
def clients() -> list[WebhookClient]:
    """The callers that were created."""
    return []


@pytest.fixture
def api(clock: Clock, clients: list[WebhookClient]) -> Api:
    def caller(store: Store) -> WebhookClient:
        clients.append(WebhookClient(store))
        return clients[-1]

    return Api(clock=clock, webhooks=caller)


@pytest.fixture
def make(api: Api, clients: list[WebhookClient]) -> Iterator[MakeHook]:
    """Start a hook that is reachable through a Service."""
    started: list[Hook] = []

    def start(answer: Answer, **about: Any) -> Hook:
        hook = Hook(answer, **about)
        started.append(hook)
        publish(api, hook)
        return hook

    yield start
    for client in clients:
        client.close()
    for hook in started:
        hook.stop()


def allow(_: dict[str, Any]) -> dict[str, Any]:
    return allowed()


def label(_: dict[str, Any]) -> dict[str, Any]:
    return allowed(ADD_LABEL)


def test_a_patch_is_applied_before_the_object_is_stored(api: Api, make: MakeHook) -> None:
    register(api, make(label))
    assert create_pod(api)["metadata"]["labels"] == {"hooked": "yes"}


def test_what_a_webhook_receives(api: Api, make: MakeHook) -> None:
    hook = make(allow)
    register(api, hook)
    user = User("jane", ("system:masters",))
    ok(api.call("POST", PODS, query={"dryRun": "All"}, body=pod(resources={"limits": {"cpu": "1"}}), user=user))
    (seen,) = hook.seen
    assert {key: seen[key] for key in ("operation", "namespace", "name", "dryRun", "userInfo", "oldObject")} == {
        "operation": "CREATE",
        "namespace": "default",
        "name": "web",
        "dryRun": True,
        "userInfo": {"username": "jane", "groups": ["system:masters", "system:authenticated"]},
        "oldObject": None,
    }
    assert seen["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert seen["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    received = seen["object"]
    assert "uid" not in received["metadata"]
    assert received["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}


def test_what_a_webhook_adds_gets_its_defaults(api: Api, make: MakeHook) -> None:
    limits = {
        "op": "add",
        "path": "/spec/containers/0/resources",
        "value": {"limits": {"example.com/memory": "4096Mi"}},
    }
    register(api, make(lambda _: allowed(limits)))
    resources = create_pod(api)["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"example.com/memory": "4Gi"}, "requests": {"example.com/memory": "4Gi"}}


def test_connections_are_kept(api: Api, make: MakeHook) -> None:
    hook = make(allow)
    register(api, hook)
    for i in range(5):
        create_pod(api, name=f"p{i}")
    assert (len(hook.seen), len(hook.connections)) == (5, 1)


def test_a_denial_is_relayed(api: Api, make: MakeHook) -> None:
    answers = iter([{"message": "no room"}, {"message": "too large", "code": 422, "reason": "Invalid"}, {}])
    register(api, make(lambda _: {"allowed": False, "status": next(answers)}))
    head = 'admission webhook "pods.hook.example.com" denied the request'
    assert refusal(api.call("POST", PODS, body=pod())) == (400, "", f"{head}: no room")
    assert refusal(api.call("POST", PODS, body=pod())) == (422, "Invalid", f"{head}: too large")
    assert refusal(api.call("POST", PODS, body=pod())) == (400, "", f"{head} without explanation")


def test_warnings_reach_the_client(api: Api, make: MakeHook) -> None:
    register(api, make(lambda _: allowed(warnings=("waiting for a GPU",))))
    admin = User("u", ("system:masters",))
    answer = api.handle("POST", PODS, query={}, body=pod(), content_type="application/json", user=admin)
    assert (answer.code, answer.warnings) == (201, ["waiting for a GPU"])


FAILED = 'failed calling webhook "pods.hook.example.com": '
FAILURES: dict[str, tuple[dict[str, Any], Answer, str]] = {
    "a status that is no success": ({"status": 500}, allow, f"{FAILED}failed to call webhook: an error on the server"),
    "an answer to another question": (
        {},
        lambda _: {"allowed": True, "uid": "other"},
        f'{FAILED}received invalid webhook response: expected response.uid="',
    ),
    "a patch that does not apply": (
        {},
        lambda _: allowed({"op": "replace", "path": "/none/there", "value": 1}),
        "error in replace for path: '/none/there': ",
    ),
}


@pytest.mark.parametrize(("about", "answer", "text"), FAILURES.values(), ids=FAILURES.keys())
def test_a_webhook_that_fails_fails_the_request(
    api: Api, make: MakeHook, about: dict[str, Any], answer: Answer, text: str
) -> None:
    register(api, make(answer, **about))
    code, reason, message = refusal(api.call("POST", PODS, body=pod()))
    assert (code, reason) == (500, "InternalError")
    assert message.startswith(f"Internal error occurred: {text}")


def test_a_webhook_that_cannot_be_reached(api: Api, make: MakeHook) -> None:
    hook = make(allow)
    register(api, hook)
    ok(api.call("PATCH", "/api/v1/namespaces/system/endpoints/hook", body={"subsets": None}, content_type=MERGE))
    assert refusal(api.call("POST", PODS, body=pod())) == (
        500,
        "InternalError",
        'Internal error occurred: failed calling webhook "pods.hook.example.com": failed to call webhook: '
        'Post "https://hook.system.svc:443/mutate?timeout=10s": no endpoints available for service "hook"',
    )


def test_a_webhook_whose_certificate_is_not_of_the_bundle(api: Api, make: MakeHook) -> None:
    trusted, other = make(allow), Hook(allow)
    trusted.authority = other.authority
    register(api, trusted)
    other.stop()
    code, _, message = refusal(api.call("POST", PODS, body=pod()))
    assert (code, "x509: certificate signed by unknown authority" in message) == (500, True)
    assert trusted.seen == []


def test_a_webhook_may_be_ignored_when_it_fails(api: Api, make: MakeHook) -> None:
    register(api, make(allow, status=500), failurePolicy="Ignore")
    create_pod(api)


def test_a_webhook_that_takes_too_long(api: Api, make: MakeHook) -> None:
    release = threading.Event()

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        release.wait(10)
        return allowed()

    register(api, make(wait), timeoutSeconds=1)
    code, _, message = refusal(api.call("POST", PODS, body=pod()))
    release.set()
    assert (code, message.endswith("context deadline exceeded")) == (500, True)


MATCHES: dict[str, tuple[dict[str, Any], bool]] = {
    "a namespace label that is there": (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}},
        True,
    ),
    "a namespace label that is not": ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, False),
    "an object label that is there": ({"objectSelector": {"matchLabels": {"app": "web"}}}, True),
    "an object label that is not": ({"objectSelector": {"matchLabels": {"app": "db"}}}, False),
    "a condition that holds": (
        {"matchConditions": [{"name": "c", "expression": "object.spec.containers.exists(c, c.name == 'main')"}]},
        True,
    ),
    "a condition that does not": (
        {"matchConditions": [{"name": "c", "expression": "has(object.spec.nodeName)"}]},
        False,
    ),
    "a condition on the user": (
        {"matchConditions": [{"name": "c", "expression": "request.userInfo.username == 'kubernetes-admin'"}]},
        True,
    ),
    "a failing condition beside a false one": (
        {
            "matchConditions": [
                {"name": "fails", "expression": "object.spec.none.there == 1"},
                {"name": "false", "expression": "false"},
            ]
        },
        False,
    ),
    "other resources": (
        {"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/status"]}]},
        False,
    ),
    "cluster scope only": (
        {
            "rules": [
                {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "Cluster"}
            ]
        },
        False,
    ),
}


@pytest.mark.parametrize(("about", "asked"), MATCHES.values(), ids=MATCHES.keys())
def test_which_requests_a_webhook_receives(api: Api, make: MakeHook, about: dict[str, Any], asked: bool) -> None:
    hook = make(allow)
    register(api, hook, **about)
    create_pod(api, labels={"app": "web"})
    assert bool(hook.seen) is asked


def test_a_condition_without_a_value_follows_the_failure_policy(api: Api, make: MakeHook) -> None:
    hook = make(allow)
    condition = [{"name": "c", "expression": "object.spec.none.there == 1"}]
    register(api, hook, name="a.hook.example.com", failurePolicy="Ignore", matchConditions=condition)
    create_pod(api)
    register(api, hook, name="b.hook.example.com", matchConditions=condition)
    assert refusal(api.call("POST", PODS, body=pod("other")))[:2] == (403, "Forbidden")
    assert hook.seen == []


def test_an_expression_that_does_not_compile_is_refused_at_once(api: Api, make: MakeHook) -> None:
    hook = make(allow)
    with pytest.raises(AssertionError, match="compilation failed"):
        register(api, hook, matchConditions=[{"name": "c", "expression": "object."}])


def test_a_webhook_is_called_again_when_a_later_one_changed_the_object(api: Api, make: MakeHook) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        second = "first" in (request["object"]["metadata"].get("labels") or {})
        name = "second" if second else "first"
        return allowed({"op": "add", "path": "/metadata/labels", "value": {"first": "yes", name: "yes"}})

    hook = make(answer)
    register(api, hook, name="a.hook.example.com", reinvocationPolicy="IfNeeded")
    register(api, hook, name="b.hook.example.com")
    assert create_pod(api)["metadata"]["labels"] == {"first": "yes", "second": "yes"}
    assert len(hook.seen) == 3


def test_validating_webhooks_see_the_final_object(api: Api, make: MakeHook) -> None:
    hook = make(lambda request: allowed(ADD_LABEL) if "uid" not in request["object"]["metadata"] else allowed())
    register(api, hook)
    register(api, hook, kind="Validating", name="check.hook.example.com")
    create_pod(api)
    assert [seen["object"]["metadata"].get("labels") for seen in hook.seen] == [None, {"hooked": "yes"}]


def test_a_deletion_is_reviewed_with_the_old_object(api: Api, make: MakeHook) -> None:
    rule = {"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    hook = make(lambda _: {"allowed": False, "status": {"message": "keep it"}})
    register(api, hook, kind="Validating", rules=[rule])
    create_pod(api)
    assert refusal(api.call("DELETE", f"{PODS}/web"))[0] == 400
    (seen,) = hook.seen
    assert (seen["object"], seen["oldObject"]["metadata"]["name"]) == (None, "web")


class Player:
    """Calls webhooks without a network: the functions by the names of their Services."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers

    def call(self, hook: dict[str, Any], review: dict[str, Any]) -> Any:
        name = hook["clientConfig"]["service"]["name"]
        if name not in self._answers:
            raise CallFailed(f"failed to call webhook: {name} is not there")
        request = review["request"]
        response = {"uid": request["uid"], **self._answers[name](request)}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def configure(api: Api, service: str) -> None:
    client = {"service": {"namespace": "system", "name": service}}
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    about = {"sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule]}
    body = {"metadata": {"name": service}, "webhooks": [{"name": "a.b.c", "clientConfig": client, **about}]}
    ok(api.call("POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", body=body))


def test_a_program_may_call_its_webhooks_itself() -> None:
    api = Api(webhooks=lambda _: Player(hook=label))
    configure(api, "hook")
    assert create_pod(api)["metadata"]["labels"] == {"hooked": "yes"}


def test_a_call_that_fails_follows_the_failure_policy() -> None:
    api = Api(webhooks=lambda _: Player())
    configure(api, "gone")
    code, reason, message = refusal(api.call("POST", PODS, body=pod()))
    assert (code, reason) == (500, "InternalError")
    assert message.endswith('failed calling webhook "a.b.c": failed to call webhook: gone is not there')
