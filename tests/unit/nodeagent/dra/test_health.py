"""The lists of devices and their health that a watcher gets."""

from __future__ import annotations

from dataclasses import replace

from contract.encoding.resourceclaims import PreparedDevice
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.dra.health import HealthWatch, device_health
from nodeagent.dra.wire import DeviceHealth, HealthStatus
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation

WELL = Card(index=0, uuid="GPU-0", model="Tesla T4", memory_bytes=1 << 34)
SICK = replace(WELL, index=1, uuid="GPU-1", healthy=False, reason="XID 79")
GIVEN = PreparedDevice("main", "n", "gpu-7", ("a/b=c",))


def test_every_card_is_listed_with_its_reason() -> None:
    nameless = replace(WELL, uuid="")
    assert device_health(Observation((SICK, WELL, nameless)), (), node="n") == (
        DeviceHealth("n", "gpu-0", HealthStatus.HEALTHY),
        DeviceHealth("n", "gpu-1", HealthStatus.UNHEALTHY, "XID 79"),
    )


def test_a_card_that_was_given_and_is_not_there_is_unhealthy() -> None:
    given = (GIVEN, replace(GIVEN, device="gpu-0"))
    assert device_health(Observation((WELL,)), given, node="n") == (
        DeviceHealth("n", "gpu-0", HealthStatus.HEALTHY),
        DeviceHealth("n", "gpu-7", HealthStatus.UNHEALTHY, "the driver does not show this GPU any more"),
    )


def test_while_the_driver_hangs_the_health_of_prepared_devices_is_unknown() -> None:
    found = device_health(
        Observation(problem="the driver hangs", reason=GPUNodeReason.DRIVER_HANGS), (GIVEN,), node="n"
    )
    assert found == (DeviceHealth("n", "gpu-7", HealthStatus.UNKNOWN, "the driver hangs"),)


class Script:
    """A watch whose clock advances by `step` seconds each turn. It ends when the script of looks is used up."""

    def __init__(self, *looks: Observation | None, step: float) -> None:
        self._looks, self._now, self._step = list(looks), 0.0, step
        self.watch = HealthWatch(self._look, node="n", clock=lambda: self._now)

    def _look(self) -> Observation | None:
        found = self._looks.pop(0)
        # The next turn comes at once, and the clock shows that time has passed.
        self._now += self._step
        self.watch.wake()
        return found

    def reported(self) -> list[list[str]]:
        return [
            [device.health.name for device in devices]
            for devices in self.watch.updates(lambda: (GIVEN,), lambda: not self._looks)
        ]


def test_what_did_not_change_is_reported_once() -> None:
    well, sick = Observation((WELL,)), Observation((replace(WELL, healthy=False),))
    reported = Script(well, well, sick, sick, well, step=0.1).reported()
    missing = "UNHEALTHY"
    assert reported == [["HEALTHY", missing], ["UNHEALTHY", missing], ["HEALTHY", missing]]


def test_health_is_reported_again_before_the_watcher_considers_it_unknown() -> None:
    assert len(Script(*[Observation((WELL,))] * 60, step=1.0).reported()) == 6


def test_before_the_first_look_nothing_is_reported() -> None:
    assert len(Script(None, None, Observation((WELL,)), step=0.1).reported()) == 1


def test_a_stream_that_is_ended_while_it_waits_ends_at_once() -> None:
    watch = HealthWatch(lambda: Observation((WELL,)), node="n", repeat=3600)
    ended: list[bool] = []
    updates = watch.updates(lambda: (), lambda: bool(ended))
    next(updates)
    ended.append(True)
    watch.wake()
    assert list(updates) == []
