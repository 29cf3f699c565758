"""
Validation of the objects that configure the API server: webhook configurations and CustomResourceDefinitions.

It finds a mistake in one of them when the object is applied, and not only when the first pod is created.
"""

from collections.abc import Iterator
from urllib.parse import urlsplit

from playground.api.kinds.errors import FieldError, duplicate, invalid_field, required, unsupported
from playground.api.kinds.values import JSON
from playground.api.rules import expressions
from playground.api.rules.formats import label_problem, subdomain_problem

_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_OPERATIONS = ("*", "CREATE", "UPDATE", "DELETE", "CONNECT")
_SCOPES = ("*", "Cluster", "Namespaced")


def mutating(value: JSON) -> list[FieldError]:
    problems = webhooks(value)
    for i, hook in enumerate(value.get("webhooks") or ()):
        if (policy := hook.get("reinvocationPolicy")) not in ("Never", "IfNeeded"):
            problems.append(unsupported(f"webhooks[{i}].reinvocationPolicy", policy, ("IfNeeded", "Never")))
    return problems


def webhooks(value: JSON) -> list[FieldError]:
    """Mutating and validating webhook configurations."""
    problems: list[FieldError] = []
    seen: set[str] = set()
    for i, hook in enumerate(value.get("webhooks") or ()):
        at, name = f"webhooks[{i}]", str(hook.get("name", ""))
        if name in seen:
            problems.append(duplicate(f"{at}.name", name))
        seen.add(name)
        problems += _hook(at, hook, name)
    return problems


def _hook(at: str, hook: JSON, name: str) -> Iterator[FieldError]:
    if name.count(".") < 2 or subdomain_problem(name):
        yield invalid_field(f"{at}.name", name, "should be a domain with at least three segments separated by dots")
    if "v1" not in (hook.get("admissionReviewVersions") or ()):
        versions = hook.get("admissionReviewVersions")
        yield invalid_field(f"{at}.admissionReviewVersions", versions, "must include at least one of v1, v1beta1")
    if (effects := hook.get("sideEffects")) not in _SIDE_EFFECTS:
        yield unsupported(f"{at}.sideEffects", effects, _SIDE_EFFECTS)
    if (policy := hook.get("failurePolicy")) not in ("Fail", "Ignore"):
        yield unsupported(f"{at}.failurePolicy", policy, ("Fail", "Ignore"))
    if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
        detail = "the timeout value must be between 1 and 30 seconds"
        yield invalid_field(f"{at}.timeoutSeconds", hook["timeoutSeconds"], detail)
    client = hook.get("clientConfig") or {}
    if bool(client.get("url")) == bool(client.get("service")):
        yield required(f"{at}.clientConfig", "exactly one of url or service is required")
    elif (url := client.get("url")) and (scheme := urlsplit(url).scheme) != "https":
        detail = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
        yield invalid_field(f"{at}.clientConfig.url", scheme, detail)
    for j, rule in enumerate(hook.get("rules") or ()):
        yield from _rule(f"{at}.rules[{j}]", rule)
    for j, condition in enumerate(hook.get("matchConditions") or ()):
        yield from _condition(f"{at}.matchConditions[{j}]", condition)


def _rule(at: str, rule: JSON) -> Iterator[FieldError]:
    for field in ("operations", "apiGroups", "apiVersions", "resources"):
        if not rule.get(field):
            yield required(f"{at}.{field}")
    for operation in rule.get("operations") or ():
        if operation not in _OPERATIONS:
            yield unsupported(f"{at}.operations", operation, _OPERATIONS)
    if (scope := rule.get("scope")) not in _SCOPES:
        yield unsupported(f"{at}.scope", scope, _SCOPES)


def _condition(at: str, condition: JSON) -> Iterator[FieldError]:
    if not condition.get("name"):
        yield required(f"{at}.name")
    yield from _expression(at, condition)
    text = condition.get("expression") or ""
    if (found := expressions.constant_type(text)) not in ("", "bool"):
        yield invalid_field(f"{at}.expression", text, f"must evaluate to bool but got {found}")


def _expression(at: str, entry: JSON) -> Iterator[FieldError]:
    if not (text := entry.get("expression")):
        yield required(f"{at}.expression")
    elif problem := expressions.problem(text):
        yield invalid_field(f"{at}.expression", text, f"compilation failed: {problem}")


def policy(value: JSON) -> list[FieldError]:
    """ValidatingAdmissionPolicies: every expression compiles."""
    spec, problems = value.get("spec") or {}, []
    if not spec.get("matchConstraints"):
        problems.append(required("spec.matchConstraints"))
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        detail = "validations or auditAnnotations must contain at least one item"
        problems.append(required("spec.validations", detail))
    for field in ("matchConditions", "variables", "validations"):
        for i, entry in enumerate(spec.get(field) or ()):
            problems += _expression(f"spec.{field}[{i}]", entry)
    return problems


def binding(value: JSON) -> list[FieldError]:
    """ValidatingAdmissionPolicyBindings."""
    spec = value.get("spec") or {}
    fields = ("policyName", "validationActions")
    return [required(f"spec.{field}") for field in fields if not spec.get(field)]


def redefinition(old: JSON, new: JSON) -> list[FieldError]:
    """A changed CustomResourceDefinition: a version in which objects may be stored must stay."""
    named = {version.get("name") for version in (new.get("spec") or {}).get("versions") or ()}
    stored = (old.get("status") or {}).get("storedVersions") or ()
    return definition(new) + [
        invalid_field(
            f"status.storedVersions[{place}]",
            version,
            f"missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions "
            f"until a storage migration ensures no data remains persisted in {version} and removes {version} from "
            "status.storedVersions",
        )
        for place, version in enumerate(stored)
        if version not in named
    ]


def definition(value: JSON) -> list[FieldError]:
    """CustomResourceDefinitions: mistakes that would make them unusable."""
    spec, problems = value.get("spec") or {}, []
    names, versions = spec.get("names") or {}, spec.get("versions") or ()
    expected = f"{names.get('plural')}.{spec.get('group')}"
    if value["metadata"].get("name") != expected:
        detail = 'must be spec.names.plural+"."+spec.group'
        problems.append(invalid_field("metadata.name", value["metadata"].get("name"), detail))
    for field in ("plural", "kind"):
        name = str(names.get(field, ""))
        if not name or label_problem(name.lower()):
            problems.append(invalid_field(f"spec.names.{field}", name, "must be a DNS label"))
    if (scope := spec.get("scope")) not in ("Cluster", "Namespaced"):
        problems.append(unsupported("spec.scope", scope, ("Cluster", "Namespaced")))
    if sum(1 for version in versions if version.get("storage")) != 1:
        detail = "must have exactly one version marked as storage version"
        problems.append(invalid_field("spec.versions", [v.get("name") for v in versions], detail))
    for i, version in enumerate(versions):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            problems.append(required(f"spec.versions[{i}].schema.openAPIV3Schema", "schemas are required"))
    return problems
