"""
The three patch types: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.

Pure: functions take a state and a patch, and return a new state without changing either. The merge keys of the
strategic patch are those of the Go types (`patchMergeKey` tags) of the kinds that are served.
"""

from collections.abc import Mapping
from typing import Any

import jsonpatch
import jsonpointer

from playground.api.kinds.errors import ApiError, bad_request, unsupported_media_type
from playground.api.kinds.kinds import Kind
from playground.api.kinds.requests import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from playground.api.kinds.values import JSON, copy_json

_BY_NAME = [
    "containers",
    "initContainers",
    "ephemeralContainers",
    "volumes",
    "env",
    "imagePullSecrets",
    "secrets",
    "resourceClaims",
    "schedulingGates",
    "webhooks",
    "matchConditions",
    "variables",
]
_MERGE_KEYS: Mapping[str, str] = {
    **dict.fromkeys(_BY_NAME, "name"),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
    "podIPs": "ip",
    "hostIPs": "ip",
}
_MERGED_SETS = ("finalizers",)
_NO_MERGE: Mapping[str, tuple[str, ...]] = {
    "customresourcedefinitions.apiextensions.k8s.io": ("conditions",),
    "endpointslices.discovery.k8s.io": ("ports",),
    "networkpolicies.networking.k8s.io": ("ports",),
}
_DIRECTIVE, _ORDER, _REMOVE, _RETAIN = "$patch", "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys"


def apply_patch(kind: Kind, content_type: str, current: JSON, patch: Any) -> JSON:
    """The patched state. Raises `ApiError`: 400 or 422 for a patch that does not fit, 415 for a type not served."""
    match content_type.split(";")[0].strip():
        case t if t == JSON_PATCH:
            return _json_patch(current, patch)
        case t if t == MERGE_PATCH:
            return _as_object(merge(current, _as_object(patch)))
        case t if t == STRATEGIC_PATCH and kind.custom is None:
            merged: JSON = _Strategic(kind).object(current, copy_json(_as_object(patch)))
            return merged
    accepted = [JSON_PATCH, MERGE_PATCH] + ([STRATEGIC_PATCH] if kind.custom is None else [])
    raise unsupported_media_type(accepted)


def _as_object(value: Any) -> JSON:
    if not isinstance(value, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal a value that is no object")
    return value


def _json_patch(current: JSON, patch: Any) -> JSON:
    if not isinstance(patch, list):
        found = "object" if isinstance(patch, dict) else type(patch).__name__
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
        )
    try:
        patched = jsonpatch.JsonPatch(patch).apply(copy_json(current))
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, AttributeError, KeyError):
        # As in a real API server, a failed test and a missing path have the same response.
        raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {}) from None
    return _as_object(patched)


def merge(current: Any, patch: Any) -> Any:
    """RFC 7386. Shares what did not change with `current`."""
    if not isinstance(patch, dict):
        return patch
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


class _Strategic:
    """Strategic merge for one kind, as the Kubernetes contributors' guide "Strategic Merge Patch" describes it."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def object(self, current: Any, patch: JSON) -> Any:
        directive = patch.pop(_DIRECTIVE, None)
        if directive == "replace":
            return patch
        if directive == "delete":
            return {}
        result: JSON = dict(current) if isinstance(current, dict) else {}
        if (kept := patch.pop(_RETAIN, None)) is not None:
            result = {key: value for key, value in result.items() if key in kept}
        orders = {key.removeprefix(_ORDER): patch.pop(key) for key in list(patch) if key.startswith(_ORDER)}
        before = {field: result.get(field) for field in orders}
        for key in [key for key in patch if key.startswith(_REMOVE)]:
            removed = patch.pop(key)
            field = key.removeprefix(_REMOVE)
            result[field] = [item for item in result.get(field) or () if item not in removed]
        for key, value in patch.items():
            self._set(result, key, value)
        for field, order in orders.items():
            if isinstance(result.get(field), list):
                result[field] = _ordered(result[field], order, before[field] or [], self._merge_key(field))
        return result

    def _set(self, result: JSON, key: str, value: Any) -> None:
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = self.object(result.get(key), value)
        elif isinstance(value, list):
            result[key] = self._list(key, result.get(key) or [], value)
        else:
            result[key] = value

    def _merge_key(self, field: str) -> str | None:
        if field in _NO_MERGE.get(self._kind.key, ()):
            return None
        if field == "ports":
            return "port" if self._kind.key == "services" else "containerPort"
        return _MERGE_KEYS.get(field)

    def _list(self, field: str, current: list[Any], patch: list[Any]) -> list[Any]:
        if field in _MERGED_SETS:
            return _ordered(current + [item for item in patch if item not in current], patch, current, None)
        key = self._merge_key(field)
        if key is None or not all(isinstance(item, dict) for item in patch):
            return [self._clean(item) for item in patch]
        if any(item.get(_DIRECTIVE) == "replace" and len(item) == 1 for item in patch):
            return [self._clean(item) for item in patch if item.get(_DIRECTIVE) != "replace"]
        result = list(current)
        for item in patch:
            self._merge_item(result, key, item)
        return _ordered(result, patch, current, key)

    def _merge_item(self, result: list[Any], key: str, item: JSON) -> None:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, held in enumerate(result) if held.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(self.object({}, item))
        else:
            result[at] = self.object(result[at], item)

    def _clean(self, item: Any) -> Any:
        return self.object({}, item) if isinstance(item, dict) else item


def _ordered(merged: list[Any], patch: list[Any], original: list[Any], key: str | None) -> list[Any]:
    """The order of a merged list: the patch's for what it names, the original's for the rest, new elements first."""

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in patch]
    held = [identity(item) for item in original]
    named = sorted((item for item in merged if identity(item) in wanted), key=lambda item: wanted.index(identity(item)))
    others = [item for item in merged if identity(item) not in wanted]
    result = []
    while named and others:
        ours, theirs = identity(named[0]), identity(others[0])
        first = others if ours in held and theirs in held and held.index(theirs) < held.index(ours) else named
        result.append(first.pop(0))
    return result + named + others
