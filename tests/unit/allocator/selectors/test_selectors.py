"""CEL selectors: which GPUs an expression accepts, and how much the evaluation of a stranger's expression may cost."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.selectors import holds, panics_as_errors, problem
from contract.encoding.selectors import MOST_PARTS, is_accepted
from contract.model import Gpu, Wishes
from contract.scheduling.selecting import CardSeen, accepts, is_selected, kind_seen, named_uuids, nothing_selected

A = "device.attributes['gpufraction.io']"
MEMORY = "device.capacity['gpufraction.io'].memory"
A100 = CardSeen("NVIDIA A100-SXM4-40GB", 40 << 30, 1, "8.0", False, "GPU-1")
BARE = CardSeen("NVIDIA T4", 15 << 30, -1, "", True, "")

HOLDS = {
    "the driver": ("device.driver == 'gpufraction.io'", True, True),
    "another driver": ("device.driver == 'gpu.nvidia.com'", False, False),
    "a model": (f"{A}.productName.contains('A100')", True, False),
    "a model by NVIDIA's name of the attribute": (
        "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')",
        True,
        False,
    ),
    "a model among some": (f"['A100', 'H100'].exists(m, {A}.productName.contains(m))", True, False),
    "memory": (f"{MEMORY}.compareTo(quantity('40Gi')) >= 0", True, False),
    "memory in another unit": (f"{MEMORY}.isLessThan(quantity('17G'))", False, True),
    "exact memory": (f"{MEMORY} == quantity('40Gi') && {MEMORY}.asInteger() == 42949672960", True, False),
    "less than nothing": (f"{MEMORY}.isLessThan(quantity('-1Gi'))", False, False),
    "a version": (f"{A}.cudaComputeCapability.isGreaterThan(semver('7.5.0'))", True, False),
    "parts of a version": (f"{A}.cudaComputeCapability.major() == 8", True, False),
    "a NUMA node": (f"{A}.numa == 1", True, False),
    "a type": (f"{A}.type == 'mig'", False, True),
    "a UUID": (f"{A}.uuid == 'GPU-1'", True, False),
    "an attribute that only some have": (f"has({A}.numa)", True, False),
    "a key": (f"'numa' in {A}", True, False),
    "a missing attribute fails": (f"{A}.architecture == 'Ampere'", False, False),
    "a missing attribute fails also in its negation": (f"!({A}.architecture == 'Ampere')", False, False),
    "a missing attribute that does not matter": (f"{A}.architecture == 'Ampere' || true", True, True),
    "a domain without attributes": ("!has(device.attributes['example.com'].x)", True, True),
    "sharing": ("device.allowMultipleAllocations", True, True),
    "no boolean": (f"{A}.productName", False, False),
    "different types": (f"{MEMORY}.compareTo(semver('1.0.0')) == 0", False, False),
    "what was never accepted": ("[1].map(x, x) == [1]", False, False),
}


@pytest.mark.parametrize("sentence", HOLDS)
def test_an_expression_accepts_a_gpu_by_its_attributes(sentence: str) -> None:
    expression, of_the_a100, of_the_other = HOLDS[sentence]
    assert (holds(expression, A100), holds(expression, BARE)) == (of_the_a100, of_the_other)


PROBLEMS = {
    "a good one": (f"{A}.productName == 'x'", ""),
    "a missing attribute, which others may have": (f"{A}.architecture == 'Ampere'", ""),
    "a text": ("'true'", "its value is no boolean but of Python's type str"),
    "a quantity and a number": (f"{MEMORY} > 40", "No such overload"),
    "a quantity and a version": (
        f"{A}.cudaComputeCapability.compareTo(quantity('7')) > 0",
        "both must be quantities, or both versions",
    ),
    "no quantity": ("quantity('many') == quantity('1')", "'many' is not a quantity such as 5, 500m or 8Gi"),
    "no version": ("semver('8') == semver('8.0.0')", "semver() needs a version such as '8.0.0'"),
    "no regular expression": (f"{A}.productName.matches('(')", "Function 'matches' error: '(' not a valid regex:"),
    "an operator without its operand": ("true &&", "Failed to parse expression 'true &&': ERROR: <input>:1:8: "),
    "nothing divides by zero": ("1 / 0 == 1", "division by zero"),
}


@pytest.mark.parametrize("sentence", PROBLEMS)
def test_what_is_wrong_with_an_expression_is_said_in_one_line(sentence: str) -> None:
    expression, wanted = PROBLEMS[sentence]
    found = problem(expression)
    assert "\n" not in found
    assert len(found) < 300
    assert found == wanted or (wanted and wanted in found)


OPERANDS = st.sampled_from(
    [
        f"{A}.uuid == 'GPU-1'",
        f"{A}.uuid != 'GPU-2'",
        f"{A}.uuid in ['GPU-1', 'GPU-3']",
        f"has({A}.uuid)",
        f"{A}.productName.contains('A100')",
        f"{A}.numa == 0",
        f"{A}.none == 1",
    ]
)
EXPRESSIONS = st.recursive(
    OPERANDS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda found: f"({' '.join(found)})"),
        inner.map(lambda found: f"!({found})"),
        st.tuples(inner, inner, inner).map(lambda found: f"({found[0]} ? {found[1]} : {found[2]})"),
    ),
    max_leaves=5,
).filter(is_accepted)
GPUS = st.builds(
    Gpu,
    uuid=st.sampled_from(["GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5"]),
    index=st.just(0),
    model=st.sampled_from(["A100", "T4"]),
    memory=st.just(1 << 30),
    usable=st.just(1 << 30),
    numa=st.integers(-1, 1),
)


@given(expression=EXPRESSIONS, gpu=GPUS)
def test_gpus_that_are_not_named_are_judged_by_their_kind_alone(expression: str, gpu: Gpu) -> None:
    """The oracle evaluates for each GPU; a decision evaluates once for all of a kind."""
    assert accepts(gpu, (expression,), holds) == holds(expression, kind_seen(gpu)._replace(uuid=gpu.uuid))


def test_a_program_that_evaluates_nothing_accepts_no_gpu() -> None:
    gpu = Gpu("GPU-1", 0, "A100", 1 << 30, 1 << 30)
    every = Wishes(selectors=("true",))
    assert is_selected(gpu, every, holds)
    assert not is_selected(gpu, every, nothing_selected)
    one_of_two = Wishes(alternatives=((f"{A}.uuid == 'GPU-9'",), ("true", f"{A}.uuid == 'GPU-1'")))
    assert is_selected(gpu, one_of_two, holds)
    assert not is_selected(replace(gpu, uuid="GPU-2"), one_of_two, holds)
    assert named_uuids(one_of_two) == {"GPU-1", "GPU-9"}


def test_threads_may_ask_at_once() -> None:
    texts = [f"{MEMORY}.compareTo(quantity('{size}Gi')) >= 0" for size in range(1, 80)]

    def ask(text: str) -> bool:
        return holds.__wrapped__(text, A100)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, texts * 20))
    assert found == [size <= 40 for size in range(1, 80)] * 20


def test_failures_of_strangers_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert not holds("quantity('x') == quantity('y')", A100)
    assert not caplog.records


class PanicException(BaseException):
    """As the library's bindings raise it: its class has this name and is no `Exception`."""


def test_a_panic_of_the_library_is_an_error_of_one_expression() -> None:
    with pytest.raises(RuntimeError, match="the evaluation of the expression failed"), panics_as_errors():
        raise PanicException("index out of bounds")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), ValueError("x")], ids=lambda each: type(each).__name__
)
def test_what_is_no_panic_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), panics_as_errors():
        raise error


def padded(before: str, part: str, between: str, after: str) -> str:
    """As many of the parts as an expression may have."""
    number = MOST_PARTS
    while not is_accepted(found := before + between.join([part] * number) + after):
        number -= 1
    return found


HOSTILE = {
    "conditions": padded("", "true", "&&", ""),
    "choices": padded("true?true:" * 16, "true", "||", ""),
    "brackets": "(" * 16 + "true" + ")" * 16,
    "signs": "!" * 16 + "true",
    "a list": padded("1 in [", "1", ",", "]"),
    "texts": padded("", "'" + "a" * 120 + "'", "+", " == ''"),
    "a macro over a long list": padded("[", "1", ",", f"].all(x, {'x+' * 45}1 > 0)"),
    "a macro that adds texts": padded(f"['{'a' * 128}'].all(x, ", "x", "+", " == '')"),
    "regular expressions": " || ".join([f"{A}.productName.matches('((((.*)*.)*.)*[a-z]*)*$')"] * 4),
    "methods": padded(f"{A}.productName", ".lowerAscii()", "", " == ''"),
    "members": padded("device.attributes", ".a", "", " == 1"),
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_an_expression_as_large_as_it_may_be_ends(sentence: str) -> None:
    expression = HOSTILE[sentence]
    assert isinstance(problem(expression), str)
    assert isinstance(holds(expression, A100), bool)
