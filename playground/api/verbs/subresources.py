"""
The subresources other than the object's own status: binding, eviction, scale, log, token.

/status needs nothing here: it is an update with another strategy.
"""

from collections.abc import Callable, Mapping
from typing import Any

from playground.api.admission.attributes import Attributes, Plugin
from playground.api.kinds import errors
from playground.api.kinds.kinds import PODS
from playground.api.kinds.requests import Request
from playground.api.kinds.values import JSON, User, copy_json, dig, timestamp
from playground.api.store.selection import matches
from playground.api.store.store import Store
from playground.api.tables.tables import json_path
from playground.api.verbs.patches import apply_patch
from playground.api.verbs.removal import Remover
from playground.api.verbs.writes import Writer

_FINISHED = ("Succeeded", "Failed")
LogProvider = Callable[[str, str, str], str]
TokenIssuer = Callable[[User, float], str]
"""A token of a user until a moment, in seconds since the epoch."""
_TOKEN_SECONDS, _LEAST_TOKEN_SECONDS = 3600, 600


class Subresources:
    def __init__(
        self, *, store: Store, writer: Writer, remover: Remover, admission: Plugin, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._writer = writer
        self._remover = remover
        self._admission = admission
        self._clock = clock
        self.log_provider: LogProvider | None = None
        self.issue: TokenIssuer | None = None

    def serve(self, request: Request) -> tuple[int, Any]:
        """Status code and body."""
        match request.subresource, request.verb:
            case "binding", "create":
                return 201, self.bind(request)
            case "eviction", "create":
                return 201, self.evict(request)
            case "log", "get":
                return 200, self._log(request)
            case "token", "create":
                return 201, self._token(request)
            case "scale", "get":
                return 200, scale_of(request, self._writer.existing(request))
            case "scale", "update" | "patch":
                return 200, self._rescale(request)
        raise errors.method_not_allowed()

    def bind(self, request: Request) -> JSON:
        """Give a pod its node: the only way to set `spec.nodeName` after creation."""
        binding = request.body if isinstance(request.body, dict) else {}
        node = dig(binding, "target", "name")
        if (name := dig(binding, "metadata", "name")) and name != request.name:
            raise errors.bad_request("name in URL does not match name in Binding object")
        if not node:
            raise errors.unspecific(str(errors.required("target.name")))
        if (kind := dig(binding, "target", "kind")) not in (None, "", "Node"):
            problem = errors.unsupported("target.kind", kind, ("Node", "<empty>"))
            raise errors.invalid(request.kind, request.name, [problem])
        options = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        attributes = Attributes(request, "CREATE", binding, None, options)
        self._admission.mutate(attributes)
        self._admission.validate(attributes)
        while True:
            old = self._writer.existing(request)
            _check_identity(request, old, binding.get("metadata") or {})
            if problem_text := _unbindable(old):
                refusal = errors.conflict(PODS, request.name, problem_text)
                refusal.message = refusal.message.replace("on pods ", "on pods/binding ", 1)
                raise refusal
            if request.dry_run or self._writer.store(PODS, _key(request), old, self._bound(old, node, binding)):
                return _success(201)

    def _bound(self, old: JSON, node: str, binding: JSON) -> JSON:
        new: JSON = copy_json(old)
        new["spec"]["nodeName"] = node
        if annotations := dig(binding, "metadata", "annotations"):
            new["metadata"]["annotations"] = {**(new["metadata"].get("annotations") or {}), **annotations}
        conditions = [c for c in dig(new, "status", "conditions") or () if c.get("type") != "PodScheduled"]
        now = timestamp(self._clock())
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
        new["status"]["conditions"] = [*conditions, scheduled]
        return new

    def evict(self, request: Request) -> JSON:
        """
        Delete a pod unless a PodDisruptionBudget forbids it now (429). Admission reviews only the eviction, not the
        delete that follows.
        """
        eviction = request.body if isinstance(request.body, dict) else {}
        options = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        attributes = Attributes(request, "CREATE", eviction, None, options)
        self._admission.mutate(attributes)
        self._admission.validate(attributes)
        pod = self._writer.existing(request)
        if dig(pod, "status", "phase") not in _FINISHED:
            for budget in self._store.scan("poddisruptionbudgets.policy", request.namespace):
                self._check_budget(request, budget, pod)
        delete = Request("delete", PODS, request.user, request.namespace, request.name, "", request.query)
        delete.body = {**(eviction.get("deleteOptions") or {})}
        self._remover.delete(delete, reviewed=True)
        return _success(201)

    def _check_budget(self, request: Request, budget: JSON, pod: JSON) -> None:
        labels = pod["metadata"].get("labels") or {}
        selector = dig(budget, "spec", "selector")
        if not matches(selector, labels):
            return
        guarded = [
            other
            for other in self._store.scan(PODS.key, request.namespace)
            if matches(selector, other["metadata"].get("labels") or {})
        ]
        healthy = sum(1 for other in guarded if _healthy(other))
        wanted = _desired(budget["spec"], len(guarded))
        if _healthy(pod) and healthy - 1 < wanted:
            name = budget["metadata"]["name"]
            text = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": text}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise errors.ApiError(429, "TooManyRequests", message, {"causes": [cause]})

    def _log(self, request: Request) -> str:
        pod = self._writer.existing(request)
        names = [c["name"] for c in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"])]
        container = request.query.get("container") or _only(request.name, pod)
        if container not in names:
            raise errors.bad_request(f"container {container} is not valid for pod {request.name}")
        if not pod["spec"].get("nodeName"):
            raise errors.bad_request(
                f'container "{container}" in pod "{request.name}" is waiting to start: the pod has no node yet'
            )
        text = self.log_provider(request.namespace, request.name, container) if self.log_provider else ""
        tail = request.query.get("tailLines")
        return "".join(text.splitlines(keepends=True)[-int(tail) :]) if tail and int(tail) else text

    def _token(self, request: Request) -> JSON:
        """A token of a service account for a limited time, as for `kubectl create token`."""
        if self.issue is None:
            raise errors.method_not_allowed()
        self._writer.existing(request)
        body: JSON = {**(request.body or {}), "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        seconds = dig(body, "spec", "expirationSeconds") or _TOKEN_SECONDS
        if not isinstance(seconds, int) or seconds < _LEAST_TOKEN_SECONDS:
            detail = "may not specify a duration less than 10 minutes"
            problem = errors.invalid_field("spec.expirationSeconds", seconds, detail)
            about = {"group": "authentication.k8s.io", "kind": "TokenRequest", "causes": [problem.cause()]}
            text = f'TokenRequest.authentication.k8s.io "" is invalid: {problem}'
            raise errors.ApiError(422, "Invalid", text, about)
        until = self._clock() + seconds
        account = User(f"system:serviceaccount:{request.namespace}:{request.name}")
        body["metadata"] = {"name": request.name, "namespace": request.namespace}
        body["spec"] = {**(body.get("spec") or {}), "expirationSeconds": seconds}
        body["status"] = {"token": self.issue(account.authenticated(), until), "expirationTimestamp": timestamp(until)}
        return body

    def _rescale(self, request: Request) -> JSON:
        def produce(old: JSON) -> JSON:
            scale: Any = request.body
            if request.verb == "patch":
                current = scale_of(request, old)
                scale = apply_patch(PODS, request.content_type, current, request.body)
            replicas, version = dig(scale, "spec", "replicas") or 0, dig(scale, "metadata", "resourceVersion")
            if not isinstance(replicas, int) or replicas < 0:
                detail = "must be greater than or equal to 0"
                problem = errors.invalid_field("spec.replicas", replicas, detail)
                raise errors.invalid(request.kind, request.name, [problem])
            new: JSON = copy_json(old)
            _put(new, _scale_paths(request)[0], replicas)
            if version:
                new["metadata"]["resourceVersion"] = version
            return new

        main = Request("update", request.kind, request.user, request.namespace, request.name, "", request.query)
        return scale_of(request, self._writer.change(main, produce))


def _only(name: str, pod: JSON) -> str:
    names = [container["name"] for container in pod["spec"]["containers"]]
    if len(names) > 1:
        listed = " ".join(names)
        raise errors.bad_request(f"a container name must be specified for pod {name}, choose one of: [{listed}]")
    return str(names[0])


def _key(request: Request) -> tuple[str, str]:
    return request.namespace, request.name


def _check_identity(request: Request, old: JSON, metadata: JSON) -> None:
    """A binding may name the uid and the version of its pod. Raises 409."""
    for field, text in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, found = metadata.get(field), old["metadata"][field]
        if wanted and wanted != found:
            why = (
                f"StorageError: invalid object, Code: 4, Key: /registry/pods/{request.namespace}/{request.name}, "
                f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {text} in precondition: {wanted}, "
                f"{text} in object meta: {found}"
            )
            raise errors.conflict(PODS, request.name, why)


def _unbindable(pod: JSON) -> str | None:
    name, spec = pod["metadata"]["name"], pod["spec"]
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return None


def _healthy(pod: JSON) -> bool:
    conditions = dig(pod, "status", "conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def _desired(spec: JSON, guarded: int) -> int:
    """How many of the guarded pods must stay healthy. Percentages round up, as the disruption controller does."""
    if (least := spec.get("minAvailable")) is not None:
        return _scaled(least, guarded)
    return max(guarded - _scaled(spec.get("maxUnavailable", 0), guarded), 0)


def _scaled(value: int | str, total: int) -> int:
    return value if isinstance(value, int) else -(-int(value.rstrip("%")) * total // 100)


def _success(code: int) -> JSON:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def _scale_paths(request: Request) -> tuple[str, str, str]:
    """Where replicas, current replicas and the selector are."""
    custom = request.kind.custom
    if custom is None:
        return ".spec.replicas", ".status.replicas", ".spec.selector"
    scale: Mapping[str, str] = dig(dict(custom), "subresources", "scale") or {}
    return (
        scale.get("specReplicasPath", ".spec.replicas"),
        scale.get("statusReplicasPath", ".status.replicas"),
        scale.get("labelSelectorPath", ""),
    )


def _put(value: JSON, path: str, content: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for key in parents:
        value = value.setdefault(key, {})
    value[last] = content


def scale_of(request: Request, value: JSON) -> JSON:
    """The autoscaling/v1 Scale of an object."""
    spec_path, status_path, selector_path = _scale_paths(request)
    meta = value["metadata"]
    keep = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: JSON = {"replicas": json_path(status_path)(value) or 0}
    selector = json_path(selector_path)(value) if selector_path else None
    if isinstance(selector, dict):
        labels = selector.get("matchLabels") or {}
        selector = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in keep if key in meta},
        "spec": {"replicas": json_path(spec_path)(value) or 0},
        "status": status,
    }
