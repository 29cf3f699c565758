"""Scores of any size on the scale of kube-scheduler (`DefaultNormalizeScore` in plugins/helper/normalize_score.go)."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 100
"""The best score of a plugin."""


def by_largest(scores: Sequence[int], *, reverse: bool = False) -> list[int]:
    """Scores from 0 on as parts of the largest; `reverse`: the largest is the worst."""
    largest = max(scores, default=0)
    parts = [MOST * score // largest if largest else 0 for score in scores]
    return [MOST - part for part in parts] if reverse else parts
