"""Requests and the expected answers, the same for every API server that answers them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runtime.kubernetes.client import Kube
from runtime.kubernetes.transport import HttpRequest, Transport
from tests.versions import Minor, Worded, needs, unsaid

JSON = dict[str, Any]
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
GATE = {"name": "gpufraction.io/allocation"}
_TIMEOUT = 40.0


@dataclass(frozen=True)
class Answer:
    """The API server's message."""

    code: int
    body: JSON
    warnings: str = ""

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class Ask:
    """
    One request. `path` is below the namespace unless it begins with a slash; a function gets the existing objects.
    """

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Existing objects, a request, and what its answer must be and contain."""

    ask: Ask | Callable[[Mapping[str, JSON]], Ask]
    code: int
    reason: str = ""
    says: tuple[str | Worded, ...] = ()
    """Parts that the message must contain."""
    shows: Any = None
    """Parts of the object: every key here must have this value there."""
    given: tuple[Ask, ...] = ()
    since: Minor = (1, 30)
    """The first version that has the requested feature."""


class Api:
    """One namespace of one API server, for one user."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport, self.namespace = transport, namespace

    @cached_property
    def version(self) -> Minor:
        """The server's version."""
        return Kube(self._transport).version()

    def ask(self, ask: Ask) -> Answer:
        """Send the request."""
        path = ask.path if ask.path.startswith("/") else f"/api/v1/namespaces/{self.namespace}/{ask.path}"
        headers = {"Accept": "application/json", **ask.headers}
        body = None
        if ask.body is not None:
            headers["Content-Type"] = ask.content_type
            body = json.dumps(ask.body).encode()
        response = self._transport.request(HttpRequest(ask.method, path, ask.query, headers, body, _TIMEOUT))
        text = response.read()
        try:
            answered = json.loads(text)
        except ValueError:
            answered = {"message": text.decode(errors="replace").strip()}
        return Answer(response.status, answered, response.headers.get("warning", ""))

    def done(self, ask: Ask) -> JSON:
        """The object in the answer. Anything other than a success fails the test."""
        answer = self.ask(ask)
        assert answer.code < 400, f"{ask.method} {ask.path}: {answer.code} {answer.message}"
        return answer.body


def check(api: Api, case: Case) -> None:
    """Do what the case says, and compare everything that it promises at once."""
    needs(case.since, api.version)
    given: dict[str, JSON] = {}
    for each in case.given:
        made = api.done(each)
        given[made["metadata"]["name"]] = made
    answer = api.ask(case.ask(given) if callable(case.ask) else case.ask)
    want = {"code": case.code, "reason": case.reason, "unsaid": [], "shown": case.shows}
    seen = {
        "code": answer.code,
        "reason": answer.body.get("reason", "") if answer.code >= 400 else "",
        "unsaid": unsaid(answer.message, case.says, api.version),
        "shown": part_of(answer.body, case.shows),
    }
    assert seen == want, answer.message


def part_of(found: Any, wanted: Any) -> Any:
    """The part of `found` to compare with `wanted`: for objects the wanted keys, for everything else all of it."""
    if wanted is None:
        return None
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {
            key: found.get(key) if value is None else part_of(found.get(key), value) for key, value in wanted.items()
        }
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [part_of(*pair) for pair in zip(found, wanted, strict=True)]
    return found


# -- requests -----------------------------------------------------------------------------------------------------


def pod(name: str, limits: JSON | None = None, **spec: Any) -> JSON:
    """A pod of one container; `limits` are the container's."""
    container: JSON = {"name": "c", "image": "x", **({"resources": {"limits": limits}} if limits else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def gated(name: str, **spec: Any) -> JSON:
    """A pod that waits behind our gate."""
    return pod(name, schedulingGates=[GATE], **spec)


def annotated(name: str, annotations: Mapping[str, Any]) -> JSON:
    made = pod(name)
    made["metadata"]["annotations"] = annotations
    return made


def create(body: Any, **query: str) -> Ask:
    """A request that creates a pod."""
    return Ask("POST", "pods", body, query=query)


def get(name: str) -> Ask:
    return Ask("GET", f"pods/{name}")


def patch(name: str, *operations: JSON, sub: str = "", **query: str) -> Ask:
    """A JSON patch of a pod."""
    return Ask("PATCH", f"pods/{name}{sub}", list(operations), JSON_PATCH, query)


def merge(name: str, body: JSON, *, sub: str = "", **query: str) -> Ask:
    """A merge patch of a pod."""
    return Ask("PATCH", f"pods/{name}{sub}", body, MERGE, query)


def bind(name: str, node: str, *, metadata: Mapping[str, Any] | None = None, **query: str) -> Ask:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **(metadata or {})}, "target": target}
    return Ask("POST", f"pods/{name}/binding", body, query=query)


def op(kind: str, path: str, value: Any = None) -> JSON:
    """One operation of a JSON patch. Without a value it has no `value`."""
    return {"op": kind, "path": path, **({} if value is None else {"value": value})}


def required(terms: Sequence[JSON]) -> JSON:
    """An affinity that requires one of the node selector terms."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def by_name(*nodes: str) -> JSON:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(nodes)}]}


def by_zone(*zones: str) -> JSON:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(zones)}]}


PLAIN = create(pod("p"))
WAITING = create(gated("p"))


def titled(tables: Mapping[str, Mapping[str, Case]]) -> dict[str, Case]:
    """The cases of several tables, named by their topic and their own sentence."""
    return {f"{topic}: {sentence}": case for topic, cases in tables.items() for sentence, case in cases.items()}
