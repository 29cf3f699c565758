"""Runs the fuzzer's corpus through every target without the fuzzer, and checks that every decoder has a target."""

from __future__ import annotations

import ast
import importlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzzing import campaign, judge, table
from tests.fuzzing.judge import Finding, Target
from tests.fuzzing.lines import executable, reached, share
from tests.fuzzing.mutation import Mutator, written
from tests.structure.measure import PRODUCTION

ROOT = Path(__file__).resolve().parents[2]
DECODER = re.compile(r"((.*_)?from_(json|text|object|document|checkpoint|status)|(read|parse|decode|trim|load)(_.*)?)")
"""Names of functions that read what others wrote."""
PARSES = re.compile(r"\b(json\.loads|yaml\.safe_load|yaml\.safe_load_all|tomllib\.loads|parse_qs|fromisoformat)\(")
"""Prefixes of functions that read text in a format that others chose."""
NO_TARGET = {
    "contract.scheduling.protection:read_of": "picks known annotations and reads none",
    "allocator.workers.binder:read_back": "asks the API server; what it reads is a pod",
    "nodeagent.files:read_text": "opens a file",
    "nodeagent.isolation.host:read_host": "opens files, for the target host-files",
    "nodeagent.isolation.host:read_files": "opens files, for the target host-files",
    "nodeagent.gpus.nvml_cards:read_card": "calls the driver",
    "nodeagent.sharing.overuse_reports:read_cgroup": "opens a file",
    "contract.scheduling.gates:read_overrides": "a setting of the administrator, which a table of cases reads",
    "kubectl_gpufraction.check.reader:read": "asks the API server",
    "kubectl_gpufraction.check.traps.reading:read": "asks the API server",
    "kubectl_gpufraction.commands.pools:read": "a ConfigMap's text for the target pool-status",
}
"""Functions with such a name that read nothing a target could give them, with the reason."""
NO_TARGET_MODULES = {
    "allocator.commands": "a file that the administrator names, for the target snapshot",
    "kubectl_gpufraction.check.traps.conditions": "objects whose damage unit tests of the traps try",
    "kubectl_gpufraction.commands.dryrun": "a manifest of the plugin's own user",
    "kubectl_gpufraction.commands.inspect": "one annotation of gpushare, which is caught",
    "kubectl_gpufraction.cluster.options": "the options, for the target options",
    "kubectl_gpufraction.shadow.command": "what the recorder's own program prints, for the plugin's user",
    "kubectl_gpufraction.output.jsonpath": "a template of the plugin's own user, on rows of ours",
    "shadow.replay.cluster": "answers of our own admission",
    "shadow.report.manifests": "answers of our own admission",
    "shadow.systems.hami": "annotations of HAMi's, whose damage tests/unit/shadow/test_systems.py tries",
    "runtime.httpserver": "a body that the targets socket-question and page-query read",
}
MOST_CORPUS = 1 << 20
"""The maximum number of bytes of the whole corpus."""


@pytest.mark.parametrize("target", table.TARGETS, ids=lambda target: target.name)
def test_the_corpus_and_the_seeds_break_nothing(target: Target) -> None:
    kept = [file.read_bytes() for file in table.corpus_of(target)]
    found = {}
    for data in (*target.seeds(), *kept):
        try:
            judge.judge(target, data)
        except Finding as finding:
            found[finding.kind] = str(finding)
    assert kept != []
    assert found == {}


def test_the_corpus_is_small_and_of_targets_only() -> None:
    names = {folder.name for folder in table.CORPUS.iterdir()}
    assert names == {target.name for target in table.TARGETS}
    assert sum(file.stat().st_size for target in table.TARGETS for file in table.corpus_of(target)) <= MOST_CORPUS


# -- every decoder ------------------------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, Path]]:
    """The modules of the programs."""
    for package in PRODUCTION:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), file


def decoders(module: str, text: str) -> Iterator[str]:
    """The public functions of a module that have the name of a decoder, and those that are generated from a table."""
    for node in ast.parse(text).body:
        named = [node.name] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.Assign):
            named = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        yield from (f"{module}:{name}" for name in named if name[0] != "_" and DECODER.fullmatch(name))


def test_every_decoder_has_a_target() -> None:
    """If this fails, give the function a row in `tests/fuzzing/targets`, or a reason why it needs none here."""
    have = {decoder for target in table.TARGETS for decoder in target.decoders}
    there_are = {each for module, file in modules() for each in decoders(module, file.read_text(encoding="utf-8"))}
    assert sorted(there_are - have - set(NO_TARGET)) == []
    assert sorted(set(NO_TARGET) - there_are) == []


def test_every_module_that_parses_text_has_a_target() -> None:
    have = {module for target in table.TARGETS for module in target.covered}
    there_are = {module for module, file in modules() if PARSES.search(file.read_text(encoding="utf-8"))}
    assert sorted(there_are - have - set(NO_TARGET_MODULES)) == []
    assert sorted(set(NO_TARGET_MODULES) - there_are) == []


def test_every_decoder_of_a_target_exists() -> None:
    named = {decoder for target in table.TARGETS for decoder in target.decoders}
    missing = {
        each for each in named if not hasattr(importlib.import_module(each.partition(":")[0]), each.partition(":")[2])
    }
    assert missing == set()


def test_a_decoder_that_nobody_fuzzes_is_found() -> None:
    text = "def card_from_json(a): ...\ndef _from_text(a): ...\ndef parse(a): ...\ndef parsed(a): ...\n"
    text += "to_json, a_from_json = made()\n"
    assert list(decoders("m", text)) == ["m:card_from_json", "m:parse", "m:a_from_json"]


# -- the judge, the changes, the lines ------------------------------------------------------------------------------


def of(run: object, **fields: object) -> Target:
    return Target("t", run, (), lambda: (b"{}",), **fields)  # type: ignore[arg-type]


def refuses(data: bytes) -> None:
    raise ValueError(data.decode("unicode_escape"))


def spends(data: bytes) -> None:
    sum(range(3_000_000))


@pytest.mark.parametrize(
    ("target", "data", "kind"),
    [
        (of(refuses), b"a", "ValueError in test_targets.py, refuses"),
        (of(refuses, refuses=(ValueError,)), rb"a\x1b[31m", "the error's message: characters"),
        (of(refuses, refuses=(ValueError,)), rb"\ud800", "the error's message: characters"),
        (of(refuses, refuses=(ValueError,)), b"a" * 5000, "the error's message: length"),
        (of(lambda data: judge.same(1, 2, "what was read")), b"", "what was read"),
        (of(lambda data: judge.bounded(10**6, 3, "an answer")), b"", "an answer has # bytes, made of #"),
        (of(spends, seconds=0.001), b"", "processor time"),
    ],
)
def test_what_an_input_may_not_do_is_found(target: Target, data: bytes, kind: str) -> None:
    with pytest.raises(Finding) as found:
        judge.judge(target, data)
    assert found.value.kind == kind


def test_what_is_refused_in_few_plain_words_is_no_finding() -> None:
    judge.judge(of(refuses, refuses=(ValueError,)), b"spec.a is not text")


SEED = {"metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {"items": [{"name": "d", "count": 1, "on": True}]}}


def test_a_change_is_the_same_for_the_same_number_and_is_json() -> None:
    mutator = Mutator([SEED])
    changed = [written(mutator.change(SEED, random.Random(number))) for number in range(300)]
    assert changed == [written(mutator.change(SEED, random.Random(number))) for number in range(300)]
    assert all(isinstance(json.loads(each), object) for each in changed)
    assert len(set(changed)) > 200


def typed(document: object, seed: object) -> bool:
    """Whether everything in the document has the same type as in the seed; labels may have any key."""
    if isinstance(seed, dict):
        known = all(typed(value, seed[key]) for key, value in document.items() if key in seed)  # type: ignore[attr-defined]
        return isinstance(document, dict) and known
    if isinstance(seed, list):
        return isinstance(document, list) and all(typed(item, seed[0]) for item in document)
    return type(document) is type(seed)


def test_a_change_of_what_the_api_checked_keeps_its_types() -> None:
    mutator = Mutator([SEED], typed=True)
    changed = [mutator.change(SEED, random.Random(number)) for number in range(300)]
    assert [each for each in changed if not typed(each, SEED)] == []
    assert len({written(each) for each in changed}) > 100


def test_the_lines_that_a_run_reaches_are_counted() -> None:
    files = executable(["contract.encoding.quantity"])
    (file,) = files
    arcs = reached(files, lambda: importlib.import_module("contract.encoding.quantity").format_bytes(1 << 30))
    found, of_all = share(files, arcs)
    assert {name for name, _, _ in arcs} == {file}
    assert 3 <= found < of_all


def test_a_corpus_keeps_the_short_inputs_that_reach_something(tmp_path: Path) -> None:
    target = table.target_named("quantities")
    work, corpus = tmp_path / "work", tmp_path / "corpus"
    (work / target.name).mkdir(parents=True)
    for number, data in enumerate((b"8Gi", b"16Gi", b"8Gi", b"x", b"1" * 5000)):
        (work / target.name / str(number)).write_bytes(data)
    campaign.keep(target, work, corpus)
    assert sorted(file.read_bytes() for file in table.corpus_of(target, corpus)) == [b"8Gi", b"x"]
