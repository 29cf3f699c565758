"""The committed pages are what the code generates today."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Dialect, Example
from contract.metrics import METRICS
from playground.documentation import (
    PAGES,
    deprecations_page,
    dialects_page,
    edges_page,
    main,
    metrics_page,
    names_page,
    outcome,
    reasons_page,
)

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", PAGES)
def test_the_committed_page_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](), "run: python -m playground.documentation"


def test_the_pages_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "deprecations.md": deprecations_page(),
        "edges.md": edges_page(),
        "names.md": names_page(),
        "dialects.md": dialects_page(),
        "metrics.md": metrics_page(),
        "reasons.md": reasons_page(),
    }


def test_every_name_and_variable_is_on_the_page() -> None:
    page = names_page()
    wanted = [*names.REGISTRY, *(variable for variable, _ in names.ENVIRONMENT), names.GPUNODE_KIND]
    assert [name for name in wanted if f"`{name}" not in page] == []


def test_every_metric_is_on_the_page() -> None:
    page = metrics_page()
    assert [spec.name for spec in METRICS if f"| `{spec.name}` |" not in page] == []


@pytest.mark.parametrize("dialect", list(DIALECTS), ids=lambda dialect: dialect.name)
def test_every_name_of_a_dialect_is_explained_and_shown(dialect: Dialect) -> None:
    explained = {word.name for word in dialect.glossary}
    prefixes = {f"{prefix}<key>" for prefix in dialect.annotation_prefixes}
    assert {*dialect.resources, *dialect.annotations, *prefixes} <= explained
    assert dialect.about.strip()
    # A dialect that reads no limit, annotation or label of a pod has none to show.
    assert bool(dialect.examples) == bool(dialect.resources or dialect.annotations or prefixes)


OUTCOMES = {
    "one GPU": (Example({"aliyun.com/gpu-mem": "5"}), "1 GPU: 5Gi of memory, no cores reserved"),
    "two GPUs": (
        Example({"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"}),
        "2 GPUs, on each: 50 % of memory, 30 % of the cores",
    ),
    "a whole GPU": (
        Example({"nvidia.com/gpu": "1"}),
        "1 GPU: 100 % of memory, 100 % of the cores, shared with no other pod",
    ),
    "wishes": (
        Example({"nano-gpu/gpu-percent": "20"}, {"gpufraction.io/gpu-models": "A100,V100"}),
        "1 GPU: 20 % of memory, 20 % of the cores, models A100, then V100",
    ),
    "nothing": (Example({"cpu": "1"}), "no share asked"),
    "a refusal": (
        Example({"nano-gpu/gpu-percent": "120"}),
        "refused: `spec.containers[0].resources.limits[nano-gpu/gpu-percent]: found '120'; "
        "give a whole number from 1 to 100, which is one whole card`",
    ),
}


@pytest.mark.parametrize(("example", "wanted"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_outcomes_in_words(example: Example, wanted: str) -> None:
    assert outcome(example) == wanted


def test_a_page_of_no_dialects_still_tells_how_to_add_one() -> None:
    assert "(recipes.md#add-a-dialect)" in dialects_page([])
