"""One browser, one playground and one large cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground.cluster import Cluster
from tests.browser import scenes
from tests.browser.chromium import Browser, chromium, missing


@pytest.fixture(scope="session")
def _tab() -> Iterator[Browser]:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with chromium() as tab:
        yield tab


@pytest.fixture
def browser(_tab: Browser) -> Iterator[Browser]:
    """A tab of the usual size. Afterwards nothing has failed in it."""
    _tab.size(1280, 900)
    _tab.prefers(color_scheme="light")
    yield _tab
    assert _tab.errors() == []
    _tab.open("about:blank")


@pytest.fixture(scope="session")
def playground(_tab: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo's three nodes with some pods."""
    with scenes.small(tmp_path_factory.mktemp("small")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def small(playground: Cluster) -> Iterator[str]:
    """The address of its page."""
    with scenes.page(playground.kubeconfig) as address:
        yield address


@pytest.fixture(scope="session")
def large(_tab: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a thousand nodes."""
    with scenes.large(tmp_path_factory.mktemp("large")) as kubeconfig, scenes.page(kubeconfig) as address:
        yield address
