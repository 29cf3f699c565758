"""Names as Kubernetes allows them, and what strangers send instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract.encoding import reading

LABEL, SUBDOMAIN, BEGINNING, UID = reading.is_label, reading.is_subdomain, reading.is_beginning, reading.is_uid
GOOD: dict[str, tuple[Callable[[str], bool], list[str]]] = {
    "a namespace": (LABEL, ["a", "team-a", "0", "a" * 63]),
    "a pod": (SUBDOMAIN, ["a", "train-0.b", "a--b", "a" * 253, ".".join(["ab"] * 80)]),
    "a pod that is named later": (BEGINNING, ["a", "train-", "train--", "a.", "0-", "a" * 253]),
    "a uid": (UID, ["705ab4f5-6393-11e8-b7cc-42010a800002", "1", "u" * 128]),
}
NEVER = ["", ".", "..", "-", "../a", "a/b", "a\n", "\n", "a b", "A", "ä", "a\x00", "\ud800", "x" * (1 << 20)]
BAD: dict[str, tuple[Callable[[str], bool], list[str]]] = {
    "a namespace": (LABEL, [*NEVER, "a.b", "a" * 64, "-a", "a-"]),
    "a pod": (SUBDOMAIN, [*NEVER, "a..b", "-a", "a-", "a.", ".a", "a.-b", "a" * 254]),
    "a pod that is named later": (BEGINNING, [*NEVER, "a..", "-a", "--", "a" * 254]),
    "a uid": (UID, ["", "a b", "a\n", "ä", "u" * 129]),
}


@pytest.mark.parametrize(("holds", "texts"), GOOD.values(), ids=GOOD.keys())
def test_names(holds: Callable[[str], bool], texts: list[str]) -> None:
    assert [text for text in texts if not holds(text)] == []


@pytest.mark.parametrize(("holds", "texts"), BAD.values(), ids=BAD.keys())
def test_what_is_no_name(holds: Callable[[str], bool], texts: list[str]) -> None:
    assert [text[:20] for text in texts if holds(text)] == []
