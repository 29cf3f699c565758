"""
Structural schemas of custom resources: pruning, defaulting and validation by OpenAPI v3.

As apiextensions.k8s.io/v1 does it: what the schema does not name is dropped, what it defaults is filled in, and what is
left must fit.
"""

import re
from collections.abc import Iterator
from typing import Any

from playground.api.kinds.errors import FieldError, invalid_field, required, unsupported
from playground.api.kinds.values import JSON, copy_json
from playground.api.rules import expressions

_UNCHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)
_KEPT_AT_ROOT = ("apiVersion", "kind", "metadata")
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def prune(schema: JSON, value: JSON) -> list[str]:
    """Drop what the schema does not name, in place. Returns the paths of what was dropped."""
    dropped: list[str] = []
    inner = {key: part for key, part in value.items() if key not in _KEPT_AT_ROOT}
    _prune(schema, inner, "", dropped)
    for key in [key for key in value if key not in _KEPT_AT_ROOT and key not in inner]:
        del value[key]
    return dropped


def _prune(schema: JSON, value: Any, path: str, dropped: list[str]) -> None:
    if isinstance(value, list):
        for i, item in enumerate(value):
            _prune(schema.get("items") or {}, item, f"{path}[{i}]", dropped)
        return
    if not isinstance(value, dict) or schema.get("x-kubernetes-embedded-resource"):
        return
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for key in list(value):
        at = f"{path}.{key}" if path else key
        if key in properties:
            _prune(properties[key], value[key], at, dropped)
        elif isinstance(more, dict):
            _prune(more, value[key], at, dropped)
        elif not more and not schema.get("x-kubernetes-preserve-unknown-fields"):
            dropped.append(at)
            del value[key]


def fill_defaults(schema: JSON, value: Any) -> None:
    """Fill in the schema's defaults, in place."""
    if isinstance(value, list):
        for item in value:
            fill_defaults(schema.get("items") or {}, item)
    if not isinstance(value, dict):
        return
    for key, part in (schema.get("properties") or {}).items():
        if key not in value and "default" in part:
            value[key] = copy_json(part["default"])
        if key in value:
            fill_defaults(part, value[key])
    if isinstance(more := schema.get("additionalProperties"), dict):
        for key in value:
            fill_defaults(more, value[key])


def validate(schema: JSON, value: JSON, old: JSON | None = None) -> list[FieldError]:
    """The errors. `old` is the state that transition rules compare with. Rules run only if the rest is valid."""
    problems = [
        problem
        for key, part in (schema.get("properties") or {}).items()
        if key in value and key not in _KEPT_AT_ROOT
        for problem in _validate(part, value[key], key)
    ]
    problems += [required(key) for key in schema.get("required") or () if key not in value]
    if problems and _has_rules(schema):
        problems.append(invalid_field("<nil>", None, _UNCHECKED))
    return problems or list(_rules(schema, value, "", old))


def _has_rules(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(_has_rules(part) for part in schema)
    if not isinstance(schema, dict):
        return False
    return "x-kubernetes-validations" in schema or any(_has_rules(part) for part in schema.values())


def _validate(schema: JSON, value: Any, path: str) -> Iterator[FieldError]:
    if value is None and schema.get("nullable"):
        return
    if (problem := _type_problem(schema, value, path)) is not None:
        yield problem
        return
    yield from _scalar(schema, value, path)
    if isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        yield from _array(schema, value, path)


def _type_problem(schema: JSON, value: Any, path: str) -> FieldError | None:
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, int | str) and not isinstance(value, bool):
            return None
        detail = f'{path} in body must be of type integer or string: "{_kind(value)}"'
        return FieldError("TypeInvalid", path, detail, _kind(value))
    wanted = schema.get("type")
    types = _TYPES.get(wanted or "")
    whole = wanted == "integer" and isinstance(value, float) and value.is_integer()
    fits = types is None or whole or (isinstance(value, types) and isinstance(value, bool) is (wanted == "boolean"))
    if fits:
        return None
    detail = f'{path} in body must be of type {wanted}: "{_kind(value)}"'
    return FieldError("TypeInvalid", path, detail, _kind(value))


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def _scalar(schema: JSON, value: Any, path: str) -> Iterator[FieldError]:
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, value, [str(choice) for choice in schema["enum"]])
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield invalid_field(path, value, f"{path} in body should match '{schema['pattern']}'")
        if len(value) > schema.get("maxLength", len(value)):
            yield FieldError("TooLong", path, f"may not be more than {schema['maxLength']} bytes")
        if len(value) < schema.get("minLength", 0):
            yield invalid_field(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield invalid_field(path, value, f"{path} in body should be greater than or equal to {schema['minimum']}")
        if value > schema.get("maximum", value):
            yield invalid_field(path, value, f"{path} in body should be less than or equal to {schema['maximum']}")


def _object(schema: JSON, value: JSON, path: str) -> Iterator[FieldError]:
    for key in schema.get("required") or ():
        if key not in value:
            yield required(f"{path}.{key}")
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, part in value.items():
        if key in properties:
            yield from _validate(properties[key], part, f"{path}.{key}")
        elif isinstance(more, dict):
            yield from _validate(more, part, f"{path}.{key}")


def _array(schema: JSON, value: list[Any], path: str) -> Iterator[FieldError]:
    if len(value) > schema.get("maxItems", len(value)):
        yield FieldError("TooMany", path, f"must have at most {schema['maxItems']} items", len(value))
    if len(value) < schema.get("minItems", 0):
        yield invalid_field(path, len(value), f"{path} in body should have at least {schema['minItems']} items")
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: list[Any] = []
    for i, item in enumerate(value):
        yield from _validate(schema.get("items") or {}, item, f"{path}[{i}]")
        if keys and isinstance(item, dict):
            key = {name: item.get(name) for name in keys}
            if key in seen:
                yield FieldError("Duplicate", f"{path}[{i}]", "", key)
            seen.append(key)


def _rules(schema: JSON, value: Any, path: str, old: Any) -> Iterator[FieldError]:
    """Evaluate the rules of a value and of everything in it. Elements of lists have no old state to compare with."""
    for rule in schema.get("x-kubernetes-validations") or ():
        text = rule["rule"]
        if "oldSelf" in text and old is None:
            continue
        result = expressions.evaluate(text, {"self": value, "oldSelf": old})
        if result is not True:
            failed = result.message if isinstance(result, expressions.Failed) else f"failed rule: {text}"
            yield invalid_field(path or "<nil>", _kind(value), str(rule.get("message") or failed))
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _rules(schema.get("items") or {}, item, f"{path}[{i}]", None)
    elif isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, part in value.items():
            inner = properties.get(key) or (more if isinstance(more, dict) else {})
            before = old.get(key) if isinstance(old, dict) else None
            yield from _rules(inner, part, f"{path}.{key}" if path else key, before)
