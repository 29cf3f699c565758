"""Handwritten protobuf, compared with bytes from protobuf's own encoder, and tested with arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.resourceclaims import PreparedDevice
from nodeagent.dra import wire
from nodeagent.dra.wire import BadMessage, ClaimRef, DeviceHealth, HealthStatus

DEVICE = PreparedDevice("main", "node", "gpu-0", ("a/b=c", "d/e=f"))


def text(number: int, value: str) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value.encode()


def nested(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def test_claims_are_read_in_any_order_of_their_fields() -> None:
    message = nested(1, text(3, "c") + text(1, "ns") + text(2, "u")) + nested(1, text(2, "only"))
    assert wire.claims(message) == (ClaimRef("ns", "u", "c"), ClaimRef("", "only", ""))


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\x48\x96\x01" + b"\x51" + bytes(8) + b"\x5d" + bytes(4)
    assert wire.claims(nested(1, text(2, "u") + unknown) + unknown) == (ClaimRef("", "u", ""),)


def test_devices_are_written_as_the_api_has_them() -> None:
    device = text(1, "main") + text(2, "node") + text(3, "gpu-0") + text(4, "a/b=c") + text(4, "d/e=f")
    assert wire.prepared({"u": (DEVICE,)}) == nested(1, text(1, "u") + nested(2, nested(1, device)))


def test_a_claim_that_gives_nothing_still_has_an_entry() -> None:
    assert wire.prepared({"u": ()}) == nested(1, text(1, "u") + nested(2, b""))
    assert wire.unprepared({"u": ""}) == nested(1, text(1, "u") + nested(2, b""))


def test_errors_are_in_the_fields_of_their_messages() -> None:
    assert wire.prepared({"u": "why"}) == nested(1, text(1, "u") + nested(2, text(2, "why")))
    assert wire.unprepared({"u": "why"}) == nested(1, text(1, "u") + nested(2, text(1, "why")))


def test_registration() -> None:
    info = text(1, "DRAPlugin") + text(2, "n") + text(3, "/e") + text(4, "v1.DRAPlugin")
    assert wire.plugin_info("n", "/e") == info + text(4, "v1alpha1.DRAResourceHealth")
    assert wire.registration(b"\x08\x01") == (True, "")
    assert wire.registration(text(2, "too old")) == (False, "too old")


def test_health_is_written_as_protobufs_own_encoder_writes_it() -> None:
    devices = [
        DeviceHealth("node", "gpu-0", HealthStatus.HEALTHY),
        DeviceHealth("node", "gpu-1", HealthStatus.UNHEALTHY, "XID 79"),
        DeviceHealth("node", "gpu-2", HealthStatus.UNKNOWN),
    ]
    assert wire.device_healths(devices, at=1_700_000_000, timeout=30) == (
        b"\n\x19\n\r\n\x04node\x12\x05gpu-0\x10\x01\x18\x80\xe2\xcf\xaa\x06 \x1e"
        b"\n!\n\r\n\x04node\x12\x05gpu-1\x10\x02\x18\x80\xe2\xcf\xaa\x06 \x1e*\x06XID 79"
        b"\n\x17\n\r\n\x04node\x12\x05gpu-2\x18\x80\xe2\xcf\xaa\x06 \x1e"
    )
    assert wire.device_healths([], at=1, timeout=30) == b""


@given(st.text(st.characters(), max_size=20), st.integers(0, 2000))
def test_a_message_of_any_text_is_cut_between_two_characters(start: str, more: int) -> None:
    device = DeviceHealth("p", "d", HealthStatus.UNHEALTHY, start + "é" * more)
    written = wire.device_healths([device], at=0, timeout=0)
    assert len(written) <= 1024 + 20
    kept = written.partition(b"\x10\x02")[2]
    if kept:
        # A tag, the length in one or two bytes, then the text.
        whole = kept[2:] if kept[1] < 0x80 else kept[3:]
        assert whole.decode() == (start + "é" * more).encode(errors="replace").decode()[: len(whole.decode())]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    for read in (wire.claims, wire.registration):
        try:
            read(message)
        except BadMessage:
            continue


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05a", b"\x0b", b"\x08" + b"\xff" * 11, b"\x02\x00"])
def test_a_message_that_is_cut_off_is_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        wire.claims(message)


@given(st.text(max_size=300), st.lists(st.text(max_size=300), max_size=4).map(tuple))
def test_long_texts_survive(name: str, cdi: tuple[str, ...]) -> None:
    written = wire.prepared({"u": (PreparedDevice(name, "p", "d", cdi),)})
    assert len(written) > len(name.encode()) + sum(len(each.encode()) for each in cdi)
