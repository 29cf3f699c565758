"""What supervisor and agent tell each other, also if their versions differ."""

from __future__ import annotations

import json

import pytest

from nodeagent.mps.exchange import (
    GpuReport,
    Report,
    knows_multiuser,
    most_clients,
    report_from_text,
    report_to_text,
    shortcomings,
    wanted_from_text,
    wanted_to_text,
)

WHOLE = Report(100.0, {"GPU-0": GpuReport("serving", True, True, "", (71,), 2, 48, 1), "GPU-1": GpuReport("off")})


def test_a_report_comes_back_as_it_was() -> None:
    assert report_from_text(report_to_text(WHOLE), now=110.0, patience=15.0) == WHOLE
    assert WHOLE.servers == frozenset({71})


NONE = {
    "nothing": ("", 100.0),
    "no JSON": ("{", 100.0),
    "no object": ("[]", 100.0),
    "no GPUs": ('{"at": 100}', 100.0),
    "too old": (report_to_text(WHOLE), 116.0),
    "of a clock that was set back since": (report_to_text(WHOLE), 80.0),
}


@pytest.mark.parametrize(("text", "now"), NONE.values(), ids=NONE.keys())
def test_what_is_no_report(text: str, now: float) -> None:
    assert report_from_text(text, now=now, patience=15.0) is None


def test_what_is_not_understood_claims_nothing() -> None:
    odd = {"phase": 7, "serving": "yes", "taking": 1, "servers": ["a", 3], "clients": "many", "new": {}}
    found = report_from_text(json.dumps({"at": 1, "gpus": {"GPU-0": odd, "GPU-1": 5}}), now=1.0, patience=1.0)
    assert found == Report(1.0, {"GPU-0": GpuReport("7", taking=False, servers=(3,))})


def test_wanted_gpus() -> None:
    assert wanted_from_text(wanted_to_text({"GPU-1", "GPU-0"})) == frozenset({"GPU-0", "GPU-1"})
    assert [wanted_from_text(text) for text in ("", "[]", '{"gpus": 1}')] == [None, None, None]


CLIENTS = {
    "before CUDA 13.1": ("8.0", "580.95.05", 48),
    "since CUDA 13.1": ("7.0", "590.44", 60),
    "an unknown driver": ("9.0", "", 48),
    "before Volta there are no limits": ("6.1", "590.44", 0),
    "an unknown card": ("", "590.44", 0),
}


@pytest.mark.parametrize(("capability", "driver", "want"), CLIENTS.values(), ids=CLIENTS.keys())
def test_the_most_clients(capability: str, driver: str, want: int) -> None:
    assert most_clients(capability, driver) == want


SHORT = {
    "a driver that knows everything": ("555.58.02", True, ""),
    "a driver whose servers are one user's": (
        "550.163.01",
        True,
        "the MPS daemon of driver 550.163.01 is an old one: a container of another user waits until the earlier "
        "clients have ended",
    ),
    "nobody asked for a server of all users": ("550.163.01", False, ""),
    "a driver that cannot tell faults": (
        "535.261.03",
        False,
        "the MPS daemon of driver 535.261.03 is an old one: faults of its servers are not detected",
    ),
    "a driver that is not known": ("", True, ""),
    "a driver with a strange version": ("r5x", True, ""),
}


@pytest.mark.parametrize(("driver", "multiuser", "sentence"), SHORT.values(), ids=SHORT.keys())
def test_what_an_old_driver_lacks_is_reported(driver: str, multiuser: bool, sentence: str) -> None:
    assert shortcomings(driver, multiuser=multiuser) == sentence
    assert knows_multiuser(driver) is (driver == "555.58.02")
