"""The description of the cards themselves: device files, the driver's folder, and when there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.model import Gpu, Inventory
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cards
from nodeagent.isolation.cards import Cards

DRIVER = "/home/kubernetes/bin/nvidia"


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
    return Cards(lambda: Observation(cards=seen), folder=folder, driver=DRIVER, devices=folder / "dev")


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
        ((card("GPU-a", 0),), inventory("MIG-a", parent="GPU-a"), "slices"),
        ((), inventory(), "device files"),
    ],
)
def test_what_cannot_be_described_is_told(
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


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    describing = made(tmp_path, card("GPU-a", 0))
    nowhere = Cards(
        lambda: Observation(cards=(card("GPU-a", 0),)),
        folder=tmp_path / "missing",
        driver=DRIVER,
        devices=tmp_path / "dev",
    )
    assert describing.describe(inventory("GPU-a")) == cards.KIND
    assert nowhere.describe(inventory("GPU-a")) is None
    assert "cannot be written" in nowhere.trouble
