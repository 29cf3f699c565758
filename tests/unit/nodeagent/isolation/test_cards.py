"""The description of cards and slices: device files, the driver's folder, and when there is none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.model import Gpu, Inventory
from nodeagent.files import read_text
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cards
from nodeagent.isolation.cards import Capabilities, Cards, capabilities_of, device_numbers

DRIVER = "/home/kubernetes/bin/nvidia"
MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu3/gi1/access 417
gpu3/gi1/ci0/access 418
gpu3/gi2/access 426
gpu3/gi2/ci0/access 427
gpu3/gi2/ci1/access 428
"""
MAJORS = """\
Character devices:
  1 mem
195 nvidia
234 nvidia-caps
511 nvidia-uvm

Block devices:
259 nvidia-caps
"""
FILES = {minor: f"234 {minor}" for minor in (1, 2, 12, 13, 417, 418, 426, 427, 428)}
"""Minor numbers of all capabilities, as NVIDIA's tools write them, including the administrator's two."""


def card(uuid: str, minor: int) -> Card:
    return Card(0, uuid, "Tesla T4", 1 << 34, minor=minor)


def inventory(*uuids: str, parent: str = "") -> Inventory:
    return Inventory(
        "n", tuple(Gpu(uuid, i, "Tesla T4", 1 << 34, 1 << 34, parent=parent) for i, uuid in enumerate(uuids))
    )


def made(folder: Path, *seen: Card) -> Cards:
    (folder / "dev").mkdir(exist_ok=True)
    for name in ("nvidiactl", "nvidia-uvm"):
        (folder / "dev" / name).touch()
    return Cards(
        lambda: Observation(cards=seen),
        folder=folder,
        driver=DRIVER,
        devices=folder / "dev",
        proc=folder / "proc",
        numbers=numbers_in(folder),
    )


def numbers_in(folder: Path) -> Callable[[Path], tuple[int, int] | None]:
    """A file `<major> <minor>` replaces a device file, which only root can create."""

    def read(file: Path) -> tuple[int, int] | None:
        text = read_text(folder / "dev" / file.relative_to(folder / "dev"))
        major, _, minor = text.partition(" ")
        return (int(major), int(minor)) if text else None

    return read


def cut(folder: Path, *, minors: str = MINORS, majors: str = MAJORS, files: Mapping[int, str] = FILES) -> None:
    """A machine with slices: what the driver says about their capabilities, and their device files."""
    for name, text in (("driver/nvidia-caps/mig-minors", minors), ("devices", majors)):
        (folder / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "proc" / name).write_text(text)
    (folder / "dev/nvidia-caps").mkdir(parents=True, exist_ok=True)
    for minor, text in files.items():
        (folder / "dev/nvidia-caps" / f"nvidia-cap{minor}").write_text(text)


def slice_of(parent: Card, uuid: str, *instances: int) -> Card:
    known = (instances[0], instances[1]) if instances else None
    return replace(parent, uuid=uuid, parent=parent.uuid, sliced=False, instances=known)


def nodes(folder: Path) -> dict[str, list[str]]:
    """The device files of each device in the description."""
    devices = written(folder)["devices"]
    assert isinstance(devices, list)
    return {d["name"]: [node["path"] for node in d["containerEdits"]["deviceNodes"]] for d in devices}


def written(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / cards.FILE).read_text())
    return found


def test_each_card_has_its_own_file_and_all_have_those_that_there_are(tmp_path: Path) -> None:
    assert made(tmp_path, card("GPU-a", 3), card("GPU-b", 0)).describe(inventory("GPU-a", "GPU-b")) == cards.KIND
    assert written(tmp_path) == {
        "cdiVersion": "0.5.0",
        "kind": "gpufraction.io/card",
        "devices": [
            {"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia3"}]}},
            {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
            "mounts": [
                {
                    "hostPath": DRIVER,
                    "containerPath": "/usr/local/nvidia",
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }
            ],
        },
    }


@pytest.mark.parametrize(
    ("seen", "published", "why"),
    [
        ((card("GPU-a", -1),), inventory("GPU-a"), "device files"),
        ((), inventory("GPU-a"), "device files"),
        ((card("GPU-a", 0),), inventory("MIG-a", parent="GPU-a"), "device files"),
        ((), inventory(), "device files"),
    ],
)
def test_what_cannot_be_described_is_reported(
    tmp_path: Path, seen: tuple[Card, ...], published: Inventory, why: str
) -> None:
    describing = made(tmp_path, *seen)
    assert describing.describe(published) is None
    assert why in describing.trouble
    assert not (tmp_path / cards.FILE).exists()


def test_while_no_card_can_be_seen_the_last_description_stays(tmp_path: Path) -> None:
    describing = made(tmp_path, card("GPU-a", 0))
    describing.describe(inventory("GPU-a"))
    before = written(tmp_path)
    assert describing.describe(inventory()) == cards.KIND
    assert written(tmp_path) == before


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    describing = made(tmp_path, card("GPU-a", 0))
    nowhere = Cards(
        lambda: Observation(cards=(card("GPU-a", 0),)),
        folder=tmp_path / "missing",
        driver=DRIVER,
        devices=tmp_path / "dev",
        proc=tmp_path / "proc",
    )
    assert describing.describe(inventory("GPU-a")) == cards.KIND
    assert nowhere.describe(inventory("GPU-a")) is None
    assert "cannot be written" in nowhere.trouble


# -- slices -----------------------------------------------------------------------------------------------------------

CARD = replace(card("GPU-a", 3), sliced=True)
"""Its position among the cards differs from the number of its device file."""
ONE, TWO, BESIDE = slice_of(CARD, "MIG-1", 1, 0), slice_of(CARD, "MIG-2", 2, 0), slice_of(CARD, "MIG-3", 2, 1)


def of_slices(*slices: Card, whole: tuple[str, ...] = ("GPU-a",)) -> Inventory:
    """What is published about a card in MIG mode with these slices."""
    both = *whole, *(each.uuid for each in slices)
    parents = {each.uuid: each.parent for each in slices}
    return Inventory("n", tuple(Gpu(u, 0, "A100", 1 << 34, 1 << 34, parent=parents.get(u, "")) for u in both))


def test_a_slice_has_its_cards_file_and_its_own_two_capabilities(tmp_path: Path) -> None:
    describing = made(tmp_path, CARD, ONE, TWO, BESIDE, card("GPU-b", 0))
    cut(tmp_path)
    published = of_slices(ONE, TWO, BESIDE, whole=("GPU-a", "GPU-b"))
    assert describing.describe(published) == cards.KIND
    own = "/dev/nvidia-caps/nvidia-cap{}".format
    assert nodes(tmp_path) == {
        "GPU-b": ["/dev/nvidia0"],
        "MIG-1": ["/dev/nvidia3", own(417), own(418)],
        "MIG-2": ["/dev/nvidia3", own(426), own(427)],
        # Two compute instances of one GPU instance share its capability.
        "MIG-3": ["/dev/nvidia3", own(426), own(428)],
    }
    assert not describing.undescribed


WRONG: dict[str, tuple[tuple[Card, ...], dict[str, Any], str]] = {
    "no instances": ((slice_of(CARD, "MIG-2"),), {}, "GPU instance"),
    "not listed": ((slice_of(CARD, "MIG-2", 9, 0),), {}, "mig-minors does not list gpu3/gi9/access"),
    "another compute instance": ((slice_of(CARD, "MIG-2", 1, 7),), {}, "does not list gpu3/gi1/ci7/access"),
    "no device file": ((TWO,), {"files": {k: v for k, v in FILES.items() if k != 427}}, "nvidia-cap427"),
    "another device behind it": ((TWO,), {"files": {**FILES, 427: "234 417"}}, "does not belong to the driver"),
    "another driver behind it": ((TWO,), {"files": {**FILES, 426: "195 426"}}, "does not belong to the driver"),
}


@pytest.mark.parametrize(("wrong", "machine", "why"), WRONG.values(), ids=WRONG)
def test_a_slice_whose_files_are_not_there_is_left_out_with_the_reason(
    tmp_path: Path, wrong: tuple[Card, ...], machine: dict[str, Any], why: str
) -> None:
    describing = made(tmp_path, CARD, ONE, *wrong)
    cut(tmp_path, **machine)
    assert describing.describe(of_slices(ONE, *wrong)) == cards.KIND
    assert set(nodes(tmp_path)) == {"MIG-1"}
    assert set(describing.undescribed) == {"MIG-2"}
    assert why in describing.undescribed["MIG-2"]
    assert not describing.trouble


def test_a_slice_whose_name_would_spoil_the_description_is_left_out(tmp_path: Path) -> None:
    """Drivers before 470 use such names."""
    old = slice_of(CARD, "MIG-GPU-a/2/0", 2, 0)
    describing = made(tmp_path, CARD, ONE, old)
    cut(tmp_path)
    assert describing.describe(of_slices(ONE, old)) == cards.KIND
    assert set(nodes(tmp_path)) == {"MIG-1"}
    assert "470" in describing.undescribed[old.uuid]


NOWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no folder": ({"files": {}}, "missing"),
    "no list": ({"minors": ""}, "mig-minors"),
    "no driver": ({"majors": "Character devices:\n195 nvidia\n"}, "does not belong to the driver"),
}


@pytest.mark.parametrize(("machine", "why"), NOWHERE.values(), ids=NOWHERE)
def test_where_no_slice_can_be_described_there_is_no_description(
    tmp_path: Path, machine: dict[str, Any], why: str
) -> None:
    describing = made(tmp_path, CARD, ONE)
    cut(tmp_path, **machine)
    assert describing.describe(of_slices(ONE)) is None
    assert why in describing.trouble
    assert not describing.undescribed
    assert not (tmp_path / cards.FILE).exists()


def test_the_capabilities_of_removed_slices_are_described_no_longer(tmp_path: Path) -> None:
    """A container that names such a slice would get the capabilities of a new one."""
    seen = [CARD, ONE]
    describing = Cards(
        lambda: Observation(cards=tuple(seen)),
        folder=tmp_path,
        driver=DRIVER,
        devices=tmp_path / "dev",
        proc=tmp_path / "proc",
        numbers=numbers_in(tmp_path),
    )
    cut(tmp_path)
    describing.describe(of_slices(ONE))
    assert set(nodes(tmp_path)) == {"MIG-1"}
    seen[:] = [CARD]
    assert describing.describe(of_slices()) is None
    assert not (tmp_path / cards.FILE).exists()
    again = slice_of(CARD, "MIG-new", 1, 0)
    seen[:] = [CARD, again]
    assert describing.describe(of_slices(again)) == cards.KIND
    assert set(nodes(tmp_path)) == {"MIG-new"}


@pytest.mark.parametrize("text", ["", "gpu0/gi1/access", "gpu0/gi1/access twelve", "gpu0/../access 1", "config 1"])
def test_lines_of_another_form_name_no_capability(text: str) -> None:
    assert capabilities_of(text, "nothing") == Capabilities()


def test_only_a_character_device_has_numbers(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert device_numbers(tmp_path / "file") is None
    assert device_numbers(tmp_path / "missing") is None
    found = device_numbers(Path(os.devnull))
    assert found == (1, 3)
