"""What an import gives one of our modules, what its members do, and how a mutant is created."""

from __future__ import annotations

import datetime as real_datetime
import queue as real_queue
import signal as real_signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.kernel import loader
from tests.simulation.kernel.loader import Mutation, NotThere
from tests.simulation.kernel.modules import SIMULATED
from tests.simulation.kernel.scheduler import Escaped

TEXTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "import threading": lambda names: names["threading"] is SIMULATED["threading"],
    "import time as t": lambda names: names["t"] is SIMULATED["time"],
    "from queue import Queue": lambda names: names["Queue"] is SIMULATED["queue"].Queue,
    "import concurrent.futures": lambda names: names["concurrent"].futures is SIMULATED["concurrent.futures"],
    "import concurrent.futures as f": lambda names: names["f"] is SIMULATED["concurrent.futures"],
    "from concurrent import futures": lambda names: names["futures"] is SIMULATED["concurrent.futures"],
    "from concurrent.futures import Future": lambda names: names["Future"] is SIMULATED["concurrent.futures"].Future,
    "import json": lambda names: names["json"] is sys.modules["json"],
    "import os.path": lambda names: names["os"] is sys.modules["os"],
}


@pytest.mark.parametrize("text", TEXTS)
def test_an_import_gives_what_is_simulated(text: str) -> None:
    names: dict[str, Any] = {"__builtins__": {**vars(__import__("builtins")), "__import__": loader._import}}
    exec(text, names)
    assert TEXTS[text](names)


REFUSED: dict[str, tuple[str, str]] = {
    "a process": ("subprocess", "run"),
    "a selector": ("selectors", "DefaultSelector"),
    "a connection": ("socket", "create_connection"),
    "a signal": ("signal", "signal"),
    "a timer": ("threading", "Timer"),
    "chance of the machine": ("random", "SystemRandom"),
    "a name by the machine": ("uuid", "uuid1"),
}


@pytest.mark.parametrize("member", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_simulated_may_be_named_and_not_called(member: tuple[str, str]) -> None:
    module, name = member
    found = getattr(SIMULATED[module], name)
    with pytest.raises(Escaped, match=f"{module}.{name} is not simulated"):
        found("x")


def test_errors_and_constants_are_pythons_own() -> None:
    assert SIMULATED["queue"].Empty is real_queue.Empty
    assert SIMULATED["signal"].SIGTERM is real_signal.SIGTERM
    assert isinstance(real_datetime.datetime.now(), SIMULATED["datetime"].datetime)
    with pytest.raises(AttributeError):
        _ = SIMULATED["queue"].nothing


# -- mutants ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package for the loader, in which `clock` is a default and `limit` a number."""
    folder = tmp_path / "webhook"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "module.py").write_text("import time\nlimit = 1\ndef look(clock=time.monotonic): return clock\n")
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in loader.PACKAGES}
    for name in before:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("TZ", "UTC")
    yield "webhook.module"
    monkeypatch.undo()
    time.tzset()
    for name in [name for name in sys.modules if name.partition(".")[0] in loader.PACKAGES]:
        del sys.modules[name]
    sys.modules.update(before)


def _loaded(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]


def test_a_default_is_bound_to_what_is_simulated(package: str) -> None:
    loader.install()
    module = _loaded(package)
    assert (module.look(), module.limit) == (SIMULATED["time"].monotonic, 1)


def test_a_mutant_changes_one_text_of_one_module(package: str) -> None:
    loader.install([Mutation(package, "limit = 1", "limit = 2"), Mutation("webhook.other", "limit", "x")])
    assert _loaded(package).limit == 2


@pytest.mark.parametrize("before", ["limit = 3", "time"], ids=["not there", "there twice"])
def test_a_mutant_of_a_text_that_is_not_there_once_is_refused(package: str, before: str) -> None:
    loader.install([Mutation(package, before, "x")])
    with pytest.raises(NotThere):
        _loaded(package)


def test_the_loader_comes_before_our_packages(package: str) -> None:
    _loaded(package)
    with pytest.raises(RuntimeError, match="is loaded already, with the real modules"):
        loader.install()
