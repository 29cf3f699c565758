"""
How the chart is generated from the kustomizations. `test_chart.py` compares what it renders with kustomize's objects.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.components import COMPONENTS
from contract.options import BadOption, pool_options
from release.chart import kustomizations
from release.chart.__main__ import files, main, packed
from release.chart.settings import PROGRAMS
from release.chart.tree import ABSENT, Unsupported, When, edited, merged, simplified
from runtime.settings import SettingsError, choices_of, every_setting, load
from tests.unit.manifests import kube

JSON = dict[str, Any]
NOBODY: frozenset[str] = frozenset()
made = functools.cache(files)


def decided(node: Any, *on: str) -> Any:
    """The node if these switches are on and all others are off."""
    if isinstance(node, When):
        return decided(node.then if node.condition in on else node.otherwise, *on)
    if isinstance(node, dict):
        found = {key: decided(value, *on) for key, value in node.items()}
        return {key: value for key, value in found.items() if value is not ABSENT}
    if isinstance(node, list):
        return [item for item in (decided(item, *on) for item in node) if item is not ABSENT]
    return node


def test_a_patch_changes_a_value_only_where_its_switch_is_on() -> None:
    node = merged({"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"d": 4}}, "x")
    assert decided(node) == {"a": 1, "b": {"c": 2}}
    assert decided(node, "x") == {"a": 3, "b": {"c": 2, "d": 4}}


def test_null_takes_a_key_away() -> None:
    assert decided(merged({"a": 1, "b": 2}, {"a": None}, "x"), "x") == {"b": 2}


def test_two_patches_of_one_item_make_one_item() -> None:
    node = merged({"env": [{"name": "a"}]}, {"env": [{"name": "b", "value": "1"}]}, "x")
    node = merged(node, {"env": [{"name": "c"}, {"name": "b", "value": "2"}]}, "y")
    assert decided(node, "x")["env"] == [{"name": "b", "value": "1"}, {"name": "a"}]
    assert decided(node, "y")["env"] == [{"name": "c"}, {"name": "b", "value": "2"}, {"name": "a"}]
    assert decided(node, "x", "y")["env"] == [{"name": "c"}, {"name": "b", "value": "2"}, {"name": "a"}]


def test_a_json_patch_applies_where_its_switch_is_on() -> None:
    operations = [
        {"op": "test", "path": "/args/0", "value": "a"},
        {"op": "replace", "path": "/args/0", "value": "b"},
        {"op": "add", "path": "/args/-", "value": "c"},
        {"op": "remove", "path": "/user"},
        {"op": "add", "path": "/labels/x~1y", "value": "z"},
    ]
    node = edited({"args": ["a"], "user": 1, "labels": {}}, operations, "x")
    assert decided(node) == {"args": ["a"], "user": 1, "labels": {}}
    assert decided(node, "x") == {"args": ["b", "c"], "labels": {"x/y": "z"}}


def test_a_condition_inside_its_own_is_left_out() -> None:
    node = When("a", When("a", 1, 2), When("b", 3, When("a", 4, 5)))
    assert simplified(node, {}, NOBODY) == When("a", 1, When("b", 3, 5))
    assert simplified(When("a", When("b", 1, 2), 3), {}, frozenset({"a", "b"})) == When("a", 2, 3)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "test", "path": "/args/0", "value": "z"}, "the test for 'z' fails"),
        ({"op": "move", "path": "/args/0", "from": "/a"}, "move: an operation"),
        ({"op": "replace", "path": "/args/1", "value": "z"}, "before this index"),
    ],
)
def test_a_patch_that_cannot_be_followed_is_refused(operation: JSON, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        edited({"args": ["a", When("other", "b"), "c"]}, [operation], "x")


def test_a_list_whose_merge_is_not_known_is_refused() -> None:
    with pytest.raises(Unsupported, match="ports: a patch of this list"):
        merged({"ports": [1]}, {"ports": [2]}, "x")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("replacements", [], "replacements, which the chart does not know"),
        ("patches", [{"target": {"kind": "Deployment", "name": "none"}, "patch": "[]"}], "which no file has"),
        ("images", [{"name": "other"}], "an image that the base does not name"),
        ("configMapGenerator", [{"name": "a", "files": []}], "disableNameSuffixHash"),
    ],
)
def test_what_the_chart_cannot_say_is_refused(tmp_path: Path, field: str, value: Any, message: str) -> None:
    base = {"resources": ["namespace.yaml"], "images": [{"name": "gpufraction", "newTag": "1"}]}
    (tmp_path / "base").mkdir()
    (tmp_path / "base/kustomization.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "base/namespace.yaml").write_text("{apiVersion: v1, kind: Namespace, metadata: {name: a}}")
    (tmp_path / "components/new").mkdir(parents=True)
    (tmp_path / "components/new/kustomization.yaml").write_text(yaml.safe_dump({field: value}))
    with pytest.raises(Unsupported, match=message):
        kustomizations.read(tmp_path)


def test_files_become_a_config_map(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    item = {"name": "boards", "namespace": "n", "files": ["one.json", "other=one.json"]}
    options = {"disableNameSuffixHash": True, "labels": {"grafana_dashboard": "1"}}
    whole = {"configMapGenerator": [item], "generatorOptions": options}
    (tmp_path / "base/kustomization.yaml").write_text(yaml.safe_dump(whole))
    (tmp_path / "base/one.json").write_text('{"legend": "{{node}}"}\n')
    [entry] = kustomizations.read(tmp_path).entries
    assert (entry.source, entry.node["metadata"]["labels"]) == (
        "base/boards.configmap.yaml",
        {"grafana_dashboard": "1"},
    )
    assert entry.node["data"] == dict.fromkeys(("one.json", "other"), '{"legend": "{{node}}"}\n')


def test_every_component_and_overlay_is_a_choice() -> None:
    found = made()
    schema = json.loads(found["values.schema.json"])["properties"]
    assert sorted(schema["components"]["properties"]) == kube.below("components")
    assert schema["overlay"]["enum"] == ["", *kube.below("overlays")]
    for name in kube.below("components"):
        assert f"  # {name}: true\n" in found["values.yaml"]


def test_the_table_of_components_names_components_and_overlays() -> None:
    assert [each.name for each in COMPONENTS] == kube.below("components")
    assert {other for each in COMPONENTS for other in (*each.needs, *each.excludes)} <= set(kube.below("components"))
    assert {overlay for each in COMPONENTS for overlay in each.excluded_by} <= set(kube.below("overlays"))


def test_the_schema_has_the_options_that_the_programs_read() -> None:
    options = json.loads(made()["values.schema.json"])["properties"]["options"]["properties"]
    with pytest.raises(BadOption) as refused:
        pool_options({"none": 1})
    [known] = re.findall(r"give one of (.*)", str(refused.value))
    assert sorted(options) == known.split(", ")
    with pytest.raises(BadOption) as refused:
        pool_options({"pools": [{"name": "a", "none": 1}]})
    [known] = re.findall(r"give one of (.*)", str(refused.value))
    pool = options["pools"]["items"]["properties"].keys() - {"name", "nodeSelector", "node", "spare"}
    assert sorted(pool) == known.split(", ")


@pytest.mark.parametrize(
    ("name", "bound"), [(name, bound) for name in ("minimum", "maximum") for bound in (0, 1)], ids=lambda v: str(v)
)
def test_the_schemas_bounds_are_the_programs(name: str, bound: int) -> None:
    options = json.loads(made()["values.schema.json"])["properties"]["options"]["properties"]
    for option, wanted in options.items():
        if name not in wanted:
            continue
        value = wanted[name] + (bound if name == "maximum" else -bound)
        if bound:
            with pytest.raises(BadOption, match=option):
                pool_options({option: value})
        else:
            pool_options({option: value})


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_schema_has_the_settings_that_no_flag_gives(program: str) -> None:
    schema = json.loads(made()["values.schema.json"])["properties"]["settings"]["properties"][program]
    containers = [c for item in kube.sources() for c in pod_containers(item) if c["name"] == program]
    [given] = [{flag.partition("=")[0] for flag in each["args"]} for each in containers]
    wanted = [each for each in every_setting(PROGRAMS[program]) if each.flag not in given and each.name != "node"]
    assert sorted(named(schema)) == sorted(each.name for each in wanted)
    for each in wanted:
        value = functools.reduce(lambda found, part: found["properties"][part], each.path, schema)
        bounds = {key: each.metadata[key] for key in ("minimum", "maximum") if each.metadata[key] is not None}
        if each.kind is int:
            assert {key: value[key] for key in ("minimum", "maximum") if key in value} == bounds, each.name
        if choices := choices_of(each.kind):
            assert value == {"enum": list(choices)}


def pod_containers(item: JSON) -> list[JSON]:
    """The containers of the pods that an object creates."""
    return list(item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()))


def named(schema: JSON, prefix: str = "") -> Iterator[str]:
    """The settings of a schema; groups are named with a dot."""
    for name, value in schema["properties"].items():
        if value.get("type") == "object":
            yield from named(value, f"{prefix}{name}.")
        else:
            yield prefix + name


DURATIONS = ["500ms", "30s", "1m30s", "1h", "1.5s", "5", "", "s", "1d", "-1s", "30 s"]
AMOUNTS = ["256Mi", "1G", "268435456", "0", "1.5Gi", "Mi", "256MiB", "-1", "some"]


@pytest.mark.parametrize(
    ("name", "text"), [("interval", each) for each in DURATIONS] + [("overuse_slack", each) for each in AMOUNTS]
)
def test_the_schema_takes_the_texts_that_the_programs_take(name: str, text: str) -> None:
    settings = json.loads(made()["values.schema.json"])["properties"]["settings"]["properties"]
    value = settings["nodeagent"]["properties"][name]
    env = {"GPUFRACTION_NODE": "n", f"GPUFRACTION_{name.upper()}": text}
    fits = re.search(value["pattern"], text) is not None and len(text) >= value.get("minLength", 0)
    with contextlib.nullcontext() if fits else pytest.raises(SettingsError):
        load(PROGRAMS["nodeagent"], file=None, env=env, argv=[])


def test_what_the_template_language_would_read_stays_text() -> None:
    for path, text in made().items():
        if path.startswith("templates/") and path.endswith(".yaml"):
            opened = len(re.findall(r"\{\{-? (?:if|with|range|define) ", text))
            assert opened == text.count("{{- end }}"), path


def test_the_chart_is_written_and_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--into", str(tmp_path)]) == 0
    folder, package = map(Path, capsys.readouterr().out.split())
    found = made()
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == found.keys()
    with tarfile.open(package) as archive:
        assert sorted(archive.getnames()) == sorted(f"gpufraction/{path}" for path in found)
    assert package.read_bytes() == packed(found) == packed(files())
    assert yaml.safe_load(found["Chart.yaml"])["version"] in package.name
