"""
RBAC: may this user do this? Results are remembered until any role or binding changes.

Members of `system:masters` may do everything. The default roles are a small part of those of a real cluster.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from playground.api.admission.matching import matches_resource
from playground.api.kinds import errors
from playground.api.kinds.kinds import Kind
from playground.api.kinds.requests import Request
from playground.api.kinds.values import JSON, User
from playground.api.store.store import Store

_GROUP = "rbac.authorization.k8s.io"
_RESOURCES = tuple(f"{plural}.{_GROUP}" for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings"))
_MASTERS = "system:masters"
_READ = ("get", "list", "watch")
_AUDIENCE = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Question:
    """What a user wants to do: with a resource, or with a path if `path` is set."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


def question_of(request: Request) -> Question:
    kind = request.kind
    name = request.name or _selected_name(request)
    return Question(request.verb, kind.group, kind.plural, request.subresource, request.namespace, name)


def _selected_name(request: Request) -> str:
    """The one object of a collection that its field selector names, so that a rule for that name allows it."""
    if request.verb not in ("list", "watch", "deletecollection"):
        return ""
    found = re.fullmatch(r"metadata\.name==?([^=,!]+)", request.query.get("fieldSelector", ""))
    return found[1] if found else ""


class Authorizer:
    def __init__(self, store: Store) -> None:
        self._store = store
        # Programs repeat the same questions, and each answer needs a walk over all bindings.
        self._remembered = functools.lru_cache(maxsize=4096)(self._find)

    def check(self, request: Request) -> None:
        """Raises 403 with the message of a real API server."""
        asked = question_of(request)
        if not self.allows(request.user, asked):
            raise errors.forbidden(request.kind, request.name, denial(request.user, asked))

    def allows(self, user: User, asked: Question) -> bool:
        if _MASTERS in user.groups:
            return True
        sort = Question(asked.verb, asked.group, asked.resource, asked.subresource, asked.namespace, path=asked.path)
        found = self._remembered(self._store.writes(_RESOURCES), user.name, user.groups, sort)
        return any(_names(rule, asked) for rule in found)

    def _find(self, _: tuple[int, ...], name: str, groups: tuple[str, ...], sort: Question) -> tuple[JSON, ...]:
        """The user's rules for questions of this sort, about any object."""
        return tuple(rule for rule in self.rules(User(name, groups), sort.namespace) if _covers(rule, sort))

    def rules(self, user: User, namespace: str) -> Iterator[JSON]:
        """Every rule that binds the user in a namespace (empty: cluster-wide rules only)."""
        bindings = self._store.scan(f"clusterrolebindings.{_GROUP}")
        if namespace:
            bindings = [*bindings, *self._store.scan(f"rolebindings.{_GROUP}", namespace)]
        for binding in bindings:
            home = binding["metadata"].get("namespace", "")
            if any(_is_subject(subject, user, home) for subject in binding.get("subjects") or ()):
                yield from self._role(binding.get("roleRef") or {}, home)

    def _role(self, reference: JSON, namespace: str) -> Iterable[JSON]:
        name = reference.get("name", "")
        if reference.get("kind") == "ClusterRole":
            role = self._store.get(f"clusterroles.{_GROUP}", ("", name))
        else:
            role = self._store.get(f"roles.{_GROUP}", (namespace, name))
        return (role or {}).get("rules") or ()


def denial(user: User, asked: Question) -> str:
    """The text that follows `is forbidden: ` in the message."""
    resource = asked.resource + (f"/{asked.subresource}" if asked.subresource else "")
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    return f'User "{user.name}" cannot {asked.verb} resource "{resource}" in API group "{asked.group}" {where}'


def _is_subject(subject: JSON, user: User, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return subject.get("name") == user.name
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            home = subject.get("namespace") or namespace
            return user.name == f"system:serviceaccount:{home}:{subject.get('name')}"
    return False


def _has(values: Iterable[str] | None, value: str) -> bool:
    return any(entry in ("*", value) for entry in values or ())


def _covers(rule: JSON, asked: Question) -> bool:
    if not _has(rule.get("verbs"), asked.verb):
        return False
    if asked.path:
        return any(_path_matches(pattern, asked.path) for pattern in rule.get("nonResourceURLs") or ())
    if not _has(rule.get("apiGroups"), asked.group):
        return False
    return any(
        pattern == "*" or matches_resource(pattern, asked.resource, asked.subresource)
        for pattern in rule.get("resources") or ()
    )


def _names(rule: JSON, asked: Question) -> bool:
    """Whether a rule that covers a question also covers the object that the question names."""
    names = rule.get("resourceNames")
    return bool(asked.path) or not names or asked.name in names


def _path_matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


_EVERYTHING = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]
_WORKLOADS = [
    ("", ("pods", "pods/log", "pods/status", "services", "endpoints", "configmaps", "events", "serviceaccounts")),
    ("", ("persistentvolumeclaims", "resourcequotas", "limitranges", "namespaces")),
    ("apps", ("deployments", "deployments/scale", "replicasets", "statefulsets", "daemonsets")),
    ("batch", ("jobs", "cronjobs")),
    ("policy", ("poddisruptionbudgets",)),
    ("networking.k8s.io", ("networkpolicies",)),
]


def _workloads(verbs: Iterable[str]) -> list[JSON]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)} for group, resources in _WORKLOADS
    ]


_DISCOVERY = (
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/readyz",
    "/openapi",
    "/openapi/*",
    "/version",
)
_SELF_REVIEWS = [
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        "verbs": ["create"],
    },
    {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
]
DEFAULT_ROLES: Mapping[str, list[JSON]] = {
    "cluster-admin": _EVERYTHING,
    "view": _workloads(_READ),
    "edit": _workloads(("*",)),
    "admin": [*_workloads(("*",)), {"apiGroups": [_GROUP], "resources": ["roles", "rolebindings"], "verbs": ["*"]}],
    "system:discovery": [{"nonResourceURLs": list(_DISCOVERY), "verbs": ["get"]}],
    "system:basic-user": _SELF_REVIEWS,
}
DEFAULT_BINDINGS: Mapping[str, str] = {
    "cluster-admin": _MASTERS,
    "system:discovery": "system:authenticated",
    "system:basic-user": "system:authenticated",
}


def default_objects() -> Iterator[tuple[str, JSON]]:
    """The roles and bindings that every cluster starts with, each under the path that creates it."""
    root = f"/apis/{_GROUP}/v1"
    for name, rules in DEFAULT_ROLES.items():
        yield f"{root}/clusterroles", {"metadata": {"name": name}, "rules": rules}
    for name, group in DEFAULT_BINDINGS.items():
        subject = {"kind": "Group", "name": group, "apiGroup": _GROUP}
        role = {"kind": "ClusterRole", "name": name, "apiGroup": _GROUP}
        yield f"{root}/clusterrolebindings", {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}


class Reviews:
    """The kinds that are questions. The server answers them when they are created, and never stores them."""

    def __init__(self, authorizer: Authorizer, authenticate: Callable[[str], User | None]) -> None:
        """`authenticate` gives a token's user, None for an unknown token."""
        self._authorizer = authorizer
        self._authenticate = authenticate

    def serves(self, kind: Kind) -> bool:
        return kind.plural.endswith("reviews") and kind.verbs == ("create",)

    def answer(self, request: Request) -> JSON:
        body: JSON = {**(request.body or {})}
        body.update(apiVersion=request.kind.api_version, kind=request.kind.name)
        body.setdefault("metadata", {})
        spec = body.get("spec") or {}
        match request.kind.plural:
            case "selfsubjectreviews":
                body["status"] = {"userInfo": request.user.info()}
            case "selfsubjectrulesreviews":
                body["status"] = self._rules(request.user, spec.get("namespace", ""))
            case "selfsubjectaccessreviews":
                body["status"] = self._access(request.user, spec)
            case "tokenreviews":
                body["status"] = self._token(spec)
            case _:
                self._check_subject(request, spec)
                other = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
                body["status"] = self._access(other, spec)
        return body

    def _token(self, spec: JSON) -> JSON:
        if not spec.get("token"):
            raise errors.bad_request("token is required for TokenReview in authentication")
        user = self._authenticate(spec.get("token") or "")
        if user is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": user.info(), "audiences": [_AUDIENCE]}

    def _check_subject(self, request: Request, spec: JSON) -> None:
        problems = []
        if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
            text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            problems.append(errors.invalid_field("spec.resourceAttributes", spec.get("resourceAttributes"), text))
        if not spec.get("user") and not spec.get("groups"):
            text = "at least one of user or group must be specified"
            problems.append(errors.invalid_field("spec.user", spec.get("user", ""), text))
        if problems:
            raise errors.invalid(request.kind, "", problems)

    def _access(self, user: User, spec: JSON) -> JSON:
        resource, path = spec.get("resourceAttributes") or {}, spec.get("nonResourceAttributes") or {}
        fields = ("group", "resource", "subresource", "namespace", "name")
        about = {field: resource.get(field, "") for field in fields}
        verb = resource.get("verb") or path.get("verb") or ""
        allowed = self._authorizer.allows(user, Question(verb, path=path.get("path", ""), **about))
        return {"allowed": True} if allowed else {"allowed": False, "reason": ""}

    def _rules(self, user: User, namespace: str) -> JSON:
        rules = _EVERYTHING if _MASTERS in user.groups else list(self._authorizer.rules(user, namespace))
        return {
            "resourceRules": [rule for rule in rules if "resources" in rule],
            "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
            "incomplete": False,
        }
