"""The counters of card hours as Prometheus reads them, and the worker that feeds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from allocator.cache.podinfo import pod_event
from allocator.features.metering.hours import CardHours
from allocator.features.metering.meter import Account, Counted, FreeAccount, Meter
from allocator.features.metering.worker import MeteringWorker
from contract.encoding.protocol import Placed
from contract.metrics import metrics_of
from runtime.kubernetes.lease import Covered
from runtime.metrics import Metrics
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

NEW = 60.0


@dataclass
class Page:
    """The counters' page, with a clock that the test sets."""

    now: float = 0.0
    counted: Counted = field(default_factory=Counted)

    def __post_init__(self) -> None:
        self.metrics = Metrics(metrics_of("allocator"))
        CardHours(self.metrics, lambda: self.counted, new=NEW, clock=lambda: self.now)

    def lines(self, metric: str) -> list[str]:
        text = self.metrics.render().decode()
        return [line.removeprefix(metric) for line in text.splitlines() if line.startswith(f"{metric}{{")]


HELD, FREE = "gpufraction_share_held_seconds_total", "gpufraction_gpu_free_seconds_total"


def test_a_new_series_reads_0_until_prometheus_has_seen_it() -> None:
    page = Page()
    page.counted.held[Account("team-a", "L4", "native")] = 7.0
    first = '{namespace="team-a",model="L4",dialect="native"}'
    assert page.lines(HELD) == [f"{first} 0.0"]
    page.now = NEW
    page.counted.held[Account("team-b", "L4", "native")] = 1.0
    assert page.lines(HELD) == [f"{first} 7.0", '{namespace="team-b",model="L4",dialect="native"} 0.0']
    del page.counted.held[Account("team-a", "L4", "native")]
    page.lines(HELD)
    page.counted.held[Account("team-a", "L4", "native")] = 2.0
    assert f"{first} 0.0" in page.lines(HELD), "one that ended is new when it comes again"


def test_they_are_counters_and_tell_free_cards_that_take_pods_from_others() -> None:
    page = Page()
    page.counted.free.update({FreeAccount("L4", True): 2.0, FreeAccount("L4", False): 3.0})
    page.lines(FREE)
    page.now = NEW
    assert page.lines(FREE) == ['{model="L4",state="open"} 2.0', '{model="L4",state="closed"} 3.0']
    assert f"# TYPE {HELD} counter" in page.metrics.render().decode()


def test_a_worker_counts_what_the_lease_says_is_its_replicas() -> None:
    harness = SchedulerHarness([node("n").gpu(mib=16384)], now=100.0)
    covered: Covered | None = None
    meter = Meter(lambda gpu: gpu.usable)
    worker = MeteringWorker(
        controller=harness.controller, meter=meter, clock=lambda: harness.now, covered=lambda: covered
    )
    builder = pod("a").asks("gpufraction.io/gpu-memory", "8192Mi")
    answer = harness.controller.reserve(question(builder))
    assert isinstance(answer, Placed)
    harness.controller.handle(pod_event(admitted(builder.uid("a").on("n"), allocation=answer.allocation)))
    harness.now = 110.0
    assert worker.counted() == Counted(), "no record of the Lease was seen"
    covered = Covered(None, 2.0)
    assert sum(worker.counted().held.values()) == 0.0, "another replica answers until then"
    harness.now = 120.0
    covered = Covered(12.0, 1.0)
    assert sum(worker.counted().held.values()) == (19.0 - 8.0) / 2
    assert meter.answered() == 11.0


def test_without_election_all_time_since_the_start_counts() -> None:
    harness = SchedulerHarness([node("n").gpu(mib=16384)], now=100.0)
    meter = Meter(lambda gpu: gpu.usable)
    worker = MeteringWorker(controller=harness.controller, meter=meter, clock=lambda: harness.now, covered=None)
    harness.now = 107.0
    worker.tick()
    assert sum(worker.counted().free.values()) == 7.0


def test_a_new_leader_counts_nothing_until_it_has_listed_the_pods_again() -> None:
    harness = SchedulerHarness([node("n").gpu(mib=16384)], now=100.0, elected=True, term=3)
    meter = Meter(lambda gpu: gpu.usable)
    covered = Covered(10.0, 0.0)
    worker = MeteringWorker(
        controller=harness.controller, meter=meter, clock=lambda: harness.now, covered=lambda: covered
    )
    assert worker.counted() == Counted()
    assert meter.answered() == 0.0
