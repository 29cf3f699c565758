"""
Label selectors of Kubernetes objects (`metav1.LabelSelector`).

Three forms that look alike differ: an absent selector matches nothing, an empty one everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.scheduling.needs import label_matches

Labels = Mapping[str, str]
Expression = tuple[str, str, tuple[str, ...]]
"""Key, operator (`In`, `NotIn`, `Exists`, `DoesNotExist`), values."""


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Expressions that must all hold. `absent`: there is no selector, which matches nothing."""

    expressions: tuple[Expression, ...] = ()
    absent: bool = False

    @property
    def matches_all(self) -> bool:
        """Whether this is the empty selector."""
        return not self.absent and not self.expressions

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected; an unknown operator selects nothing."""
        if self.absent:
            return False
        return all(label_matches(labels.get(key), operator, values) for key, operator, values in self.expressions)

    def also(self, expressions: Iterable[Expression]) -> LabelSelector:
        """The selector with more expressions; an absent one stays absent."""
        return self if self.absent else replace(self, expressions=(*self.expressions, *expressions))


def read_selector(document: object) -> LabelSelector:
    """A selector of an object's JSON; None is an absent one."""
    if not isinstance(document, Mapping):
        return LabelSelector(absent=True)
    equal = read_equal(document.get("matchLabels") or {})
    return equal.also(map(_expression, document.get("matchExpressions") or ()))


def read_equal(labels: Labels | None) -> LabelSelector:
    """The selector of the labels that an object must have; None is an absent one."""
    if labels is None:
        return LabelSelector(absent=True)
    return LabelSelector(tuple((key, "In", (value,)) for key, value in sorted(labels.items())))


def _expression(item: Mapping[str, Any]) -> Expression:
    return item.get("key", ""), item.get("operator", ""), tuple(item.get("values") or ())


def with_label_keys(
    selector: LabelSelector, labels: Labels, match: Iterable[str] = (), mismatch: Iterable[str] = ()
) -> LabelSelector:
    """
    The selector with `matchLabelKeys` and `mismatchLabelKeys` merged in for a pod with these labels.

    The API server merges them after the mutating webhooks have run. A key that the pod lacks has no effect.
    """
    same = ((key, "In", (labels[key],)) for key in match if key in labels)
    other = ((key, "NotIn", (labels[key],)) for key in mismatch if key in labels)
    return selector.also((*same, *other))
