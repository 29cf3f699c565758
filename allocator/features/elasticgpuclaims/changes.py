"""
The input of the feature: claims, their classes and shares from the watch, and the results of their writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from allocator.features.elasticgpuclaims.lifecycle import Refused, Step
from allocator.features.elasticgpuclaims.rendering import ClaimBinding

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimsListed:
    """The whole list of one kind of `elasticgpu.io`. `term`: the term of leadership in which it was requested."""

    plural: str
    documents: tuple[JSON, ...]
    term: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimChanged:
    """An object of such a kind is new or changed."""

    plural: str
    document: JSON


@dataclass(frozen=True, slots=True)
class ClaimDeleted:
    """An object of such a kind was deleted."""

    plural: str
    document: JSON


ClaimOutcome = Literal["succeeded", "failed", "unknown"] | Refused
"""The result of a claim's binding; `Refused` has the API server's message."""


@dataclass(frozen=True, slots=True)
class ClaimBindingAnswered:
    """The result of a claim's binding."""

    binding: ClaimBinding
    outcome: ClaimOutcome


@dataclass(frozen=True, slots=True)
class ClaimStepAnswered:
    """A step for a claim, and the object in the API server's answer; `Refused` or None if it failed."""

    step: Step
    answer: JSON | Refused | None
