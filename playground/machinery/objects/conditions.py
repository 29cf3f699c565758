"""
Conditions in a status: one entry for each type, whose transition time moves only when its status does. Pure.
"""

from collections.abc import Mapping
from typing import Any

from playground.api.kinds.values import JSON


def find(value: Mapping[str, Any], type_: str) -> JSON | None:
    """The condition of an object, or None."""
    for condition in (value.get("status") or {}).get("conditions") or []:
        if condition.get("type") == type_:
            return dict(condition)
    return None


def holds(value: Mapping[str, Any], type_: str) -> bool:
    condition = find(value, type_)
    return condition is not None and condition.get("status") == "True"


def condition(type_: str, true: bool, reason: str = "", message: str = "") -> JSON:
    made: JSON = {"type": type_, "status": "True" if true else "False"}
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def merged(old: list[JSON] | None, wanted: list[JSON], now: str, *, touched: str = "") -> list[JSON]:
    """
    The old conditions with each of `wanted` in the place of the one of its type.

    `touched` names a further time field, such as `lastUpdateTime`, which moves with any change of a condition. A
    condition that repeats its last values keeps its times.
    """
    result = {entry["type"]: entry for entry in old or []}
    for entry in wanted:
        before = result.get(entry["type"])
        if before is not None and _same(before, entry):
            continue
        times = {"lastTransitionTime": now, **({touched: now} if touched else {})}
        if before is not None and before.get("status") == entry["status"]:
            times["lastTransitionTime"] = before.get("lastTransitionTime", now)
        result[entry["type"]] = {**entry, **times}
    return list(result.values())


def without(old: list[JSON] | None, type_: str) -> list[JSON]:
    return [entry for entry in old or [] if entry["type"] != type_]


def _same(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(before.get(field, "") == wanted.get(field, "") for field in ("status", "reason", "message"))
