"""What the page asks Prometheus, and what it takes from the answer: known figures, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpufraction.ui.usage import POINTS, figures, query

JSON = dict[str, Any]
END = 1_767_607_200


def series(*values: Any, **labels: str) -> JSON:
    return {"metric": labels or {"node": "n1", "gpu": "GPU-1"}, "values": list(values)}


def answer(*result: Any) -> JSON:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(result)}}


def test_the_query_is_for_the_nodes_that_are_shown_and_an_hour() -> None:
    where = '{node=~"n1|a\\\\.b"}'
    assert query("busy", ["n1", "a.b", 'evil"} or vector(1)', "UPPER"], END) == {
        "query": f"max by (node, gpu) (gpufraction_gpu_utilization_ratio{where}) "
        f"or max by (node, gpu) (gpu:dcgm_utilization:ratio{where})",
        "start": END - 3600,
        "end": END,
        "step": 120,
    }


def test_a_moment_without_a_figure_is_not_nought() -> None:
    found = figures({"busy": answer(series([END, "0.25"], [END - 240, "0"], [END - 3600, "1"]))}, END)
    assert found == {"n1/GPU-1": {"busy": [100, *[None] * (POINTS - 4), 0, None, 25]}}


def test_memory_is_in_mebibytes() -> None:
    assert figures({"memoryMiB": answer(series([END, "5368709120"]))}, END)["n1/GPU-1"]["memoryMiB"][-1] == 5120


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"data": None},
        {"data": {"result": "x"}},
        answer(7, None, "x"),
        answer({"metric": "x", "values": [[END, "1"]]}),
        answer({"metric": {}, "values": None}),
        answer(series([END, "NaN"], [END, "-1"], [END, "+Inf"], [END, "1e300"])),
        answer(series([END], [], None, ["x", "1"], [END, None], [END + 7200, "1"], [END - 7200, "1"])),
    ],
)
def test_what_prometheus_does_not_promise_is_left_out(wrong: JSON) -> None:
    assert figures({"busy": wrong}, END) == {}


def test_a_gpu_that_says_more_than_an_hour_has_one_figure_a_moment() -> None:
    values = [[END - 120 * at, "1"] for at in range(10_000)]
    assert figures({"busy": answer(series(*values))}, END) == {"n1/GPU-1": {"busy": [100] * POINTS}}
