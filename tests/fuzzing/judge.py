"""
What a fuzzed decoder must do with every input, and what violates that.

A target passes bytes to the decoders of one edge. `judge` calls it and fails if

- the decoder raises another exception than the ones that it documents;
- a message for people is long, has more than one line, or has characters that no terminal should receive;
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
"""The maximum number of bytes of one input."""
LONGEST_MESSAGE = 4096
"""The maximum number of characters of an error's message. Most have less than 200; some list all known names."""
_SECONDS = 1.0
_NUMBERS = re.compile(r"[0-9.]+")


class Finding(AssertionError):
    """
    An input does something that no input may do. The message says what. `kind` is the same for all inputs with the same
    cause, as far as that can be detected.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or _NUMBERS.sub("#", message.partition(":")[0])


@dataclass(frozen=True)
class Target:
    """
    One of our edges.

    `run` passes an input to its decoders; it raises one of `refuses`, or `Finding`, or nothing. `decoders` are the
    functions that it covers, as `module:function`. `modules` are further modules whose lines are counted, in addition
    to the decoders' own. `form`: the format of an input, which determines how it is changed; `typed`: JSON whose types
    the API server has checked, so that a change keeps them. `seeds`: the documents that the changes start from.
    """

    name: str
    run: Callable[[bytes], object]
    decoders: tuple[str, ...]
    seeds: Callable[[], tuple[bytes, ...]]
    refuses: tuple[type[Exception], ...] = ()
    form: Literal["json", "typed", "text", "bytes"] = "json"
    modules: tuple[str, ...] = ()
    seconds: float = _SECONDS
    """Processor time for one input in seconds, including instrumentation."""
    weight: int = 1
    """Its part of the time in a run of all targets."""
    many_lines: bool = False
    """
    Whether a message may have more than one line, because the message about settings lists everything that is wrong.
    """

    @property
    def covered(self) -> tuple[str, ...]:
        """The modules whose lines are counted."""
        own = (decoder.partition(":")[0] for decoder in self.decoders)
        return tuple(dict.fromkeys((*own, *self.modules)))


def judge(target: Target, data: bytes) -> None:
    """Pass one input to the target. Raises `Finding`."""
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
    """Raise `Finding` unless the text is safe to show: short, one line, no control characters."""
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
    """Raise `Finding` if an output is larger than `times` its input plus `more`."""
    if size > times * of + more:
        raise Finding(f"{what} has {size} bytes, made of {of}")


def document(data: bytes) -> Any:
    """
    The JSON of an input, as the API server and our own HTTP servers pass it on. Raises `NotJson` if it is not JSON.

    Text that is nested too deeply is refused when it is read, so no decoder of documents sees it.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJson from error


def mapping(data: bytes) -> dict[str, Any]:
    """Like `document`, for edges that pass on only objects (`runtime.kubernetes.wire`)."""
    found = document(data)
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict | None):
        raise NotJson
    return found


class NotJson(Exception):
    """The input never reaches the decoder, because the reader of the text has refused it."""


def length(value: object) -> int:
    """Bytes of a value as JSON."""
    return len(json.dumps(value, default=str))
