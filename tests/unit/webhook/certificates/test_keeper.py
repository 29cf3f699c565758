"""Keeping certificates valid: created, trusted before they serve, renewed in time; old and new authority together."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import os
import threading
from pathlib import Path
from typing import Any

from runtime.kubernetes.errors import KubeNotFound
from tests.unit.webhook.certificates.cluster import JSON, NAMES, NOW, YEAR, Api, places
from webhook.certificates.authority import Bundle, Lives, needs_renewal
from webhook.certificates.keeper import SETTLING, Ensure


def ensure(folder: Path, api: Any, logged: list[str], now: datetime.datetime = NOW) -> Ensure:
    return Ensure(
        store=lambda: places(folder),
        names=NAMES,
        configuration="gpufraction",
        connect=lambda: api,
        now=lambda: now,
        say=logged.append,
    )


def test_ensuring_makes_keeps_and_renews(tmp_path: Path) -> None:
    api = Api("")
    logged: list[str] = []
    assert [ensure(tmp_path, api, logged).once() for _ in range(2)] == [0, 0]
    first = places(tmp_path).read()
    assert ensure(tmp_path, api, logged, NOW + YEAR * 0.7).once() == 0
    second = places(tmp_path).read()
    assert first is not None
    assert second is not None
    assert (first.ca == second.ca, first.certificate == second.certificate) == (True, False)
    assert logged == [
        "the authority is now in 1 webhooks of gpufraction",
        f"a new certificate is in {tmp_path / 'serving'} (missing: there is no complete certificate)",
        f"the certificate in {tmp_path / 'serving'} is good",
        f"a new certificate is in {tmp_path / 'serving'} (due: the certificate ends 2027-03-01 12:00, and two "
        "thirds of its lifetime are over)",
    ]


def test_a_certificate_that_nobody_trusts_yet_is_not_served(tmp_path: Path) -> None:
    class Missing(Api):
        def get(self, path: str) -> JSON:
            raise KubeNotFound("GET: 404")

    logged: list[str] = []
    assert ensure(tmp_path, Missing(""), logged).once() == 1
    assert places(tmp_path).read() is None
    assert logged == []


def test_looking_again_ends_with_the_stop_and_says_only_what_changed(tmp_path: Path) -> None:
    stop = threading.Event()
    logged: list[str] = []
    looks: list[datetime.datetime] = []

    def clock() -> datetime.datetime:
        looks.append(NOW)
        if len(looks) > 5:
            stop.set()
        return NOW

    looped = dataclasses.replace(ensure(tmp_path, Api(""), logged), now=clock)
    looped.until(stop, every=0.001)
    assert len(looks) == 6
    assert len(logged) == 2
    assert os.path.islink(tmp_path / "serving" / "tls.crt")


DUE_AT = NOW + 7 * YEAR
"""
By then two thirds of the authority's life are over, and so are two thirds of a certificate's with the same lifetime.
"""
LONG = Lives(leaf=10 * YEAR)


def test_a_new_authority_is_trusted_beside_the_old_one_before_it_serves(tmp_path: Path) -> None:
    api = Api("")
    logged: list[str] = []

    def look(at: datetime.datetime) -> tuple[Bundle, bytes]:
        """The bundle that is served after a look, and the authorities that are trusted then."""
        assert dataclasses.replace(ensure(tmp_path, api, logged, at), lives=LONG).once() == 0
        served = places(tmp_path).read()
        assert served is not None
        return served, base64.b64decode(api.webhooks[0]["clientConfig"]["caBundle"])

    first, _ = look(NOW)
    aside, both = look(DUE_AT)
    soon, same = look(DUE_AT + SETTLING / 2)
    second, after = look(DUE_AT + SETTLING)
    kept, _ = look(DUE_AT + 2 * SETTLING)
    assert (aside, soon, kept) == (first, first, second)
    assert second.ca != first.ca
    assert both == same == after == first.ca + second.ca
    assert needs_renewal(second, DUE_AT, NAMES) is None
    assert places(tmp_path).prepared() is None
    why = "due: the certificate ends 2036-02-27 12:00, and two thirds of its lifetime are over"
    assert logged[2:] == [
        "the authority is now in 1 webhooks of gpufraction",
        f"a new authority is ready and will be used when the API servers know it ({why})",
        f"a new authority is ready and will be used when the API servers know it ({why})",
        f"a new certificate is in {tmp_path / 'serving'} ({why})",
        f"the certificate in {tmp_path / 'serving'} is good",
    ]


def test_a_new_authority_that_was_just_taken_out_again_waits_another_look(tmp_path: Path) -> None:
    api = Api("")
    logged: list[str] = []
    for at in (NOW, DUE_AT):
        assert dataclasses.replace(ensure(tmp_path, api, logged, at), lives=LONG).once() == 0
    first = places(tmp_path).read()
    api.webhooks[0]["clientConfig"]["caBundle"] = ""
    for at in (DUE_AT + SETTLING, DUE_AT + 2 * SETTLING):
        assert places(tmp_path).read() == first
        assert dataclasses.replace(ensure(tmp_path, api, logged, at), lives=LONG).once() == 0
    assert places(tmp_path).read() != first


def test_a_certificate_that_has_ended_is_replaced_at_once(tmp_path: Path) -> None:
    api = Api("")
    logged: list[str] = []
    for at in (NOW, NOW + 11 * YEAR):
        assert ensure(tmp_path, api, logged, at).once() == 0
    assert logged[-1].startswith("a new certificate is in ")
