"""Every list and every watch of a program names its row, and no object makes a program large."""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import json
import re
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import kinds
from contract.kinds import ObjectKind
from runtime.kubernetes.client import Kube, KubeMalformed, Listing
from tests.examples import examples
from tests.odd import VALUES, places, put
from tests.unit.runtime.scripted import line
from tests.wires import Answer, Script, Sent, Transport

JSON = dict[str, Any]
ROOT = Path(__file__).parents[4]
PROGRAMS = ("contract", "runtime", "webhook", "allocator", "nodeagent", "kubectl_gpufraction", "shadow")
ROWS = {name: row for name, row in vars(kinds).items() if isinstance(row, ObjectKind) and row is not kinds.ANYTHING}
MIB = 1 << 20


# -- no caller is missing -----------------------------------------------------------------------------------------


@functools.cache
def calls() -> tuple[tuple[str, ast.Call], ...]:
    """Every call in a program that lists or watches a collection, and where it is."""
    return tuple(
        (f"{path.relative_to(ROOT)}:{node.lineno} ({program})", node)
        for program in PROGRAMS
        for path in sorted((ROOT / program).rglob("*.py"))
        if re.search(r"\b(list|pages|watch|Informer)\s*\(", text := path.read_text())  # most modules need not be parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and reads_a_collection(node.func)
    )


def reads_a_collection(called: ast.expr) -> bool:
    """`kube.list`, `self._kube.pages`, `session.kube.watch` and the like, and `Informer`."""
    if isinstance(called, ast.Name):
        return called.id == "Informer"
    if not isinstance(called, ast.Attribute) or called.attr not in ("list", "pages", "watch"):
        return False
    owner = called.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name.lstrip("_") in ("kube", "api", "client")


def row_of(call: ast.Call) -> str:
    given = {each.arg: each.value for each in call.keywords}
    return ast.unparse(given["of"]) if "of" in given else ""


def test_every_list_and_every_watch_names_a_row() -> None:
    found = {where: row_of(call) for where, call in calls()}
    handed_on = {"of", "self._of", "_READ[plural]", "kind.of"}
    """Functions that get the row from their caller, or from a table by plural."""
    wrong = {
        where: row for where, row in found.items() if row not in handed_on and row.removeprefix("kinds.") not in ROWS
    }
    assert wrong == {}
    assert len(found) > 25


def test_no_whole_pods_are_held_by_who_lists_them() -> None:
    large = ("kinds.PODS", "kinds.PODS_COMPARED")
    found = [
        where for where, call in calls() if row_of(call) in large and not any(k.arg == "trim" for k in call.keywords)
    ]
    assert found == []


def test_every_row_is_read_by_somebody() -> None:
    text = "\n".join(path.read_text() for program in PROGRAMS for path in (ROOT / program).rglob("*.py"))
    assert [name for name in ROWS if f"kinds.{name}" not in text] == []


def test_a_path_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not a collection of pods"):
        Kube(Script()).list("/api/v1/nodes", of=kinds.PODS)


# -- no object is large -------------------------------------------------------------------------------------------

TEXT = 1_400_000


def annotated(name: str, part: int) -> JSON:
    """55,000 annotations, as the API server shows them: with the same number of managed fields."""
    made = {f"{at:05}": "" for at in range(55_000 // part)}
    fields: JSON = {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in made}}}
    return {"metadata": {"name": name, "annotations": made, "managedFields": [{"manager": "m", "fieldsV1": fields}]}}


def managed(name: str, part: int) -> JSON:
    fields: JSON = {f"f:{at}": {} for at in range(100_000 // part)}
    return {"metadata": {"name": name, "managedFields": [{"manager": "m", "fieldsV1": fields}]}}


def labelled(name: str, part: int) -> JSON:
    return {"metadata": {"name": name, "labels": {f"example.com/{at:06}": "x" * 20 for at in range(30_000 // part)}}}


def ours(name: str, part: int) -> JSON:
    """Labels and annotations with our own names, which no row drops by name alone."""
    made = {f"gpufraction.io/x{at:06}": "x" for at in range(40_000 // part)}
    return {"metadata": {"name": name, "labels": made, "annotations": made}}


def owned(name: str, part: int) -> JSON:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "n" * 50, "uid": "u" * 36}
    return {
        "metadata": {
            "name": name,
            "ownerReferences": [owner] * (10_000 // part),
            "finalizers": ["example.com/f"] * (10_000 // part),
        }
    }


def specified(name: str, part: int) -> JSON:
    listed = [{"name": f"n{at}", "key": "k", "value": ["v", {}]} for at in range(25_000 // part)]
    return {
        "metadata": {"name": name},
        "spec": {"containers": listed, "volumes": listed, "taints": listed, "resources": {"requests": {"x": listed}}},
        "data": {"gpus": "0," * (300_000 // part), "other": "x" * (300_000 // part)},
        "template": {"spec": listed},
        "parameters": {"x": listed},
    }


def reported(name: str, part: int) -> JSON:
    listed = [
        {"type": f"t{at}", "status": "True", "message": "m", "name": "n", "containerID": "c"}
        for at in range(20_000 // part)
    ]
    return {
        "metadata": {"name": name},
        "status": {"conditions": listed, "containerStatuses": listed, "reservedFor": listed},
    }


def wide(name: str, part: int) -> JSON:
    """One character outside the first plane makes each character of the text take four bytes."""
    return {"metadata": {"name": name, "annotations": {"a": "😀" + "x" * (TEXT // part)}}}


SHAPES = (annotated, managed, labelled, ours, owned, specified, reported, wide)


@functools.cache
def texts(part: int = 1) -> tuple[bytes, ...]:
    """An object of each shape, each of the maximum size or a part of that."""
    made = tuple(json.dumps(shape(shape.__name__, part), ensure_ascii=False).encode() for shape in SHAPES)
    assert min(map(len, made)) >= LEAST // part
    return made


class Collection(Transport):
    """An object of each shape, three in a page; alone at full size, because a page cannot hold three of those."""

    def __init__(self, part: int = 1) -> None:
        self._part = part

    def answer(self, sent: Sent) -> Answer:
        start = int(sent.query.get("continue", 0))
        end = min(start + int(sent.query["limit"]), len(SHAPES), start + (3 if self._part == 1 else 1))
        more = f',"continue":"{end}"' if end < len(SHAPES) else ""
        head = b'{"kind":"List","metadata":{"resourceVersion":"7"' + more.encode() + b'},"items":['
        return Answer(body=[head + b",".join(texts(self._part)[start:end]) + b"]}"])


LEAST, MOST_PEAK, MOST_HELD = 600_000, 96 * MIB, 12 * MIB
"""Bytes: of the text of each object, of the memory while they are read, and of what is kept of all of them."""
PASSING = (kinds.PODS, kinds.PODS_COMPARED, kinds.SHOWN, kinds.EVENTS)
"""
Rows whose objects are not kept after they are read: the first two are always read with a `trim` or in parts, and the
others only by commands on a user's own machine.
"""


class Reader:
    """Lists the objects of a megabyte, or of a part of one, with one row, as programs do."""

    def __init__(self, row: ObjectKind, part: int = 1) -> None:
        self.refused: list[str] = []
        self.sizes: list[int] = []
        self._row = scaled(row, part)
        self._passing = row in PASSING
        self._kube = Kube(Collection(part), oversized=lambda kind, name, length: self.refused.append(name))

    def read(self) -> Listing:
        path = f"/x/{self._row.plural}" if self._row.plural else "/x"
        return self._kube.list(path, of=self._row, trim=self._seen)

    def keeps_little(self) -> None:
        assert max(self.sizes, default=0) <= self._row.most or self._row.beyond is not None
        assert len(self.sizes) >= len(SHAPES) - len(self.refused)

    def _seen(self, kept: JSON) -> JSON:
        self.sizes.append(size(kept))
        return {} if self._passing else kept


def scaled(row: ObjectKind, part: int) -> ObjectKind:
    """With a part of the bound, for objects of a part of a megabyte: the same happens, in a part of the time."""
    return replace(row, most=row.most // part)


@pytest.mark.parametrize("name", ROWS)
def test_of_a_large_object_the_row_keeps_little(name: str) -> None:
    reader = Reader(ROWS[name], SMALL)
    assert len(reader.read().items) == len(reader.sizes)
    reader.keeps_little()


FEW = tuple(shape(shape.__name__, 5_000) for shape in SHAPES)


@settings(max_examples=examples(25), deadline=None)
@given(whole=st.sampled_from(FEW), value=VALUES, data=st.data())
def test_whatever_an_object_is_little_of_it_is_kept_and_the_next_is_read(
    whole: JSON, value: Any, data: st.DataObject
) -> None:
    odd = put(whole, data.draw(st.sampled_from(places(whole))), value)
    page = json.dumps({"kind": "List", "metadata": {}, "items": [odd, {"metadata": {"name": "honest"}}]}).encode()
    for row in (scaled(each, SMALL) for each in ROWS.values()):
        kube = Kube(Script(Answer(body=page)), oversized=lambda *_: None)
        *kept, last = kube.list(f"/x/{row.plural}" if row.plural else "/x", of=row).items
        assert last["metadata"]["name"] == "honest"
        assert row.beyond is not None or max(map(size, kept), default=0) <= row.most


SMALL, QUARTER = 16, 4
MEASURED = ("PODS", "GPUNODES", "RESOURCECLAIMS")
"""The rows whose memory `make test` measures, at a part of the size; `make storm` measures all of them at full size."""


@pytest.mark.parametrize(
    ("name", "part"),
    [*((name, QUARTER) for name in MEASURED), *(pytest.param(name, 1, marks=pytest.mark.storm) for name in ROWS)],
)
def test_objects_of_a_megabyte_take_little_memory(name: str, part: int) -> None:
    texts(part)
    reader = Reader(ROWS[name], part)
    peak, held, _ = measured(reader.read)
    assert peak <= MOST_PEAK // part
    assert held <= MOST_HELD // part
    reader.keeps_little()


def size(kept: JSON) -> int:
    return len(json.dumps(kept, separators=(",", ":")))


def test_without_a_row_the_same_objects_take_much() -> None:
    texts(QUARTER)
    _, held, listed = measured(lambda: Kube(Collection(QUARTER)).list("/x"))
    assert (held > 5 * MOST_HELD // QUARTER, len(listed.items)) == (True, len(SHAPES))


def measured(act: Any) -> tuple[int, int, Any]:
    """The peak of the memory that was allocated meanwhile, what is left of it, and the result."""
    gc.collect()
    tracemalloc.start()
    try:
        result = act()
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak, held, result


@pytest.mark.parametrize(
    "row", [kinds.PODS, kinds.NODES, kinds.KEPT_OUT, kinds.RESOURCECLAIMS], ids=lambda row: row.plural
)
def test_an_event_about_a_large_object_brings_what_a_list_brings(row: ObjectKind) -> None:
    found = labelled("x", 1)
    page = {"kind": "List", "metadata": {"resourceVersion": "7"}, "items": [found]}
    listed = Kube(Script(Answer(body=page)), oversized=lambda *_: None).list(f"/x/{row.plural}", of=row).items
    stream = Kube(Script(Answer(body=line("MODIFIED", found) + b"\n")), oversized=lambda *_: None).watch(
        f"/x/{row.plural}", resource_version="7", timeout_seconds=60, of=row
    )
    deleted = {"type": "DELETED", "object": {"metadata": {"name": "x"}}}
    assert list(stream) == [{"type": "MODIFIED", "object": listed[0]} if listed else deleted]


# -- the text of a page -------------------------------------------------------------------------------------------

values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)


@given(
    st.lists(objects, max_size=4), objects, st.sampled_from([None, 1, "\t"]), st.permutations(range(3)), st.booleans()
)
def test_a_page_reads_as_the_json_module_reads_it(
    items: list[JSON], meta: JSON, indent: Any, order: list[int], ascii_only: bool
) -> None:
    members: list[tuple[str, Any]] = [("items", items), ("metadata", meta), ("kind", "XList")]
    text = json.dumps(dict(members[at] for at in order), indent=indent, ensure_ascii=ascii_only)
    script = Script(Answer(body=text.encode("utf-8", "surrogatepass")))
    assert Kube(script).list("/x").items == json.loads(text)["items"]


@given(st.lists(objects, max_size=2), st.data())
def test_a_page_that_is_cut_or_damaged_is_malformed_or_json(items: list[JSON], data: st.DataObject) -> None:
    text = json.dumps({"kind": "XList", "metadata": {}, "items": items})
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = data.draw(st.sampled_from([text[:at], text[:at] + text[at + 1 :], text[:at] + "]" + text[at:]]))
    try:
        read: Mapping[str, Any] | None = json.loads(damaged)
    except ValueError:
        read = None
    script = Script(Answer(body=damaged.encode("utf-8", "surrogatepass")))
    try:
        found = Kube(script).list("/x").items
    except KubeMalformed:
        return
    assert read is not None
    assert found == (read.get("items") or [])


def test_an_object_beyond_every_bound_ends_the_read() -> None:
    script = Script(*itertools.repeat(Answer(body=b"x" * (21 * MIB)), 6))
    with pytest.raises(KubeMalformed, match="an object of more than 20 MiB"):
        Kube(script).list("/x/pods", page=2, of=kinds.PODS)
    with pytest.raises(KubeMalformed, match="an object of more than 20 MiB"):
        Kube(Script(Answer(body=b"x" * (21 * MIB)))).get("/x/pods/a")
    stream = Kube(Script(Answer(body=[b"x" * MIB] * 21))).watch("/x", resource_version="1", timeout_seconds=60)
    with pytest.raises(KubeMalformed, match="an event of more than 20 MiB"):
        next(stream)
