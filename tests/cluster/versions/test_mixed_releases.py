"""
Programs of different releases in one cluster, rolled forward and back under load, on both control planes.

At all times no card has more allocated than it has, and no creation or deletion of a pod fails. At the end every
invariant of `tests.cluster.system.invariants` holds, in a cluster of present programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from contract import names, pods
from contract.reasons.pods import PodReason
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.system import invariants
from tests.cluster.versions import releases
from tests.cluster.versions.fleet import Fleet, define_for_next, under_load
from tests.cluster.versions.releases import PRESENT, Release
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
NODES = (gpu_node("n0", "2 x NVIDIA A10 23028MiB"), gpu_node("n1", "2 x NVIDIA A10 23028MiB"))
AGENTS = tuple(f"nodeagent-{node.spec.name}" for node in NODES)
SETTINGS = {"allocator": ("--assume-ttl", "3s", "--repair-every", "1s"), "nodeagent": ("--heartbeat", "10s", "--pods")}
COMPONENTS = (*DEFAULT_COMPONENTS, "holders")
"""With holders the agents may read the pods of their nodes."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def former(sources: Path) -> Release:
    return releases.former(sources / "former")


@pytest.fixture(scope="module")
def following(sources: Path) -> Release:
    return releases.following(sources / "next")


@pytest.fixture(scope="module")
def later(sources: Path) -> Release:
    return releases.later(sources / "later")


def fleet_of(request: pytest.FixtureRequest, directory: Path) -> Iterator[Fleet]:
    with Cluster(
        nodes=NODES,
        directory=directory,
        settings=SETTINGS,
        replicas=2,
        components=COMPONENTS,
        control_plane=request.param,
    ) as cluster:
        define_for_next(cluster)
        yield Fleet(cluster)


@pytest.fixture(params=control_planes())
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    yield from fleet_of(request, tmp_path)


@pytest.fixture(params=control_planes(long=True))
def long_fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    yield from fleet_of(request, tmp_path)


def ended(fleet: Fleet) -> None:
    """Every program is of this release, and every invariant holds, with the existing pods and without them."""
    for name, release in fleet.runs.items():
        if release != PRESENT.name:
            fleet.replace(PRESENT, name)
    invariants.check(fleet.cluster)
    scenarios.clear(fleet.cluster.kube)
    invariants.check(fleet.cluster)


def test_what_a_later_release_writes_is_not_what_this_one_does(following: Release, later: Release) -> None:
    """Without this the other tests would show that a release runs together with itself."""
    text = (
        "from contract.encoding import codec; from contract.model import *;"
        "from runtime.kubernetes.paths import gpunodes;"
        "share = GpuShare('GPU-1', 0, 1, 0, 1);"
        "print(codec.allocation_to_text(Allocation('a', 'n', (ContainerAllocation('main', (share,)),))), gpunodes())"
    )
    found = [releases.python(release, text) for release in (PRESENT, following, later)]
    assert [("laterField" in each, f'"v":{releases.LATER}' in each, "v1beta1" in each) for each in found] == [
        (False, False, False),
        (True, False, True),
        (True, True, True),
    ]


def test_three_releases_side_by_side(fleet: Fleet, former: Release, following: Release) -> None:
    """The short scene: the previous and the next release share the work, each leads, and everything goes back."""
    with under_load(fleet.cluster, seed=1) as (load, witness):
        fleet.replace(following, "webhook-1", "allocator-1", AGENTS[1])
        fleet.replace(former, "webhook", "allocator", AGENTS[0])
        fleet.lead(0)
        fleet.lead(1)
        created = load.created
        wait_for(lambda: load.created > created + 10, "the load stands still")
    assert {"former", "next"} <= set(fleet.led)
    assert {"v1", "v1 and more"} <= set(witness.shapes)
    ended(fleet)


def in_small_steps(three: Sequence[Release]) -> Iterator[tuple[Release, Release, Release]]:
    """All triples, each of which differs from the previous one in one place."""
    for first, second in itertools.product(range(3), repeat=2):
        place = 3 * first + second
        for third in range(3):
            middle = second if first % 2 == 0 else 2 - second
            yield three[first], three[middle], three[third if place % 2 == 0 else 2 - third]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_program_of_every_release_beside_every_other(
    long_fleet: Fleet, former: Release, following: Release
) -> None:
    """
    Tests the 27 mixes of webhook, leading allocator and agent. The other replica and the other node change meanwhile.
    """
    fleet, three = long_fleet, (former, PRESENT, following)
    seen = set()
    with under_load(fleet.cluster, seed=2) as (load, witness):
        for turn, mix in enumerate(in_small_steps(three)):
            wanted = dict(zip(("webhook", "allocator", AGENTS[0]), mix, strict=True))
            if turn % 4 == 0:
                wanted[("webhook-1", "allocator-1", AGENTS[1])[turn // 4 % 3]] = three[turn // 4 % 2 * 2]
            for name, release in wanted.items():
                if fleet.runs[name] != release.name:
                    fleet.replace(release, name)
            fleet.lead(0)
            created = load.created
            wait_for(lambda: load.created > created + 3, "the load stands still")  # noqa: B023 - called at once
            seen.add(tuple(release.name for release in mix))
    assert len(seen) == 27
    assert set(fleet.led) == {"former", "present", "next"}
    assert {"v1", "v1 and more"} <= set(witness.shapes)
    ended(fleet)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_roll_outs_forward_and_back_by_crashes_and_politely(
    long_fleet: Fleet, former: Release, following: Release
) -> None:
    """
    As an administrator does it: replica by replica, then the agents; and back again, one of the roll-outs by kills.
    """
    fleet = long_fleet
    everything = ("webhook", "allocator", "webhook-1", "allocator-1", *AGENTS)
    with under_load(fleet.cluster, seed=3, kills=True) as (_, witness):
        fleet.replace(former, *everything)
        fleet.replace(PRESENT, *everything)
        fleet.replace(following, *everything)
        fleet.replace(PRESENT, *everything, crash=True)
        fleet.replace(following, *reversed(everything), crash=True)
        fleet.replace(former, *everything)
    assert set(fleet.led) == {"former", "present", "next"}
    assert {"v1", "v1 and more"} <= set(witness.shapes)
    ended(fleet)


def closed_cards(fleet: Fleet) -> set[str]:
    """The cards that agents publish as closed because of a share that they cannot read."""
    found = fleet.cluster.kube.list(paths.gpunodes()).items
    return {
        gpu["uuid"]
        for each in found
        for gpu in (each.get("status") or {}).get("gpus") or []
        if "cannot read" in gpu.get("reason", "")
    }


def unread(fleet: Fleet) -> float:
    """How many shares the leader cannot read."""
    found = [invariants.figures(fleet.cluster, each.number) for each in fleet.cluster.replicas]
    return sum(each.get("gpufraction_unread_shares", 0.0) for each in found if each.get("gpufraction_leader"))


def told_of(fleet: Fleet) -> set[str]:
    """The pods with an Event that says that their share cannot be read."""
    found = fleet.cluster.kube.list(paths.events("default")).items
    about = [each["involvedObject"] for each in found if each["reason"] == PodReason.SHARE_UNREAD]
    return {f"{each['namespace']}/{each['name']}" for each in about}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_going_back_from_a_release_whose_texts_cannot_be_read(long_fleet: Fleet, later: Release) -> None:
    """
    A release is skipped: its shares close their cards, none is allocated twice, and a newer release opens them again.
    """
    fleet = long_fleet
    programs = ("webhook", "allocator", "webhook-1", "allocator-1")
    with under_load(fleet.cluster, seed=4, kills=True) as (load, witness):
        fleet.replace(later, *programs)
        wait_for(lambda: witness.shapes[f"v{releases.LATER} and more"] > 5, "nothing is placed by the later release")
        before = load.created
        fleet.replace(PRESENT, *programs, crash=True)
        wait_for(lambda: unread(fleet) > 0, "this release reads everything")
        wait_for(lambda: load.created > before + 10, "the load stands still")
    held = {pods.key(each) for each in fleet.cluster.kube.list(paths.pods()).items if _of_later(each)}
    assert held, "no share of the later release is left"
    wait_for(lambda: unread(fleet) == len(held), lambda: f"{len(held)} cannot be read, the leader says {unread(fleet)}")
    wait_for(lambda: bool(closed_cards(fleet)), "no agent closes a card")
    wait_for(lambda: held <= told_of(fleet), lambda: f"{sorted(held - told_of(fleet))} are not told")
    with under_load(fleet.cluster, seed=5):
        fleet.replace(later, *programs)
        wait_for(lambda: unread(fleet) == 0, "the later release does not read its own")
        fleet.replace(later, *AGENTS)
        wait_for(lambda: not closed_cards(fleet), "the agents of the later release close cards")
    scenarios.clear(fleet.cluster.kube)
    ended(fleet)


def _of_later(found: dict[str, object]) -> bool:
    return f'"v":{releases.LATER}' in pods.annotations_of(found).get(names.ALLOCATION, "") and not pods.finished(found)
