"""
The machinery's client for its API server: paths, verbs and refusals as values.

A refusal is a common response here (a quota, a webhook, a faster writer), so it is returned and not raised. There is no
connection to lose in process: a call raises only because of a bug in the server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from playground.api.kinds.values import JSON, User

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


class Watching(Protocol):
    """A watch in progress."""

    def __iter__(self) -> Iterator[JSON]: ...

    def close(self) -> None: ...


class ApiServer(Protocol):
    """What the machinery needs of `playground.api.api.Api`."""

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = ...,
        body: Any = ...,
        content_type: str = ...,
        user: User = ...,
    ) -> tuple[int, JSON]: ...

    def watch(self, path: str, *, query: Mapping[str, str] | None = ..., user: User = ...) -> Watching: ...


@dataclass(frozen=True, slots=True)
class Refused:
    """The server refused."""

    code: int
    reason: str
    message: str

    @property
    def gone(self) -> bool:
        """The object, or its namespace, does not exist (any more)."""
        return self.code == 404

    @property
    def outdated(self) -> bool:
        """Another writer was first."""
        return self.code == 409


@dataclass(frozen=True, slots=True)
class Resource:
    """One served collection: `Resource("apps/v1", "deployments", "Deployment")`."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural]
        return "/".join([*parts, *(part for part in (name, sub) if part)])


PODS = Resource("v1", "pods", "Pod")
NODES = Resource("v1", "nodes", "Node", namespaced=False)
EVENTS = Resource("v1", "events", "Event")
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
SECRETS = Resource("v1", "secrets", "Secret")
DEPLOYMENTS = Resource("apps/v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps/v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps/v1", "statefulsets", "StatefulSet")
JOBS = Resource("batch/v1", "jobs", "Job")
RESOURCE_CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate")


def service_account(name: str) -> User:
    """The identity of one of kube-controller-manager's controllers."""
    groups = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
    return User(f"system:serviceaccount:kube-system:{name}", groups)


class Client:
    """Makes calls as one user. Every method returns the object of the response, or `Refused`."""

    def __init__(self, api: ApiServer, user: User) -> None:
        self._api = api
        self._user = user

    def as_user(self, user: User) -> "Client":
        return Client(self._api, user)

    def get(self, resource: Resource, namespace: str, name: str) -> JSON | Refused:
        return self._call("GET", resource.path(namespace, name))

    def list(self, resource: Resource, namespace: str = "") -> JSON | Refused:
        return self._call("GET", resource.path(namespace))

    def watch(self, resource: Resource, version: str) -> Watching:
        """Every change after `version`."""
        query = {"resourceVersion": version, "allowWatchBookmarks": "true"}
        return self._api.watch(resource.path(), query=query, user=self._user)

    def create(
        self, resource: Resource, namespace: str, value: JSON, *, sub: str = "", name: str = ""
    ) -> JSON | Refused:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **value}
        return self._call("POST", resource.path(namespace, name, sub), body=body)

    def patch(
        self, resource: Resource, of: JSON, patch: JSON, *, sub: str = "", content_type: str = STRATEGIC
    ) -> JSON | Refused:
        """Patch the object of which `of` is a state, and not another object with the same name."""
        metadata = of["metadata"]
        body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": metadata["uid"]}}
        path = resource.path(metadata.get("namespace", ""), metadata["name"], sub)
        return self._call("PATCH", path, body=body, content_type=content_type)

    def replace_status(self, resource: Resource, value: JSON) -> JSON | Refused:
        """Write the status of exactly this version of the object."""
        metadata = value["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], "status")
        return self._call("PUT", path, body=value)

    def bind(self, pod: JSON, node: str) -> Refused | None:
        """Bind the pod to the node; None where that is done."""
        metadata = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        answer = self._call("POST", PODS.path(metadata["namespace"], metadata["name"], "binding"), body=body)
        return answer if isinstance(answer, Refused) else None

    def delete(self, resource: Resource, value: JSON, *, now: bool = False) -> JSON | Refused:
        """Delete exactly this object. `now`: without a grace period."""
        metadata = value["metadata"]
        body: JSON = {"preconditions": {"uid": metadata["uid"]}}
        if now:
            body["gracePeriodSeconds"] = 0
        return self._call("DELETE", resource.path(metadata.get("namespace", ""), metadata["name"]), body=body)

    def _call(
        self, method: str, path: str, *, body: JSON | None = None, content_type: str = "application/json"
    ) -> JSON | Refused:
        code, answer = self._api.call(method, path, body=body, content_type=content_type, user=self._user)
        if code < 400:
            return answer
        return Refused(code, str(answer.get("reason", "")), str(answer.get("message", "")))
