"""
Validation after mutation: all errors of an object at once, with the messages of a real API server.

Metadata is checked here for every kind; the kinds with rules of their own are in the tables at the end.
"""

import re
from collections.abc import Callable, Mapping

from playground.api.kinds.errors import FieldError, forbidden_field, invalid_field, required
from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON
from playground.api.rules import claimrules, confrules, crds, podrules
from playground.api.rules.containerrules import amount_problems
from playground.api.rules.formats import (
    label_problem,
    label_value_problem,
    qualified_name_problem,
    qualified_name_problems,
    subdomain_problem,
)

_OnCreate = Callable[[JSON], list[FieldError]]
_OnUpdate = Callable[[JSON, JSON], list[FieldError]]

_ANNOTATION_BYTES = 256 * 1024
_LABEL_NAMES = ("namespaces", "services")  # kinds whose names become DNS labels
_FREE_NAMES = "rbac.authorization.k8s.io"
_PATH_SEGMENT = re.compile(r"(?!\.{1,2}$)[^/%]+")


def on_create(kind: Kind, value: JSON) -> list[FieldError]:
    """What is wrong with a new object."""
    problems = metadata(kind, value["metadata"])
    if kind.custom is not None:
        return problems + crds.problems(kind, value)
    if kind.key == "nodes":
        problems += _node(value)
    if (rule := _CREATE.get(kind.key)) is not None:
        problems += rule(value)
    return problems


def on_update(kind: Kind, subresource: str, old: JSON, new: JSON) -> list[FieldError]:
    """What is wrong with a changed object, or with the change."""
    problems = metadata(kind, new["metadata"])
    problems += _finalizers(old["metadata"], new["metadata"])
    if kind.custom is not None:
        return problems + crds.problems(kind, new, old)
    if kind.key == "nodes":
        problems += _node(new)
    rule = _UPDATE.get(kind.key)
    if rule is not None and not subresource:
        problems += rule(old, new)
    if subresource == "status" and kind.key == "resourceclaims.resource.k8s.io":
        problems += claimrules.on_status_update(old, new)
    if subresource == "ephemeralcontainers":
        problems += podrules.on_ephemeral_update(old, new)
    return problems


def metadata(kind: Kind, meta: JSON) -> list[FieldError]:
    problems = _name(kind, meta)
    problems += _labels("metadata.labels", meta.get("labels") or {})
    problems += _annotations(meta.get("annotations") or {})
    for i, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                problems.append(invalid_field(f"metadata.ownerReferences[{i}].{field}", "", "must not be empty"))
    for i, finalizer in enumerate(meta.get("finalizers") or ()):
        if problem := qualified_name_problem(finalizer):
            problems.append(invalid_field(f"metadata.finalizers[{i}]", finalizer, problem))
    return problems


def _name(kind: Kind, meta: JSON) -> list[FieldError]:
    name = meta.get("name", "")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if kind.group == _FREE_NAMES:
        return [] if _PATH_SEGMENT.fullmatch(name) else [invalid_field("metadata.name", name, "may not contain '/'")]
    problem = label_problem(name) if kind.key in _LABEL_NAMES else subdomain_problem(name)
    return [invalid_field("metadata.name", name, problem)] if problem else []


def _labels(path: str, labels: JSON) -> list[FieldError]:
    problems = []
    for key, value in labels.items():
        problems += [invalid_field(path, key, problem) for problem in qualified_name_problems(key)]
        if problem := label_value_problem(value):
            problems.append(invalid_field(path, value, problem))
    return problems


def _annotations(annotations: JSON) -> list[FieldError]:
    problems = []
    total = 0
    for key, value in annotations.items():
        total += len(key.encode()) + len(str(value).encode())
        found = qualified_name_problems(key.lower())
        problems += [invalid_field("metadata.annotations", key, problem) for problem in found]
    if total > _ANNOTATION_BYTES:
        detail = f"may not be more than {_ANNOTATION_BYTES} bytes"
        problems.append(FieldError("TooLong", "metadata.annotations", detail))
    return problems


def _finalizers(old: JSON, new: JSON) -> list[FieldError]:
    if not old.get("deletionTimestamp"):
        return []
    held = old.get("finalizers") or ()
    added = [finalizer for finalizer in new.get("finalizers") or () if finalizer not in held]
    if not added:
        return []
    listed = ", ".join(f'"{finalizer}"' for finalizer in added)
    detail = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
    return [forbidden_field("metadata.finalizers", detail)]


def _workload(value: JSON) -> list[FieldError]:
    """Deployments, ReplicaSets and the like: a selector that selects the pods of the template."""
    spec = value.get("spec") or {}
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    problems = []
    selector = spec.get("selector")
    if not selector:
        problems.append(required("spec.selector"))
        problems.append(
            invalid_field("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    elif any(labels.get(key) != wanted for key, wanted in (selector.get("matchLabels") or {}).items()):
        detail = "`selector` does not match template `labels`"
        problems.append(invalid_field("spec.template.metadata.labels", labels, detail))
    problems += _replicas(spec) + _labels("spec.template.labels", labels)
    return problems + podrules.spec("spec.template.spec", template.get("spec") or {})


def _replicas(spec: JSON) -> list[FieldError]:
    replicas = spec.get("replicas", 1)
    if isinstance(replicas, int) and replicas >= 0:
        return []
    return [invalid_field("spec.replicas", replicas, "must be greater than or equal to 0")]


def _same_selector(old: JSON, new: JSON) -> list[FieldError]:
    problems = _workload(new)
    if (old.get("spec") or {}).get("selector") != (new.get("spec") or {}).get("selector"):
        selector = (new.get("spec") or {}).get("selector")
        problems.append(invalid_field("spec.selector", selector, "field is immutable"))
    return problems


def _job(value: JSON) -> list[FieldError]:
    spec = (value.get("spec") or {}).get("template", {}).get("spec") or {}
    problems = podrules.spec("spec.template.spec", spec)
    if spec.get("restartPolicy") not in ("OnFailure", "Never"):
        detail = 'supported values: "OnFailure", "Never"'
        problems.append(
            FieldError("NotSupported", "spec.template.spec.restartPolicy", detail, spec.get("restartPolicy"))
        )
    return problems


def _job_update(old: JSON, new: JSON) -> list[FieldError]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    return [
        invalid_field(f"spec.{field}", after.get(field), "field is immutable")
        for field in ("selector", "template", "completions", "completionMode")
        if before.get(field) != after.get(field) and not (field == "template" and before.get("suspend"))
    ]


def _node(value: JSON) -> list[FieldError]:
    """The resources of a node; its spec and conditions are not validated."""
    status = value.get("status") or {}
    return [
        problem
        for field in ("capacity", "allocatable")
        for name, amount in (status.get(field) or {}).items()
        for problem in amount_problems(f"status.{field}.{name}", name, amount)
    ]


def _immutable_data(old: JSON, new: JSON) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    problems = []
    if not new.get("immutable"):
        problems.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
    if any(old.get(field) != new.get(field) for field in ("data", "stringData", "binaryData")):
        problems.append(forbidden_field("data", "field is immutable when `immutable` is set"))
    return problems


def _secret_update(old: JSON, new: JSON) -> list[FieldError]:
    problems = _immutable_data(old, new)
    if old.get("type") != new.get("type"):
        problems.append(invalid_field("type", new.get("type"), "field is immutable"))
    return problems


def _role_ref(old: JSON, new: JSON) -> list[FieldError]:
    if old.get("roleRef") == new.get("roleRef"):
        return []
    return [invalid_field("roleRef", new.get("roleRef"), "cannot change roleRef")]


def _priority_class(old: JSON, new: JSON) -> list[FieldError]:
    if old.get("value") == new.get("value"):
        return []
    return [forbidden_field("value", "may not be changed in an update.")]


_CREATE: Mapping[str, _OnCreate] = {
    "pods": podrules.on_create,
    "deployments.apps": _workload,
    "replicasets.apps": _workload,
    "statefulsets.apps": _workload,
    "daemonsets.apps": _workload,
    "jobs.batch": _job,
    "resourceclaims.resource.k8s.io": claimrules.on_create,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": confrules.mutating,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": confrules.webhooks,
    "customresourcedefinitions.apiextensions.k8s.io": confrules.definition,
    "validatingadmissionpolicies.admissionregistration.k8s.io": confrules.policy,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": confrules.binding,
}
_UPDATE: Mapping[str, _OnUpdate] = {
    "pods": podrules.on_update,
    "deployments.apps": _same_selector,
    "replicasets.apps": _same_selector,
    "statefulsets.apps": _same_selector,
    "daemonsets.apps": _same_selector,
    "jobs.batch": _job_update,
    "resourceclaims.resource.k8s.io": claimrules.on_update,
    "configmaps": _immutable_data,
    "secrets": _secret_update,
    "rolebindings.rbac.authorization.k8s.io": _role_ref,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_ref,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "customresourcedefinitions.apiextensions.k8s.io": confrules.redefinition,
    "validatingadmissionpolicies.admissionregistration.k8s.io": lambda _, new: confrules.policy(new),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": lambda _, new: confrules.binding(new),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": lambda _, new: confrules.mutating(new),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": lambda _, new: confrules.webhooks(new),
}
