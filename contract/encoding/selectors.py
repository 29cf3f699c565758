"""
CEL selectors of ResourceClaims (`selectors[].cel.expression`): the subset of CEL that is cheap to evaluate.

A tenant writes the expression, and the allocator evaluates it for each kind of GPU. So `read` accepts a subset of CEL
in which nothing grows or repeats: no nested macros, no macros that build lists, and only functions whose result is no
larger than their arguments. Length, depth, literals and numbers are bounded.

An expression may compare a GPU's UUID only with literals. So it has one value for all GPUs of a kind whose UUIDs it
does not name, and a large cluster costs no more than a small one. The CEL library checks the rest of the expression
when it is evaluated.

Pure. Must not: evaluate anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from contract import names
from contract.encoding.reading import shown

LONGEST = 1_024
"""Characters of an expression. The API server accepts 10 KiB (resource.k8s.io/v1, CELSelectorExpressionMaxLength)."""
MOST_PARTS = 200
"""Tokens of an expression: the cost of compiling it and of repeating it in a macro grows with their number."""
LONGEST_LITERAL = 128
"""Characters of a text in it; a UUID has 40."""
LONGEST_NUMBER = 18
DEEPEST = 16
"""Nested brackets; also nested choices (`? :`), and unary operators before one operand."""
MOST_MACROS = 8
MOST_REGEXES, LONGEST_REGEX, MOST_DOTS = 4, 64, 4
"""Regular expressions, characters of one, and wildcard characters of one. Each evaluation compiles them."""
OURS = str(names.GROUP)
NVIDIA = "gpu.nvidia.com"
DOMAINS = (OURS, NVIDIA)
"""
The domains of the attributes: the names of our driver and of NVIDIA's. Attributes of the same name have the same value
in both, because tenants copy expressions from the documentation of NVIDIA's driver.
"""
MACROS = ("all", "exists", "exists_one")
METHODS = frozenset(
    (
        *("asInteger", "compareTo", "contains", "endsWith", "isGreaterThan", "isInteger", "isLessThan", "lowerAscii"),
        *("major", "matches", "minor", "patch", "size", "startsWith", "upperAscii", *MACROS),
    )
)
FUNCTIONS = frozenset(("has", "isQuantity", "isSemver", "quantity", "semver", "size"))
MEMBERS = frozenset(("allowMultipleAllocations", "attributes", "capacity", "driver"))
"""Of the variable `device`."""
_WORDS = frozenset(("device", "true", "false", "null", "in"))
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+|//[^\n]*)
      | (?P<text>[rR]?(?:"[^"\n\r]*"|'[^'\n\r]*'))
      | (?P<number>[0-9][0-9A-Za-z_.]*)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>&&|\|\||==|!=|<=|>=|[<>!+\-*/%?:.,()\[\]])""",
    re.VERBOSE,
)
_OPENING, _CLOSING = {"(": ")", "[": "]"}, (")", "]")
_REGEX_FORBIDDEN = re.compile(r"[{}]|\[\^|\(\?[^i]|\\[^.\\^$|?*+()\[\]-]")
_BEFORE_UUID = frozenset(("", "(", "[", "&&", "||", "!", "?", ":", ","))
_AFTER_UUID = frozenset(("", ")", "]", "&&", "||", "?", ":", ","))


class SelectorRefused(ValueError):
    """The expression is refused; the message contains the text found, and one that works."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(f"found {found}; {cure}")
        self.found, self.cure = found, cure


class _Token(NamedTuple):
    kind: str
    text: str

    @property
    def value(self) -> str:
        """The content of a text literal."""
        return self.text.lstrip("rR")[1:-1]


@dataclass(frozen=True, slots=True)
class Selector:
    """An accepted expression. `uuids`: the GPUs that it names; `domains`: the strings that it uses as indexes."""

    expression: str
    uuids: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()


@lru_cache(maxsize=4096)
def read(expression: str) -> Selector:
    """Raises `SelectorRefused`."""
    if not expression.strip():
        raise SelectorRefused("no expression", "give one, such as " + EXAMPLE)
    if len(expression) > LONGEST:
        raise SelectorRefused(f"{len(expression)} characters", f"give at most {LONGEST:,}")
    if not expression.isascii():
        raise SelectorRefused("characters beyond ASCII", "leave them out: attributes of GPUs have none")
    tokens = tuple(_tokens(expression))
    if len(tokens) > MOST_PARTS:
        raise SelectorRefused(f"{len(tokens)} words, texts and signs", f"give at most {MOST_PARTS}")
    found = _Reader(tokens)
    found.check()
    return Selector(expression, frozenset(found.uuids), frozenset(found.domains))


EXAMPLE = f"device.attributes[{OURS!r}].productName.contains('A100')"


def is_accepted(expression: str) -> bool:
    """Whether `read` accepts the expression."""
    try:
        read(expression)
    except SelectorRefused:
        return False
    return True


def uuids_of(expression: str) -> frozenset[str]:
    """The UUIDs that an accepted expression names; none for a refused expression, which no GPU satisfies."""
    try:
        return read(expression).uuids
    except SelectorRefused:
        return frozenset()


def _tokens(expression: str) -> Iterator[_Token]:
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or not match.lastgroup:
            raise SelectorRefused(*_strange(expression, at))
        at = match.end()
        if match.lastgroup != "blank":
            yield _token(match.lastgroup, match.group(), expression[at : at + 1])


def _strange(expression: str, at: int) -> tuple[str, str]:
    if expression[at] in "\"'":
        return "a text without its end", "end it on the same line"
    if expression[at] in "{}":
        return shown(expression[at]), "leave maps and messages out"
    return shown(expression[at]), "leave it out; no such sign is known here"


def _token(kind: str, text: str, after: str) -> _Token:
    if kind == "text":
        if after in ("'", '"') and after:
            raise SelectorRefused("a text next to another", "separate them; texts in three quotes are not read")
        if text[0] not in "rR" and "\\" in text:
            raise SelectorRefused(f"a backslash in {shown(text)}", "write the text as a raw one, such as r'a\\.b'")
        length = len(_Token(kind, text).value)
        if length > LONGEST_LITERAL:
            raise SelectorRefused(f"a text of {length} characters", f"give at most {LONGEST_LITERAL}")
    if kind == "number" and (len(text) > LONGEST_NUMBER or not re.fullmatch(r"[0-9]+(\.[0-9]+)?u?", text)):
        raise SelectorRefused(f"the number {shown(text)}", f"give a decimal one of at most {LONGEST_NUMBER} digits")
    return _Token(kind, text)


class _Reader:
    """Checks the tokens of one expression, one after the other."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self.uuids: set[str] = set()
        self.domains: set[str] = set()
        self._variables: set[str] = set()

    def text(self, at: int) -> str:
        """The token there; empty before the first and after the last."""
        return self._tokens[at].text if 0 <= at < len(self._tokens) else ""

    def kind(self, at: int) -> str:
        return self._tokens[at].kind if 0 <= at < len(self._tokens) else ""

    def check(self) -> None:
        """Raises `SelectorRefused`; `uuids` is complete afterwards."""
        self._check_depth()
        self._check_macros()
        for at, token in enumerate(self._tokens):
            if token.kind == "word":
                self._check_word(at)
            elif token.kind == "text" and self.kind(at - 1) in ("word", "number") and self.text(at - 1) != "in":
                raise SelectorRefused(shown(f"{self.text(at - 1)}{token.text}"), "give texts only, not bytes")
            elif token.text in (".", "[") and self.text(at + 1) == "?":
                cure = "ask with has() or `in` whether an attribute is there; optional syntax is not read"
                raise SelectorRefused(shown(f"{token.text}?"), cure)
            elif token.text == "[" and self._is_index(at):
                self._check_index(at)

    def _check_depth(self) -> None:
        opened: list[str] = []
        signs = choices = 0
        for at, token in enumerate(self._tokens):
            if token.text in _OPENING:
                opened.append(_OPENING[token.text])
            elif token.text in _CLOSING and (not opened or opened.pop() != token.text):
                raise SelectorRefused(f"{shown(token.text)} without its beginning", "give pairs of brackets")
            sign = token.text == "!" or (token.text == "-" and self.kind(at - 1) not in ("word", "number", "text"))
            signs = signs + 1 if sign else 0
            choices += token.text == "?"
            if max(len(opened), signs, choices) > DEEPEST:
                raise SelectorRefused(f"more than {DEEPEST} brackets, choices or signs within each other", "use fewer")
        if opened:
            raise SelectorRefused(f"no {shown(opened[-1])} at its end", "give pairs of brackets")

    def _check_macros(self) -> None:
        """Macros that repeat must not be nested, and the first argument of each must be its variable."""
        calls = [at for at, token in enumerate(self._tokens) if token.text in MACROS and self._is_method(at)]
        if len(calls) > MOST_MACROS:
            raise SelectorRefused(f"{len(calls)} macros", f"use at most {MOST_MACROS}")
        end = -1
        for at in calls:
            if at < end:
                raise SelectorRefused(f"{self.text(at)}() within another macro", "use one after the other")
            variable = self.text(at + 2)
            if self.kind(at + 2) != "word" or variable in _WORDS or self.text(at + 3) != ",":
                raise SelectorRefused(f"{self.text(at)}({shown(variable)})", f"give {self.text(at)}(name, condition)")
            self._variables.add(variable)
            end = self._end_of(at + 1)

    def _end_of(self, opening: int) -> int:
        depth = 0
        for at in range(opening, len(self._tokens)):
            depth += (self.text(at) in _OPENING) - (self.text(at) in _CLOSING)
            if not depth:
                return at
        return len(self._tokens)

    def _is_method(self, at: int) -> bool:
        return self.text(at - 1) == "." and self.text(at + 1) == "("

    def _check_word(self, at: int) -> None:
        word, called, member = self.text(at), self.text(at + 1) == "(", self.text(at - 1) == "."
        if called and word != "in":
            known = METHODS if member else FUNCTIONS
            if word not in known:
                raise SelectorRefused(f"the function {shown(word)}", f"use only {', '.join(sorted(known))}")
            if word == "matches":
                self._check_regex(at)
        elif member and word == "uuid":
            self._check_uuid(at - 7, at + 1)
        elif member and self.text(at - 2) == "device" and word not in MEMBERS:
            raise SelectorRefused(f"device.{shown(word)[1:-1]}", f"a device has {', '.join(sorted(MEMBERS))}")
        elif not member and word not in _WORDS and word not in self._variables:
            raise SelectorRefused(f"the name {shown(word)}", "an expression knows only device")

    def _check_regex(self, at: int) -> None:
        if self.kind(at + 2) != "text" or self.text(at + 3) != ")":
            raise SelectorRefused("matches() of something computed", "give it one text")
        if sum(token.text == "matches" for token in self._tokens) > MOST_REGEXES:
            raise SelectorRefused("too many regular expressions", f"use at most {MOST_REGEXES}")
        regex = self._tokens[at + 2].value
        if _REGEX_FORBIDDEN.search(regex) or len(regex) > LONGEST_REGEX or regex.count(".") > MOST_DOTS:
            cure = (
                f"give at most {LONGEST_REGEX} characters with at most {MOST_DOTS} dots, without {{}}, [^...] and "
                "classes such as \\w"
            )
            raise SelectorRefused(f"the regular expression {shown(regex)}", cure)

    def _is_index(self, at: int) -> bool:
        before = self.text(at - 1)
        return before in _CLOSING or self.kind(at - 1) == "text" or (self.kind(at - 1) == "word" and before != "in")

    def _check_index(self, at: int) -> None:
        if self.kind(at + 1) != "text" or self.text(at + 2) != "]":
            raise SelectorRefused("an index that is computed", "give one text, such as ['gpufraction.io']")
        if self._tokens[at + 1].value == "uuid":
            raise SelectorRefused("['uuid']", "write .uuid")
        self.domains.add(self._tokens[at + 1].value)

    def _check_uuid(self, start: int, after: int) -> None:
        """`device.attributes[DOMAIN].uuid`, whose first token is at `start`, compared with literals or in has()."""
        chain = [self.text(start), *(self.text(start + step) for step in (1, 2, 3, 5, 6))]
        whole = chain == ["device", ".", "attributes", "[", "]", "."] and self.kind(start + 4) == "text"
        if whole and self.text(start - 1) in _BEFORE_UUID:
            if self.text(start - 1) == "(" and self.text(start - 2) == "has" and self.text(after) == ")":
                return
            found, end = self._compared(after)
            if found and self.text(end) in _AFTER_UUID:
                self.uuids |= found
                return
        cure = f"compare it with texts: device.attributes['{OURS}'].uuid == 'GPU-...', or in ['GPU-...', ...]"
        raise SelectorRefused("uuid in another way than in a comparison", cure)

    def _compared(self, at: int) -> tuple[set[str], int]:
        """The strings after `==`, `!=` or `in`, and the position after them; no strings after any other token."""
        if self.text(at) in ("==", "!=") and self.kind(at + 1) == "text":
            return {self._tokens[at + 1].value}, at + 2
        found: set[str] = set()
        if self.text(at) == "in" and self.text(at + 1) == "[":
            at += 2
            while self.kind(at) == "text":
                found.add(self._tokens[at].value)
                if self.text(at + 1) == "]":
                    return found, at + 2
                if self.text(at + 1) != ",":
                    break
                at += 2
        return set(), at
