"""
Finds the known name that an unknown one misspells, at a bounded cost for one pod.

A tenant can put a hundred thousand names into a pod, and a comparison letter by letter costs as much as parsing a
kilobyte of JSON. So a name is looked up by its domain first, then lengths and first letters are compared, and only so
many names of one pod are looked at, and so many pairs compared further. People misspell one name or two; what is beyond
the bound is not suggested.

Pure. One `Spelling` is used for one pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

MOST_COMPARED = 64
"""Pairs of names that are compared letter by letter for one pod; a misspelt name has one to four."""
MOST_LOOKED_AT = 512
"""Unknown names of a pod, in the domain of a known one, that are looked at."""
MOST_REPORTED = 16
"""Unknown names of one kind that a pod's author gets one by one: Kubernetes keeps 4,096 characters in all."""
LONGEST = 100
"""Characters of a name that may be a misspelt one; the known names have at most 60."""
UNKNOWN, UNREAD, REMOVE = "an unknown resource", "nothing reads it", "remove it"
"""The finding for a misspelt resource and for a misspelt annotation, and the cure if it resembles nothing."""
UNDER_LIMITS = "put the amount under resources.limits of a container"
"""The cure for a resource that is written as an annotation."""

_SEPARATORS = re.compile(r"[-_.]")
_LONG = 5
"""Shortest name, in characters without separators, in which one letter may be wrong: shorter ones resemble too many."""
_SLIPS = 8
"""Shortest name in which two letters may be wrong."""
_ALIKE = 0.6
"""Of `SequenceMatcher.ratio`, from which on two names of our own domain are alike."""


def did_you_mean(near: str) -> str:
    """The cure for a name that resembles this known one."""
    return f"did you mean {near}?"


class Known:
    """Names that something reads, by their domain."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(map(str, names))
        self.of_domain: dict[str, list[tuple[str, str]]] = {}
        """Each without its domain and separators, and as it is."""
        for name in sorted(self.names):
            domain, plain = _plain(name)
            self.of_domain.setdefault(domain, []).append((plain, name))


class Spelling:
    """The bounded work on one pod's names: `looked_at` names in a known domain, and `compared` pairs of names."""

    def __init__(self, *, most_names: int = MOST_LOOKED_AT, most_pairs: int = MOST_COMPARED) -> None:
        self._most_names = most_names
        self._most_pairs = most_pairs
        self.looked_at = self.compared = 0
        self.exhausted = False
        """Whether a name was not compared because too many came before it."""

    def suggest(self, name: str, known: Known) -> str | None:
        """
        The known name that `name` misspells; None where it is known itself, resembles none, or comes too late.

        Two names resemble each other if they have the same domain and differ in case and separators only (`gpu-mem`,
        `gpuMem`), if one is the beginning of the other (`gpumemory`, `gpu-percentage`), or if a letter or two are
        wrong. Names with different first letters do not (`qgpu-core`, `vgpu`).
        """
        if self.exhausted or len(name) > LONGEST or name in known.names:
            return None
        domain, _, last = name.rpartition("/")
        others = known.of_domain.get(domain.lower())
        if others is None or not self._one_more_name():
            return None
        plain = _SEPARATORS.sub("", last.lower())
        near = []
        for its, each in others:
            if not _comparable(plain, its):
                continue
            if not self._one_more_pair():
                return None
            if _near(plain, its):
                near.append((its, each))
        if len(near) > 1:
            near.sort(key=lambda pair: (-SequenceMatcher(None, plain, pair[0]).ratio(), pair[1]))
        return near[0][1] if near else None

    def closest(self, word: str, known: Iterable[str]) -> str | None:
        """The most similar known word, wherever they differ; None if none is similar, or if the bound is reached."""
        if self.exhausted or len(word) > LONGEST:
            return None
        matcher: SequenceMatcher[str] = SequenceMatcher()
        matcher.set_seq2(word)
        best: tuple[float, str] | None = None
        for each in known:
            if 2 * min(len(each), len(word)) < _ALIKE * (len(each) + len(word)):
                continue
            if not self._one_more_pair():
                return None
            matcher.set_seq1(each)
            if matcher.quick_ratio() >= _ALIKE and (ratio := matcher.ratio()) >= _ALIKE:
                best = max(best or (0.0, ""), (ratio, each))
        return best[1] if best is not None else None

    def _one_more_name(self) -> bool:
        """Count a name that is looked at; False if the bound is reached."""
        self.exhausted = self.looked_at >= self._most_names
        self.looked_at += not self.exhausted
        return not self.exhausted

    def _one_more_pair(self) -> bool:
        """Count a comparison; False if the bound is reached."""
        self.exhausted = self.compared >= self._most_pairs
        self.compared += not self.exhausted
        return not self.exhausted


def _plain(name: str) -> tuple[str, str]:
    domain, _, last = name.rpartition("/")
    return domain.lower(), _SEPARATORS.sub("", last.lower())


def _comparable(one: str, other: str) -> bool:
    """Whether two names can resemble each other by their lengths and beginnings, which costs next to nothing."""
    if one[:1] != other[:1]:
        return False
    return abs(len(one) - len(other)) <= _slips(one, other) or one.startswith(other) or other.startswith(one)


def _slips(one: str, other: str) -> int:
    """The most letters by which two similar names may differ."""
    short = min(len(one), len(other))
    return 2 if short >= _SLIPS else 1


def _near(one: str, other: str) -> bool:
    if one == other or one in (f"{other}s", other[:-1] if other.endswith("s") else other):
        return True
    if min(len(one), len(other)) < _LONG:
        return False
    if one.startswith(other) or other.startswith(one):
        return True
    return _within(one, other, _slips(one, other))


def _within(one: str, other: str, most: int) -> bool:
    """Whether at most `most` letters must be inserted, removed, replaced or swapped with the next, to turn one into
    the other."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            least = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                least = min(least, before[j - 2] + 1)
            row.append(least)
        if min(row) > most and min(last) > most:  # no later row is smaller than both
            return False
        before, last = last, row
    return last[-1] <= most
