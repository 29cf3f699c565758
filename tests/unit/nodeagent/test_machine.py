"""What the machine reports in a round, and what it enforces."""

from __future__ import annotations

import pytest

from contract.model import Delivery, Inventory
from contract.options import NO_OPTIONS
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.levels import Enforcement, Isolation
from nodeagent.isolation.mechanism import Handle
from nodeagent.isolation.probing import Prober, by_runtime
from nodeagent.machine import Machine
from nodeagent.publishing.terms import NodeReport, PoolDocument
from nodeagent.sharing.residents import Residents
from runtime.kubernetes.watch import Replaced
from tests.unit.nodeagent.builders import card, observation
from tests.unit.nodeagent.cluster import Cluster

SEEN = observation(card(0))


def test_there_is_no_report_before_the_first_look_has_ended() -> None:
    looks: list[int] = []

    def options() -> PoolDocument:
        looks.append(1)
        return PoolDocument(NO_OPTIONS)

    assert (Machine(lambda: None, options=options).observe(), looks) == (None, [])


@pytest.mark.parametrize(
    ("residents", "unknown"),
    [
        (Residents(known=True), ""),
        (Residents(), "the pods of this node are not listed yet"),
        (Residents(followed=False), "this agent does not read its pods"),
    ],
    ids=["known", "not listed yet", "not followed"],
)
def test_a_report_says_why_the_pods_are_not_known(residents: Residents, unknown: str) -> None:
    report = Machine(lambda: SEEN, residents=residents).observe()
    assert report is not None
    assert unknown in report.pods_unknown
    assert bool(report.pods_unknown) == bool(unknown)


def test_observing_twice_gives_the_same_report() -> None:
    residents = Residents()
    residents.event(Replaced([]))
    machine = Machine(lambda: SEEN, residents=residents)
    assert machine.observe() == machine.observe() == NodeReport(SEEN, PoolDocument(NO_OPTIONS))


def test_where_nothing_limits_anybody_nothing_is_claimed() -> None:
    assert Machine(lambda: SEEN).enforce(Inventory("n1"), 0.0) == Enforcement()


def test_the_inventory_is_published_before_anything_is_enforced() -> None:
    cluster, published = Cluster("n1"), list[Inventory]()
    prober = Prober(cluster.kube, root=None, override=Delivery(("nvidia",)))
    isolation = Isolation(Handle(sees_processes=True), ways=[by_runtime(prober)])
    machine = Machine(lambda: Observation(), isolation=isolation, published_soon=published.append)
    assert machine.enforce(Inventory("n1"), 0.0) == Enforcement(Delivery(("nvidia",)), ("watch",))
    assert published == [Inventory("n1")]
