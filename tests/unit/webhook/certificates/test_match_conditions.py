"""Resources that an administrator has renamed: the webhook gets their pods, whatever is applied in between."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cel
import jsonpatch
import pytest
import yaml

from contract.dialects.conditions import match_conditions, other_conditions
from contract.options import BadOption, vgpu_options
from runtime.kubernetes.errors import KubeForbidden, KubeInvalid
from tests.builders import PodBuilder, pod
from webhook.__main__ import main
from webhook.certificates import configuration as conditions
from webhook.certificates.keeper import Ensure
from webhook.certificates.store import Directories

JSON = dict[str, Any]
RENAMED = ("example.com/vgpu", "example.com/vgpumem")


def shipped() -> JSON:
    """The configuration as it is applied, with the component hide-gpus."""
    return {
        "metadata": {"resourceVersion": "1"},
        "webhooks": [
            {"name": "others.gpufraction.io", "clientConfig": {}, "matchConditions": other_conditions()},
            {"name": "debuggers.gpufraction.io", "clientConfig": {}},
            {"name": "pods.gpufraction.io", "clientConfig": {}, "matchConditions": match_conditions()},
        ],
    }


class Api:
    """One configuration. `refuses`: it must not be written."""

    def __init__(self, configuration: JSON, *, refuses: bool = False) -> None:
        self.configuration, self.refuses, self.writes = configuration, refuses, 0

    def get(self, path: str) -> JSON:
        return copy.deepcopy(self.configuration)

    def patch_json(self, path: str, ops: list[JSON]) -> JSON:
        if self.refuses:
            raise KubeForbidden("not allowed")
        try:
            self.configuration = jsonpatch.apply_patch(self.configuration, ops)
        except jsonpatch.JsonPatchException as error:
            raise KubeInvalid("the version has moved on") from error
        self.writes += 1
        return {}

    def let_through(self, entry: str, builder: PodBuilder) -> bool:
        (webhook,) = (each for each in self.configuration["webhooks"] if each["name"] == entry)
        return all(cel.evaluate(c["expression"], {"object": builder.json()}) for c in webhook["matchConditions"])


PODS: dict[str, tuple[PodBuilder, bool]] = {
    "the resource's own name here": (pod("p").asks("example.com/vgpu", 1), True),
    "another name, beside none of the standard ones": (pod("p").asks("example.com/vgpumem", 3000), True),
    "a standard name": (pod("p").asks("nvidia.com/gpu", 1), True),
    "a name that nobody gave": (pod("p").asks("example.com/vgpus", 1), False),
    "no share": (pod("p"), False),
}


@pytest.mark.parametrize(("builder", "ours"), PODS.values(), ids=PODS.keys())
def test_who_is_let_through_by_which_entry(builder: PodBuilder, ours: bool) -> None:
    api = Api(shipped())
    assert conditions.let_through(api, "zz-gpufraction-webhook", RENAMED) == 2
    entries = ("pods.gpufraction.io", "others.gpufraction.io")
    assert [api.let_through(entry, builder) for entry in entries] == [ours, not ours]


def with_condition(condition: JSON) -> JSON:
    return {"metadata": {"resourceVersion": "1"}, "webhooks": [{"name": "w", "matchConditions": [condition]}]}


HAND = "['example.com/vgpu', 'example.com/vgpumem'].exists(n, n in object.spec.containers[0].resources.limits)"
CHANGED: dict[str, tuple[JSON, int]] = {
    "the shipped ones": (shipped(), 2),
    "one made by hand that names them all": (with_condition({"name": "asks-for-a-gpu-share", "expression": HAND}), 0),
    "one made here that names some": (with_condition(*match_conditions(renamed=RENAMED[:1])), 1),
    "one made here for names of before": (with_condition(*match_conditions(renamed=("example.com/old",))), 1),
    "somebody else's": (with_condition({"name": "not-on-sundays", "expression": "true"}), 0),
    "no conditions": ({"metadata": {"resourceVersion": "1"}, "webhooks": [{"name": "w"}]}, 0),
    "no entries": ({"metadata": {"resourceVersion": "1"}}, 0),
}


@pytest.mark.parametrize(("configuration", "count"), CHANGED.values(), ids=CHANGED.keys())
def test_what_is_changed_and_that_once(configuration: JSON, count: int) -> None:
    api = Api(copy.deepcopy(configuration))
    looks = [conditions.let_through(api, "zz-gpufraction-webhook", RENAMED) for _ in range(2)]
    assert (looks, api.writes) == ([count, 0], int(count > 0))


def test_one_made_by_hand_that_lacks_a_name_is_reported_and_left_as_it_is() -> None:
    api = Api(with_condition({"name": "asks-for-a-gpu-share", "expression": HAND.replace("mem", "")}))
    with pytest.raises(KubeInvalid, match=r"does not name example.com/vgpumem; apply the output of"):
        conditions.let_through(api, "zz-gpufraction-webhook", RENAMED)
    assert api.writes == 0


def test_names_are_only_added_and_both_entries_stay_opposite() -> None:
    api = Api(shipped())
    for renamed in (("example.com/old",), RENAMED, ("example.com/old", "example.com/vgpu")):
        conditions.let_through(api, "zz-gpufraction-webhook", renamed)
        others, _, ours = api.configuration["webhooks"]
        expression = ours["matchConditions"][0]["expression"]
        assert others["matchConditions"][0]["expression"] == f"!({expression})"
    assert expression == match_conditions(renamed=("example.com/old", *RENAMED))[0]["expression"]
    assert api.writes == 2


def test_nothing_is_changed_where_nothing_is_renamed() -> None:
    assert conditions.naming(shipped(), ()) == []


def keeping(folder: Path, api: Api, logged: list[str]) -> Ensure:
    return Ensure(
        store=lambda: Directories(folder / "serving", folder / "authority"),
        names=("n",),
        configuration="zz-gpufraction-webhook",
        renamed=lambda: RENAMED,
        connect=lambda: api,
        say=logged.append,
        assure=False,
    )


def test_whoever_applies_the_manifests_again_has_it_put_back_at_the_next_look(tmp_path: Path) -> None:
    api, logged = Api(shipped()), list[str]()
    look = keeping(tmp_path, api, logged)
    assert [look.once(), look.once()] == [0, 0]
    api.configuration = shipped()
    assert look.once() == 0
    line = "2 conditions of zz-gpufraction-webhook now name example.com/vgpu, example.com/vgpumem"
    assert [text for text in logged if "conditions" in text] == [line, line]


def test_what_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, logged = Api(shipped()), list[str]()
    look = keeping(tmp_path, api, logged)
    assert look.once() == 0
    api.configuration["webhooks"][2]["matchConditions"] = match_conditions()
    api.refuses = True
    assert look.once() == 1
    assert [record.message for record in caplog.records] == [
        "pods that name renamed resources may not reach the webhook"
    ]


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def options(tmp_path: Path) -> Path:
    file = tmp_path / "options.yaml"
    file.write_text("resourceName: example.com/vgpu\nresourceMem: example.com/vgpumem\ndefaultCores: 5\n")
    return file


@pytest.mark.parametrize("hide_gpus", [False, True])
def test_the_patch_for_who_applies_it_himself(
    options: Path, hide_gpus: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--options", str(options), f"--hide-gpus={str(hide_gpus).lower()}"]
    assert main(["conditions", *flags], {}) == 0
    entries = {"pods.gpufraction.io": match_conditions(renamed=RENAMED)}
    if hide_gpus:
        entries["others.gpufraction.io"] = other_conditions(renamed=RENAMED)
    assert yaml.safe_load(capsys.readouterr().out) == {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "zz-gpufraction-webhook"},
        "webhooks": [{"name": name, "matchConditions": each} for name, each in entries.items()],
    }


def test_options_that_cannot_be_read_make_no_patch(options: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options.write_text("resourceName: vgpu")
    assert main(["conditions", "--options", str(options)], {}) == 2
    assert "resourceName: found 'vgpu'; give a resource's name, such as nvidia.com/vgpu" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["vgpu", "example.com/", "x.io/a'] || true || ['", "x.io/" + "a" * 64, "X.io/a", 5])
def test_what_is_no_resources_name_is_refused(name: Any) -> None:
    with pytest.raises(BadOption, match=r"give a resource's name, such as nvidia\.com/vgpu"):
        vgpu_options({"resourceName": name})
