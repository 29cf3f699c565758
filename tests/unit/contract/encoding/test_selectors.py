"""Which CEL expressions are accepted, by their content: nothing that grows, repeats or distinguishes single GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding import selectors
from contract.encoding.selectors import LONGEST, SelectorRefused, read

A = "device.attributes['gpufraction.io']"

ACCEPTED = {
    "the driver": ("device.driver == 'gpufraction.io'", ()),
    "a model": (f"{A}.productName.contains('A100')", ()),
    "a model by a regular expression": (f"{A}.productName.lowerAscii().matches('^.*(a100|h100).*$')", ()),
    "a raw text": (f"{A}.productName.matches(r'^NVIDIA A100\\-SXM4')", ()),
    "memory": ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0", ()),
    "a version": (f"{A}.cudaComputeCapability.isGreaterThan(semver('7.5.0'))", ()),
    "an attribute that may be missing": (f"has({A}.numa) && 'numa' in {A} ? {A}.numa == 0 : false", ()),
    "one macro": (f"['A100', 'H100'].exists(m, {A}.productName.contains(m))", ()),
    "macros one after the other": ("[1].all(x, x > 0) && [2].exists_one(y, y == 2)", ()),
    "a UUID": (f"{A}.uuid == 'GPU-1'", ("GPU-1",)),
    "another UUID": (f"!({A}.uuid != 'GPU-1')", ("GPU-1",)),
    "UUIDs": (f"{A}.uuid in ['GPU-1', \"GPU-2\"] || {A}.uuid == 'GPU-3'", ("GPU-1", "GPU-2", "GPU-3")),
    "whether there is a UUID": (f"has({A}.uuid)", ()),
    "a comment and lines": ("// all\ntrue &&\n\tdevice.allowMultipleAllocations", ()),
    "arithmetic": (f"{A}.numa * 2 - 1 < -3 % 2 + 5u / 1u", ()),
}


@pytest.mark.parametrize("sentence", ACCEPTED)
def test_an_expression_is_accepted_with_the_gpus_that_it_names(sentence: str) -> None:
    expression, uuids = ACCEPTED[sentence]
    assert read(expression).uuids == frozenset(uuids)


REFUSED = {
    "nothing": (" \n", "no expression"),
    "too long": ("true" + " " * LONGEST, "1028 characters"),
    "too many parts": ("true" + "||true" * 100, "201 words, texts and signs"),
    "a text too long": (f"{A}.x == '{'a' * 129}'", "a text of 129 characters"),
    "characters beyond ASCII": ("'\N{LATIN SMALL LETTER E WITH ACUTE}' == ''", "characters beyond ASCII"),
    "half of a surrogate pair": ("'\ud800' == ''", "characters beyond ASCII"),
    "a control character": ("true\0", "'\\x00'"),
    "no end of a text": ("'a", "a text without its end"),
    "three quotes": ("'''a'''", "a text next to another"),
    "escapes": (r"'a\x41' == ''", r"""a backslash in "'a\\x41'" """.strip()),
    "bytes": ("b'a' == b'a'", "the name 'b'"),
    "a map": ("{'a': 1}.a == 1", "'{'"),
    "a large number": ("1" * 19 + " > 0", f"the number '{'1' * 19}'"),
    "an exponent": ("1e9 > 0.0", "the number '1e9'"),
    "too deep": ("(" * 17 + "true" + ")" * 17, "more than 16 brackets, choices or signs within each other"),
    "many signs": ("!" * 17 + "true", "more than 16 brackets, choices or signs within each other"),
    "many choices": ("true ? true : " * 17 + "true", "more than 16 brackets, choices or signs within each other"),
    "a bracket too many": ("true)", "')' without its beginning"),
    "a bracket too few": ("(true", "no ')' at its end"),
    "brackets crossed": ("([true)]", "')' without its beginning"),
    "optional syntax": (f"{A}.?numa.orValue(0) == 0", "'.?'"),
    "an optional index": ("device.attributes[?'a'].b == 0", "'[?'"),
    "a macro that makes lists": ("[1].map(x, x).size() == 1", "the function 'map'"),
    "a macro in a macro": ("[1].all(x, [1].all(y, true))", "all() within another macro"),
    "many macros": (" && ".join(["[1].all(x, true)"] * 9), "9 macros"),
    "a macro without a name": ("[1].all(1, true)", "all('1')"),
    "another variable": ("object.x == 1", "the name 'object'"),
    "a member of the device that there is not": ("device.name == 'a'", "device.name"),
    "a function that there is not": ("string(1) == '1'", "the function 'string'"),
    "a function as a method": (f"{A}.productName.replace('A', 'B') == ''", "the function 'replace'"),
    "a computed regular expression": (f"{A}.productName.matches('a' + 'b')", "matches() of something computed"),
    "a repetition": (f"{A}.productName.matches('a{{1000}}')", "the regular expression 'a{1000}'"),
    "a class of many characters": (
        f"{A}.productName.matches(r'\\w')",
        r"the regular expression '\\w'",
    ),
    "many dots": (f"{A}.productName.matches('.....')", "the regular expression '.....'"),
    "many regular expressions": (
        " || ".join([f"{A}.productName.matches('a')"] * 5),
        "too many regular expressions",
    ),
    "a computed index": ("device.attributes['gpu' + 'fraction.io'].x == 1", "an index that is computed"),
    "a UUID by its index": (f"{A}['uuid'] == 'GPU-1'", "['uuid']"),
    "a beginning of a UUID": (f"{A}.uuid.startsWith('GPU-1')", "uuid in another way than in a comparison"),
    "UUIDs in order": (f"{A}.uuid < 'GPU-1'", "uuid in another way than in a comparison"),
    "a UUID with a text before it": (f"'a' + {A}.uuid == 'aGPU-1'", "uuid in another way than in a comparison"),
    "a UUID with two texts": (f"{A}.uuid == 'GPU' + '-1'", "uuid in another way than in a comparison"),
    "a UUID of a variable": ("[device].exists(d, d.uuid == 'a')", "uuid in another way than in a comparison"),
    "UUIDs among computed ones": (f"{A}.uuid in ['a', 'b' + 'c']", "uuid in another way than in a comparison"),
    "a UUID alone": (f"{A}.uuid", "uuid in another way than in a comparison"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_an_expression_is_refused_with_what_was_found(sentence: str) -> None:
    expression, found = REFUSED[sentence]
    with pytest.raises(SelectorRefused) as refused:
        read(expression)
    assert refused.value.found == found
    assert refused.value.cure
    assert not selectors.is_accepted(expression)
    assert not selectors.uuids_of(expression)


PARTS = st.sampled_from(
    [A, ".uuid", "['uuid']", "==", "in", "[", "]", "(", ")", "'GPU-1'", ",", "||", "+", ".exists", "x", "has", "!", ""]
)


@given(expression=st.lists(PARTS, max_size=12).map(" ".join) | st.text(max_size=200))
def test_any_text_is_read_or_refused(expression: str) -> None:
    if selectors.is_accepted(expression):
        assert all(uuid in expression for uuid in read(expression).uuids)
        return
    with pytest.raises(SelectorRefused) as refused:
        read(expression)
    assert refused.value.found
    assert refused.value.cure
    assert "\n" not in str(refused.value)
