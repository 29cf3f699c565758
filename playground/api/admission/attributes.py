"""
The attributes of a write that admission reads, and the interface of an admission plugin.
"""

from dataclasses import dataclass
from typing import Protocol

from playground.api.kinds.kinds import Kind
from playground.api.kinds.requests import Request
from playground.api.kinds.values import JSON, User


@dataclass(slots=True)
class Attributes:
    """One write in progress. A mutating plugin replaces or changes `object`; `old` is a snapshot."""

    request: Request
    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    object: JSON | None
    old: JSON | None
    options: JSON

    @property
    def kind(self) -> Kind:
        return self.request.kind

    @property
    def user(self) -> User:
        return self.request.user

    @property
    def namespace(self) -> str:
        return self.request.namespace

    @property
    def name(self) -> str:
        if self.request.name:
            return self.request.name
        return str((self.object or self.old or {}).get("metadata", {}).get("name", ""))


class Plugin(Protocol):
    """One step of admission. Both methods raise `ApiError` to refuse the write."""

    def mutate(self, attributes: Attributes) -> None: ...

    def validate(self, attributes: Attributes) -> None: ...
