from collections.abc import Iterator

import pytest

from playground.api.api import Api
from playground.api.http.server import HttpsServer


class Clock:
    """A clock that does not move until a test moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(clock: Clock) -> Api:
    return Api(clock=clock)


@pytest.fixture
def server() -> Iterator[HttpsServer]:
    with HttpsServer(Api()) as running:
        yield running
