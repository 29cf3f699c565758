"""Every reason of a condition or Event is a row of the registry, and says what can be done."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract import reasons
from contract.reasons import REGISTRY, ReasonKind, ReasonName, Row
from contract.reasons.base import Cure
from contract.reasons.claims import ClaimReason
from contract.reasons.nodes import Code
from contract.reasons.pods import of_claim

ROOT = Path(__file__).parents[4]
PROGRAMS = ("contract", "runtime", "webhook", "allocator", "nodeagent", "kubectl_gpufraction", "shadow")
REPORTERS = {
    "StatusUpdate": 3,
    "EventRecord": 3,
    "Condition": 1,
    "Change": 0,
    "Wait": 0,
    "Never": 0,
    "Status": 1,
    "Problem": 0,
    "Observation": 5,
}
"""The functions that write a reason, and which argument it is."""
NO_REASON = {"Change": ("contract/reasons/",), "Status": ("runtime/",), "Condition": ("nodeagent/dra/health.py",)}
"""Other functions with the same name."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def literals(module: str, tree: ast.Module) -> Iterator[str]:
    """Texts that a module passes as a reason, directly or through a constant of the module."""
    texts = {
        target.id: assigned.value.value
        for assigned in tree.body
        if isinstance(assigned, ast.Assign) and isinstance(assigned.value, ast.Constant)
        for target in assigned.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        name = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
        if name not in REPORTERS or module.startswith(NO_REASON.get(name, ("-",))):
            continue
        assert isinstance(call, ast.Call)
        place = REPORTERS[name]
        named = (each.value for each in call.keywords if each.arg in ("code", "reason", "warning"))
        for given in (*call.args[place : place + 1], *named):
            for part in ast.walk(given):
                text = part.value if isinstance(part, ast.Constant) else texts.get(getattr(part, "id", ""))
                if isinstance(text, str) and re.fullmatch(r"[A-Z]\w+", text):
                    yield f"{module}:{call.lineno} {text}"


def test_no_program_writes_a_reason_that_is_not_in_the_registry() -> None:
    assert [each for module, tree in modules() for each in literals(module, tree)] == []


def test_the_scan_finds_a_reason_that_is_a_text() -> None:
    code = 'GONE = "GPUGone"\nStatusUpdate(key, uid, False, "NotThere", why)\nEventRecord("Pod", key, uid, GONE, why)'
    assert list(literals("made/up.py", ast.parse(code))) == ["made/up.py:2 NotThere", "made/up.py:3 GPUGone"]


def test_only_the_registry_makes_words() -> None:
    made = [
        module
        for module, tree in modules()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "SpelledReason"
    ]
    assert {module for module in made if not module.startswith("contract/reasons/")} == set()


@pytest.mark.parametrize(("word", "row"), REGISTRY, ids=[f"{row.kind.name}-{word}" for word, row in REGISTRY])
def test_a_row_can_be_shown(word: ReasonName, row: Row) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]+", word)
    assert not re.search(r"(Gpu|Mps|Uuid|Cdi|Cpu|Numa)(?![a-z])", word), "initialisms are in capitals"
    assert row.text
    assert not row.cure or row.cure.endswith(".")
    assert bool(row.cured_by) or row.kind not in (ReasonKind.NODE,)


def test_a_code_has_one_row_for_each_kind() -> None:
    assert [key for key, number in Counter((word, row.kind) for word, row in REGISTRY).items() if number > 1] == []


def test_a_condition_of_a_pod_has_one_row() -> None:
    reported = [word for word, row in REGISTRY if row.kind in (ReasonKind.NODE, ReasonKind.WAITS, ReasonKind.PLACED)]
    assert Counter(reported).most_common(1)[0][1] == 1
    assert set(reasons.WAITING) == set(reported)


def test_codes_are_numbered_from_one_in_the_order_of_the_table() -> None:
    assert [int(code) for code in Code] == [*range(1, len(Code) + 1)]


def test_a_node_that_joins_can_cure_every_node() -> None:
    assert [code for code in Code if Cure.NODE not in code.row.cured_by] == []


def test_a_pod_has_the_reason_of_its_claim() -> None:
    assert of_claim(ClaimReason.INVALID) == "ClaimInvalid"


PAGES = tuple(
    f"docs/{name}.md" for name in ("troubleshooting", "operations", "operations-reference", "claims", "isolation")
)


def test_pages_and_alerts_name_events_of_the_registry() -> None:
    known = {str(word) for word, _ in REGISTRY}
    alerts = (ROOT / "manifests/components/monitoring/alerts.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r"Events? (?:`)?([A-Z]\w+)", alerts))
    for page in PAGES:
        named |= set(re.findall(r"(?:Event|Events|reason=)[` ]+(GPU\w+|MPS\w+)", (ROOT / page).read_text()))
    assert named
    assert named - known == set()
