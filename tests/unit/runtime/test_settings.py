"""Where a setting comes from, and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.settings import (
    SettingsError,
    composed,
    describe,
    effective,
    every_setting,
    format_duration,
    load,
    parse_duration,
    setting,
    settings_file,
)


@dataclass(frozen=True)
class Group:
    wait: float = setting(2.0, "How long to wait.", unit="duration", minimum=0.1, maximum=60)
    again: bool = setting(False, "Whether to ask again.")
    longest: float = setting(30.0, "The longest wait.", unit="duration", formerly="most")

    def __post_init__(self) -> None:
        if self.wait > self.longest:
            raise ValueError(f"wait {self.wait} is above longest {self.longest}")


@dataclass(frozen=True)
class Tree:
    group: Group = field(default_factory=Group)
    name: str = setting("a", "What it is called.")
    size: int = setting(1 << 28, "How large.", unit="bytes")
    count: int = setting(3, "How many.")
    factor: float = setting(1.5, "How much more.")
    policy: Literal["binpack", "spread"] = setting("binpack", "Which way.")
    path: Path | None = setting(None, "Where | or nowhere.")
    names: tuple[str, ...] = setting((), "Which ones.", formerly="known_as")
    password: str = setting("", "What must not be shown.", secret=True)
    REMOVED: ClassVar[Mapping[str, str]] = {"group.pace": "give wait", "size_of.all": "it is found out now"}


@dataclass(frozen=True)
class Core:
    name: str = setting("a", "What it is called.")


@dataclass(frozen=True)
class Part:
    REMOVED: ClassVar[Mapping[str, str]] = {"pace": "give tempo"}
    tempo: int = setting(1, "How fast.", formerly="speed")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_defaults() -> None:
    assert load(Tree, file=None, env={}, argv=[]) == Tree()


def test_every_kind_from_a_file(file: Path) -> None:
    file.write_text(
        """
        group: {wait: 1500ms, again: true}
        name: b
        size: 1Gi
        count: 4
        factor: 2
        policy: spread
        path: /run/x
        names: [p, q]
        """
    )
    assert load(Tree, file=file, env={}, argv=[]) == Tree(
        group=Group(wait=1.5, again=True),
        name="b",
        size=1 << 30,
        count=4,
        factor=2.0,
        policy="spread",
        path=Path("/run/x"),
        names=("p", "q"),
    )


def test_every_kind_from_flags() -> None:
    argv = ["--group-wait=1m", "--group-longest", "2m", "--group-again", "--name=b=c", "--size", "1Ki"]
    argv += ["--count=-4", "--factor=0.5", "--policy=spread", "--path=none", "--names=p, q"]
    assert load(Tree, file=None, env={}, argv=argv) == Tree(
        group=Group(wait=60.0, longest=120.0, again=True),
        name="b=c",
        size=1024,
        count=-4,
        factor=0.5,
        policy="spread",
        names=("p", "q"),
    )


def test_flags_beat_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text("{name: file, count: 1, factor: 1.0}")
    env = {"GPUFRACTION_NAME": "env", "GPUFRACTION_COUNT": "2", "HOME": "/"}
    loaded = load(Tree, file=file, env=env, argv=["--name=flag"])
    assert (loaded.name, loaded.count, loaded.factor) == ("flag", 2, 1.0)


def test_what_kubelet_puts_there_for_our_services_is_not_a_setting() -> None:
    env = {
        "GPUFRACTION_WEBHOOK_SERVICE_HOST": "10.0.0.1",
        "GPUFRACTION_WEBHOOK_SERVICE_PORT_HTTPS": "443",
        "GPUFRACTION_WEBHOOK_PORT": "tcp://10.0.0.1:443",
        "GPUFRACTION_WEBHOOK_PORT_443_TCP_ADDR": "10.0.0.1",
    }
    assert load(Tree, file=None, env=env, argv=[]) == Tree()


def ignore(text: str) -> None:
    """A setting that another test checks."""


RENAMED = {
    "by a flag": (
        {},
        ["--shared-hue=red"],
        "the setting shared.hue (flag --shared-hue) is deprecated: give shared.color",
    ),
    "by the environment": (
        {"GPUFRACTION_SHARED_HUE": "red"},
        [],
        "the setting shared.hue (environment GPUFRACTION_SHARED_HUE) is deprecated: give shared.color",
    ),
}


@dataclass(frozen=True)
class Painted:
    color: Literal["red", "blue"] = setting("blue", "Which one.", deprecated="hue")


@dataclass(frozen=True)
class Paint:
    shared: Painted = field(default_factory=Painted)


@pytest.mark.parametrize(("env", "argv", "line"), RENAMED.values(), ids=RENAMED.keys())
def test_a_deprecated_name_is_read_and_warned_of(
    env: dict[str, str], argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    assert load(Paint, file=None, env=env, argv=argv, warn=lines.append) == Paint(Painted("red"))
    assert lines == [line]
    load(Paint, file=None, env=env, argv=argv)
    assert capsys.readouterr().err == f"settings: {line}\n"
    assert effective(Paint(Painted("red"))) == {"shared": {"color": "red"}}
    assert "hue" not in describe(Paint)


def test_a_deprecated_name_counts_by_its_source(file: Path) -> None:
    file.write_text("shared: {hue: red}")
    assert load(Paint, file=file, env={}, argv=[], warn=ignore) == Paint(Painted("red"))
    assert load(Paint, file=file, env={}, argv=["--shared-color=blue"], warn=ignore) == Paint()
    file.write_text("shared: {color: red}")
    assert load(Paint, file=file, env={}, argv=["--shared-hue=blue"], warn=ignore) == Paint()


def test_a_deprecated_name_beside_the_new_one_and_a_wrong_value_of_it(file: Path) -> None:
    file.write_text("shared: {hue: red, color: blue}")
    with pytest.raises(SettingsError) as caught:
        load(Paint, file=file, env={}, argv=[], warn=ignore)
    assert list(caught.value.errors) == [
        f"shared.hue (file {file}): given together with its new name shared.color; remove it"
    ]
    with pytest.raises(SettingsError, match=r"shared.color \(flag --shared-hue\): 'green'"):
        load(Paint, file=None, env={}, argv=["--shared-hue=green"], warn=ignore)
    with pytest.raises(SettingsError, match="unknown; did you mean --shared-color"):
        load(Paint, file=None, env={}, argv=["--shared-colour=red"], warn=ignore)


def errors(*, file: Path | None = None, env: dict[str, str] | None = None, argv: list[str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(Tree, file=file, env=env or {}, argv=argv or [])
    return list(caught.value.errors)


def test_all_errors_are_reported_together(file: Path) -> None:
    file.write_text("group: {wiat: 1s, wait: 5}\ncount: three\ngrop: {}\nsize: 5 apples\n")
    assert errors(file=file, env={"GPUFRACTION_NAMS": "x"}, argv=["--policy=random", "--size"]) == [
        f"group.wiat (file {file}): unknown; did you mean group.wait?",
        f"grop (file {file}): unknown",
        "environment GPUFRACTION_NAMS: unknown; did you mean GPUFRACTION_NAMES?",
        "flag --size: expected a value, as in --size=VALUE",
        f"group.wait (file {file}): 5: expected a duration such as 500ms, 30s or 1m30s",
        f"count (file {file}): 'three': expected a whole number",
        f"size (file {file}): '5 apples': expected bytes such as 268435456 or 256Mi",
        "policy (flag --policy): 'random': expected one of binpack, spread",
    ]


def test_an_old_name_is_refused_and_names_its_successor(file: Path) -> None:
    file.write_text("group: {most: 1s}\nknown_as: [p]\n")
    given = {"GPUFRACTION_GROUP_MOST": "1s", "GPUFRACTION_KNOWN_AS": "p"}
    assert errors(file=file, env=given, argv=["--group-most", "1s", "--known-as=p"]) == [
        f"group.most (file {file}): renamed to group.longest",
        f"known_as (file {file}): renamed to names",
        "environment GPUFRACTION_GROUP_MOST: renamed to GPUFRACTION_GROUP_LONGEST",
        "environment GPUFRACTION_KNOWN_AS: renamed to GPUFRACTION_NAMES",
        "flag --group-most: renamed to --group-longest",
        "flag --known-as: renamed to --names",
    ]


def test_a_removed_setting_is_refused_with_what_takes_its_place(file: Path) -> None:
    file.write_text("group: {pace: fast}\nsize_of: {all: [1]}\n")
    assert errors(file=file, env={}, argv=[]) == [
        f"group.pace (file {file}): removed; give wait",
        f"size_of.all (file {file}): removed; it is found out now",
    ]
    assert errors(file=None, env={"GPUFRACTION_GROUP_PACE": "1"}, argv=["--size-of-all", "x"]) == [
        "group.pace (environment GPUFRACTION_GROUP_PACE): removed; give wait",
        "size_of.all (flag --size-of-all): removed; it is found out now",
    ]


BOTH = composed(Core, [("first", "", Part), ("second", "shared", Part), ("third", "shared", Group)])


def test_a_group_is_one_value_wherever_its_settings_are_named(file: Path) -> None:
    file.write_text("{tempo: 2, shared: {tempo: 3, wait: 4s}}")
    found: Any = load(BOTH, file=file, env={}, argv=["--name=b"])
    assert (found.name, found.first, found.second, found.third) == ("b", Part(2), Part(3), Group(4.0))
    shared = {"tempo": 3, "wait": "4s", "again": False, "longest": "30s"}
    assert effective(found) == {"name": "b", "tempo": 2, "shared": shared}
    assert [each.env.removeprefix("GPUFRACTION_") for each in every_setting(BOTH)][:3] == [
        "NAME",
        "TEMPO",
        "SHARED_TEMPO",
    ]


def test_a_groups_old_names_are_refused_where_its_settings_are_named() -> None:
    with pytest.raises(SettingsError) as caught:
        load(BOTH, file=None, env={}, argv=["--pace=1", "--shared-pace=1", "--shared-speed=1"])
    assert list(caught.value.errors) == [
        "flag --shared-speed: renamed to --shared-tempo",
        "pace (flag --pace): removed; give tempo",
        "shared.pace (flag --shared-pace): removed; give tempo",
    ]


@pytest.mark.parametrize(
    ("groups", "name"),
    [([("name", "part", Part)], "name"), ([("a", "", Part), ("b", "", Part)], "tempo"), ([("a", "", Core)], "name")],
    ids=["a field", "two groups", "a setting of the core"],
)
def test_two_settings_of_one_name_are_refused(groups: list[tuple[str, str, type]], name: str) -> None:
    with pytest.raises(TypeError, match=f"two settings have the same name: {name}$"):
        composed(Core, groups)


def test_what_nobody_knows_is_cut_and_escaped_in_the_message(file: Path) -> None:
    file.write_text(json.dumps({"n" * 500: 1, "\u202ename": 1}))
    [long, odd] = errors(file=file, env={}, argv=[])
    assert len(long) < len(str(file)) + 150
    assert odd == f"\\u202ename (file {file}): unknown"


REFUSED = {
    "an unknown flag, its value not a second one": (
        ["--nmae", "x"],
        ["flag --nmae: unknown; did you mean --name?"],
    ),
    "below the minimum": (["--group-wait=0s"], ["group.wait (flag --group-wait): '0s': expected at least 100ms"]),
    "above the maximum": (["--group-wait=1h"], ["group.wait (flag --group-wait): '1h': expected at most 1m"]),
    "what a group's own check says": (["--group-wait=40s"], ["group: wait 40.0 is above longest 30.0"]),
    "a number that is none": (["--factor=much"], ["factor (flag --factor): 'much': expected a number such as 1.5"]),
    "a truth that is none": (
        ["--group-again=maybe"],
        ["group.again (flag --group-again): 'maybe': expected true or false"],
    ),
    "a bare word": (["name"], ["flag name: unknown; did you mean --name?"]),
}


@pytest.mark.parametrize(("argv", "want"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(argv: list[str], want: list[str]) -> None:
    assert errors(argv=argv) == want


FILES = {
    "not YAML": ("a: [", "not YAML"),
    "a day that is none": ("count: 2030-13-45", "not YAML"),
    "not a mapping": ("- a", "top level (file"),
    "a group that is a value": ("group: 5", "group (file"),
    "a text that YAML reads as a number": ("name: 5", "expected a text; quote it in YAML"),
    "a secret, without showing it": ("password: [hunter2]", "the value: expected a text"),
}


@pytest.mark.parametrize(("text", "want"), FILES.values(), ids=FILES.keys())
def test_a_file_is_refused_for(file: Path, text: str, want: str) -> None:
    file.write_text(text)
    [error] = errors(file=file)
    assert want in error
    assert "hunter2" not in error


def test_a_missing_file_is_reported(file: Path) -> None:
    assert errors(file=file) == [f"file {file}: No such file or directory"]


def test_an_empty_file_means_the_defaults(file: Path) -> None:
    file.write_text("# nothing\n")
    assert load(Tree, file=file, env={}, argv=[]) == Tree()


def test_effective_settings_are_written_as_in_the_file() -> None:
    assert effective(Tree(password="hunter2", names=("p",), path=Path("/run/x"))) == {
        "group": {"wait": "2s", "again": False, "longest": "30s"},
        "name": "a",
        "size": "256Mi",
        "count": 3,
        "factor": 1.5,
        "policy": "binpack",
        "path": "/run/x",
        "names": ["p"],
        "password": "(secret)",
    }


def test_describe() -> None:
    rows = describe(Tree).splitlines()
    assert rows[2] == (
        "| `group.wait` | `GPUFRACTION_GROUP_WAIT` | `2s` | How long to wait. (at least 100ms, at most 1m) |"
    )
    assert rows[10] == "| `path` | `GPUFRACTION_PATH` | (none) | Where \\| or nowhere. |"
    assert rows[11] == "| `names` | `GPUFRACTION_NAMES` | (empty) | Which ones. |"
    assert "one of `binpack`, `spread`" in rows[9]
    assert len(rows) == 2 + 11


@dataclass(frozen=True)
class Needed:
    name: str = field(metadata={"doc": "Its name."})


def test_a_setting_without_a_default_must_be_given() -> None:
    with pytest.raises(SettingsError, match="name: not set, and there is no default"):
        load(Needed, file=None, env={}, argv=[])
    assert load(Needed, file=None, env={}, argv=["--name=x"]) == Needed("x")
    assert "(required)" in describe(Needed)


DURATIONS = {"500ms": 0.5, "30s": 30.0, "1.5s": 1.5, "1m30s": 90.0, "1h": 3600.0, "2h5m": 7500.0, "0s": 0.0}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1s1m", "1d", 5, None])
def test_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@given(st.integers(0, 10**9))
def test_a_duration_survives_being_written(millis: int) -> None:
    assert round(parse_duration(format_duration(millis / 1000)) * 1000) == millis


FILE_FLAGS = {
    "no file": (["--count=5"], (None, ["--count=5"])),
    "in one word": (["--settings=a.yaml", "--count=5"], (Path("a.yaml"), ["--count=5"])),
    "in two words, among others": (
        ["--count", "5", "--settings", "a.yaml", "-x"],
        (Path("a.yaml"), ["--count", "5", "-x"]),
    ),
    "another flag that starts alike": (["--settings-more=a"], (None, ["--settings-more=a"])),
}


@pytest.mark.parametrize(("argv", "wanted"), FILE_FLAGS.values(), ids=FILE_FLAGS.keys())
def test_the_file_is_taken_off_the_flags(argv: list[str], wanted: tuple[Path | None, list[str]]) -> None:
    before = list(argv)
    assert settings_file(argv) == wanted
    assert argv == before


@pytest.mark.parametrize("argv", [["--settings"], ["--settings="], ["--settings", "--count=5"]])
def test_a_file_without_a_name_is_refused(argv: list[str]) -> None:
    with pytest.raises(SettingsError, match="flag --settings: expected a file, as in --settings=FILE"):
        settings_file(argv)
