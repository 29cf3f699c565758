"""
The real use of GPUs in the last hour, from Prometheus: the query, and the reader of its answer.

The node agents measure each GPU, and DCGM where dcgm-exporter runs (its figures by the recording rules of the component
`monitoring`). A GPU or a moment without data from either has no figure, which is not 0. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from contract.metrics import nodeagent as specs

JSON = dict[str, Any]
HOUR, STEP = 3600, 120
"""Seconds that are shown, and between two points of them."""
POINTS = HOUR // STEP + 1
_MOST_SERIES = 8_192
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of nodes; anything else is not sent."""
FIGURES: Mapping[str, tuple[str, str, float]] = {
    "memoryMiB": (specs.GPU_MEMORY_USED.name, "gpu:dcgm_memory_used:bytes", 1 / (1 << 20)),
    "busy": (specs.GPU_UTILIZATION.name, "gpu:dcgm_utilization:ratio", 100.0),
}
"""By figure: the agents' series, DCGM's, and the factor of both."""
_LARGEST = 1e9


def query(figure: str, nodes: Iterable[str], end: int) -> dict[str, str | int]:
    """The parameters of `query_range` for one figure of these nodes' GPUs, up to `end` in seconds since 1970."""
    own, dcgm, _ = FIGURES[figure]
    named = "|".join(name.replace(".", "\\\\.") for name in nodes if _NODE.fullmatch(name))
    where = f'{{node=~"{named}"}}'
    text = f"max by (node, gpu) ({own}{where}) or max by (node, gpu) ({dcgm}{where})"
    return {"query": text, "start": end - HOUR, "end": end, "step": STEP}


def figures(answers: Mapping[str, JSON], end: int) -> JSON:
    """
    The points by `node/UUID` and figure, oldest first; None where nothing is known. `answers`: by figure.

    Whatever has another shape than Prometheus promises is left out.
    """
    found: dict[str, JSON] = {}
    for figure, answer in answers.items():
        for series in _series(answer):
            labels = series.get("metric")
            if isinstance(labels, dict) and isinstance(series.get("values"), list):
                points = _points(series["values"], end, FIGURES[figure][2])
                if any(point is not None for point in points):
                    found.setdefault(f"{labels.get('node')}/{labels.get('gpu')}", {})[figure] = points
    return found


def _series(answer: JSON) -> list[JSON]:
    data = answer.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    return [each for each in result[:_MOST_SERIES] if isinstance(each, dict)] if isinstance(result, list) else []


def _points(values: list[Any], end: int, factor: float) -> list[int | None]:
    points: list[int | None] = [None] * POINTS
    for value in values[: 2 * POINTS]:
        try:
            moment, figure = float(value[0]), float(value[1]) * factor
            at = POINTS - 1 - round((end - moment) / STEP)
        except (TypeError, ValueError, LookupError, OverflowError):
            continue
        if 0 <= at < POINTS and math.isfinite(figure) and 0 <= figure <= _LARGEST:
            points[at] = round(figure)
    return points
