"""Our authority in the webhooks' bundles: it is merged with others', and never overwrites another writer."""

from __future__ import annotations

import datetime
from datetime import timedelta

import pytest

from runtime.kubernetes.errors import KubeInvalid
from tests.unit.webhook.certificates.cluster import NOW, YEAR, Api, b64
from webhook.certificates import configuration
from webhook.certificates.authority import renewed


def authority(number: int, at: datetime.datetime = NOW) -> bytes:
    return renewed(None, at, (f"n{number}",)).ca


@pytest.fixture(scope="module")
def authorities() -> list[bytes]:
    return [authority(number) for number in range(3)]


def test_bundles_are_merged(authorities: list[bytes]) -> None:
    first, second, third = authorities
    old = authority(9, NOW - 11 * YEAR)
    junk = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    cases = {
        "nothing there": (b"", first),
        "a placeholder": (b"\n", first),
        "ours is there": (first, first),
        "another stays, in front": (second, second + first),
        "ours stays where it is": (first + second, first + second),
        "an ended one goes": (old + second, second + first),
        "doubles go": (second + second, second + first),
        "an unreadable one spoils nothing": (junk + third, third + first),
    }
    assert {name: configuration.merged(present, first, now=NOW) for name, (present, _) in cases.items()} == {
        name: want for name, (_, want) in cases.items()
    }


def test_a_bundle_does_not_grow_without_end(authorities: list[bytes]) -> None:
    many = [authority(number, NOW - timedelta(days=number)) for number in range(1, configuration.MOST + 4)]
    merged = configuration.merged(b"".join(many), authorities[0], now=NOW)
    assert merged == b"".join(many[: configuration.MOST - 1]) + authorities[0]


def test_every_webhook_of_the_configuration_gets_the_authority_once(authorities: list[bytes]) -> None:
    first, second, _ = authorities
    api = Api("", b64(second), "!", b64(first))
    assert configuration.trust(api, "gpufraction", first, now=NOW) == 3
    assert [w["clientConfig"]["caBundle"] for w in api.webhooks] == [
        b64(first),
        b64(second + first),
        b64(first),
        b64(first),
    ]
    assert configuration.trust(api, "gpufraction", first, now=NOW) == 0
    assert api.writes == 1


def test_a_writer_in_between_is_not_overwritten(authorities: list[bytes]) -> None:
    api = Api("", races=3)
    assert configuration.trust(api, "gpufraction", authorities[0], now=NOW) == 1
    with pytest.raises(KubeInvalid):
        configuration.trust(Api("", races=100), "gpufraction", authorities[0], now=NOW)
