"""
The names that a misspelt one may mean, and other systems' names that must not be taken for one.

`suggest` does in Python the same as the policy's expressions. A test compares the two. `python -m release.warnings`
counts with it the names of others that would be taken for a misspelt one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from contract import names
from contract.dialects import DIALECTS, hami, native
from contract.dialects.base import ANNOTATION

OURS = f"{names.GROUP}/"
RESOURCES = tuple(str(resource) for dialect in DIALECTS for resource in dialect.resources)
"""The resources by which containers request shares, in the order of the table."""
NO_SHARES = (hami.GPU, hami.PRIORITY)
"""Resources that alone request no share: a whole GPU is NVIDIA's plugin's too."""
NATIVE = tuple(map(str, native.DIALECT.resources))
_POD_ANNOTATIONS = tuple(key for key in names.REGISTRY if key.on.startswith("Pod annotation"))
WRITTEN = tuple(
    dict.fromkeys(
        [
            *(str(key) for key in _POD_ANNOTATIONS if key.writer.startswith("tenant")),
            *(
                word.name
                for dialect in DIALECTS
                for word in dialect.glossary
                if word.on == ANNOTATION and "<" not in word.name
            ),
        ]
    )
)
"""Annotations that tenants write, in every dialect."""
WRITTEN_PREFIXES = tuple(prefix for dialect in DIALECTS for prefix in dialect.annotation_prefixes)
READ = tuple(dict.fromkeys([*(str(key) for key in _POD_ANNOTATIONS), *WRITTEN]))
"""Annotations that a program reads, and prefixes of such."""
ALONE = tuple(annotation for dialect in DIALECTS for annotation in dialect.annotations)
"""Annotations that alone request a share."""

SEPARATORS = ("-", "_", ".")
LONG = 5
"""Characters of the last part, without separators, from which a beginning of a name means that name."""
LONGEST = 100
"""Characters of a name that may be a misspelt one."""

_OTHERS = Path(__file__).with_name("others.txt")
OTHERS = tuple(line for line in _OTHERS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
"""Extended resources of other systems."""


def plain(name: str) -> str:
    """A name in lower case, without separators."""
    return re.sub("[-_.]", "", name.lower())


def misspells(name: str, known: str) -> bool:
    """
    Whether one typing error makes the name of the known one: a letter left out, added, replaced, or swapped with the
    next. Case and separators do not count.
    """
    one, other = plain(name), plain(known)
    longer = len(one) - len(other)
    if abs(longer) > 1:
        return False
    for at in range(len(other) + 1):
        if not one.startswith(other[:at]):
            return False
        rest, its = one[at:], other[at:]
        swapped = longer == 0 and rest[:2] == its[1::-1] and rest[2:] == its[2:]
        if swapped or (rest[1:] == its if longer == 1 else bool(its) and rest[longer + 1 :] == its[1:]):
            return True
    return False


def shortens(name: str, known: str) -> bool:
    """Whether the name is the beginning of the known one, and its last part is long enough to mean it."""
    return plain(known).startswith(plain(name)) and _long(name)


def lengthens(name: str, known: str) -> bool:
    """Whether the known name is the beginning of this one, and its last part is long enough to be meant."""
    return plain(name).startswith(plain(known)) and _long(known)


def _long(name: str) -> bool:
    return len(plain(name).partition("/")[2]) >= LONG


def suggest(name: str) -> str:
    """The resource that an unknown one means, the likeliest relation first; empty where it resembles none."""
    if "/" not in name or len(name) > LONGEST:
        return ""
    found = [each for relation in (misspells, shortens, lengthens) for each in RESOURCES if relation(name, each)]
    return found[0] if found else ""


def patterns(known: Iterable[str], *, beginnings: bool = False) -> tuple[str, ...]:
    """
    Regular expressions, one for each domain, for names without capitals and separators: the result of `misspells` for
    any of these names and, with `beginnings`, of `shortens` and `lengthens`. CEL reads each of their letters as it is.
    """
    of_domain: dict[str, list[str]] = {}
    for name in known:
        domain, slash, last = plain(name).rpartition("/")
        of_domain.setdefault(domain + slash, []).append(last)
    return tuple(f"^(?:{'|'.join(_of_domain(domain, lasts, beginnings))})$" for domain, lasts in of_domain.items())


def _of_domain(domain: str, lasts: Sequence[str], beginnings: bool) -> Iterator[str]:
    ends = "|".join(_edits(last) for last in lasts)
    if beginnings:
        ends = "|".join([ends, *(_beginnings(last) for last in lasts if len(last) >= LONG)])
    yield f"{domain}(?:{ends})"
    if domain:
        host = domain[:-1]
        yield f"(?:{_edits(host)})/(?:{'|'.join(lasts)})"
        yield f"{host[:-1]}/{host[-1]}(?:{'|'.join(lasts)})"
        yield f"{host}(?:{'|'.join(f'{last[0]}/{last[1:]}' for last in lasts)})"


def _edits(word: str) -> str:
    """The word, and every form of it with one typing error."""
    found = "."
    for at in reversed(range(len(word))):
        rest = word[at:]
        swapped = f"|{rest[1]}{rest[0]}{rest[2:]}" if len(rest) > 1 else ""
        found = f".?{rest[1:]}|.{rest}{swapped}|{rest[0]}(?:{found})"
    return found


def _beginnings(word: str) -> str:
    """The word with more letters, and its beginnings that are long enough."""
    found = ".*"
    for letter in reversed(word[LONG:]):
        found = f"(?:{letter}{found})?"
    return word[:LONG] + found


def one_edit(name: str) -> Iterator[str]:
    """Every name that one typing error makes of this one: a letter left out, added, replaced or swapped."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-."
    for at in range(len(name) + 1):
        for letter in letters:
            yield name[:at] + letter + name[at:]
            if at < len(name):
                yield name[:at] + letter + name[at + 1 :]
        yield name[:at] + name[at + 1 :]
        yield name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :]


def alarms(resources: Iterable[str]) -> dict[str, str]:
    """Of these names, the unknown ones that would be taken for a misspelt one, each with what would be suggested."""
    return {name: near for name in resources if name not in RESOURCES and (near := suggest(name))}


ORDINARY = tuple(alarms(OTHERS))
"""Names of others that resemble ours."""
