"""
The order of admission: built-in plugins, mutating webhooks; later policies and validating webhooks.

The built-in plugins are those of a real API server that change or refuse what this project's programs create. Quota is
not here: it must be held until the object is stored, see `quota`.
"""

from collections.abc import Sequence

from playground.api.admission.attributes import Attributes, Plugin
from playground.api.kinds import defaults, errors
from playground.api.kinds.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS
from playground.api.kinds.strategies import generated_name
from playground.api.kinds.values import JSON, dig
from playground.api.store.store import Store

IMMORTAL = ("default", "kube-system", "kube-public", "kube-node-lease")
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOLERATION_SECONDS = 300
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Chain:
    """
    Plugins in order. Webhooks may change objects: they are called again, and so are the earlier plugins that write into
    the changed parts (see `Webhooks`).
    """

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._plugins = tuple(plugins)

    def mutate(self, attributes: Attributes) -> None:
        for plugin in self._plugins:
            plugin.mutate(attributes)

    def validate(self, attributes: Attributes) -> None:
        for plugin in self._plugins:
            plugin.validate(attributes)


class Validating:
    """A plugin that never mutates, as a base."""

    def mutate(self, attributes: Attributes) -> None:
        """Nothing."""

    def validate(self, attributes: Attributes) -> None:
        """Nothing."""


class NamespaceLifecycle(Validating):
    """No new content in a namespace that is missing or being deleted; some namespaces are never deleted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mutate(self, attributes: Attributes) -> None:
        kind = attributes.kind
        if attributes.operation != "CREATE" or not kind.namespaced or "create" not in kind.verbs:
            return
        namespace = self._store.get(NAMESPACES.key, ("", attributes.namespace))
        if namespace is None:
            raise errors.not_found(NAMESPACES, attributes.namespace)
        if namespace["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {attributes.namespace} because it is being terminated"
            refusal = errors.forbidden(kind, attributes.name, why)
            cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
            refusal.details = {**(refusal.details or {}), "causes": [cause]}
            raise refusal

    def validate(self, attributes: Attributes) -> None:
        if attributes.operation == "DELETE" and attributes.kind is NAMESPACES and attributes.name in IMMORTAL:
            raise errors.forbidden(NAMESPACES, attributes.name, "this namespace may not be deleted")


class ServiceAccountPlugin(Validating):
    """A pod runs as a service account that exists, and gets its token mounted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mutate(self, attributes: Attributes) -> None:
        pod = _new_pod(attributes)
        if pod is None:
            return
        spec = pod["spec"]
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = self._store.get(SERVICE_ACCOUNTS.key, (attributes.namespace, name))
        if account is None:
            why = f'error looking up service account {attributes.namespace}/{name}: serviceaccount "{name}" not found'
            raise errors.forbidden(PODS, attributes.name, why)
        mounts = spec.get("automountServiceAccountToken")
        if (account.get("automountServiceAccountToken") if mounts is None else mounts) is not False:
            _mount_token(spec)


def _mount_token(spec: JSON) -> None:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    bare = [
        container
        for container in containers
        if all(mount.get("mountPath") != _TOKEN_PATH for mount in container.get("volumeMounts") or ())
    ]
    if not bare:
        return
    name = generated_name("kube-api-access-")
    for container in bare:
        mount = {"name": name, "readOnly": True, "mountPath": _TOKEN_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    projected = {"sources": sources, "defaultMode": 0o644}
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": name, "projected": projected}]


class Priority(Validating):
    """`priorityClassName` becomes a number."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mutate(self, attributes: Attributes) -> None:
        pod = _new_pod(attributes)
        if pod is None:
            return
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        chosen = self._class(name)
        if name and chosen is None and name not in _PRIORITIES:
            raise errors.forbidden(PODS, attributes.name, f"no PriorityClass with name {name} was found")
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
        value = chosen["value"] if chosen else _PRIORITIES.get(name or "", 0)
        policy = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"
        _check_computed(attributes.name, "integer", "priority", spec.get("priority"), value)
        _check_computed(attributes.name, "string", "PreemptionPolicy", spec.get("preemptionPolicy"), policy)
        spec.update(priority=value, preemptionPolicy=policy)

    def _class(self, name: str | None) -> JSON | None:
        resource = "priorityclasses.scheduling.k8s.io"
        if name:
            return self._store.get(resource, ("", name))
        return next((found for found in self._store.scan(resource) if found.get("globalDefault")), None)


def _check_computed(pod: str, kind: str, what: str, given: object, computed: object) -> None:
    """Raises 403 if a pod contradicts its PriorityClass."""
    if given is not None and given != computed:
        why = f"the {kind} value of {what} ({given}) must not be provided in pod spec; priority admission controller "
        raise errors.forbidden(PODS, pod, f"{why}computed {computed} from the given PriorityClass name")


class DefaultTolerations(Validating):
    """A pod stays five minutes on a node that is not ready or not reachable, also after a change."""

    def mutate(self, attributes: Attributes) -> None:
        pod = _written_pod(attributes, "CREATE", "UPDATE")
        if pod is None:
            return
        held = pod["spec"].get("tolerations") or []
        added = []
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(_covers(toleration, key) for toleration in held):
                effect = {"effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
                added.append({"key": key, "operator": "Exists", **effect})
        if added:
            pod["spec"]["tolerations"] = [*held, *added]


def _covers(toleration: JSON, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


class RuntimeClasses(Validating):
    """A pod's RuntimeClass exists, and brings its overhead and its scheduling constraints."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mutate(self, attributes: Attributes) -> None:
        pod = _new_pod(attributes)
        name = dig(pod, "spec", "runtimeClassName")
        if pod is None or not name:
            return
        found = self._store.get("runtimeclasses.node.k8s.io", ("", name))
        if found is None:
            why = f'pod rejected: RuntimeClass "{name}" not found'
            raise errors.forbidden(PODS, attributes.name, why)
        spec = pod["spec"]
        if overhead := dig(found, "overhead", "podFixed"):
            spec["overhead"] = overhead
        if selector := dig(found, "scheduling", "nodeSelector"):
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
        if tolerations := dig(found, "scheduling", "tolerations"):
            spec["tolerations"] = [*(spec.get("tolerations") or ()), *tolerations]


class Defaulting(Validating):
    """Fills in the defaults of the fields that built-in plugins added, before the first webhook sees the object."""

    def mutate(self, attributes: Attributes) -> None:
        if attributes.object is not None and not attributes.request.subresource:
            defaults.apply(attributes.kind, attributes.object)


def _new_pod(attributes: Attributes) -> JSON | None:
    return _written_pod(attributes, "CREATE")


def _written_pod(attributes: Attributes, *operations: str) -> JSON | None:
    """The pod, if it is written by one of these operations and not by way of a subresource."""
    written = attributes.operation in operations and not attributes.request.subresource
    return attributes.object if written and attributes.kind is PODS else None
