"""The page of recipes: its files exist, its table has their numbers, and no file that lists all entries is missing."""

from __future__ import annotations

import re

import pytest

from tests.structure.recipes import PAGE, RECIPES, Recipe, missing, naming_all, steps

PAGES = PAGE.read_text()
EACH = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.what)


@EACH
def test_the_files_of_a_recipe_are_there(recipe: Recipe) -> None:
    assert missing(steps(PAGES, recipe)) == []


@EACH
def test_a_recipe_has_every_file_that_lists_what_there_is(recipe: Recipe) -> None:
    assert set(naming_all(recipe)) - set(steps(PAGES, recipe)) == set()


def test_the_table_has_the_numbers_of_the_lists() -> None:
    rows = re.findall(r"^\| (an? [\w ]+) \| ([^|]+) \| ([^|]+) \|$", PAGES, re.M)
    assert rows == [(each.what, _files(len(steps(PAGES, each)), each), _files(each.most, each)) for each in RECIPES]


def _files(number: int, recipe: Recipe) -> str:
    folder = any(step.endswith("features/<name>/") and step.startswith("allocator") for step in steps(PAGES, recipe))
    return f"its folder and {number - 1}" if folder else str(number)


@EACH
def test_a_recipe_touches_no_more_files_than_it_may(recipe: Recipe) -> None:
    assert len(steps(PAGES, recipe)) <= recipe.most
