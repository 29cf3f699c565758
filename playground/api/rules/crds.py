"""
CustomResourceDefinitions: from a stored definition to served kinds, and what a served custom object must be.
"""

import re
from collections.abc import Callable
from typing import Any

from playground.api.kinds import errors
from playground.api.kinds.errors import FieldError
from playground.api.kinds.kinds import CRDS, Kind, Kinds
from playground.api.kinds.requests import Request
from playground.api.kinds.values import JSON, copy_json, dig, timestamp
from playground.api.rules import schemas
from playground.api.store.store import Store


def kinds_of(definition: JSON) -> list[Kind]:
    """One kind for each served version. The version that clients prefer comes first, whichever version is stored."""
    spec, names = definition["spec"], definition["spec"]["names"]
    versions = sorted((v for v in spec["versions"] if v.get("served")), key=lambda v: preference(v["name"]))
    return [
        Kind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            spec["scope"] == "Namespaced",
            tuple(names.get("shortNames") or ()),
            status="status" in (version.get("subresources") or {}),
            subresources=("scale",) if "scale" in (version.get("subresources") or {}) else (),
            categories=tuple(names.get("categories") or ()),
            singular=names.get("singular") or names["kind"].lower(),
            custom=version,
        )
        for version in versions
    ]


_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
_STABLE = "stable"


def preference(version: str) -> tuple[Any, ...]:
    """Sorts versions as Kubernetes prefers them: v2, v1, v1beta2, v1beta1, v1alpha1, then others by their names."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return (1, version)
    major, stability, minor = found.groups(default="")
    return (0, (_STABLE, "beta", "alpha").index(stability or _STABLE), -int(major), -int(minor or 0))


def established(definition: JSON, now: float) -> JSON:
    """The status of a definition that is served."""
    spec, before = definition["spec"], definition.get("status") or {}
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    held = before.get("storedVersions") or []
    times = {c["type"]: c["lastTransitionTime"] for c in before.get("conditions") or ()}

    def condition(kind: str, reason: str, message: str) -> JSON:
        since = times.get(kind) or timestamp(now)
        return {"type": kind, "status": "True", "lastTransitionTime": since, "reason": reason, "message": message}

    return {
        "acceptedNames": spec["names"],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": [*held, *(name for name in stored if name not in held)],
    }


class Definitions:
    """Keeps the served kinds up to date with the definitions in the store."""

    def __init__(
        self,
        *,
        kinds: Kinds,
        store: Store,
        clock: Callable[[], float],
        save: Callable[[JSON, JSON], None],
        delete: Callable[[Kind, tuple[str, str]], None],
    ) -> None:
        self._kinds = kinds
        self._store = store
        self._clock = clock
        self._save = save
        self._delete = delete

    def committed(self, kind: Kind, old: JSON | None, new: JSON | None) -> None:
        if kind is not CRDS:
            return
        if new is None:
            if old is not None:
                self._withdraw(old)
        elif dig(old, "spec") != new["spec"]:
            self._kinds.replace_custom(new["spec"]["group"], new["spec"]["names"]["plural"], kinds_of(new))
            self._save(new, established(new, self._clock()))

    def reload(self) -> None:
        """Serve exactly the kinds that the store defines now, after it was restored to another state."""
        defined = {
            (each["spec"]["group"], each["spec"]["names"]["plural"]): each for each in self._store.scan(CRDS.key)
        }
        served = [(kind.group, kind.plural) for kind in self._kinds.all() if kind.custom is not None]
        for group, plural in dict.fromkeys([*served, *defined]):
            definition = defined.get((group, plural))
            self._kinds.replace_custom(group, plural, kinds_of(definition) if definition else ())

    def _withdraw(self, definition: JSON) -> None:
        for kind in kinds_of(definition)[:1]:
            for value in self._store.scan(kind.key):
                meta = value["metadata"]
                self._delete(kind, (meta.get("namespace", ""), meta["name"]))
        self._kinds.replace_custom(definition["spec"]["group"], definition["spec"]["names"]["plural"], ())


def schema_of(kind: Kind) -> JSON:
    return dig(dict(kind.custom or {}), "schema", "openAPIV3Schema") or {}


def decode(kind: Kind, value: JSON) -> tuple[JSON, list[str]]:
    """A custom object with its defaults and without unknown fields; and the paths of the fields that were dropped."""
    schema = schema_of(kind)
    value = copy_json(value)
    dropped = schemas.prune(schema, value)
    for key, part in (schema.get("properties") or {}).items():
        if key not in ("apiVersion", "kind", "metadata"):
            if key not in value and "default" in part:
                value[key] = copy_json(part["default"])
            if key in value:
                schemas.fill_defaults(part, value[key])
    return value, dropped


def report_unknown(request: Request, fields: list[str]) -> None:
    """Unknown fields are an error, a warning or nothing, as `fieldValidation` says."""
    match request.query.get("fieldValidation", "Warn"):
        case "Strict" if fields:
            listed = ", ".join(f'unknown field "{field}"' for field in fields)
            kind, version = request.kind, request.kind.version
            raise errors.bad_request(
                f'{kind.name} in version "{version}" cannot be handled as a {kind.name}: '
                f"strict decoding error: {listed}"
            )
        case "Warn":
            request.warnings.extend(f'unknown field "{field}"' for field in fields)


def problems(kind: Kind, value: JSON, old: JSON | None = None) -> list[FieldError]:
    """The errors of an object that does not match the schema."""
    return schemas.validate(schema_of(kind), value, old)
