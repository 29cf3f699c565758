"""Rules about other pods and volumes: affinity between pods in both directions, spreading, claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.neighbours.followed import key_of
from allocator.neighbours.spreading import KINDS as SELECTING
from allocator.neighbours.storage import KINDS
from allocator.scheduler import consistency
from allocator.scheduler.events import NodeChanged, PodDeleted, ProfilesDeclared, StorageListed, TickPhase
from allocator.workers.profiles import ProfileWatcher
from contract import names, pods
from contract.encoding.protocol import Placed, Wait
from contract.nodes.attributes import facts
from contract.options import NO_OPTIONS, pool_options
from contract.scheduling.clusterfilters.objects import DEFAULT_SCHEDULER, Profile, SpreadConstraint
from contract.scheduling.clusterfilters.selectors import LabelSelector
from contract.scheduling.needs import Requirement
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def nodes(*zones: str) -> tuple[NodeBuilder, ...]:
    """A node with a free card in each of these zones, `n0` first."""
    made = enumerate(zones)
    return tuple(node(f"n{i}").gpu(mib=16384).labelled(HOST, f"n{i}").labelled(ZONE, zone) for i, zone in made)


def asking(name: str, app: str, **spec: Any) -> PodBuilder:
    """A pod with the label `app` that requests 1 GiB."""
    return pod(name).uid(f"uid-{name}").labelled("app", app).asks(names.GPU_MEMORY, "1Gi").spec(**spec)


def required(kind: str, app: str, key: str = HOST) -> JSON:
    """Required affinity, or anti-affinity, to pods with the label."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def apart(app: str) -> JSON:
    return required("podAntiAffinity", app)


def even(app: str) -> JSON:
    selector = {"matchLabels": {"app": app}}
    constraint = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [constraint]}


def place(it: SchedulerHarness, builder: PodBuilder, *, stored: bool = True) -> str:
    """The node that admission chooses, or why there is none. `stored`: the watch delivers the pod too."""
    answer = it.controller.reserve(question(builder))
    if not isinstance(answer, Placed):
        assert isinstance(answer, Wait), answer
        return answer.reason
    if stored:
        there = admitted(builder.on(answer.allocation.node), allocation=answer.allocation)
        it.controller.handle(pod_event(pods.trim(there)))
    return answer.allocation.node


def bound(it: SchedulerHarness) -> list[str]:
    """The nodes of the pods that one scheduling cycle places."""
    bindings, _ = it.controller.schedule_pending()
    return [binding.allocation.node for binding in bindings]


def test_replicas_with_anti_affinity_go_to_one_node_each() -> None:
    it = SchedulerHarness(nodes("a", "a", "a"))
    placed = [place(it, asking(f"web-{number}", "web", **apart("web"))) for number in range(3)]
    assert sorted(placed) == ["n0", "n1", "n2"]


def test_a_share_that_was_just_decided_counts_before_its_pod_is_seen() -> None:
    it = SchedulerHarness(nodes("a", "a"))
    placed = [place(it, asking(f"web-{number}", "web", **apart("web")), stored=False) for number in range(2)]
    assert sorted(placed) == ["n0", "n1"]


def test_the_replica_too_many_waits_and_says_why() -> None:
    it = SchedulerHarness(nodes("a", "a"))
    *_, third = (place(it, asking(f"web-{number}", "web", **apart("web"))) for number in range(3))
    assert third == "0 of 2 GPU nodes fit: 2 because of anti-affinity to another pod"


def test_a_pod_goes_to_the_node_of_the_pod_that_it_wants() -> None:
    it = SchedulerHarness(nodes("a", "a", "a"))
    it.controller.handle(pod_event(pods.trim(pod("db").uid("db").labelled("app", "db").container("c").on("n2").json())))
    assert place(it, asking("web", "web", **required("podAffinity", "db"))) == "n2"


def test_a_running_pods_anti_affinity_keeps_a_pod_without_affinity_off() -> None:
    it = SchedulerHarness(nodes("a", "a"))
    quiet = pod("quiet").uid("quiet").container("c").on("n0").spec(**apart("web"))
    it.controller.handle(pod_event(pods.trim(quiet.json())))
    assert place(it, asking("web", "web")) == "n1"


def test_pods_are_spread_over_zones_before_they_are_pinned() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    zones = {"n0": "a", "n1": "a", "n2": "b"}
    placed = [zones[place(it, asking(f"web-{number}", "web", **even("web")))] for number in range(4)]
    assert (placed.count("a"), placed.count("b")) == (2, 2)


def test_a_waiting_pod_is_placed_when_the_pod_in_its_way_is_deleted() -> None:
    it = SchedulerHarness(nodes("a"))
    place(it, asking("first", "web", **apart("web")))
    second = asking("second", "web", **apart("web"))
    it.controller.handle(pod_event(pods.trim(admitted(second, gated=True))))
    assert bound(it) == []
    it.controller.handle(PodDeleted("uid-first"))
    assert bound(it) == ["n0"]


def test_a_pod_that_is_wanted_wakes_the_pod_that_waits_for_it() -> None:
    it = SchedulerHarness(nodes("a", "a"))
    web = asking("web", "web", **required("podAffinity", "db"))
    it.controller.handle(pod_event(pods.trim(admitted(web, gated=True))))
    assert bound(it) == []
    it.controller.handle(pod_event(pods.trim(pod("db").uid("db").labelled("app", "db").container("c").on("n1").json())))
    it.controller.tick(TickPhase.UPKEEP)
    assert bound(it) == ["n1"]


def test_a_gang_that_wants_itself_starts_together() -> None:
    it = SchedulerHarness(nodes("a", "b"))
    together = required("podAffinity", "gang", ZONE)
    placed = {place(it, asking(f"gang-{number}", "gang", **together)) for number in range(3)}
    assert len(placed) == 1


# -- volumes ------------------------------------------------------------------------------------------------------


def with_claim(name: str) -> PodBuilder:
    """A pod with the claim `disk`."""
    return asking(name, "notebook", volumes=[{"name": "home", "persistentVolumeClaim": {"claimName": "disk"}}])


def stored(it: SchedulerHarness, plural: str, *documents: JSON) -> None:
    """The informer of the kind lists these objects."""
    found = tuple((key_of(each), KINDS[plural].read(each)) for each in documents)
    it.controller.handle(StorageListed(plural, found))


def volumes(it: SchedulerHarness, *, zone: str) -> None:
    """The claim `disk` is bound to a volume that only nodes of the zone can use."""
    reach = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]}
    claim = {
        "metadata": {
            "namespace": "default",
            "name": "disk",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
        },
        "spec": {"volumeName": "vol"},
    }
    volume = {"metadata": {"name": "vol"}, "spec": {"nodeAffinity": {"required": reach}}}
    listed = {"persistentvolumeclaims": [claim], "persistentvolumes": [volume]}
    for plural in KINDS:
        stored(it, plural, *listed.get(plural, []))


def test_a_pod_with_a_claim_waits_until_volumes_are_read() -> None:
    it = SchedulerHarness(nodes("a", "b"))
    assert not it.controller.wants_volumes()
    waits = place(it, with_claim("notebook"))
    assert waits == "0 of 2 GPU nodes fit: 2 because of a PersistentVolumeClaim that is still being read"
    assert it.controller.wants_volumes()


def test_a_pod_goes_to_the_zone_of_its_volume() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    volumes(it, zone="b")
    assert place(it, with_claim("notebook")) == "n2"


def test_a_pod_whose_claim_does_not_exist_waits_until_it_does() -> None:
    it = SchedulerHarness(nodes("a", "b"))
    for plural in KINDS:
        stored(it, plural)
    notebook = with_claim("notebook")
    assert place(it, notebook) == "0 of 2 GPU nodes fit: 2 because of a PersistentVolumeClaim that does not exist"
    it.controller.handle(pod_event(pods.trim(admitted(notebook, gated=True))))
    assert bound(it) == []
    volumes(it, zone="a")
    it.controller.tick(TickPhase.UPKEEP)
    assert bound(it) == ["n0"]


# -- preferences --------------------------------------------------------------------------------------------------


def preferred(kind: str, app: str, key: str = HOST) -> JSON:
    """Preferred affinity, or anti-affinity, to pods with the label."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {
        "affinity": {
            kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
        }
    }


def running(it: SchedulerHarness, app: str, on: str, **spec: Any) -> None:
    """A pod that requests no share."""
    there = pod(app).uid(app).labelled("app", app).container("c").on(on).spec(**spec)
    it.controller.handle(pod_event(pods.trim(there.json())))


def test_of_equal_nodes_a_pod_goes_to_the_one_that_it_prefers() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    running(it, "db", "n2")
    assert place(it, asking("web", "web", **preferred("podAffinity", "db"))) == "n2"


def test_of_equal_nodes_a_pod_goes_to_the_one_where_it_is_preferred() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    running(it, "db", "n1", **preferred("podAffinity", "web"))
    assert place(it, asking("web", "web")) == "n1"


def test_a_preference_does_not_outweigh_the_score() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    place(it, asking("first", "first"))
    running(it, "db", "n2")
    assert place(it, asking("web", "web", **preferred("podAffinity", "db"))) == "n0", "the fullest node comes first"


def test_a_waiting_pod_prefers_too() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    running(it, "db", "n2")
    web = asking("web", "web", **preferred("podAffinity", "db"))
    it.controller.handle(pod_event(pods.trim(admitted(web, gated=True))))
    assert bound(it) == ["n2"]


def test_what_the_administrator_says_of_a_profile_is_required() -> None:
    it = SchedulerHarness(nodes("a", "a", "b"))
    options = pool_options(
        {
            "schedulerProfiles": [
                {
                    "addedAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
                            ]
                        }
                    }
                }
            ]
        }
    )
    watcher = ProfileWatcher(lambda: options, declare=it.controller.handle)
    watcher.once()
    assert place(it, asking("web", "web")) == "n2"


def test_a_profile_is_declared_when_it_changes() -> None:
    declared: list[ProfilesDeclared] = []
    documents: list[JSON | None] = [None, {}, {"schedulerProfiles": [{}]}, {"schedulerProfiles": [{}]}, {}]
    found = iter(documents)
    watcher = ProfileWatcher(lambda: pool_options(next(found)), declare=declared.append)
    for _ in documents:
        watcher.once()
    assert declared == [ProfilesDeclared({"default-scheduler": Profile()}), ProfilesDeclared({})]


# -- pods that kube-scheduler means to put on a node ----------------------------------------------------------------


def nominated(name: str, where: str, **spec: Any) -> JSON:
    """A pod for which kube-scheduler evicts others on that node; empty: it no longer does."""
    made = pod(name).uid(name).labelled("app", "db").container("c").needs(cpu="20").spec(**spec).json()
    return {**made, "status": {"nominatedNodeName": where}}


def test_a_pod_that_kube_scheduler_nominated_has_its_room_already() -> None:
    it = SchedulerHarness(nodes("a"))
    it.controller.handle(pod_event(pods.trim(nominated("db", "n0"))))
    large = asking("large", "large").needs(cpu="20")
    it.controller.handle(pod_event(pods.trim(admitted(large, gated=True))))
    assert bound(it) == []
    assert place(it, asking("away", "away", **apart("db"))) == (
        "0 of 1 GPU nodes fit: 1 because of anti-affinity to another pod"
    )
    assert not it.controller.differs(consistency.listed(nominated("db", "n0"), NO_OPTIONS))
    it.controller.handle(pod_event(pods.trim(nominated("db", ""))))
    assert bound(it) == ["n0"]
    it.controller.check_invariants()


# -- waking -------------------------------------------------------------------------------------------------------


def is_woken(it: SchedulerHarness) -> bool:
    """Whether a tick requests a cycle."""
    before = it.woken
    it.controller.tick(TickPhase.UPKEEP)
    return it.woken > before


def test_a_pod_without_rules_wakes_once_a_pod_that_excluded_it_is_deleted() -> None:
    it = SchedulerHarness(nodes("a"))
    it.controller.handle(NodeChanged(facts(node("cpu").labelled(ZONE, "a").json())))
    quiet = pod("quiet").uid("quiet").container("c").on("cpu").spec(**required("podAntiAffinity", "web", ZONE))
    it.controller.handle(pod_event(pods.trim(quiet.json())))
    it.controller.handle(pod_event(pods.trim(admitted(asking("web", "web"), gated=True))))
    assert (bound(it), is_woken(it)) == ([], False)
    it.controller.handle(PodDeleted("quiet"))
    assert (is_woken(it), bound(it)) == (True, ["n0"])


BEYOND: Mapping[str, Profile] = {
    "an affinity that it adds": Profile(added_affinity=((Requirement(ZONE, "In", ("b",)),),)),
    "a default constraint": Profile(spread=(SpreadConstraint("rack", LabelSelector(absent=True), 1),)),
}


@pytest.mark.parametrize("profile", BEYOND.values(), ids=BEYOND.keys())
def test_a_pod_is_tried_once_what_a_profile_asks_of_nodes_is_taken_back(profile: Profile) -> None:
    it = SchedulerHarness(nodes("a"))
    for plural in SELECTING:
        selector = LabelSelector((("app", "In", ("web",)),))
        it.controller.handle(StorageListed(plural, ((("default", "s"), selector),) if plural == "services" else ()))
    it.controller.handle(ProfilesDeclared({DEFAULT_SCHEDULER: profile}))
    it.controller.handle(pod_event(pods.trim(admitted(asking("web", "web"), gated=True))))
    assert bound(it) == []
    before = it.woken
    it.controller.handle(ProfilesDeclared({}))
    assert (it.woken - before, bound(it)) == (1, ["n0"])


def local_volume(it: SchedulerHarness) -> None:
    """Claims `disk` and `other` wait for a volume, and there is one that fits both."""
    later = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"}
    claims = [
        {"metadata": {"namespace": "default", "name": name, "uid": name}, "spec": {"storageClassName": "local"}}
        for name in ("disk", "other")
    ]
    volume = {"metadata": {"name": "vol"}, "spec": {"storageClassName": "local"}, "status": {"phase": "Available"}}
    listed: dict[str, list[JSON]] = {
        "persistentvolumeclaims": claims,
        "persistentvolumes": [volume],
        "storageclasses": [{**later, "volumeBindingMode": "WaitForFirstConsumer"}],
    }
    for plural in KINDS:
        stored(it, plural, *listed.get(plural, []))


def test_two_pods_do_not_get_the_one_local_volume_that_there_is() -> None:
    it = SchedulerHarness(nodes("a", "b"))
    local_volume(it)
    other = asking("other", "x", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}])
    first = it.controller.reserve(question(with_claim("first")))
    assert isinstance(first, Placed)
    assert first.pin == "affinity", "kube-scheduler binds the volume"
    none_left = "0 of 2 GPU nodes fit: 2 because of a claim for which no volume can be bound there"
    assert place(it, other) == none_left
    stored_pod = admitted(with_claim("first"), allocation=first.allocation)
    it.controller.handle(pod_event(pods.trim(stored_pod)))
    assert place(it, other) == none_left, "the pod exists, and is not bound yet"
    it.controller.handle(PodDeleted(pods.uid(stored_pod)))
    assert place(it, other) in ("n0", "n1")
