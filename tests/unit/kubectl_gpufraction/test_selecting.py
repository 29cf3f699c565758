"""`nodes NODE`, `pods NAME`, `-l`; names that do not exist; tables within 100 columns; sentences on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubectl_gpufraction.output.forms import CommandOutput, Form
from kubectl_gpufraction.output.tables import Column, wrapped
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_manners import DEFAULT, FULL, GPUNODES, NEW, RUNS, WAITS, called
from tests.unit.kubectl_gpufraction.test_tenants import NO, collection, plain

JSON = dict[str, Any]
TWO: dict[str, tuple[int, Any]] = {
    "/api/v1/nodes": collection(node("n1"), node("gpu-2")),
    GPUNODES: collection(gpunode("n1", 15109), gpunode("gpu-2", 15109)),
    "/api/v1/nodes/bare": (200, node("bare")),
    f"{DEFAULT}/web": (200, plain("web", {"cpu": "1"})),
}
SHOWN: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "one node": (("nodes", "gpu-2"), ["gpu-2"]),
    "a node by kind and name": (("nodes", "node/n1"), ["n1"]),
    "two nodes": (("nodes", "n1", "gpu-2"), ["gpu-2", "n1"]),
    "one pod": (("pods", "runs"), ["runs"]),
    "a pod by kind and name": (("pods", "pod/waits", "-A"), ["waits"]),
    "one that waits": (("waiting", "new"), ["new"]),
}


@pytest.mark.parametrize(("words", "want"), SHOWN.values(), ids=SHOWN.keys())
def test_named_objects_are_shown_alone(words: tuple[str, ...], want: list[str], tmp_path: Path) -> None:
    items = json.loads(called(tmp_path, *words, "-o", "json", given=TWO)[1])["items"]
    assert [item["node" if words[0] == "nodes" else "name"] for item in items] == want


def test_a_place_in_the_queue_is_that_among_all_pods(tmp_path: Path) -> None:
    assert called(tmp_path, "waiting", "new", "-o", "jsonpath={.items[*].place}")[1] == "3"


ABSENT: dict[tuple[str, ...], str] = {
    ("nodes", "gpu-3"): "node 'gpu-3': not found; did you mean 'gpu-2'?\n",
    ("nodes", "bare"): "node 'bare': its agent has reported no GPU; kubectl gpufraction check says why\n",
    ("cordon", "gpu2", "0"): "node 'gpu2' has no GPUNode; did you mean 'gpu-2'?\n",
    ("cordon", "x", "0"): "node 'x' has no GPUNode; kubectl gpufraction nodes lists those that have one\n",
    ("pods", "run"): "pod 'run' in namespace 'default': not found; -n names another namespace; did you mean 'runs'?\n",
    ("pods", "web"): "pod 'web' in namespace 'default': it requests no GPU share\n",
    ("pods", "x", "-A"): "pod 'x': not found, or it requests no GPU share\n",
    ("waiting", "runs"): "pod 'runs' does not wait: it has its share\n",
    ("explain", "wait"): "pod 'wait' in namespace 'default': not found; -n names another namespace; did you mean "
    "'waits'?\n",
}


@pytest.mark.parametrize(("words", "message"), ABSENT.items(), ids=[" ".join(words) for words in ABSENT])
def test_a_name_that_is_not_there_says_which_one_it_resembles(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert called(tmp_path, *words, given=TWO) == (1, "", message)


@pytest.mark.parametrize("words", [("pods",), ("waiting",), ("nodes",)], ids=" ".join)
def test_labels_are_chosen_by_the_api_server(words: tuple[str, ...], tmp_path: Path) -> None:
    given: dict[str, tuple[int, Any]] = {"asked": (0, [])}
    assert called(tmp_path, *words, "-l", "app in (a,b)", given=given)[0] == 0
    assert [each for each in given["asked"][1] if "labelSelector=app+in" in each] != []


MODEL = "NVIDIA A100-SXM4-80GB"
LONG = "trainer-7d9f8b6c5d-x2x9z"
WIDE: dict[str, tuple[int, Any]] = {
    "/api/v1/nodes": collection(node("gpu-node-10")),
    GPUNODES: collection(gpunode("gpu-node-10", 81559, 81559, model=MODEL, unhealthy=1)),
    "/api/v1/pods": collection(
        admitted(LONG, "gpufraction.io/gpu-memory", "10Gi", on="gpu-node-10"),
        admitted("trainer-7d9f8b6c5d-a1b2c", "gpufraction.io/gpu-memory", "90Gi", waits=FULL),
    ),
}
WIDE[DEFAULT] = WIDE["/api/v1/pods"]


@pytest.mark.parametrize("words", [("nodes",), ("pods",), ("pods", "-A"), ("waiting",), ("idle",)], ids=" ".join)
def test_a_table_of_an_ordinary_cluster_has_at_most_100_columns(words: tuple[str, ...], tmp_path: Path) -> None:
    lines = called(tmp_path, *words, given=WIDE)[1].splitlines()
    assert max(map(len, lines)) <= 100, lines


def test_a_namespace_has_a_column_only_where_several_are_shown(tmp_path: Path) -> None:
    heads = [called(tmp_path, "pods", *flags)[1].split()[0] for flags in ((), ("-A",))]
    assert heads == ["NAME", "NAMESPACE"]


SENTENCE = "It waits, 1 of 3 in the queue: 0 of 1 GPU nodes fit: 1 short of memory"
LINES: dict[str, tuple[list[str], int, str]] = {
    "a pipe": ([SENTENCE], 0, f"{SENTENCE}\n"),
    "a terminal": ([SENTENCE], 40, "It waits, 1 of 3 in the queue: 0 of 1\n  GPU nodes fit: 1 short of memory\n"),
    "an indented line": (
        ["  main: GPU 0 of a node with a long name"],
        30,
        "  main: GPU 0 of a node with a\n    long name\n",
    ),
    "a command": (
        ["    kubectl -n team delete pod web-0 web-1 web-2"],
        30,
        "    kubectl -n team delete pod web-0 web-1 web-2\n",
    ),
    "an empty line": (["", "x"], 40, "\nx\n"),
    "a long name": (["x" * 50], 40, f"{'x' * 50}\n"),
}


@pytest.mark.parametrize(("lines", "width", "want"), LINES.values(), ids=LINES.keys())
def test_sentences_go_on_in_the_next_line_of_a_terminal(lines: list[str], width: int, want: str) -> None:
    assert wrapped(lines, width) == want


def test_the_last_cell_goes_on_under_itself() -> None:
    row = {"check": "leader", "found": "no allocator leads: replica-1 last renewed its Lease 90 s ago"}
    output = CommandOutput((Column("check", "CHECK"), Column("found", "FOUND")), [row])
    assert output.text(Form(width=45)) == (
        "CHECK    FOUND\n"
        "leader   no allocator leads: replica-1 last\n"
        "         renewed its Lease 90 s ago\n"
    )  # fmt: skip
    assert max(map(len, output.text(Form()).splitlines())) == 70
    assert output.text(Form(width=20)) == output.text(Form()), "too narrow for a column"


def test_pods_that_share_a_place_are_told_what_it_means(tmp_path: Path) -> None:
    again = WAITS | {"metadata": {**WAITS["metadata"], "name": "again", "uid": "again"}}
    both = {"/api/v1/pods": collection(RUNS, WAITS, again, NEW)}
    note = "Place 1-2: pods created in the same second, in an order that only the allocator knows"
    assert called(tmp_path, "waiting", given=both)[1].splitlines()[-1] == note
    assert note not in called(tmp_path, "waiting")[1]


TEAM = {"metadata": {"name": "team"}}
NONE: dict[str, tuple[tuple[str, ...], dict[str, tuple[int, Any]], str]] = {
    "a namespace without such pods": (
        ("pods", "-n", "team"),
        {"/api/v1/namespaces/team": (200, TEAM)},
        "No pod requests a GPU share in namespace team; -A looks in all.",
    ),
    "a namespace that is not there": (
        ("waiting", "-n", "taem"),
        {"/api/v1/namespaces": collection(TEAM)},
        "No pod waits for a GPU share in namespace taem, which does not exist; did you mean 'team'?",
    ),
    "one that resembles none": (
        ("idle", "-n", "x"),
        {"/api/v1/namespaces": NO},
        "No share is known to be idle in namespace x, which does not exist.",
    ),
    "a tenant who may not see it": (
        ("pods", "-n", "team"),
        {"/api/v1/namespaces/team": NO},
        "No pod requests a GPU share in namespace team; -A looks in all.",
    ),
    "labels that no pod has": (
        ("pods", "-A", "-l", "app=x"),
        {},
        "No pod requests a GPU share and has the labels app=x.",
    ),
}


@pytest.mark.parametrize(("words", "given", "message"), NONE.values(), ids=NONE.keys())
def test_an_empty_table_says_where_it_looked(
    words: tuple[str, ...], given: dict[str, tuple[int, Any]], message: str, tmp_path: Path
) -> None:
    empty = {f"/api/v1/namespaces/{words[-1]}/pods": collection(), "/api/v1/pods": collection()}
    assert called(tmp_path, *words, given=empty | given)[1] == f"{message}\n"
