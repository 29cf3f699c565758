"""After a reboot: the checkpoint is on the disk, and the folder of CDI descriptions is empty."""

from __future__ import annotations

import json
from pathlib import Path

from contract import names
from contract.encoding import resourceclaims
from contract.encoding.resourceclaims import PreparedDevice
from contract.model import SHARE_KIND, Gpu, Inventory
from nodeagent.dra.delivery import ClaimDelivery
from nodeagent.dra.plugin import ClaimPlugin, UnreadableClaim
from nodeagent.dra.wire import ClaimRef
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cards
from nodeagent.isolation.cards import Cards
from nodeagent.isolation.levels import Isolation
from nodeagent.isolation.mechanism import DeliveryWay, Handle, LimiterSettings
from nodeagent.isolation.preload import PreloadSettings
from nodeagent.sharing.residents import Residents

UUID = "GPU-11111111-2222-3333-4444-555555555555"
NAMES = (f"{cards.KIND}={UUID}", f"{SHARE_KIND}={UUID}")
INVENTORY = Inventory("n", (Gpu(UUID, 0, "Tesla T4", 1 << 34, 1 << 34),))


class Registered:
    registered, why = True, ""


def described(folder: Path) -> set[str]:
    """All devices that a container runtime finds in the folder, by their qualified names."""
    files = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return {f"{file['kind']}={device['name']}" for file in files for device in file["devices"]}


def test_after_a_reboot_every_device_of_the_checkpoint_is_described_again(tmp_path: Path) -> None:
    """No pod is known yet, and no claim can be read: the checkpoint and a look at the cards are enough."""
    checkpoint, run, dev = tmp_path / "prepared.json", tmp_path / "cdi", tmp_path / "dev"
    run.mkdir()
    dev.mkdir()
    given = PreparedDevice("main", "n", resourceclaims.device_name(UUID), NAMES)
    checkpoint.write_text(resourceclaims.to_checkpoint({"claim-uid": (given,)}))

    def away(namespace: str, name: str) -> dict[str, object]:
        raise UnreadableClaim("the API server is away")

    plugin = ClaimPlugin(away, node="n", checkpoint=checkpoint)
    assert plugin.prepare([ClaimRef("ns", "claim-uid", "c")]) == {"claim-uid": (given,)}
    # Until they are described, a container runtime refuses a container with these devices.
    assert not described(run)

    # The same card may have another device file after a reboot.
    seen = Observation((Card(0, UUID, "Tesla T4", 1 << 34, minor=1),))
    describing = Cards(lambda: seen, folder=run, driver="/driver", devices=dev, proc=tmp_path)
    isolation = Isolation(
        Handle(
            LimiterSettings(cdi=str(run)),
            Residents(),
            chosen={"preload": PreloadSettings(preload=str(tmp_path / "preload"))},
        ),
        ways=[DeliveryWay(ClaimDelivery(Registered(), describing).conclude)],
    )
    isolation.enforce(INVENTORY, 0.0, {names.DELIVERY: names.BY_DRA})
    assert set(given.cdi) <= described(run)
    assert "/dev/nvidia1" in (run / cards.FILE).read_text()
