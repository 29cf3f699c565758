"""The table of mutants matches the code: each applies, is still valid Python, and has its own name and promise."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.mutants import plans
from tests.simulation.mutants.table import MUTANTS, Mutant
from tests.simulation.plan import Plan, from_text, to_text

TOP = Path(__file__).resolve().parents[3]
EACH = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
BY_HAND = [each for each in vars(plans).values() if isinstance(each, Plan)]


@EACH
def test_a_mutant_changes_its_module_into_another_that_is_python(mutant: Mutant) -> None:
    text = (TOP / f"{mutant.mutation.module.replace('.', '/')}.py").read_text()
    changed = mutant.mutation.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_every_mutant_has_a_name_and_a_change_of_its_own() -> None:
    names = Counter(each.name for each in MUTANTS)
    changes = Counter(each.mutation for each in MUTANTS)
    assert {*names.values(), *changes.values()} == {1}


@EACH
def test_a_promise_is_one_sentence(mutant: Mutant) -> None:
    assert mutant.promise.endswith(".")
    assert mutant.promise[0].isupper()


@pytest.mark.parametrize("plan", BY_HAND, ids=lambda plan: plan.seed)
def test_a_plan_by_hand_can_be_kept_in_a_file(plan: Plan) -> None:
    assert to_text(from_text(to_text(plan))) == to_text(plan)
