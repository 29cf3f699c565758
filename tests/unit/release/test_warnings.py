"""The policy that warns about mistakes in manifests: its file, and which names it treats as misspelt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from contract.dialects import DIALECTS
from playground.api.rules.expressions import execute
from release.warnings import __main__ as command
from release.warnings import names, policy
from release.warnings.cel import text

PATTERNS = [re.compile(pattern) for pattern in names.patterns(names.RESOURCES, beginnings=True)]
OF_ANNOTATIONS = [re.compile(pattern) for pattern in names.patterns(names.WRITTEN)]
KNOWN = {
    "a letter left out of the domain": ("gpufracton.io/gpu-memory", "gpufraction.io/gpu-memory"),
    "a letter too many": ("nvidia.com/gpumemm", "nvidia.com/gpumem"),
    "another letter": ("nvidia.com/gpumen", "nvidia.com/gpumem"),
    "two letters swapped": ("nvidia.com/gpucroes", "nvidia.com/gpucores"),
    "over the slash": ("nvidia.co/mgpumem", "nvidia.com/gpumem"),
    "separators": ("aliyun.com/gpumem", "aliyun.com/gpu-mem"),
    "capitals": ("nvidia.com/gpuMem", "nvidia.com/gpumem"),
    "a longer word": ("nano-gpu/gpu-percentage", "nano-gpu/gpu-percent"),
    "a shorter word": ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage"),
    "the nearer of two": ("gpufraction.io/gpu-memory-limits", "gpufraction.io/gpu-memory-limit"),
    "two typing errors": ("gpufracton.io/gpu-memry", ""),
    "a short beginning": ("nvidia.com/gpu.shared", ""),
    "another vendor": ("amd.com/gpu", ""),
    "no domain": ("gpu-memory", ""),
    "a name of megabytes": ("nvidia.com/gpumem" + "m" * 2_000_000, ""),
}


def test_the_committed_policy_is_up_to_date() -> None:
    assert command.FILE.read_text(encoding="utf-8") == policy.text(), "run: python -m release.warnings"


@pytest.mark.parametrize(("name", "wanted"), KNOWN.values(), ids=KNOWN.keys())
def test_a_name_means_what_it_resembles(name: str, wanted: str) -> None:
    assert names.suggest(name) == wanted


@pytest.mark.parametrize("known", names.RESOURCES)
def test_every_typing_error_in_a_resource_is_found(known: str) -> None:
    made = {name for name in names.one_edit(known) if "/" in name} - {known}
    assert {name for name in made if not names.misspells(name, known)} == set()
    assert {name for name in made if not re.search(policy.LIKE_ONE_THAT_ASKS, name)} == set()
    assert {name for name in made if not any(each.match(names.plain(name)) for each in PATTERNS)} == set()


@pytest.mark.parametrize("known", names.WRITTEN)
def test_every_typing_error_in_an_annotation_is_found(known: str) -> None:
    made = {name for name in names.one_edit(known) if ("/" in name) == ("/" in known)} - {known}
    assert {name for name in made if not any(each.match(names.plain(name)) for each in OF_ANNOTATIONS)} == set()


def test_the_expressions_find_no_more_than_the_functions() -> None:
    slips = [*(slip for name in names.RESOURCES for slip in names.one_edit(name)), *names.OTHERS]
    twice = [again for slip in slips[::499] for again in list(names.one_edit(slip))[::41]]
    found = {name for name in twice if "/" in name and any(each.match(names.plain(name)) for each in PATTERNS)}
    assert found == {name for name in twice if "/" in name and names.suggest(name)}


def test_no_name_of_another_system_is_taken_for_a_misspelt_one() -> None:
    assert names.ORDINARY == (
        "nvidia.com/pgpu",
        "nvidia.com/vgpu",
        "elasticgpu.io/qgpu-core",
        "elasticgpu.io/qgpu-memory",
    )


def test_the_command_prints_false_alarms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("spec: {containers: [{resources: {limits: {nvidia.com/gpu2: 1, cpu: 1, nvidia.com/vgpu: 1}}}]}")
    (tmp_path / "template.yaml").write_text("{{ not yaml")
    assert command.main([str(file), str(tmp_path / "template.yaml")]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "3 resources of manifests: 1 false alarms (nvidia.com/gpu2: did you mean nvidia.com/gpu?)"
    )


def test_our_own_manifests_have_no_false_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert " 0 false alarms" in capsys.readouterr().out


def test_a_dialects_names_are_all_known() -> None:
    assert set(names.RESOURCES) == DIALECTS.resources


def evaluated(name: str, values: dict[str, Any]) -> Any:
    [expression] = [each["expression"] for each in policy.documents()[0]["spec"]["variables"] if each["name"] == name]
    return execute(expression, values)


def test_a_policy_beyond_its_bounds_looks_at_nothing() -> None:
    container = {"name": "c", "resources": {"limits": {f"gpufraction.io/x{n}": "1" for n in range(17)}}}
    pod = {"metadata": {}, "spec": {"containers": [container]}}
    few = {"name": "c", "resources": {"limits": {"gpufraction.io/x": "1"}}}
    values = {"variables": {"template": pod, "at": ""}}
    assert evaluated("places", values) == []
    pod["spec"]["containers"] = [few] * 17
    assert evaluated("places", values) == []
    pod["spec"]["containers"] = [few]
    assert evaluated("places", values) == [
        {"at": "spec.containers[c].resources.limits", "limits": {"gpufraction.io/x": "1"}}
    ]


def test_a_name_that_could_break_out_of_the_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="has a character that no name has"):
        text("x'] || true || ['")
    assert execute(text("a.b/c"), {}) == "a.b/c"
