"""
Several pods with one ResourceClaim have one share together, on one node. It is returned when the last of them ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from allocator.cache.capacities import HeldBeyond
from allocator.cache.podinfo import pod_event
from allocator.queue.records import Binding, Report, StatusUpdate
from allocator.scheduler.events import (
    BindSucceeded,
    HeldBeyondChanged,
    NodeChanged,
    PodDeleted,
    StorageChanged,
    StorageListed,
    TickPhase,
)
from contract import names, pods
from contract.dialects.base import PodReader
from contract.dialects.resourceclaims import ClaimReading, read_claim, read_pod
from contract.encoding import codec
from contract.encoding.quantity import GIB
from contract.model import MOST_CONSUMERS, Allocation, Overcount, PodRequest, Usage
from contract.nodes import capacity
from contract.nodes.attributes import facts, trim
from contract.options import DEFAULTS
from contract.scheduling.clusterfilters.objects import read_device_claim
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness

JSON = dict[str, Any]


def claim(
    name: str = "c",
    *,
    memory: str = "8Gi",
    cores: str = "20",
    count: int = 1,
    requests: int = 1,
    held_by: tuple[str, ...] = (),
) -> JSON:
    """A standalone claim."""
    amounts = {"memory": memory, **({"cores": cores} if cores else {})}
    capacity_ = {"requests": amounts} if memory else {}
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "count": count, "capacity": capacity_}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
        "spec": {"devices": {"requests": [{"name": f"r{at}", "exactly": exactly} for at in range(requests)]}},
        "status": {"reservedFor": [{"uid": each} for each in held_by]},
    }


def naming(name: str, *claims: str, template: str = "") -> PodBuilder:
    """A pod with one container that uses all of these claims."""
    entries = [{"name": f"e{at}", "resourceClaimName": each} for at, each in enumerate(claims)]
    entries += [{"name": "t", "resourceClaimTemplateName": template}] if template else []
    made = pod(name).container("main", resources={"claims": [{"name": each["name"]} for each in entries]})
    return made.spec(resourceClaims=entries)


@dataclass
class Bench:
    """A harness with claims. Pods are as admission stores them."""

    nodes: Sequence[NodeBuilder]
    claims: Sequence[JSON] = (claim(),)
    harness: SchedulerHarness = field(init=False)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.harness = SchedulerHarness(self.nodes)
        self.controller = self.harness.controller
        found = tuple((("default", each["metadata"]["name"]), read_device_claim(each)) for each in self.claims)
        self.controller.handle(StorageListed("resourceclaims", found))
        self.controller.handle(StorageListed("deviceclasses", ((("", "share.gpufraction.io"), ""),)))
        self.stored: dict[str, JSON] = {}
        for each in self.nodes:
            self.controller.handle(HeldBeyondChanged(each.name, ""))

    def change(self, changed: JSON) -> None:
        self.controller.handle(
            StorageChanged("resourceclaims", ("default", changed["metadata"]["name"]), read_device_claim(changed))
        )

    def waits(self, builder: PodBuilder) -> JSON:
        """A pod that admission has stored behind the gate."""
        made = builder.uid(f"uid-{builder.json()['metadata']['name']}").json()
        request = self.request(made)
        (container,) = made["spec"]["containers"]
        fraction = request.containers[0]
        memory = (fraction.memory or 16 * GIB) * fraction.count
        for kind in ("limits", "requests"):
            container["resources"][kind] = {
                **container["resources"].get(kind, {}),
                **pods.accounting(fraction, memory),
            }
        made["metadata"].setdefault("annotations", {})[str(names.REQUEST)] = codec.request_to_text(request)
        made["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
        made["metadata"]["resourceVersion"] = "1"
        return self.see(made)

    def request(self, made: JSON) -> PodRequest:
        known = {each["metadata"]["name"]: each for each in self.claims}
        readings: dict[str, ClaimReading] = {}
        for entry in made["spec"]["resourceClaims"]:
            spec = known[entry["resourceClaimName"]]["spec"] if "resourceClaimName" in entry else claim()["spec"]
            reading = read_claim(spec)
            assert isinstance(reading, tuple)
            readings[entry["name"]] = reading
        request = read_pod(PodReader(made, DEFAULTS), readings)
        assert isinstance(request, PodRequest), request
        return request

    def see(self, made: JSON) -> JSON:
        self.stored[made["metadata"]["name"]] = made
        self.controller.handle(pod_event(pods.trim(made)))
        return made

    def cycle(self) -> list[Binding]:
        """The writes for the pods that fit."""
        bindings, self.reports = self.controller.schedule_pending()
        self.controller.check_invariants()
        return bindings

    def bind(self, *bindings: Binding) -> None:
        """Store and deliver the bindings. Returns the pods afterwards."""
        for each in bindings:
            made = self.stored[each.pod.key.split("/")[1]]
            made["metadata"]["annotations"][str(names.ALLOCATION)] = codec.allocation_to_text(each.allocation)
            del made["spec"]["schedulingGates"]
            made["metadata"]["resourceVersion"] = "2"
            self.controller.handle(BindSucceeded(each, pod_event(pods.trim(made))))
            self.controller.handle(pod_event(pods.trim(made)))

    def start(self, *builders: PodBuilder) -> list[Allocation]:
        """Create the pods and place them. Returns where they are."""
        for each in builders:
            self.waits(each)
        found = self.cycle()
        self.bind(*found)
        return [each.allocation for each in found]

    def end(self, name: str) -> None:
        self.controller.handle(PodDeleted(pods.uid(self.stored.pop(name))))
        self.controller.check_invariants()

    def why(self, name: str) -> str:
        """The message of a waiting pod."""
        self.harness.now += 16
        self.controller.handle(NodeChanged(facts(trim(self.nodes[0].labelled("again").json()))))
        assert self.cycle() == []
        updates = [each for each in self.reports if isinstance(each, StatusUpdate)]
        (news,) = [each for each in updates if each.key == f"default/{name}" and not each.allocated]
        return news.reason

    def usage(self, name: str = "a", index: int = 0) -> Usage:
        return next(each for each in self.controller.nodes() if each.name == name).usage[index]

    def agents_publish(self) -> None:
        """Each node's agent sets the capacity to what the allocator says."""
        for phase in TickPhase:
            for each in self.controller.tick(phase):
                if isinstance(each, HeldBeyond):
                    self.controller.handle(HeldBeyondChanged(each.key, each.text))
                    self.publish(each.key, each.text)

    def publish(self, name: str, text: str) -> None:
        beyond = capacity.from_text(text)
        assert beyond is not None
        (builder,) = [each for each in self.nodes if each.name == name]
        document = builder.json()
        promised = capacity.total(capacity.promises(builder.inventory().gpus).values()) + beyond.amounts
        for kind in ("capacity", "allocatable"):
            document["status"][kind][str(names.GPU_MEMORY)] = str(promised.memory)
            document["status"][kind][str(names.GPU_CORES)] = str(promised.cores)
        self.controller.handle(NodeChanged(facts(trim(document))))


def two_nodes() -> list[NodeBuilder]:
    return [node("a").gpus(1, mib=16384), node("b").gpus(1, mib=16384)]


def test_the_second_pod_gets_the_cards_of_the_first_and_no_more_is_booked() -> None:
    on = Bench(two_nodes())
    (first,) = on.start(naming("one", "c"))
    (second,) = on.start(naming("two", "c"))
    assert (first.shared, first.node, first.containers) == (second.shared, second.node, second.containers)
    assert first.shared == "uid-of-c"
    assert on.usage() == Usage(8 * GIB, 20, 1)


def test_pods_that_come_together_are_placed_together() -> None:
    on = Bench(two_nodes())
    for each in ("one", "two"):
        on.waits(naming(each, "c"))
    found = on.cycle()
    assert [each.allocation.node for each in found] == ["a", "a"]
    assert on.usage() == Usage(8 * GIB, 20, 1)


def test_the_share_comes_back_with_the_last_pod_whichever_that_is() -> None:
    on = Bench(two_nodes())
    on.start(naming("one", "c"), naming("two", "c"))
    on.end("one")
    assert on.usage() == Usage(8 * GIB, 20, 1)
    (third,) = on.start(naming("three", "c"))
    assert third.node == "a"
    on.end("two")
    on.end("three")
    assert on.usage() == Usage()


def test_once_nobody_uses_the_claim_it_may_go_to_another_node() -> None:
    on = Bench(two_nodes())
    on.start(naming("one", "c"))
    on.end("one")
    (later,) = on.start(naming("two", "c").selects(**{"kubernetes.io/hostname": "b"}))
    assert later.node == "b"


def test_a_pod_that_cannot_go_to_the_claims_node_waits_and_says_so() -> None:
    on = Bench(two_nodes())
    on.start(naming("one", "c"))
    on.waits(naming("two", "c").selects(**{"kubernetes.io/hostname": "b"}))
    assert on.cycle() == []
    on.change(claim(held_by=("uid-one",)))
    assert "1 because of a ResourceClaim whose devices are on other nodes" in on.why("two")
    on.end("one")
    assert on.cycle() == []
    on.change(claim())
    (found,) = on.cycle()
    assert found.allocation.node == "b"


def test_kubernetes_has_room_on_the_node_before_the_pod_is_placed() -> None:
    """Kubernetes counts the claim for each of its pods: 12 GiB and 12 GiB on a card of 16."""
    on = Bench([node("a").gpus(1, mib=16384)], [claim(memory="12Gi")])
    on.start(naming("one", "c"))
    on.waits(naming("two", "c"))
    assert on.cycle() == []
    on.agents_publish()
    (found,) = on.cycle()
    assert found.allocation.node == "a"
    on.bind(found)
    on.agents_publish()
    assert on.cycle() == []
    assert on.usage() == Usage(12 * GIB, 20, 1)


def test_what_kubernetes_counts_again_goes_when_the_pod_does() -> None:
    on = Bench([node("a").gpus(1, mib=16384)], [claim(memory="12Gi")])
    cache = on.controller._cache
    on.start(naming("one", "c"))
    on.waits(naming("two", "c"))
    on.cycle()
    assert cache.counted_again("a").memory == 12 * GIB
    on.end("two")
    assert cache.counted_again("a").memory == 0
    on.waits(naming("two", "c"))
    on.cycle()
    on.agents_publish()
    on.bind(*on.cycle())
    assert cache.ledger.counted_again("a") == Overcount(12 * GIB, 20)
    on.end("one")
    assert cache.ledger.counted_again("a") == Overcount()


def test_whole_cards_are_shared_too() -> None:
    on = Bench([node("a").gpus(2, mib=16384)], [claim(memory="", count=2)])
    (first,) = on.start(naming("one", "c"))
    on.waits(naming("two", "c"))
    on.cycle()
    on.agents_publish()
    (second,) = on.cycle()
    assert second.allocation.containers == first.containers
    assert on.usage().exclusive
    assert on.usage().sharers == 1


def test_no_more_pods_than_kubernetes_reserves_a_claim_for() -> None:
    large = node("a").gpus(1, mib=400 * 1024).allocatable(pods=1000)
    on = Bench([large], [claim(memory="1Gi", cores="")])
    on.start(*(naming(f"p{number}", "c") for number in range(MOST_CONSUMERS)))
    assert len(on.stored) == MOST_CONSUMERS
    held_by = tuple(map(pods.uid, on.stored.values()))
    on.change(claim(memory="1Gi", cores="", held_by=held_by))
    on.waits(naming("more", "c"))
    assert on.cycle() == []
    assert "because of a ResourceClaim that 256 pods use" in on.why("more")
    on.end("p7")
    assert on.cycle() == []
    on.change(claim(memory="1Gi", cores="", held_by=held_by[1:]))
    assert len(on.cycle()) == 1


NOT_SHARED = {
    "a pod with two claims": ((claim(), claim("d")), ("c", "d"), ""),
    "a claim with two requests": ((claim(requests=2),), ("c",), ""),
    "a claim and a template": ((claim(),), ("c",), "t"),
}


@pytest.mark.parametrize(("claims", "named", "template"), NOT_SHARED.values(), ids=NOT_SHARED)
def test_what_cannot_be_shared_is_one_pods(claims: tuple[JSON, ...], named: tuple[str, ...], template: str) -> None:
    """Such pods differ in which containers have which cards."""
    on = Bench([node("a").gpus(4, mib=16384)], claims)
    if template:
        on.change({**claim("made"), "metadata": {"name": "made", "namespace": "default", "uid": "m"}})
    first, second = naming("one", *named, template=template), naming("two", *named, template=template)
    for each in (first, second):
        made = on.waits(each)
        if template:
            made["status"] = {"resourceClaimStatuses": [{"name": "t", "resourceClaimName": f"made-{pods.uid(made)}"}]}
            own = claim(f"made-{pods.uid(made)}")
            own["metadata"]["ownerReferences"] = [{"uid": pods.uid(made), "controller": True}]
            on.change(own)
            on.see(made)
    (placed, *others) = on.cycle()
    assert placed.allocation.shared == ""
    assert [each.allocation.shared for each in others] == [""] * len(others)


def test_evicting_one_of_several_pods_frees_nothing() -> None:
    on = Bench(two_nodes())
    cache = on.controller._cache
    on.start(naming("one", "c"))
    assert [len(each.demands) for each in cache.allocated.on("a")] == [1]
    on.start(naming("two", "c"))
    assert [len(each.demands) for each in cache.allocated.on("a")] == [0, 0]
    on.end("one")
    assert [len(each.demands) for each in cache.allocated.on("a")] == [1]


def test_a_new_leader_counts_the_share_once_from_the_pods_alone() -> None:
    before = Bench(two_nodes())
    before.start(naming("one", "c"), naming("two", "c"))
    after = Bench(two_nodes())
    for each in before.stored.values():
        after.see(each)
    after.controller.check_invariants()
    assert after.usage() == Usage(8 * GIB, 20, 1)
    after.waits(naming("three", "c"))
    after.cycle()
    after.agents_publish()
    (third,) = after.cycle()
    assert third.allocation.node == "a"
