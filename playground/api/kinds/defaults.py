"""
Defaults, as the versioned decoders of a real API server fill them in.

They are applied to a decoded body, and again to the object that each mutating webhook returns. Applying them twice
changes nothing.
"""

from collections.abc import Callable, Mapping

from playground.api.kinds.kinds import Kind
from playground.api.kinds.quantities import canonicalize, canonicalize_at
from playground.api.kinds.values import JSON


def apply(kind: Kind, value: JSON) -> None:
    """Fill in what was left out, in place."""
    if (fill := _BY_KIND.get(kind.key)) is not None:
        fill(value)


def pod_spec(spec: JSON) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    lists = (spec.get(field) or () for field in ("initContainers", "containers", "ephemeralContainers"))
    for container in (each for containers in lists for each in containers):
        if isinstance(container, dict):
            _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)
    canonicalize(spec.get("overhead"))


def _container(container: JSON) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    image = str(container.get("image", ""))
    tag = image.rpartition("/")[2].partition(":")[2]
    container.setdefault("imagePullPolicy", "IfNotPresent" if (tag and tag != "latest") or "@" in image else "Always")
    resources = container.setdefault("resources", {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for entry in container.get("env") or ():
        if field := (entry.get("valueFrom") or {}).get("fieldRef"):
            field.setdefault("apiVersion", "v1")
    canonicalize(resources.get("limits"))
    canonicalize(resources.get("requests"))
    if isinstance(limits := resources.get("limits"), dict) and limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


_MODE = 0o644


def _volume(volume: JSON) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    for source in ("configMap", "secret", "projected", "downwardAPI"):
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", _MODE)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")


def _pod(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    if isinstance(spec, dict):
        pod_spec(spec)
        spec.setdefault("enableServiceLinks", True)


def _template(spec: JSON) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        pod_spec(template.setdefault("spec", {}))


def _deployment(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", "25%")
        rolling.setdefault("maxUnavailable", "25%")
    _template(spec)


def _replica_set(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _template(spec)


def _stateful_set(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    _template(spec)


def _daemon_set(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    rolling = {"maxUnavailable": 1, "maxSurge": 0}
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": rolling})
    _template(spec)


def _job(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    _template(spec)


def _service(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _secret(value: JSON) -> None:
    value.setdefault("type", "Opaque")


_WEBHOOK: JSON = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10}


def _webhooks(value: JSON, **more: str) -> None:
    for hook in value.get("webhooks") or ():
        for key, default in {**_WEBHOOK, **more}.items():
            hook.setdefault(key, default)
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        if isinstance(service := (hook.get("clientConfig") or {}).get("service"), dict):
            service.setdefault("port", 443)


def _mutating(value: JSON) -> None:
    _webhooks(value, reinvocationPolicy="Never")


def _match_rules(constraints: JSON | None) -> None:
    if not isinstance(constraints, dict):
        return
    constraints.setdefault("matchPolicy", "Equivalent")
    constraints.setdefault("namespaceSelector", {})
    constraints.setdefault("objectSelector", {})
    for rule in constraints.get("resourceRules") or ():
        rule.setdefault("scope", "*")


def _policy(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    _match_rules(spec.get("matchConstraints"))


def _policy_binding(value: JSON) -> None:
    _match_rules(value.setdefault("spec", {}).get("matchResources"))


def _definition(value: JSON) -> None:
    spec = value.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = str(names.get("kind", ""))
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def _role_binding(value: JSON) -> None:
    for subject in value.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _node(value: JSON) -> None:
    canonicalize_at(value, "status", "capacity")
    status = value.get("status")
    if isinstance(status, dict) and isinstance(status.get("capacity"), dict):
        status.setdefault("allocatable", dict(status["capacity"]))
    canonicalize_at(value, "status", "allocatable")


def _quota(value: JSON) -> None:
    canonicalize_at(value, "spec", "hard")


def _limit_range(value: JSON) -> None:
    for item in (value.get("spec") or {}).get("limits") or ():
        for amounts in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            canonicalize_at(item, amounts)
        if item.get("type") != "Container":
            continue
        # A LimitRange's `max` is also its default limit, and a default limit is also a default request.
        default = {**(item.get("max") or {}), **(item.get("default") or {})}
        asked = {**(item.get("min") or {}), **default, **(item.get("defaultRequest") or {})}
        item.update({key: amounts for key, amounts in (("default", default), ("defaultRequest", asked)) if amounts})


def _claim(value: JSON) -> None:
    value.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    canonicalize_at(value, "spec", "resources", "requests")


_BY_KIND: Mapping[str, Callable[[JSON], None]] = {
    "pods": _pod,
    "nodes": _node,
    "resourcequotas": _quota,
    "limitranges": _limit_range,
    "persistentvolumeclaims": _claim,
    "services": _service,
    "secrets": _secret,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _mutating,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "validatingadmissionpolicies.admissionregistration.k8s.io": _policy,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": _policy_binding,
    "customresourcedefinitions.apiextensions.k8s.io": _definition,
    "rolebindings.rbac.authorization.k8s.io": _role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_binding,
}
