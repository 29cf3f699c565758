"""A certificate with its authority, created once for each module."""

from __future__ import annotations

import pytest

from tests.unit.webhook.certificates.cluster import NAMES, NOW
from webhook.certificates.authority import Bundle, renewed


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return renewed(None, NOW, NAMES)
