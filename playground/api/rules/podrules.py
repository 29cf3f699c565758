"""
The validation of pods: the rules for a new pod, and the changes that an update may make.

Follows `ValidatePodCreate` and `ValidatePodUpdate` of a real API server for scheduling, resources and environment. The
same rules hold for a pod spec inside a template.
"""

from collections.abc import Iterator

from playground.api.kinds.errors import FieldError, duplicate, forbidden_field, invalid_field, required, unsupported
from playground.api.kinds.values import JSON, copy_json, dig
from playground.api.rules.containerrules import container_problems
from playground.api.rules.formats import label_problem, label_value_problem, qualified_name_problem, subdomain_problem

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_IMMUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_WHOLE = ("cpu", "hugepages-", "memory")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def on_create(pod: JSON) -> list[FieldError]:
    problems = spec("spec", pod.get("spec") or {})
    if pod["spec"].get("nodeName") and pod["spec"].get("schedulingGates"):
        problems.append(forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return problems


def spec(path: str, value: JSON) -> list[FieldError]:
    """What is wrong with a pod spec."""
    problems = list(_volumes(path, value))
    names = {str(volume.get("name")) for volume in value.get("volumes") or ()}
    problems += container_problems(path, value, names)
    problems += _choices(path, value)
    problems += _of_the_whole_pod(f"{path}.resources", value.get("resources") or {})
    problems += _scheduling(path, value)
    for field, lowest in (("activeDeadlineSeconds", 1), ("terminationGracePeriodSeconds", 0)):
        seconds = value.get(field)
        if seconds is not None and seconds < lowest:
            detail = f"must be greater than or equal to {lowest}"
            problems.append(invalid_field(f"{path}.{field}", seconds, detail))
    for field in ("nodeName", "serviceAccountName", "priorityClassName"):
        name = value.get(field)
        if name and (problem := subdomain_problem(name)):
            problems.append(invalid_field(f"{path}.{field}", name, problem))
    return problems


def _choices(path: str, value: JSON) -> Iterator[FieldError]:
    for field, choices in (("restartPolicy", _RESTART), ("dnsPolicy", _DNS)):
        if (found := value.get(field)) not in choices:
            yield unsupported(f"{path}.{field}", found, choices)


def _of_the_whole_pod(path: str, resources: JSON) -> Iterator[FieldError]:
    for part in ("limits", "requests"):
        for name in sorted(resources.get(part) or {}):
            if name not in _WHOLE and not name.startswith("hugepages-"):
                yield unsupported(f"{path}.{part}[{name}]", name, _WHOLE)


def _volumes(path: str, value: JSON) -> Iterator[FieldError]:
    seen: set[str] = set()
    for i, volume in enumerate(value.get("volumes") or ()):
        name, at = str(volume.get("name", "")), f"{path}.volumes[{i}].name"
        if not name:
            yield required(at)
        elif problem := label_problem(name):
            yield invalid_field(at, name, problem)
        if name in seen:
            yield duplicate(at, name)
        seen.add(name)


def _scheduling(path: str, value: JSON) -> Iterator[FieldError]:
    for key, wanted in (value.get("nodeSelector") or {}).items():
        if problem := qualified_name_problem(key):
            yield invalid_field(f"{path}.nodeSelector", key, problem)
        if problem := label_value_problem(wanted):
            yield invalid_field(f"{path}.nodeSelector", wanted, problem)
    yield from _gates(path, value)
    for i, toleration in enumerate(value.get("tolerations") or ()):
        yield from _toleration(f"{path}.tolerations[{i}]", toleration)
    required_terms = dig(value, "affinity", "nodeAffinity", _REQUIRED)
    if required_terms is not None:
        at = f"{path}.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
        yield from _terms(at, required_terms.get("nodeSelectorTerms") or [])


def _gates(path: str, value: JSON) -> Iterator[FieldError]:
    seen: set[str] = set()
    for i, gate in enumerate(value.get("schedulingGates") or ()):
        name, at = str(gate.get("name", "")), f"{path}.schedulingGates[{i}]"
        if problem := qualified_name_problem(name):
            yield invalid_field(at, name, problem)
        if name in seen:
            yield duplicate(at, name)
        seen.add(name)


def _toleration(at: str, toleration: JSON) -> Iterator[FieldError]:
    key, operator, effect = toleration.get("key"), toleration.get("operator") or "Equal", toleration.get("effect")
    if key and (problem := qualified_name_problem(key)):
        yield invalid_field(f"{at}.key", key, problem)
    if not key and operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid_field(f"{at}.operator", operator, detail)
    if operator not in ("Equal", "Exists"):
        yield unsupported(f"{at}.operator", operator, ("Equal", "Exists"))
    elif operator == "Exists" and toleration.get("value"):
        yield invalid_field(f"{at}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_field(f"{at}.effect", effect, detail)
    if effect and effect not in _EFFECTS:
        yield unsupported(f"{at}.effect", effect, _EFFECTS)


def _terms(at: str, terms: list[JSON]) -> Iterator[FieldError]:
    if not terms:
        yield required(at, "must have at least one node selector term")
    for i, term in enumerate(terms):
        for field in ("matchExpressions", "matchFields"):
            check = _field if field == "matchFields" else _expression
            for j, entry in enumerate(term.get(field) or ()):
                yield from check(f"{at}[{i}].{field}[{j}]", entry)


def _expression(at: str, entry: JSON) -> Iterator[FieldError]:
    operator, values = entry.get("operator"), entry.get("values") or ()
    match operator:
        case "In" | "NotIn":
            if not values:
                yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                yield forbidden_field(
                    f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        case "Gt" | "Lt":
            if len(values) != 1:
                yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        case _:
            yield invalid_field(f"{at}.operator", operator, "not a valid selector operator")
    if problem := qualified_name_problem(str(entry.get("key", ""))):
        yield invalid_field(f"{at}.key", entry.get("key"), problem)


def _field(at: str, entry: JSON) -> Iterator[FieldError]:
    """A requirement on a field of the node; there is one such field."""
    operator, values = entry.get("operator"), entry.get("values") or ()
    if operator not in ("In", "NotIn"):
        yield invalid_field(f"{at}.operator", operator, "not a valid selector operator")
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{at}.values", detail)
    if (key := entry.get("key")) != "metadata.name":
        yield invalid_field(f"{at}.key", key, "not a valid field selector key")


def on_update(old: JSON, new: JSON) -> list[FieldError]:
    """The changes that an update must not make. For a gated pod, node selectors and required affinity may be added."""
    before, after = old["spec"], new["spec"]
    for field in ("containers", "initContainers"):
        if len(before.get(field) or ()) != len(after.get(field) or ()):
            return [forbidden_field(f"spec.{field}", "pod updates may not add or remove containers")]
    at = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    terms = dig(after, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    problems = [
        *(_terms(at, terms) if terms is not None else ()),
        *_images(after),
        *_gates_removed(before, after),
        *_tolerations_added(before, after),
        *_deadline(before, after),
    ]
    munged = copy_json(after)
    if before.get("schedulingGates"):
        problems += _narrowed(before, after)
        munged["nodeSelector"] = before.get("nodeSelector")
        _put_affinity(munged, before)
    _put_mutable(munged, before)
    if not problems and _bare(munged) != _bare(before):
        changed = sorted(key for key in {*munged, *before} if munged.get(key) != before.get(key))
        problems.append(forbidden_field("spec", f"{_IMMUTABLE}\n changed: {', '.join(changed)}"))
    return problems


_OF_EPHEMERAL = ("resources", "ports", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
"""The fields that an ephemeral container must not have."""


def on_ephemeral_update(old: JSON, new: JSON) -> list[FieldError]:
    """The errors of a pod's ephemeral containers: new ones may be added, and none may be changed or removed."""
    path, problems = "spec.ephemeralContainers", []
    before = {container.get("name"): container for container in old["spec"].get("ephemeralContainers") or ()}
    after = new["spec"].get("ephemeralContainers") or ()
    others = (*old["spec"]["containers"], *(old["spec"].get("initContainers") or ()))
    seen = {container["name"] for container in others}
    for i, container in enumerate(after):
        name = container.get("name")
        if not name:
            problems.append(required(f"{path}[{i}].name"))
        elif name in seen:
            problems.append(duplicate(f"{path}[{i}].name", name))
        seen.add(name)
        if not container.get("image"):
            problems.append(required(f"{path}[{i}].image"))
        for field in _OF_EPHEMERAL:
            if container.get(field):
                problems.append(forbidden_field(f"{path}[{i}].{field}", "cannot be set for an Ephemeral Container"))
    kept = {container.get("name"): container for container in after}
    for name, container in before.items():
        if name not in kept:
            problems.append(forbidden_field(path, f'existing ephemeral containers "{name}" may not be removed\n'))
        elif _bare(kept[name]) != _bare(container):
            problems.append(forbidden_field(path, f'existing ephemeral containers "{name}" may not be changed\n'))
    return problems


def _bare(value: JSON) -> JSON:
    """Without empty fields: an absent field and an empty one are the same."""
    return {key: part for key, part in value.items() if part not in (None, [], {}, "")}


def _images(after: JSON) -> Iterator[FieldError]:
    for field in ("containers", "initContainers"):
        for i, container in enumerate(after.get(field) or ()):
            if not container.get("image"):
                yield required(f"spec.{field}[{i}].image")


def _gates_removed(before: JSON, after: JSON) -> Iterator[FieldError]:
    held = {gate.get("name") for gate in before.get("schedulingGates") or ()}
    for i, gate in enumerate(after.get("schedulingGates") or ()):
        if gate.get("name") not in held:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield forbidden_field(f"spec.schedulingGates[{i}].name", detail)


def _tolerations_added(before: JSON, after: JSON) -> Iterator[FieldError]:
    def bare(toleration: JSON) -> JSON:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    kept = [bare(toleration) for toleration in after.get("tolerations") or ()]
    if any(bare(toleration) not in kept for toleration in before.get("tolerations") or ()):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        yield forbidden_field("spec.tolerations", detail)


def _deadline(before: JSON, after: JSON) -> Iterator[FieldError]:
    had, has = before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds")
    if had is None or had == has:
        return
    if has is None:
        yield invalid_field("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")
    elif has > had:
        detail = "must be less than or equal to previous value"
        yield invalid_field("spec.activeDeadlineSeconds", has, detail)


def _narrowed(before: JSON, after: JSON) -> Iterator[FieldError]:
    selector = after.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in (before.get("nodeSelector") or {}).items()):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        yield invalid_field("spec.nodeSelector", selector, detail)
    at = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    had = dig(before, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms") or []
    has = dig(after, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms") or []
    if had and len(had) != len(has):
        yield invalid_field(at, has, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    for i, (old, new) in enumerate(zip(had, has, strict=False)):
        if not all(_starts_with(new.get(f), old.get(f)) for f in ("matchExpressions", "matchFields")):
            yield invalid_field(f"{at}[{i}]", new, "only additions are allowed (no mutations or deletions)")


def _starts_with(new: list[JSON] | None, old: list[JSON] | None) -> bool:
    return (new or [])[: len(old or [])] == (old or [])


def _put_affinity(munged: JSON, before: JSON) -> None:
    """Take the required node affinity from the old pod: its changes were already validated."""
    had = dig(before, "affinity", "nodeAffinity")
    affinity = dict(munged.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    if had is None:
        affinity.pop("nodeAffinity", None)
    else:
        node.pop(_REQUIRED, None)
        if _REQUIRED in had:
            node[_REQUIRED] = had[_REQUIRED]
        affinity["nodeAffinity"] = node
    munged["affinity"] = affinity or before.get("affinity")


def _put_mutable(munged: JSON, before: JSON) -> None:
    """Copy the mutable fields from the old pod, so that the pods differ only in immutable fields."""
    for field in ("containers", "initContainers"):
        for new, old in zip(munged.get(field) or (), before.get(field) or (), strict=True):
            new["image"] = old.get("image")
    for field in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        munged[field] = before.get(field)
    if munged.get("terminationGracePeriodSeconds") == 1 and before.get("terminationGracePeriodSeconds", 0) < 0:
        munged["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
