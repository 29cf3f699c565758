"""
Handles the ways to end a command that runs in the foreground: Ctrl-C, `kill`, or closing the terminal.

A start that must be undone gets no exception at a random moment: it checks `Ending` between its steps. A demo, which
waits in many places, gets one KeyboardInterrupt. Further signals do not interrupt its cleanup.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(Exception):
    """The user has ended the command."""


class Ending:
    """Handles the signals from now on. `woken` is set when the user ends the command. Other code may set it too."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.wanted = False
        _handle(self._end)
        terminal = next((number for number in range(3) if os.isatty(number)), None)
        if terminal is not None:
            threading.Thread(target=self._watch, args=(terminal,), name="terminal", daemon=True).start()

    def _watch(self, terminal: int) -> None:
        """Watch the terminal: when it closes, only its first process gets a signal, which may be a make that waits."""
        closing = select.poll()
        closing.register(terminal, 0)
        closing.poll()
        self._end()

    def _end(self) -> None:
        self.wanted = True
        self.woken.set()

    def check(self) -> None:
        """Raise `Ended` if the user has ended the command."""
        if self.wanted:
            raise Ended


def at_once() -> None:
    """Until there is something to undo: the first signal ends this process, without a message."""
    for number in _ENDS:
        if _is_heeded(number):
            signal.signal(number, signal.SIG_DFL)


def by_one_interrupt() -> None:
    """The first signal raises KeyboardInterrupt in the main thread; later ones are ignored."""

    def interrupt() -> None:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    _handle(interrupt)


def _handle(ended: Callable[[], None]) -> None:
    for number in _ENDS:
        if _is_heeded(number):
            signal.signal(number, lambda *_: ended())


def _is_heeded(number: signal.Signals) -> bool:
    """Whether to handle the signal: all signals, except the end of a terminal if the command runs under nohup."""
    return number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
