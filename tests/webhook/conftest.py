"""A certificate with its authority, made once for each module."""

from __future__ import annotations

import pytest

from tests.webhook.certificates import NAMES, NOW
from webhook.certs import Bundle, renewed


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return renewed(None, NOW, NAMES)
