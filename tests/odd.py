"""
Text and objects that no honest user writes: half characters, control sequences for terminals, and very long values.

`odd_pods` puts such a value in one place of a valid pod, or inside the JSON of one of its annotations.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

JSON = dict[str, Any]
SURROGATE, ESCAPE = "\ud800", "\x1b[2J\x1b]0;owned\x07"
BAD = ("\ud800", "\udfff", "\x00", "\x07", "\x1b", "\x7f", "\x9b", "\n", "\r", "\t", "\u2028", "\u202e", "\ufeff")
TEXT = (
    st.text(st.characters() | st.sampled_from(BAD), max_size=12)
    | st.sampled_from([SURROGATE, ESCAPE, "-", "a/b", "../..", "(others)", "unknown", "1e999", "9" * 5000])
    | st.builds(lambda text, times: text * times, st.sampled_from(["x", "é", *BAD]), st.sampled_from([300, 200_000]))
)
VALUES = TEXT | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
Path = tuple[Any, ...]


def places(part: Any, here: Path = ()) -> list[Path]:
    """The path to every part of a document."""
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    below = [found for key, value in inside for found in places(value, (*here, key))]
    return [here, *below] if here else below


def put(document: Any, path: Path, value: Any) -> Any:
    """A copy of the document with another value at that path."""
    made = copy.deepcopy(document)
    part = made
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return made


@st.composite
def odd_pods(draw: st.DrawFn, pods: Iterable[JSON], *, kept: Iterable[Path] = (), typed: bool = False) -> JSON:
    """
    One of the pods with an odd value in one place: in a field, or in the JSON of one of its annotations. Fields in
    `kept` do not change, because the API server accepts no other value there. `typed`: only text changes, and only to
    other text, as an API server requires.
    """
    pod, stays = draw(st.sampled_from(list(pods))), tuple(kept)
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    documents = [key for key, text in annotations.items() if text.startswith("{")]
    if documents and draw(st.sampled_from((True, False))):
        key = draw(st.sampled_from(sorted(documents)))
        document = json.loads(annotations[key])
        odd = put(document, draw(st.sampled_from(places(document))), draw(VALUES))
        return dict(put(pod, ("metadata", "annotations", key), json.dumps(odd)))
    open_to = [path for path in places(pod) if not any(path == each[: len(path)] for each in stays)]
    open_to = [path for path in open_to if not typed or isinstance(_at(pod, path), str)]
    path = draw(st.sampled_from(open_to))
    texts = isinstance(_at(pod, path), str)
    return dict(put(pod, path, draw(TEXT if texts else VALUES)))


def _at(part: Any, path: Path) -> Any:
    for key in path:
        part = part[key]
    return part


def is_fit(text: str, most: int) -> bool:
    """Whether the text is one line, harmless to a terminal, and at most this many bytes of UTF-8."""
    return text.isprintable() and len(text.encode()) <= most
