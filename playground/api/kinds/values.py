"""
The shapes that travel through the API: JSON objects, users, timestamps.

Stored objects are snapshots that never change. To change one, take a copy
first, with `copy_json`.
"""

import json
import marshal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

ANONYMOUS = "system:anonymous"
JSON: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class User:
    """The user of a request, as the authenticator found it, before authorization."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def authenticated(self) -> "User":
        """The user with the groups of all authenticated users and, for a service account, of service accounts."""
        groups = [*self.groups]
        parts = self.name.split(":")
        if self.name.startswith("system:serviceaccount:") and len(parts) == 4:
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{parts[2]}"]
        if self.name != ANONYMOUS:
            groups.append("system:authenticated")
        return User(self.name, tuple(dict.fromkeys(groups)), self.extra)

    def info(self) -> JSON:
        """The `userInfo` of an AdmissionReview or a SelfSubjectReview."""
        info: JSON = {"username": self.name, "groups": list(self.groups)}
        if self.extra:
            info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return info


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def copy_json(value: Any) -> Any:
    """A deep copy of a JSON value.

    `marshal` is several times faster than `copy.deepcopy`. It refuses subclasses of the builtin types, which callers in
    the same process may pass. Such values are copied through JSON text, as they would be over HTTP.
    """
    try:
        return marshal.loads(marshal.dumps(value))
    except ValueError:
        return json.loads(json.dumps(value))


def timestamp(seconds: float) -> str:
    """Epoch seconds as metav1.Time writes them: RFC 3339, UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def seconds_of(text: str | None) -> float | None:
    """Epoch seconds of a metav1.Time or MicroTime; None for an absent or unreadable one."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except ValueError:
        return None


def dig(value: Any, *path: str) -> Any:
    """The value at a path of keys, None where any step is missing."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
