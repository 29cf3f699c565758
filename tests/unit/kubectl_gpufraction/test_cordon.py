"""`cordon` and `uncordon`: which GPUs a word selects, the resulting annotation, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from contract.encoding.quantity import MIB
from contract.model import Gpu
from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.commands.cordon import Cordoning, NoSuchGpu, cordoned, uncordoned
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import gpunode, node
from tests.wires import status_body

GPUS = (
    Gpu("GPU-a", 0, "A100", 100 * MIB, 100 * MIB),
    Gpu("GPU-b", 1, "A100", 100 * MIB, 100 * MIB),
    Gpu("MIG-b1", 2, "A100 1g", 10 * MIB, 10 * MIB, parent="GPU-b"),
)
CORDONS: dict[str, tuple[list[str], list[str], tuple[str, ...]]] = {
    "by index": ([], ["0"], ("GPU-a",)),
    "by UUID": ([], ["GPU-b"], ("GPU-b",)),
    "a slice": ([], ["MIG-b1"], ("MIG-b1",)),
    "several, one twice": ([], ["1", "0", "GPU-b"], ("GPU-b", "GPU-a")),
    "one more": (["1"], ["0"], ("1", "GPU-a")),
    "once more": (["0"], ["GPU-a"], ("0",)),
    "a slice of a card that is cordoned": (["1"], ["MIG-b1"], ("1",)),
    "beside a stranger": (["7"], ["0"], ("7", "GPU-a")),
}
UNCORDONS: dict[str, tuple[list[str], list[str], tuple[str, ...]]] = {
    "all": (["0", "GPU-b", "7"], [], ()),
    "by index what was cordoned by UUID": (["GPU-a", "1"], ["0"], ("1",)),
    "by UUID what was cordoned by index": (["0", "1"], ["GPU-b"], ("0",)),
    "one that is not cordoned": (["0"], ["1"], ("0",)),
    "a slice": (["MIG-b1", "0"], ["MIG-b1"], ("0",)),
}
HERE = "it has 0 (GPU-a), 1 (GPU-b), 2 (MIG-b1)"


@pytest.mark.parametrize(("before", "wanted", "words"), CORDONS.values(), ids=CORDONS.keys())
def test_cordon(before: list[str], wanted: list[str], words: tuple[str, ...]) -> None:
    assert cordoned(before, wanted, GPUS, "n1") == Cordoning(words, tuple(before), GPUS)


@pytest.mark.parametrize(("before", "wanted", "words"), UNCORDONS.values(), ids=UNCORDONS.keys())
def test_uncordon(before: list[str], wanted: list[str], words: tuple[str, ...]) -> None:
    assert uncordoned(before, wanted, GPUS, "n1") == Cordoning(words, tuple(before), GPUS)


@pytest.mark.parametrize("word", ["3", "GPU-c", "GPU", "-1", "2", "00000"])
def test_a_gpu_that_is_not_there_is_refused(word: str) -> None:
    for change in (cordoned, uncordoned):
        with pytest.raises(NoSuchGpu) as refused:
            change(["0"], [word], GPUS, "n1")
        assert str(refused.value) == f"node 'n1' has no GPU {word!r}; {HERE}"


def test_a_slice_of_a_cordoned_card_cannot_be_given_back_alone() -> None:
    with pytest.raises(NoSuchGpu, match="MIG-b1 is a slice of the card GPU-b, which is cordoned as a whole"):
        uncordoned(["1"], ["MIG-b1"], GPUS, "n1")


def test_a_cards_slices_are_cordoned_with_it() -> None:
    rows = cordoned([], ["1"], GPUS, "n1").rows("n1")
    assert [(row["gpu"], row["cordoned"], row["changed"]) for row in rows] == [
        (0, False, False),
        (1, True, True),
        (2, True, True),
    ]


GPUNODE, NODE = "/apis/gpufraction.io/v1alpha1/gpunodes/n1", "/api/v1/nodes/n1"


def run(tmp_path: Path, given: dict[str, tuple[int, Any]], *arguments: str) -> tuple[int, str, str, list[Any]]:
    out, err = io.StringIO(), io.StringIO()
    with answering(given) as port:
        flags = ("--kubeconfig", str(kubeconfig(tmp_path, port)))
        status = main([*arguments, *flags], out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue(), given.get("seen", (0, []))[1]


def seen(*words: str) -> dict[str, tuple[int, Any]]:
    found = node("n1")
    found["metadata"] |= {"resourceVersion": "7", "annotations": {"gpufraction.io/cordon": ",".join(words)}}
    return {GPUNODE: (200, gpunode("n1", 15109, 15109)), NODE: (200, found)}


def test_the_annotation_is_written_at_the_version_that_was_read(tmp_path: Path) -> None:
    status, out, err, writes = run(tmp_path, seen("0"), "cordon", "n1", "1")
    metadata = {"annotations": {"gpufraction.io/cordon": "0,GPU-n1-1"}, "resourceVersion": "7"}
    assert (status, err, writes) == (0, "", [("PATCH", NODE, {"metadata": metadata})])
    assert out.splitlines() == [
        "NODE   GPU   MODEL      UUID       CORDONED   CHANGED",
        "n1     0     Tesla T4   GPU-n1-0   yes        no",
        "n1     1     Tesla T4   GPU-n1-1   yes        yes",
        "The node's agent applies this within seconds. Running pods stay.",
    ]


def test_the_last_word_takes_the_annotation_away(tmp_path: Path) -> None:
    *_, writes = run(tmp_path, seen("0"), "uncordon", "n1")
    metadata = {"annotations": {"gpufraction.io/cordon": None}, "resourceVersion": "7"}
    assert writes == [("PATCH", NODE, {"metadata": metadata})]


def test_where_nothing_changes_nothing_is_written(tmp_path: Path) -> None:
    status, out, _, writes = run(tmp_path, seen("0", "9"), "cordon", "n1", "0")
    assert (status, writes) == (0, [])
    assert out.splitlines()[3:] == [
        "Nothing was changed.",
        "The annotation gpufraction.io/cordon also has words that name no GPU: 9",
    ]


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such GPU": (("cordon", "n1", "5"), 2, "node 'n1' has no GPU '5'; it has 0 (GPU-n1-0), 1 (GPU-n1-1)\n"),
    "no such node": (
        ("cordon", "n2", "0"),
        1,
        "node 'n2' has no GPUNode; kubectl gpufraction nodes lists those that have one\n",
    ),
    "with --watch": (("cordon", "n1", "0", "--watch"), 2, "cordon runs once; omit --watch\n"),
}


@pytest.mark.parametrize(("arguments", "status", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(arguments: tuple[str, ...], status: int, message: str, tmp_path: Path) -> None:
    assert run(tmp_path, seen(), *arguments) == (status, "", message, [])


def test_a_node_that_others_change_all_the_time_is_given_up(tmp_path: Path) -> None:
    given = seen() | {f"PATCH {NODE}": (409, status_body(409, "Conflict", "changed"))}
    status, out, err, writes = run(tmp_path, given, "cordon", "n1", "0")
    assert (status, out, len(writes)) == (1, "", 3)
    assert err == "node 'n1' was changed by other clients 3 times meanwhile; try again\n"
