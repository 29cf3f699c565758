"""What each fault does, as a program or a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from contract import names
from nodeagent.gpus.simulated import simulated_uuid
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from tests.simulation.features import aiming, election
from tests.simulation.kernel import scheduler
from tests.simulation.kernel.modules import monotonic, wall
from tests.simulation.kernel.scheduler import Host
from tests.unit.simulation_faults.staging import Scene, Stage, Watcher

JSON = dict[str, Any]
SCENES: dict[str, Scene] = {}


def scene(name: str) -> Callable[[Scene], Scene]:
    """Register a scene under the name of its fault, with what distinguishes it from others of the same fault."""

    def register(function: Scene) -> Scene:
        SCENES[name] = function
        return function

    return register


# -- requests ---------------------------------------------------------------------------------------------------------


def _requests(fate: str, **more: object) -> Scene:
    """A write of the leader's host during the fault, whether it is stored, and a write afterwards."""

    def play(stage: Stage) -> JSON:
        leader = stage.leader
        assert leader.host is not None
        kube, calls, host = stage.client(leader), [], leader.host.name
        stage.world.network.seen.append(lambda call, status: calls.append((call.host, call.method, call.path, status)))
        aim = {"hosts": leader.name, "kind": "writes", "probability": 1.0, "name": "strike"}
        end = stage.begin(f"requests.{fate}", **aim, **more)
        first, second = stage.tried(kube, "first"), stage.tried(kube, "second")
        at_once = [stage.stored(name) for name in ("first", "second")]
        read = bool(kube.get(paths.path("v1", "namespaces", None, "team-a")))
        end()
        after = stage.tried(kube, "after")
        stage.wait(60)
        posted = [call for call in calls if call[:3] == (host, "POST", "/api/v1/namespaces/team-a/configmaps")]
        return {
            "tried": [first, second],
            "stored": at_once,
            "read": read,
            "after": after,
            "later": [stage.stored(name) for name in ("first", "second")],
            "carried out": len(posted),
        }

    return play


SCENES["requests.refused"] = _requests("refused", status=429, retry_after=3)
SCENES["requests.refused 504"] = _requests("refused", status=504)
SCENES["requests.unsent"] = _requests("unsent")
SCENES["requests.dropped"] = _requests("dropped")
SCENES["requests.silent"] = _requests("silent")
SCENES["requests.unanswered"] = _requests("unanswered")
SCENES["requests.late"] = _requests("late", delay=8.0)
SCENES["requests.twice"] = _requests("twice")
SCENES["requests.slow"] = _requests("slow", delay=3.0)


@scene("requests.refused half")
def _half(stage: Stage) -> JSON:
    aim = {"hosts": stage.leader.name, "kind": "writes", "probability": 0.5, "name": "strike"}
    end = stage.begin("requests.refused", **aim, status=500, retry_after=0)
    kube = stage.client(stage.leader)
    refused = [stage.tried(kube, f"c{i}")["status"] for i in range(40)].count(500)
    end()
    return {"refused": refused}


# -- watches ----------------------------------------------------------------------------------------------------------


def _watches(name: str, **more: object) -> Scene:
    """A ConfigMap before, during and after the fault, through a watch of the leader and one of another program."""

    def play(stage: Stage) -> JSON:
        leader = stage.leader
        other = next(each for each in stage.world.allocators if each is not leader)
        hit, spared = Watcher(stage, leader), Watcher(stage, other)
        made: dict[str, float] = {}

        def make(what: str) -> None:
            made[what] = stage.now()
            stage.tried(stage.run.user, what)
            stage.wait(1.0)

        stage.wait(1.0)
        make("before")
        end = stage.begin(name, **{"hosts": leader.name, "kind": "configmaps", **more})
        make("during")
        stage.wait(130.0)
        fresh = Watcher(stage, leader)
        stage.wait(12.0)
        during = sorted(hit.came), hit.error, fresh.error
        ended = stage.now()
        end()
        stage.wait(1.0)
        make("after")
        stage.wait(1.0)
        old = Watcher(stage, leader)
        old.version = hit.version
        stage.wait(2.0)
        return {
            "during": during[0],
            "error": during[1],
            "opened meanwhile": during[2],
            "came": sorted(hit.came),
            "ended": hit.error,
            "late": {what: at - made[what] for what, at in hit.came.items()},
            "after the end": {what: at - ended for what, at in hit.came.items()},
            "spared": sorted(spared.came),
            "spared late": max(at - made[what] for what, at in spared.came.items()),
            "bookmarks": hit.bookmarks,
            "from an old version": old.error,
        }

    return play


SCENES["watches.cut"] = _watches("watches.cut")
SCENES["watches.refused"] = _watches("watches.refused", status=503)
SCENES["watches.silent"] = _watches("watches.silent")
SCENES["watches.frozen"] = _watches("watches.frozen")
SCENES["watches.lagging"] = _watches("watches.lagging", lag=60.0)
SCENES["apiserver.behind"] = _watches("apiserver.behind", kind="anything", lag=120.0)
SCENES["watches.bookmarks"] = _watches("watches.bookmarks")
SCENES["watches.expired"] = _watches("watches.expired")
SCENES["watches.coalesced"] = _watches("watches.coalesced")


# -- partitions -------------------------------------------------------------------------------------------------------


def _reached(stage: Stage, name: str) -> JSON:
    """The result of a write from each allocator's host."""
    return {
        each.name: stage.tried(stage.client(each), f"{name}-{each.name}")["error"] for each in stage.world.allocators
    }


def _partition(name: str, way: str, hosts: str) -> Scene:
    def play(stage: Stage) -> JSON:
        leader = stage.leader.name
        end = stage.begin(name, hosts=leader if hosts == "leader" else hosts, way=way)
        stage.wait(1.0)
        during = _reached(stage, "during")
        leads = {each.name for each in stage.world.leaders()}
        stage.wait(12.0)
        later = [each.name for each in stage.world.leaders()]
        end()
        return {
            "leader": leader,
            "during": during,
            "stored": {each.name: stage.stored(f"during-{each.name}") for each in stage.world.allocators},
            "leads": sorted(leads),
            "later": later,
            "after": _reached(stage, "after"),
        }

    return play


SCENES["partition.one"] = _partition("partition.one", "packets lost", "leader")
SCENES["partition.one answers lost"] = _partition("partition.one", "answers lost", "leader")
SCENES["partition.all"] = _partition("partition.all", "connections refused", aiming.EVERY)


@scene("partition.swizzled")
def _swizzled(stage: Stage) -> JSON:
    links = [each.name for each in stage.world.allocators]
    resume: list[Callable[[], None]] = []
    stage.beside(
        lambda: resume.append(
            stage.begin("partition.swizzled", stop=links, resume=links[::-1][::-1], pace=4.0, way="connections refused")
        )
    )
    stage.wait(1.0)
    first = _reached(stage, "first")
    stage.wait(4.0)
    second = _reached(stage, "second")
    stage.wait(8.0)
    stage.beside(resume[0])
    stage.wait(1.0)
    third = _reached(stage, "third")
    stage.wait(8.0)
    return {"links": links, "parted": [first, second, third, _reached(stage, "fourth")]}


# -- programs ---------------------------------------------------------------------------------------------------------


@scene("program.killed")
def _killed(stage: Stage) -> JSON:
    leader = stage.leader
    host = leader.host
    stage.begin("program.killed", program="leader", away=5.0)
    stage.wait(1.0)
    dead = not leader.alive
    holder = stage.run.user.get(election.lease_path())["spec"]["holderIdentity"]
    stage.wait(5.0)
    return {"dead": dead, "released": not holder, "again": leader.alive and leader.host is not host}


@scene("program.stopped")
def _stopped(stage: Stage) -> JSON:
    leader = stage.leader
    host = leader.host
    stage.begin("program.stopped", program="leader")
    stage.wait(8.0)
    return {
        "again": leader.alive and leader.host is not host,
        "one leads": stage.world.leader() is not None,
    }


@scene("program.paused")
def _paused(stage: Stage) -> JSON:
    leader = stage.leader
    kernel, host = stage.run.kernel, leader.host
    ran: list[float] = []

    def tick() -> None:
        while True:
            ran.append(stage.now())
            kernel.block(scheduler.SECOND)

    assert host is not None
    kernel.spawn(host, tick, "tick")
    stage.wait(3.0)
    began = stage.now()
    stage.begin("program.paused", program="leader", away=20.0)
    stage.wait(19.0)
    other = [each is not leader for each in stage.world.leaders()]
    stage.wait(5.0)
    return {
        "while paused": len([at for at in ran if began < at < began + 19.9]),
        "after": len([at for at in ran if at > began + 19.9]),
        "same host": leader.host is host,
        "others lead": other,
    }


@scene("program.replaced")
def _replaced(stage: Stage) -> JSON:
    old = stage.leader
    end = stage.begin("program.replaced", program="leader", by="SIGTERM")
    stage.wait(10.0)
    new = next(each for each in stage.world.allocators if each.name == old.name)
    both = [old.alive, new.alive, old is not new]
    identities = {each.running.allocator.leader.identity for each in (old, new)}
    leads = [each is old for each in stage.world.leaders()]
    end()
    stage.wait(20.0)
    return {
        "both": both,
        "identities": len(identities),
        "old leads": leads,
        "old ended": not old.alive,
        "new lives": new.alive,
        "starts of the old one": old.starts,
    }


# -- clocks -----------------------------------------------------------------------------------------------------------


def _clocks(stage: Stage, host: Host | None) -> tuple[float, float]:
    """The wall clock and the monotonic clock of a host, in seconds ahead of virtual time."""
    found: list[tuple[float, float]] = []
    assert host is not None
    began = stage.now()
    stage.run.kernel.spawn(host, lambda: found.append((wall(), monotonic())), "look")
    stage.wait(0.001)
    return found[0][0] - scheduler.BEGINNING - began, found[0][1] - 100 - began


@scene("clock.jumps")
def _jumps(stage: Stage) -> JSON:
    leader = stage.leader
    end = stage.begin("clock.jumps", program=leader.name, by=-3600.0)
    during = _clocks(stage, leader.host)
    end()
    server = stage.begin("clock.jumps", program="apiserver", by=3600.0)
    stage.tried(stage.run.user, "future")
    created = stage.world.api.store.get("configmaps", ("team-a", "future"))
    server()
    stage.tried(stage.run.user, "present")
    later = stage.world.api.store.get("configmaps", ("team-a", "present"))
    stamps = [each["metadata"]["creationTimestamp"] for each in (created, later) if each]
    return {"during": during, "after": _clocks(stage, leader.host), "stamps": stamps}


def _drifting(name: str, rate: float) -> Scene:
    def play(stage: Stage) -> JSON:
        leader = stage.leader
        end = stage.begin(name, program="leader", rate=rate)
        begun = _clocks(stage, leader.host)
        stage.wait(20.0)
        drifted = _clocks(stage, leader.host)
        end()
        stage.wait(20.0)
        after = _clocks(stage, leader.host)
        return {"begun": begun[1], "drifted": drifted[1], "after": after[1]}

    return play


SCENES["clock.drifts"] = _drifting("clock.drifts", 1.03)
SCENES["clock.halved"] = _drifting("clock.halved", 0.5)


# -- the Lease --------------------------------------------------------------------------------------------------------


def _spec(stage: Stage) -> JSON | None:
    try:
        return dict(stage.run.user.get(election.lease_path()).get("spec") or {})
    except KubeNotFound:
        return None


@scene("lease.deleted")
def _lease_deleted(stage: Stage) -> JSON:
    leader = stage.leader
    uid = stage.run.user.get(election.lease_path())["metadata"]["uid"]
    stage.begin("lease.deleted", times=1)
    stage.wait(4.0)
    made = stage.run.user.get(election.lease_path())
    leads = len(stage.world.leaders())
    stage.wait(20.0)
    return {
        "another": made["metadata"]["uid"] != uid,
        "holder": made["spec"].get("holderIdentity"),
        "leads": leads,
        "later": len(stage.world.leaders()),
        "leader": leader.name,
    }


@scene("lease.deleted with a partition")
def _lease_deleted_partitioned(stage: Stage) -> JSON:
    leader = stage.leader
    end = stage.begin("lease.deleted", times=1, cut="before", gap=0.5)
    during = _reached(stage, "during")
    gone = _spec(stage)
    end()
    return {"leader": leader.name, "during": during, "holder": (gone or {}).get("holderIdentity")}


@scene("lease.edited")
def _lease_edited(stage: Stage) -> JSON:
    seen = []
    for patch in ({"spec": {"leaseDurationSeconds": 40}}, {"spec": {"holderIdentity": ""}}, {"spec": None}):
        stage.begin("lease.edited", patch=patch)
        seen.append(_spec(stage))
        stage.wait(60.0)
    return {"seen": seen}


@scene("lease.taken")
def _lease_taken(stage: Stage) -> JSON:
    end = stage.begin("lease.taken", duration=15)
    stage.wait(30.0)
    spec, leads = _spec(stage), len(stage.world.leaders())
    end()
    stage.wait(30.0)
    return {"holder": (spec or {}).get("holderIdentity"), "leads": leads, "later": len(stage.world.leaders())}


def _lease_restored(how: str) -> Scene:
    def play(stage: Stage) -> JSON:
        before = _spec(stage)
        uid = stage.run.user.get(election.lease_path())["metadata"]["uid"]
        end = stage.begin("lease.restored", how=how)
        stage.wait(10.0)
        meanwhile = _spec(stage)
        end()
        stored = stage.world.api.store.get("leases.coordination.k8s.io", (names.NAMESPACE, names.LEASE))
        assert stored is not None
        return {
            "moved on": meanwhile != before,
            "same": before == stored["spec"],
            "same object": stored["metadata"]["uid"] == uid,
        }

    return play


SCENES["lease.restored"] = _lease_restored("edited")
SCENES["lease.restored anew"] = _lease_restored("made again")


# -- etcd -------------------------------------------------------------------------------------------------------------


def _restored(bumped: bool) -> Scene:
    def play(stage: Stage) -> JSON:
        stage.pod("early")
        stage.wait(3.0)
        end = stage.begin("etcd.restored", bumped=bumped)
        stage.run.user.delete(paths.pods("team-a", "early"))
        stage.pod("late")
        stage.wait(5.0)
        before = [stage.stored(name, "pods") for name in ("early", "late")]
        watcher = Watcher(stage, stage.leader)
        revision, hosts = stage.world.api.store.revision, [each.host for each in stage.world.programs()]
        stage.wait(1.0)
        end()
        after = [stage.stored(name, "pods") for name in ("early", "late")]
        grown = stage.world.api.store.revision > revision
        stage.wait(3.0)
        same = [each.host for each in stage.world.programs()] == hosts
        return {
            "before": before,
            "after": after,
            "grown": grown,
            "watch has ended": watcher.ended,
            "restarted": not same,
        }

    return play


SCENES["etcd.restored"] = _restored(True)
SCENES["etcd.restored without a bump"] = _restored(False)


# -- admission --------------------------------------------------------------------------------------------------------


def _reviews(stage: Stage) -> list[tuple[str, float]]:
    """Which webhook is asked for each pod from now on, and when."""
    asked: list[tuple[str, float]] = []
    for each in stage.world.webhooks:
        client = each.running.client
        before = client.post

        def post(path: str, before: Any = before, name: str = each.name, **more: Any) -> Any:
            asked.append((name, stage.now()))
            return before(path, **more)

        client.post = post
    return asked


def _admission(name: str, **arguments: object) -> Scene:
    def play(stage: Stage) -> JSON:
        asked = _reviews(stage)
        drawn = {"probability": 1.0, "name": "strike"} if name not in ("admission.down", "admission.one") else {}
        end = stage.begin(name, **drawn, **arguments)
        began = stage.now()
        error = stage.pod("first")
        took, reviews = stage.now() - began, len(asked)
        stored = stage.stored("first", "pods")
        for number in range(4):
            stage.pod(f"more-{number}")
        end()
        by = sorted({which for which, _ in asked})
        after = stage.pod("after")
        stage.wait(3.0)
        known = stage.world.api.store.get("pods", ("team-a", "first")) or {}
        return {
            "error": error,
            "seconds": took,
            "reviews": reviews,
            "by": by,
            "stored": stored,
            "after": after,
            "phase": (known.get("status") or {}).get("phase"),
        }

    return play


SCENES["admission.refused"] = _admission("admission.refused", status=403)
SCENES["admission.refused 500"] = _admission("admission.refused", status=500)
SCENES["admission.late"] = _admission("admission.late", delay=4.0)
SCENES["admission.late beyond a reservation"] = _admission("admission.late", delay=8.0)
SCENES["admission.twice"] = _admission("admission.twice")
SCENES["admission.down"] = _admission("admission.down")
SCENES["admission.slow"] = _admission("admission.slow", delay=2.0)
SCENES["admission.slow beyond the timeout"] = _admission("admission.slow", delay=30.0)
SCENES["admission.one"] = _admission("admission.one", webhook="webhook-1")


# -- certificates -----------------------------------------------------------------------------------------------------


def _expired(*, renewed: float = 60.0, kept: float = 0.0) -> Scene:
    """The second webhook has the new certificate after that many seconds; connections stay open for `kept` seconds."""
    mounted = {"webhook-0": 60.0, "webhook-1": renewed}
    return _admission("certificate.expired", secret=60.0, mounted=mounted, open=kept)


SCENES["certificate.expired"] = _expired()
SCENES["certificate.expired of one"] = _expired(renewed=0.0)
SCENES["certificate.expired of open connections"] = _expired(kept=60.0)


# -- machines ---------------------------------------------------------------------------------------------------------

GPUNODES = f"{names.GPUNODE_PLURAL}.{names.GROUP}"


def _cards(stage: Stage) -> list[JSON]:
    """What the agent has published about n1's cards."""
    found = stage.world.api.store.get(GPUNODES, ("", "n1")) or {}
    gpus = (found.get("status") or found.get("spec") or {}).get("gpus") or []
    return [dict(each) for each in gpus]


def _ready(stage: Stage) -> str:
    node = stage.world.api.store.get("nodes", ("", "n1"))
    if node is None:
        return "gone"
    return next(str(c["status"]) for c in node["status"]["conditions"] if c["type"] == "Ready")


def _placed(stage: Stage) -> bool:
    pod = stage.world.api.store.get("pods", ("team-a", "meanwhile")) or {}
    return bool(pod.get("spec", {}).get("nodeName"))


def _machine(name: str, *, seconds: float = 60.0, **arguments: object) -> Scene:
    def play(stage: Stage) -> JSON:
        before = _cards(stage)
        end = stage.begin(name, node="n1", **arguments)
        stage.wait(seconds)
        during, ready, agent = _cards(stage), _ready(stage), stage.world.agents["n1"].alive
        error = stage.pod("meanwhile")
        stage.wait(10.0)
        placed = _placed(stage)
        end()
        stage.wait(60.0)
        return {
            "before": before,
            "during": during,
            "after": _cards(stage),
            "ready": ready,
            "agent": agent,
            "error": error,
            "placed": placed,
            "placed after": _placed(stage),
            "ready after": _ready(stage),
            "agent after": stage.world.agents["n1"].alive,
            "own": simulated_uuid("n1", 0),
        }

    return play


SCENES["node.silent"] = _machine("node.silent")
SCENES["node.exchanged"] = _machine("node.exchanged", cards="1 x Tesla T4 15109MiB")
SCENES["node.deleted"] = _machine("node.deleted")
SCENES["card.changed"] = _machine("card.changed", card=0, what="fails")
SCENES["card.changed its UUID"] = _machine("card.changed", card=0, what="has another UUID")
SCENES["card.changed and is gone"] = _machine("card.changed", card=0, what="vanishes")
SCENES["cards.shrunk"] = _machine("cards.shrunk")
SCENES["driver.broken"] = _machine("driver.broken", failure="DriverGone")
SCENES["agent.silent"] = _machine("agent.silent")
SCENES["agent.silent for long"] = _machine("agent.silent", seconds=310.0)


# -- rights -----------------------------------------------------------------------------------------------------------


def _sorted(rules: list[JSON]) -> list[str]:
    return sorted(json.dumps(rule, sort_keys=True) for rule in rules)


@scene("rights.removed")
def _rights(stage: Stage) -> JSON:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpufraction-allocator"
    before = stage.run.user.get(role)["rules"]
    end = stage.begin("rights.removed", kind="ClusterRole", name="gpufraction-allocator", rule=0)
    during = stage.run.user.get(role)["rules"]
    stage.pod("meanwhile")
    stage.wait(5.0)
    end()
    return {
        "before": len(before),
        "during": len(during),
        "same": _sorted(stage.run.user.get(role)["rules"]) == _sorted(before),
    }


@scene("crd.deleted")
def _crd(stage: Stage) -> JSON:
    path = paths.path(f"{names.GROUP}/{names.VERSION}", names.GPUNODE_PLURAL)
    end = stage.begin("crd.deleted")
    stage.wait(1.0)
    try:
        during = len(stage.run.user.list(path).items)
    except KubeError as error:
        during = error.status
    end()
    stage.wait(90.0)
    return {"during": during, "after": len(stage.run.user.list(path).items)}
