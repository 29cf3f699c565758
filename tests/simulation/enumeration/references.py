"""
Fixed runs without a fault that together make our programs do every kind of write that they have.

Each is small, because it is repeated for each point: two nodes, a few pods, half a minute. The network's delays are
constant and no thread loses its turn, so a point strikes where it was learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names
from runtime.kubernetes import paths
from tests.simulation.plan import Plan, Step
from tests.simulation.world.world import BY_CLAIMS, SHARES_BY_CLAIMS

JSON = dict[str, Any]
TEAM = "team-a"
T4 = "1 x Tesla T4 15109MiB"
ONE = {"n1": T4}
TWO = {"n1": "2 x Tesla T4 15109MiB", "n2": T4}
_CLAIM_GROUP = "elasticgpu.io/v1alpha1"
_CLASS = "gpushare.provisioner.elasticgpu.io"
CALM = ("claims", "unhealthy-lists")
_LATENCY = 0.001


@dataclass(frozen=True, slots=True)
class Reference:
    """A run. steps: without faults. cards, flags, components: of the world's `Shape`."""

    name: str
    steps: tuple[Step, ...]
    cards: Mapping[str, str] = field(default_factory=lambda: ONE)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    components: tuple[str, ...] = CALM
    lasts: float = 30.0
    """Seconds during which points strike. This is longer than the steps, so that their consequences are struck too."""
    determined: bool = True
    """Whether the end is also the same with faults."""

    def plan(self) -> Plan:
        """The run as a plan."""
        shape = {
            "cards": dict(self.cards),
            "flags": {program: list(flags) for program, flags in self.flags.items()},
            "components": list(self.components),
            "latency": [_LATENCY, _LATENCY],
        }
        return Plan(self.name, self.steps, shape, preempt=0.0)


# -- steps ------------------------------------------------------------------------------------------------------------


def pod(at: float, name: str, limits: Mapping[str, str], **more: Any) -> Step:
    """A user creates a pod. more: further arguments, as in `workload.manifest`."""
    return Step(at, "pod.create", {"namespace": TEAM, "name": name, "limits": dict(limits), **more})


def mib(amount: int) -> JSON:
    """This much of a card's memory, in MiB."""
    return {str(names.GPU_MEMORY): f"{amount}Mi"}


def made(at: float, name: str, limits: Mapping[str, str], *, annotations: Mapping[str, str] = {}, **spec: Any) -> Step:
    """A pod with further fields of its spec."""
    return create(at, paths.pods(TEAM), manifest(name, limits, annotations, **spec))


def manifest(name: str, limits: Mapping[str, str], annotations: Mapping[str, str], **spec: Any) -> JSON:
    """A pod of one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM, "annotations": dict(annotations)},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "cuda", "resources": {"limits": dict(limits)}}],
            **spec,
        },
    }


def create(at: float, path: str, body: JSON) -> Step:
    """A user creates an object."""
    return Step(at, "object.create", {"path": path, "body": body})


def patch(at: float, path: str, body: JSON, *, strategic: bool = False) -> Step:
    """A user changes an object, by a merge patch or a strategic one."""
    return Step(at, "object.patch", {"path": path, "body": body, **({"strategic": True} if strategic else {})})


def delete(at: float, path: str, **options: Any) -> Step:
    """A user deletes an object. options: of the DeleteOptions."""
    return Step(at, "object.delete", {"path": path, **({"options": options} if options else {})})


def gone(at: float, name: str) -> Step:
    """A user deletes a pod."""
    return delete(at, paths.pods(TEAM, name))


def show(at: float, node: str, text: str) -> Step:
    """The node's driver reports these cards."""
    return Step(at, "cards.show", {"node": node, "text": text})


def stop(at: float, program: str) -> Step:
    """A program gets SIGTERM, and is started again."""
    return Step(at, "program.stopped", {"program": program})


def _priority(at: float, name: str, value: int) -> Step:
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
    return create(at, "/apis/scheduling.k8s.io/v1/priorityclasses", body)


def _claim_path(plural: str, name: str | None = None) -> str:
    return paths.path(_CLAIM_GROUP, plural, TEAM if plural == "elasticgpuclaims" else None, name)


def _class(at: float, name: str, **more: Any) -> Step:
    head = {"apiVersion": _CLAIM_GROUP, "kind": "ElasticGPUClass", "metadata": {"name": name}}
    return create(at, _claim_path("elasticgpuclasses"), {**head, "provisioner": _CLASS, **more})


def _claim(at: float, name: str, gib: int, of: str = "shared") -> Step:
    body = {
        "apiVersion": _CLAIM_GROUP,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {
            "elasticGPUClassName": of,
            "resources": {"requests": {f"{_CLASS}/gpu-core": "10", f"{_CLASS}/gpu-memory": str(gib)}},
        },
    }
    return create(at, _claim_path("elasticgpuclaims"), body)


def _devices(at: float, name: str, *, alone: bool) -> Step:
    """A ResourceClaim for most of a card, or a template of such claims."""
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": "9000Mi"}}}
    devices = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim" if alone else "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": devices if alone else {"spec": devices},
    }
    return create(at, (paths.resourceclaims if alone else paths.resourceclaimtemplates)(TEAM), body)


def _by_claim(at: float, name: str, **source: str) -> Step:
    """A pod with a claim. source: the name of the claim or of the template, by its field."""
    body = manifest(name, {}, {}, resourceClaims=[{"name": "gpu", **source}])
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return create(at, paths.pods(TEAM), body)


def _uses(at: float, name: str, node: str) -> Step:
    """A pod with the claim `bound`, on that node."""
    where = {"kubernetes.io/hostname": node}
    return made(at, name, {}, annotations={"egpuc.elasticgpu.io/main": "bound"}, nodeSelector=where)


def _deployment(replicas: int) -> JSON:
    labels = {"app": "serves"}
    template = manifest("", mib(5000), {})
    spec = {key: value for key, value in template["spec"].items() if key != "restartPolicy"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serves", "namespace": TEAM},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


_DEPLOYMENTS = paths.path("apps/v1", "deployments", TEAM)
_UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 1 Insufficient example.com/fpga.",
}
_REFUSED = {"status": {"conditions": [_UNSCHEDULABLE]}}

_POOLS = """
pools:
- name: t4
  nodeSelector: {matchLabels: {pool: t4}}
  node: {gpus: 2, model: Tesla T4, gpuMemory: 15109Mi, cpu: 8, memory: 32Gi, max: 3}
"""
_PROVISIONING = ["--options", "{folder}/options.yaml", "--provisioning-after", "1s", "--provisioning-patience", "10s"]

# -- the runs ---------------------------------------------------------------------------------------------------------

REFERENCES: tuple[Reference, ...] = (
    Reference(
        "placed-at-admission",
        (
            pod(1.0, "a", mib(5000)),
            pod(2.0, "b", {"aliyun.com/gpu-mem": "3"}),
            pod(3.0, "c", {"nvidia.com/gpu": "1"}),
            pod(4.0, "d", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}, runs=5),
            gone(8.0, "a"),
            pod(9.0, "e", mib(12000)),
        ),
        cards=TWO,
    ),
    Reference(
        "waits-then-placed",
        (
            _priority(0.5, "high", 1000),
            pod(1.0, "full", mib(14000)),
            pod(2.0, "waits", mib(12000)),
            gone(6.0, "full"),
            made(10.0, "urgent", mib(14000), priorityClassName="high"),
            gone(40.0, "waits"),
        ),
        lasts=45.0,
    ),
    Reference(
        "one-leads-after-another",
        (
            pod(1.0, "a", mib(9000)),
            pod(3.0, "b", mib(3000)),
            *(pod(float(at), f"c-{at}", mib(9000)) for at in range(15, 22)),
            gone(42.0, "a"),
        ),
        lasts=50.0,
    ),
    Reference(
        "placed-when-stored",
        (
            pod(1.0, "a", mib(9000)),
            pod(1.1, "b", mib(9000)),
            pod(1.2, "c", mib(5000), runs=5),
            gone(5.0, "a"),
            pod(5.05, "d", mib(9000)),
        ),
        flags={"allocator": ("--placement-when", "stored")},
    ),
    Reference(
        "claims",
        (
            _class(0.5, "shared"),
            _class(0.6, "kept", reclaimPolicy="Retain"),
            _claim(1.0, "bound", 4),
            _claim(1.5, "too-large", 12),
            _claim(2.0, "held", 2, "kept"),
            _uses(3.0, "uses", "n1"),
            gone(6.0, "uses"),
            _uses(8.0, "moves", "n2"),
            gone(11.0, "moves"),
            delete(34.0, _claim_path("elasticgpuclaims", "bound")),
            delete(36.0, _claim_path("elasticgpuclaims", "held")),
        ),
        cards=TWO,
        lasts=45.0,
    ),
    Reference(
        "preemption",
        (
            _priority(0.5, "high", 1000),
            pod(1.0, "low", mib(9000)),
            pod(1.5, "small", mib(4000)),
            made(4.0, "urgent", mib(10000), priorityClassName="high"),
            gone(25.0, "low"),
        ),
        flags={"allocator": ("--preemption=true",)},
        components=(*CALM, "allocator-eviction"),
    ),
    Reference(
        "withdrawn",
        (
            made(1.0, "unbound", mib(9000), schedulerName="nobody"),
            pod(1.5, "waits", mib(9000)),
            patch(3.0, paths.pods(TEAM, "unbound", "status"), _REFUSED, strategic=True),
        ),
        flags={"allocator": ("--unbound-after", "3s")},
    ),
    Reference(
        "deployment",
        (
            create(1.0, _DEPLOYMENTS, _deployment(4)),
            patch(6.0, f"{_DEPLOYMENTS}/serves", {"spec": {"replicas": 2}}),
            patch(9.0, f"{_DEPLOYMENTS}/serves", {"spec": {"replicas": 5}}),
        ),
        cards=TWO,
    ),
    Reference(
        "node-drained",
        (
            create(1.0, _DEPLOYMENTS, _deployment(3)),
            patch(5.0, paths.nodes("n1"), {"spec": {"unschedulable": True}}),
            patch(6.0, f"{_DEPLOYMENTS}/serves", {"spec": {"replicas": 0}}),
            patch(9.0, f"{_DEPLOYMENTS}/serves", {"spec": {"replicas": 3}}),
            patch(14.0, paths.nodes("n1"), {"spec": {"unschedulable": None}}),
        ),
        cards=TWO,
    ),
    Reference(
        "card-fails",
        (
            pod(1.0, "a", mib(5000), node="n1"),
            pod(1.5, "b", mib(5000), node="n2"),
            show(4.0, "n2", f'gpus: {T4}\ncards:\n  0: {{healthy: false, reason: "XID 79"}}\n'),
            pod(7.0, "c", mib(9000)),
            pod(7.5, "d", mib(9000)),
            pod(8.0, "e", mib(9000)),
            show(12.0, "n2", f"gpus: {T4}\n"),
            show(16.0, "n1", "gpus: 1 x Tesla T4 15109MiB\n"),
            show(24.0, "n1", f"gpus: {TWO['n1']}\n"),
        ),
        cards=TWO,
        lasts=45.0,
    ),
    Reference(
        "card-shown-twice",
        (
            pod(1.0, "a", mib(5000), node="n2"),
            show(
                3.0,
                "n1",
                "gpus: 1 x Tesla T4 15109MiB\ncards:\n  0: {uuid: GPU-00000000-0000-0000-0000-000000000001}\n",
            ),
            show(4.0, "n2", f"gpus: {T4}\ncards:\n  0: {{uuid: GPU-00000000-0000-0000-0000-000000000001}}\n"),
            pod(12.0, "b", mib(9000)),
            show(20.0, "n2", f"gpus: {T4}\n"),
        ),
        cards={"n1": T4, "n2": T4},
        lasts=45.0,
        # A leader that does not see the exchange yet allocates the old card, and that pod never starts.
        determined=False,
    ),
    Reference(
        "objects-deleted",
        (
            pod(1.0, "a", mib(5000)),
            delete(3.0, paths.gpunodes("n1")),
            patch(6.0, paths.gpunodes("n1", "status"), {"status": {"gpus": []}}),
            patch(9.0, paths.nodes("n1", "status"), {"status": {"capacity": {str(names.GPU_MEMORY): None}}}),
            patch(10.0, paths.gpunodes("n1"), {"metadata": {"ownerReferences": None}}),
            delete(12.0, paths.leases(names.NAMESPACE, names.LEASE)),
            pod(13.0, "b", mib(5000)),
        ),
        lasts=50.0,
    ),
    Reference(
        "programs-rolled",
        (
            pod(1.0, "full", mib(14000)),
            pod(1.5, "waits", mib(12000)),
            stop(3.0, "leader"),
            Step(4.0, "flags.set", {"program": "allocator", "flags": ["--placement-node-policy", "spread"]}),
            gone(6.0, "full"),
            stop(8.0, "leader"),
            stop(10.0, "webhook-0"),
            stop(11.0, "nodeagent-n1"),
            pod(14.0, "b", mib(3000)),
            stop(20.0, "allocator-0"),
            stop(26.0, "allocator-1"),
        ),
    ),
    Reference(
        "stored-late",
        (
            Step(0.5, "pod.stored-late", {"name": "late", "takes": 9.0}, 20.0),
            *(pod(1.0 + 0.1 * i, f"late-{i}", mib(3500)) for i in range(4)),
            pod(8.0, "first", mib(14000)),
        ),
        flags={"allocator": ("--assume-ttl", "5s")},
        determined=False,
    ),
    Reference(
        "delivery-by-claims",
        (
            pod(1.0, "a", mib(9000)),
            pod(1.5, "waits", mib(9000)),
            delete(5.0, paths.pods(TEAM, "a"), propagationPolicy="Orphan"),
            delete(12.0, paths.pods(TEAM, "waits"), propagationPolicy="Orphan"),
            stop(14.0, "leader"),
        ),
        components=(*CALM, "delivery-dra"),
    ),
    Reference(
        "shares-by-claims",
        (
            _devices(0.5, "template", alone=False),
            _devices(0.6, "claim", alone=True),
            _by_claim(1.0, "a", resourceClaimTemplateName="template"),
            _by_claim(1.5, "waits", resourceClaimName="claim"),
            gone(5.0, "a"),
            gone(12.0, "waits"),
            stop(14.0, "leader"),
        ),
        components=(*CALM, BY_CLAIMS, SHARES_BY_CLAIMS),
    ),
    Reference(
        "nodes-asked-for",
        (
            Step(0.5, "file.write", {"name": "options.yaml", "text": _POOLS}),
            Step(0.6, "flags.set", {"program": "allocator", "flags": _PROVISIONING}),
            stop(1.0, "leader"),
            stop(6.0, "leader"),
            pod(9.0, "full", mib(14000)),
            pod(10.0, "waits", mib(14000)),
            gone(20.0, "full"),
        ),
        components=(*CALM, "node-provisioning", "node-placeholders"),
        lasts=50.0,
    ),
    Reference(
        "startup-taint",
        (
            patch(
                1.0,
                paths.nodes("n1"),
                {"spec": {"taints": [{"key": str(names.STARTUP_TAINT), "effect": "NoSchedule"}]}},
            ),
            pod(3.0, "a", mib(9000)),
        ),
        components=(*CALM, "startup-taint"),
    ),
)
BY_NAME: Mapping[str, Reference] = {each.name: each for each in REFERENCES}
UNREACHED: Mapping[str, str] = {
    "allocator: pod overtaken": "only where the claims of a commit that is repeated cannot be written",
    "allocator: PodTemplate created": "belongs to a ProvisioningRequest, and no autoscaler serves those here",
}
"""Kinds of writes that no reference run does, with the reason."""
