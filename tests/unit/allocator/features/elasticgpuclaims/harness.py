"""
Claims on a bench: the playground's API server in this process, the allocator's real writers, and replicas. A test makes
the replicas see, decide, write and die in any order.

A replica learns everything through `look`, kind by kind, as late as the test requires.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allocator.cache.ledger import OWN, Ledger, Reservation, ReservationState
from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import ClaimSettings, objects, writer
from allocator.features.elasticgpuclaims.changes import (
    ClaimBindingAnswered,
    ClaimChanged,
    ClaimDeleted,
    ClaimsListed,
    ClaimStepAnswered,
)
from allocator.features.elasticgpuclaims.lifecycle import Step
from allocator.features.elasticgpuclaims.rendering import CLAIMED
from allocator.queue.records import EventRecord
from allocator.scheduler.events import (
    ExcludedGpusListed,
    InventoriesListed,
    NamespacesLabelled,
    NodesListed,
    PodDeleted,
    TickPhase,
    pods_listed,
)
from allocator.workers import binder as pod_writer
from allocator.workers.fence import Fencer
from contract import names, pods
from contract.model import Allocation, Compute, PodRequest
from contract.nodes.attributes import facts, trim
from playground.api.api import Api
from playground.programs import installing
from runtime.kubernetes.client import Kube
from tests.builders import NodeBuilder, pod
from tests.unit.allocator.harness import CLAIMS_ON, SchedulerHarness, admitted, fence, unresolved
from tests.wires import Wire

JSON = dict[str, Any]
ON = CLAIMS_ON
KINDS = (objects.CLASSES, objects.CLAIMS, objects.SHARES, "pods")
CLAIM_OF = "egpuc.elasticgpu.io/a"
DEFINITIONS = tuple(installing.documents(installing.BASE / "elasticgpu.crds.yaml"))


class Bench:
    """The cluster, and the replica that leads."""

    def __init__(self, *nodes: NodeBuilder, by_claims: bool = False, claiming: ClaimSettings = ON) -> None:
        self.api = Api()
        self.wire = Wire(self.api, spares_reads=True)
        self.kube = Kube(self.wire)
        for document in DEFINITIONS:
            self.create(installing.path_of(document), document)
        self.nodes = {each.name: each for each in nodes}
        self.follower: dict[str, dict[str, JSON]] = {kind: {} for kind in (objects.CLASSES, objects.CLAIMS)}
        """What the replica that leads next has seen of the kinds that it does not list again."""
        self.noted: list[EventRecord] = []
        """Events about claims, of all replicas."""
        self.by_claims, self.claiming = by_claims, claiming
        self.kinds = KINDS if claiming.claims else ("pods",)
        self.term = 0
        self.now = 100.0
        self.take_over()

    # -- users' actions -------------------------------------------------------------------------------------------

    def create(self, path: str, document: JSON) -> JSON:
        code, made = self.api.call("POST", path, body=document)
        assert code < 300, made
        return made

    def a_class(self, name: str, **about: Any) -> JSON:
        """An ElasticGPUClass of our provisioner."""
        document = {"apiVersion": objects.GROUP_VERSION, "kind": "ElasticGPUClass", "metadata": {"name": name}}
        return self.create(writer.path(objects.CLASSES), {**document, "provisioner": objects.PROVISIONER, **about})

    def a_claim(
        self, name: str, *, memory: object = 2, cores: object = 1, of: str = "", namespace: str = "default"
    ) -> JSON:
        """An ElasticGPUClaim."""
        amounts = {f"{objects.PROVISIONER}/gpu-memory": memory, f"{objects.PROVISIONER}/gpu-core": cores}
        given = {key: value for key, value in amounts.items() if value is not None}
        document: JSON = {
            "apiVersion": objects.GROUP_VERSION,
            "kind": objects.CLAIM,
            "metadata": {"name": name},
            "spec": {"resources": {"requests": given}, **({"elasticGPUClassName": of} if of else {})},
        }
        return self.create(writer.path(objects.CLAIMS, namespace), document)

    def a_pod(self, name: str, claim: str = "", *, memory: str = "", **spec: Any) -> JSON:
        """A pod behind our gate, as after admission."""
        builder = pod(name).spec(automountServiceAccountToken=False, **spec).container("main")
        builder = builder.annotated(CLAIM_OF, claim) if claim else builder.asks(names.GPU_MEMORY, memory)
        return self.create("/api/v1/namespaces/default/pods", admitted(builder, gated=True))

    def delete(self, plural: str, name: str) -> None:
        """Delete an object as a user does; a pod's containers end at once."""
        path = _path(plural, name)
        code, document = self.api.call("DELETE", path, query={"gracePeriodSeconds": "0"} if plural == "pods" else {})
        assert code < 300 or code == 404, document

    def ended(self, name: str) -> None:
        """The pod's containers have finished."""
        body = {"status": {"phase": "Succeeded"}}
        merge = "application/merge-patch+json"
        self.api.call("PATCH", f"{_path('pods', name)}/status", body=body, content_type=merge)

    # -- looking --------------------------------------------------------------------------------------------------

    def all(self, plural: str) -> dict[str, JSON]:
        """Every object of a kind by name."""
        code, found = self.api.call("GET", _path(plural))
        assert code == 200
        return {item["metadata"]["name"]: item for item in found["items"]}

    def get(self, plural: str, name: str) -> JSON:
        return self.all(plural)[name]

    def phase(self, name: str) -> str:
        """The phase of a claim; empty if it has none or was deleted."""
        return str((self.all(objects.CLAIMS).get(name, {}).get("status") or {}).get("phase", ""))

    def share_of(self, name: str) -> objects.ElasticShare:
        """The ElasticGPU of a claim."""
        return objects.share(self.get(objects.SHARES, self.get(objects.CLAIMS, name)["spec"]["elasticGPUName"]))

    def reason_of(self, name: str) -> str:
        """The last reason of a pod, as one word."""
        return self.news.get(str(self.get("pods", name)["metadata"]["uid"]), "")

    # -- what replicas do -----------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """
        The last leader has ended, and so have its writes in progress. Another replica has listed what is allocated;
        about claims and classes it knows what it saw as a follower.
        """
        self.wire.carry_out_late()
        self.term += 1
        self.harness = SchedulerHarness(
            self.nodes.values(),
            synced=False,
            elected=True,
            term=self.term,
            now=self.now,
            by_claims=self.by_claims,
            claiming=self.claiming,
        )
        self.news: dict[str, str] = {}
        self.seen: dict[str, dict[str, JSON]] = {kind: self.all(kind) for kind in KINDS} | self.follower
        self.cards()
        for kind in self.kinds:
            found = list(self.seen[kind].values())
            if kind == "pods":
                self.harness.controller.handle(pods_listed(map(pods.trim, found), term=self.term))
            else:
                self.harness.controller.handle(ClaimsListed(kind, tuple(found), term=self.term))
        self._bar()

    def _bar(self) -> None:
        """Exempts these writes from faults, because they are about waiting pods and not about claims."""
        with ThreadPoolExecutor(1) as writers:
            fencer = Fencer(
                Kube(Wire(self.api)),
                self.harness.controller,
                word=lambda: f"word-{self.term}",
                timeout=1,
                writers=writers,
                failed=lambda: None,
            )
            fence(self.harness.controller, fencer)
        self.look("pods")

    def cards(self) -> None:
        """Show the replica the current nodes and their GPUs."""
        self.harness.controller.handle(ExcludedGpusListed(()))
        self.harness.controller.handle(NamespacesLabelled({}))
        self.harness.controller.handle(NodesListed(tuple(facts(trim(each.json())) for each in self.nodes.values())))
        self.harness.controller.handle(InventoriesListed(tuple(each.inventory() for each in self.nodes.values())))

    def overbooked(self) -> list[str]:
        """GPUs that are allocated twice, according to pods and ElasticGPUs."""
        ledger = Ledger()
        for each in self.all("pods").values():
            request = pods.admitted(each)
            allocation = pods.allocation_of(each, request) if request else None
            if request is not None and allocation is not None and not pods.finished(each):
                ledger.confirm(_holding(pods.uid(each), request, allocation))
        for share in map(objects.share, self.all(objects.SHARES).values()):
            if share.allocation is not None:
                ledger.confirm(_holding(OWN + share.name, CLAIMED, share.allocation))
        ledger.check_invariants()
        inventories = [each.inventory() for each in self.nodes.values()]
        return [uuid for each in inventories for uuid in ledger.overcommitted(each.node, each.gpus)]

    def follows(self, kind: str) -> None:
        """The watch of the replica that leads next delivers changes of claims or classes."""
        self.follower[kind] = self.all(kind)

    def look(self, *kinds: str) -> None:
        """The watch delivers the changes of these kinds, or of all."""
        controller = self.harness.controller
        for kind in kinds or self.kinds:
            before, now = self.seen[kind], self.all(kind)
            self.seen[kind] = now
            for name, old in before.items():
                if name not in now or now[name]["metadata"]["uid"] != old["metadata"]["uid"]:
                    if kind == "pods":
                        controller.handle(PodDeleted(old["metadata"]["uid"]))
                    else:
                        controller.handle(ClaimDeleted(kind, old))
            for name, new in now.items():
                if before.get(name) != new:
                    controller.handle(pod_event(pods.trim(new)) if kind == "pods" else ClaimChanged(kind, new))

    def decide(self) -> None:
        """Go through the queue and write the commits."""
        bindings, news = self.harness.controller.schedule_pending()
        for reported in news:
            self.news[reported.uid] = reported.code
            if isinstance(reported, EventRecord):
                self.noted.append(reported)
        for binding in bindings:
            self.harness.controller.handle(pod_writer.write(self.kube, binding, 0))

    def work(self, most: int = 1000) -> int:
        """Write what claims need, with at most this many writes. Returns how many there were."""
        if not self.claiming.claims:
            return 0
        _, bindings, steps = self.harness.claims.effects()
        for number, bind in enumerate(bindings, 1):
            if number > most:
                return most
            self.harness.controller.handle(ClaimBindingAnswered(bind, writer.bind(self.kube, bind, timeout=1)))
        for number, step in enumerate(steps, len(bindings) + 1):
            if number > most:
                return most
            self.step(step)
        return len(bindings) + len(steps)

    def step(self, step: Step) -> None:
        self.harness.controller.handle(ClaimStepAnswered(step, writer.step(self.kube, step, timeout=1)))

    def passes(self, seconds: float) -> None:
        """Let time pass, and do everything that becomes due."""
        self.now += seconds
        self.harness.now = self.now
        self.harness.controller.tick(TickPhase.UPKEEP)
        for binding in unresolved(self.harness.controller):
            self.harness.controller.handle(pod_writer.write(self.kube, binding, 0))

    def quiet(self) -> None:
        """Let all replicas see, decide and write until nothing changes any more."""
        still = 0
        for _ in range(80):
            before = {kind: self.all(kind) for kind in self.kinds}
            self.look()
            self.decide()
            self.work()
            self.passes(11)
            seen = {kind: self.seen[kind] for kind in self.kinds}
            still = still + 1 if before == {kind: self.all(kind) for kind in self.kinds} == seen else 0
            if still == 3:  # what failed is retried after a pause
                return
        raise AssertionError("it never becomes quiet")


def _holding(key: str, request: PodRequest, allocation: Allocation) -> Reservation:
    return Reservation(key, key, request, allocation, Compute(), ReservationState.CONFIRMED, 0.0)


def _path(plural: str, name: str | None = None) -> str:
    if plural == "pods":
        return f"/api/v1/namespaces/default/pods{f'/{name}' if name else ''}"
    return writer.path(plural, "default" if plural == objects.CLAIMS else "", name)
