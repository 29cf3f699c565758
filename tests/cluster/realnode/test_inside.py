"""Parsing what a container printed: both versions of control groups, and a device with an unusual answer."""

from __future__ import annotations

import pytest

from tests.cluster.realnode.inside import Inside, read

CASES: dict[str, tuple[str, Inside | None]] = {
    "not at its end": ("env NVIDIA_VISIBLE_DEVICES=void\n", None),
    "nothing": ("done\n", Inside()),
    "version 2": ("memory 67108864\ncpu 50000 100000\ndone\n", Inside(memory=64 << 20, cpus=0.5)),
    "version 2 without limits": ("memory max\ncpu max 100000\ndone\n", Inside()),
    "version 1 without limits": ("memory 9223372036854771712\ncpu -1 100000\ndone\n", Inside()),
    "a card that may be opened and one that may not": (
        "env NVIDIA_X=a=b\ndevice /dev/nvidia0 c3:0\n"
        "open 0 sh: can't open /tmp/card0: No such device or address\n"
        "open 1 sh: can't open /tmp/card1: Operation not permitted\nfile /etc/x\ndone\n",
        Inside({"NVIDIA_X": "a=b"}, {"/dev/nvidia0": "c3:0"}, (0,), ("/etc/x",)),
    ),
    "a capability of a slice": (
        "capability 12 sh: can't open /tmp/cap12: No such device or address\n"
        "capability 21 sh: can't open /tmp/cap21: Operation not permitted\ndone\n",
        Inside(capabilities=(12,)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_read(case: tuple[str, Inside | None]) -> None:
    printed, wanted = case
    assert read(printed) == wanted


def test_a_device_that_answers_otherwise_is_no_answer() -> None:
    with pytest.raises(AssertionError, match="ENXIO"):
        read("open 0 \ndone\n")
