"""
An attacker with the token of the keeper of certificates, on a cluster that hides GPUs: whatever the attacker writes, a
pod without a share sees no GPU.

Each attempt is a real write. After it, the test measures what the victim sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract import names
from contract.dialects.conditions import match_conditions, negated
from playground.cluster import account
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeForbidden, KubeInvalid
from tests.builders import IMAGE, PodBuilder, pod
from tests.cluster.hiding import hide_gpus
from tests.cluster.hostile.attack import Hostile, hostile_cluster
from tests.cluster.hostile.test_hidden_gpus import VISIBLE
from tests.clusters import control_planes
from webhook.certificates import configuration

JSON = dict[str, Any]
pytestmark = [pytest.mark.hostile, pytest.mark.long]
HOOK = paths.mutatingwebhookconfigurations("zz-gpufraction-webhook")
OURS, OTHERS, DEBUGGERS = "pods.gpufraction.io", "others.gpufraction.io", "debuggers.gpufraction.io"
SHIPPED = match_conditions()[0]["expression"]
VICTIMS = {
    "asks for nothing": pod("none").container("main", image=IMAGE).env(VISIBLE, "all"),
    "names an added resource": pod("added")
    .container("main", image=IMAGE)
    .env(VISIBLE, "all")
    .asks("example.com/gpu", 0),
}


def named(*resources: str) -> str:
    """Our condition with these names added."""
    return match_conditions(renamed=resources)[0]["expression"]


@pytest.fixture(scope="module", params=control_planes())
def hiding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    for made in hostile_cluster(request.param, tmp_path_factory.mktemp("keeper"), webhook=("--hide-gpus=true",)):
        hide_gpus(made.cluster)
        yield made


@pytest.fixture
def thief(hiding: Hostile, tmp_path: Path) -> Iterator[Kube]:
    """An attacker with the token. Whatever the attacker changes is restored."""
    kept = hiding.kube.get(HOOK)["webhooks"]
    config = tmp_path / "kubeconfig"
    config.write_text(hiding.cluster.control_plane.kubeconfig(account("gpufraction-certs")))
    yield Kube.connect(kubeconfig=str(config))
    hiding.kube.patch_merge(HOOK, {"webhooks": kept})


Change = Callable[[dict[str, JSON]], None]


def expressed(ours: str, others: str) -> Change:
    """Both conditions as given."""

    def change(entries: dict[str, JSON]) -> None:
        entries[OURS]["matchConditions"][0]["expression"] = ours
        entries[OTHERS]["matchConditions"][0]["expression"] = others

    return change


def emptied(entries: dict[str, JSON]) -> None:
    for entry in entries.values():
        entry["clientConfig"].pop("caBundle", None)


def without(entries: dict[str, JSON]) -> None:
    del entries[OTHERS]["matchConditions"]


def second(entries: dict[str, JSON]) -> None:
    entries[OTHERS]["matchConditions"].append({"name": "never", "expression": "false"})


def moved(entries: dict[str, JSON]) -> None:
    entries[OTHERS]["matchConditions"], entries[OURS]["matchConditions"] = (
        entries[OURS]["matchConditions"],
        entries[OTHERS]["matchConditions"],
    )


def ignored(entries: dict[str, JSON]) -> None:
    entries[OTHERS]["failurePolicy"] = "Ignore"


def debugged(entries: dict[str, JSON]) -> None:
    entries[DEBUGGERS]["matchConditions"] = [{"name": "never", "expression": "false"}]


REFUSED: dict[str, Change] = {
    "no pod is sent": expressed("false", "false"),
    "no pod without a share is sent": expressed(SHIPPED, "false"),
    "names added to the opposite alone": expressed(SHIPPED, negated(named("example.com/gpu"))),
    "a standard resource added to both": expressed(named("cpu"), negated(named("cpu"))),
    "other names in each": expressed(named("example.com/a"), negated(named("example.com/b"))),
    "code after the names": expressed(SHIPPED + " || true", negated(SHIPPED + " || true")),
    "code before the names": expressed("true || " + SHIPPED, negated("true || " + SHIPPED)),
    "code among the names": expressed(*(2 * (SHIPPED.replace("\n].", ",\n  'a/b'] == [] || ['a/b'\n]."),))),
    "a comment among the names": expressed(
        named("example.com/gpu").replace("gpu'", "gpu' // '"),
        negated(named("example.com/gpu").replace("gpu'", "gpu' // '")),
    ),
    "the shipped names taken away": expressed(
        SHIPPED.replace("'nvidia.com/gpu',", ""), negated(SHIPPED.replace("'nvidia.com/gpu',", ""))
    ),
    "more names than can be evaluated": expressed(
        named(*(f"example.com/n{at}" for at in range(400))),
        negated(named(*(f"example.com/n{at}" for at in range(400)))),
    ),
    "a condition more": second,
    "no condition": without,
    "the conditions exchanged": moved,
    "no answer needed": ignored,
    "debuggers are not sent": debugged,
}


def tried(thief: Kube, change: Change) -> bool:
    """Whether the write is accepted. A refusal that is not from a policy or the API's own rules is an error."""
    found = thief.get(HOOK)
    change({entry["name"]: entry for entry in found["webhooks"]})
    try:
        thief.patch_merge(HOOK, {"webhooks": found["webhooks"]})
    except (KubeForbidden, KubeInvalid):
        return False
    return True


def sees_gpus(hiding: Hostile, victim: PodBuilder) -> bool:
    """Whether the created pod sees GPUs; a refused pod sees none."""
    try:
        made = hiding.create(victim, dry_run=True)
    except KubeError:
        return False
    entries = [each for each in made["spec"]["containers"][0].get("env", []) if each["name"] == VISIBLE]
    return entries != [{"name": VISIBLE, "value": names.NO_DEVICES}]


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_the_keepers_token_cannot_stop_the_hiding(hiding: Hostile, thief: Kube, change: Change) -> None:
    before = hiding.kube.get(HOOK)["webhooks"]
    assert not tried(thief, change)
    assert hiding.kube.get(HOOK)["webhooks"] == before
    assert {name: sees_gpus(hiding, victim) for name, victim in VICTIMS.items()} == dict.fromkeys(VICTIMS, False)


@pytest.mark.parametrize("change", [expressed(named("example.com/gpu"), negated(named("example.com/gpu"))), emptied])
def test_what_the_keepers_token_can_write_shows_no_gpu(hiding: Hostile, thief: Kube, change: Change) -> None:
    assert tried(thief, change)
    seen = [{name: sees_gpus(hiding, victim) for name, victim in VICTIMS.items()} for _ in range(20)]
    assert seen == [dict.fromkeys(VICTIMS, False)] * 20


def test_the_keeper_itself_adds_renamed_resources_with_its_own_token(hiding: Hostile, thief: Kube) -> None:
    renamed = ("example.com/vgpu", "example.com/vgpumem")
    assert configuration.let_through(thief, "zz-gpufraction-webhook", renamed) == 2
    assert configuration.let_through(thief, "zz-gpufraction-webhook", ("example.com/later", *renamed)) == 2
    entries = {entry["name"]: entry for entry in hiding.kube.get(HOOK)["webhooks"]}
    [ours] = entries[OURS]["matchConditions"]
    [others] = entries[OTHERS]["matchConditions"]
    assert ours["expression"] == named(*renamed, "example.com/later")
    assert others["expression"] == negated(ours["expression"])


PIECES = st.sampled_from(
    ["'", '"', "\\", "\n", ",", "]", "[", "/", "//", "true", "false", "||", "&&", "!", "(", ")", " ", "a/b", "'a/b'",
     ",\n  'a/b'", "\n].exists(name,", "e.com/x", "cpu", "\r", "\t", "\0", "{", "}", "object.spec"]
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.integers(0, 3))
def test_whatever_is_put_into_the_conditions_no_pod_sees_a_gpu(
    hiding: Hostile, thief: Kube, text: str, place: int
) -> None:
    at = (0, SHIPPED.index("\n].exists"), SHIPPED.rindex("]"), len(SHIPPED))[place]
    made = SHIPPED[:at] + text + SHIPPED[at:]
    kept = hiding.kube.get(HOOK)["webhooks"]
    for change in (
        expressed(made, negated(made)),
        expressed(SHIPPED, negated(made)),
        expressed(made, negated(SHIPPED)),
    ):
        if tried(thief, change):
            added = made.partition("\n].exists")[0].removeprefix(SHIPPED.partition("\n].exists")[0])
            assert all("/" in each for each in added.removeprefix(",\n").split(",\n")), text
            assert not any(sees_gpus(hiding, victim) for victim in VICTIMS.values())
            hiding.kube.patch_merge(HOOK, {"webhooks": kept})
