"""
What a decoder that is fuzzed must do with every input, and what breaks that.

A target gives bytes to decoders of one edge. `judge` calls it and fails where

- another exception comes out than the ones that the decoder documents;
- a message that goes on to people is long, has more than one line, or has characters that no terminal should get;
- one input takes more processor time than `Target.seconds`;
- what the target itself compares does not hold, such as that reading what was written gives the same value.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LONGEST_INPUT = 32 << 10
"""Bytes of one input."""
LONGEST_MESSAGE = 4096
"""Characters of an error's message. Most have less than 200; some list all known names."""
_SECONDS = 1.0
_NUMBERS = re.compile(r"[0-9.]+")


class Finding(AssertionError):
    """
    An input does what no input may do. The message says what; `kind` is the same for all inputs with the same cause, as
    far as that can be seen.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or _NUMBERS.sub("#", message.partition(":")[0])


@dataclass(frozen=True)
class Target:
    """
    An edge of ours.

    `run` gives an input to its decoders; it raises one of `refuses`, or `Finding`, or nothing. `decoders` are the
    functions that it covers, as `module:function`, and `modules` those of which lines are counted, alongside the
    decoders' own. `form`: what an input is made of, which says how it is changed; `typed`: JSON whose types the API
    server has checked, so that a change keeps them. `seeds`: what the changes start from.
    """

    name: str
    run: Callable[[bytes], object]
    decoders: tuple[str, ...]
    seeds: Callable[[], tuple[bytes, ...]]
    refuses: tuple[type[Exception], ...] = ()
    form: Literal["json", "typed", "text", "bytes"] = "json"
    modules: tuple[str, ...] = ()
    seconds: float = _SECONDS
    """Of processor time for one input, instrumented code included."""
    weight: int = 1
    """Its part of the time of a run of all targets."""
    many_lines: bool = False
    """Whether a message may have more than one line: that of settings lists all that is wrong."""

    @property
    def covered(self) -> tuple[str, ...]:
        """The modules of which lines are counted."""
        own = (decoder.partition(":")[0] for decoder in self.decoders)
        return tuple(dict.fromkeys((*own, *self.modules)))


def judge(target: Target, data: bytes) -> None:
    """Give one input to the target. Raises `Finding`."""
    began = time.thread_time()
    try:
        target.run(data)
    except Finding:
        raise
    except target.refuses as error:
        presentable(str(error), "the error's message", many_lines=target.many_lines)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__} in {Path(place.filename).name}, {place.name}"
        raise Finding(f"{what}, which is not documented: {str(error)[:200]!r}", what) from error
    took = time.thread_time() - began
    if took > target.seconds:
        raise Finding(f"{took:.1f} s of processor time for {len(data)} bytes", "processor time")


def presentable(text: str, what: str, *, most: int = LONGEST_MESSAGE, many_lines: bool = False) -> None:
    """Raise `Finding` unless the text can be shown to anyone: short, one line, no control characters."""
    if len(text) > most:
        raise Finding(f"{what} has {len(text)} characters, more than {most}: {text[:80]!r}", f"{what}: length")
    line = text.replace("\n", " ") if many_lines else text
    if not line.isprintable():
        odd = next(character for character in line if not character.isprintable())
        raise Finding(f"{what} has the character {odd!r}: {text[:200]!r}", f"{what}: characters")


def same(found: object, expected: object, what: str) -> None:
    """Raise `Finding` unless both are equal."""
    if found != expected:
        raise Finding(f"{what}: {str(found)[:300]!r} is not {str(expected)[:300]!r}")


def bounded(size: int, of: int, what: str, *, times: float = 4, more: int = 4096) -> None:
    """Raise `Finding` where an output is larger than `times` its input and `more` alongside."""
    if size > times * of + more:
        raise Finding(f"{what} has {size} bytes, made of {of}")


def document(data: bytes) -> Any:
    """
    The JSON of an input, as the API server and our own HTTP servers hand it on; `NotJson` where it is none.

    What is nested too deeply is refused where the text is read, so no decoder of documents sees it.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJson from error


def mapping(data: bytes) -> dict[str, Any]:
    """As `document`, for edges that hand on objects only (`runtime.kubernetes.wire`)."""
    found = document(data)
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict | None):
        raise NotJson
    return found


class NotJson(Exception):
    """The input never reaches the decoder: what reads the text before has refused it."""


def length(value: object) -> int:
    """Bytes of a value as JSON."""
    return len(json.dumps(value, default=str))
