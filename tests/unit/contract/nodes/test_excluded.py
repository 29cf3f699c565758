"""The list of cards that an administrator of Aliyun gpushare excludes: what it means, and what cannot be determined."""

from __future__ import annotations

from typing import Any

import pytest

from contract.model import Gpu
from contract.nodes.excluded import KeptOut, read, trim

CARDS = (Gpu("GPU-a", 0, "T4", 1, 1), Gpu("GPU-b", 1, "T4", 1, 1), Gpu("MIG-c", 2, "T4", 1, 1, parent="GPU-b"))


def listed(gpus: Any, name: str = "unhealthy-gpu-n1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"gpus": gpus}}


def wrong(found: str) -> KeptOut:
    cure = "give indexes or UUIDs separated by commas, such as 0,2"
    return KeptOut("n1", wrong=f"data.gpus: found {found}; {cure}")


LISTS: dict[str, tuple[dict[str, Any], KeptOut | None, list[str]]] = {
    "cards by index": (listed("0, 2"), KeptOut("n1", frozenset({"0", "2"})), ["GPU-a", "MIG-c"]),
    "an index with zeros before it": (listed("00"), KeptOut("n1", frozenset({"0"})), ["GPU-a"]),
    "a card by UUID, and its slices with it": (
        listed("GPU-b"),
        KeptOut("n1", frozenset({"GPU-b"})),
        ["GPU-b", "MIG-c"],
    ),
    "a card that is not there": (listed("7"), KeptOut("n1", frozenset({"7"})), []),
    "no card": (listed(""), KeptOut("n1"), []),
    "nothing at all": ({"metadata": {"name": "unhealthy-gpu-n1"}, "data": None}, KeptOut("n1"), []),
    "words that nobody understands": (listed("0;2"), wrong("'0;2'"), ["GPU-a", "GPU-b", "MIG-c"]),
    "one such word among others": (listed("0,all"), wrong("'all'"), ["GPU-a", "GPU-b", "MIG-c"]),
    "a number beyond every machine": (listed("99999"), wrong("'99999'"), ["GPU-a", "GPU-b", "MIG-c"]),
    "another ConfigMap": (listed("0", "kube-root-ca.crt"), None, []),
}


@pytest.mark.parametrize(("configmap", "want", "kept"), LISTS.values(), ids=LISTS.keys())
def test_which_cards_a_list_keeps_out(configmap: dict[str, Any], want: KeptOut | None, kept: list[str]) -> None:
    assert read(configmap) == want
    assert read(trim(configmap)) == want
    if want is not None:
        after = want.without(CARDS)
        assert [gpu.uuid for gpu in after if not gpu.healthy] == kept
        assert {(gpu.withheld, gpu.reason) for gpu in after if not gpu.healthy} <= {
            ("Cordoned", "named in the ConfigMap kube-system/unhealthy-gpu-n1")
        }
        assert kept or after is CARDS


STRANGERS = {
    "all there": ({"0", "GPU-b", "MIG-c"}, ""),
    "none at all": (set[str](), ""),
    "an index and a UUID that are not there": (
        {"0", "7", "GPU-x"},
        "data.gpus: found '7', 'GPU-x', which is not a GPU of node n1 and excludes nothing; give indexes (0, 1) or "
        "UUIDs separated by commas",
    ),
    "many": (
        {"5", "6", "7", "8"},
        "data.gpus: found '5', '6', '7' and 1 more, which is not a GPU of node n1 and excludes nothing; give indexes "
        "(0, 1) or UUIDs separated by commas",
    ),
}


@pytest.mark.parametrize(("words", "want"), STRANGERS.values(), ids=STRANGERS.keys())
def test_what_of_a_list_names_no_card(words: set[str], want: str) -> None:
    assert KeptOut("n1", frozenset(words)).strangers(CARDS) == want
    assert KeptOut("n1", frozenset(words)).strangers(()) == ""


def test_a_sick_card_stays_sick() -> None:
    sick = (Gpu("GPU-a", 0, "T4", 1, 1, healthy=False, reason="XID 79"),)
    assert KeptOut("n1", frozenset({"0"})).without(sick) is sick


def test_only_what_is_read_is_kept_of_other_peoples_objects() -> None:
    about = {"name": "coredns", "resourceVersion": "5", "managedFields": [1]}
    assert trim({"metadata": about, "data": {"gpus": "1", "Corefile": "x"}}) == {
        "metadata": {"name": "coredns", "resourceVersion": "5"},
        "data": {},
    }
