"""
Validation of ResourceClaims (resource.k8s.io/v1): the rules for programs that allocate them.

The spec never changes. An allocation can be set or removed, but not changed. Only an allocated claim can be reserved.
"""

from collections.abc import Mapping
from typing import Any

from playground.api.kinds.errors import FieldError, forbidden_field, invalid_field, required
from playground.api.kinds.values import JSON

_MOST = 32
_IMMUTABLE = "field is immutable"


def on_create(value: JSON) -> list[FieldError]:
    """What is wrong with a new claim."""
    requests, problems = _requests(value), []
    if len(requests) > _MOST:
        problems.append(invalid_field("spec.devices.requests", len(requests), f"must have at most {_MOST} items"))
    for i, request in enumerate(requests):
        exactly = request.get("exactly")
        if not exactly and not request.get("firstAvailable"):
            problems.append(
                required(f"spec.devices.requests[{i}]", "exactly one of `exactly` or `firstAvailable` is required")
            )
        elif exactly and not exactly.get("deviceClassName"):
            problems.append(required(f"spec.devices.requests[{i}].exactly.deviceClassName", ""))
    return problems


def on_update(old: JSON, new: JSON) -> list[FieldError]:
    """What is wrong with a change of the claim itself."""
    return [] if old.get("spec") == new.get("spec") else [invalid_field("spec", new.get("spec"), _IMMUTABLE)]


def on_status_update(old: JSON, new: JSON) -> list[FieldError]:
    """What is wrong with a change of its status."""
    before, after = _status(old), _status(new)
    allocation, problems = after.get("allocation"), []
    if before.get("allocation") and allocation and before["allocation"] != allocation:
        problems.append(invalid_field("status.allocation", allocation, _IMMUTABLE))
    if after.get("reservedFor") and not allocation:
        detail = "may not be specified when `allocated` is not set"
        problems.append(forbidden_field("status.reservedFor", detail))
    names = {name for request in _requests(new) for name in _names(request)}
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    for i, result in enumerate(results):
        if result.get("request") not in names:
            detail = "must be the name of a request in the claim"
            problems.append(
                invalid_field(f"status.allocation.devices.results[{i}].request", result.get("request"), detail)
            )
    return problems


def _requests(value: JSON) -> list[JSON]:
    return list(((value.get("spec") or {}).get("devices") or {}).get("requests") or [])


def _names(request: JSON) -> list[object]:
    """The names by which an allocation may refer to the request: those of its alternatives if it has any."""
    alternatives = request.get("firstAvailable") or []
    name = request.get("name")
    return [f"{name}/{each.get('name')}" for each in alternatives] or [name]


def _status(value: JSON) -> Mapping[str, Any]:
    return value.get("status") or {}
