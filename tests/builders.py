"""
Fluent builders of test input: pods as the API server passes them on, and nodes in three forms.

Every step returns a new builder, so several cases can share a common start:

    pod("train").asks("aliyun.com/gpu-mem", 5).json()
    pod("two").init("fetch").needs(cpu="2").container("main").asks("nvidia.com/gpu", 1).json()
    node("n1").gpu("Tesla T4", mib=15109).gpu("Tesla T4", mib=15109, used_mib=5120).state()

`asks`, `needs` and `env` apply to the container named last. A pod without containers gets one called `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contract import names
from contract.encoding import quantity
from contract.model import AS_SET, WHOLE, Compute, Delivery, Gpu, Inventory, NodeState, PoolSharing, Taint, Usage
from contract.nodes.inventories import inventory_to_status

JSON = dict[str, Any]

CREATED = "2026-01-05T08:00:00Z"
IMAGE = "nvidia/cuda:12.4.1-base-ubuntu22.04"


def pod(name: str, namespace: str = "default") -> PodBuilder:
    """A pod that has only a name."""
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": CREATED}
    return PodBuilder({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})


def container(name: str, *, resources: JSON | None = None, **fields: Any) -> JSON:
    """A container with the API server's defaults."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": resources or {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **fields,
    }


def defaults() -> JSON:
    """The fields that the API server and its own admission plugins set in a pod's spec before any webhook sees it."""
    waits = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": f"node.kubernetes.io/{state}", **waits} for state in ("not-ready", "unreachable")],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


@dataclass(frozen=True)
class PodBuilder:
    """Builds a pod. `json()` is the pod as it is stored: defaults filled in, requests copied from limits."""

    _pod: JSON
    _last: tuple[str, int] | None = None

    # -- containers -----------------------------------------------------------------------------------------------

    def container(self, name: str, **fields: Any) -> PodBuilder:
        """An app container."""
        return self._add("containers", container(name, **fields))

    def init(self, name: str, **fields: Any) -> PodBuilder:
        """An init container, which ends before the next one starts."""
        return self._add("initContainers", container(name, **fields))

    def sidecar(self, name: str, **fields: Any) -> PodBuilder:
        """An init container that keeps running."""
        return self._add("initContainers", container(name, restartPolicy="Always", **fields))

    def asks(self, resource: str, amount: int | str) -> PodBuilder:
        """A limit of the last container. It is an extended resource, so its request is the same."""
        return self._resource("limits", {str(resource): str(amount)})

    def needs(self, **amounts: int | str) -> PodBuilder:
        """Requests of the last container: `cpu="500m", memory="1Gi", ephemeral_storage="1Gi"`."""
        return self._resource("requests", {key.replace("_", "-"): str(amount) for key, amount in amounts.items()})

    def limited(self, **amounts: int | str) -> PodBuilder:
        """Limits of the last container, in the same form."""
        return self._resource("limits", {key.replace("_", "-"): str(amount) for key, amount in amounts.items()})

    def env(self, name: str, value: str) -> PodBuilder:
        """An environment variable of the last container."""
        return self._in_container(lambda c: c.setdefault("env", []).append({"name": name, "value": value}))

    def host_port(self, port: int, *, protocol: str = "TCP", ip: str | None = None) -> PodBuilder:
        """A host port of the last container."""
        entry = {"containerPort": port, "hostPort": port, "protocol": protocol, **({"hostIP": ip} if ip else {})}
        return self._in_container(lambda c: c.setdefault("ports", []).append(entry))

    def uses(self, name: str, *, template: str = "", claim: str = "") -> PodBuilder:
        """
        A ResourceClaim of the last container, made from a template or standalone. `name`: the name within the pod.
        """
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        listed = [*(self._pod["spec"].get("resourceClaims") or ()), {"name": name, **source}]
        named = self._in_container(lambda c: c["resources"].setdefault("claims", []).append({"name": name}))
        return named.spec(resourceClaims=listed)

    # -- metadata -------------------------------------------------------------------------------------------------

    def generated(self, prefix: str) -> PodBuilder:
        """A name that the API server still has to generate: at admission the pod has neither a name nor a uid."""
        return self._with(lambda p: (p["metadata"].pop("name", None), p["metadata"].update(generateName=prefix)))

    def uid(self, uid: str) -> PodBuilder:
        """The uid that a stored pod has."""
        return self._with(lambda p: p["metadata"].update(uid=uid))

    def created(self, at: str) -> PodBuilder:
        """The creation time, RFC 3339."""
        return self._with(lambda p: p["metadata"].update(creationTimestamp=at))

    def annotated(self, key: str, value: str) -> PodBuilder:
        """An annotation."""
        return self._with(lambda p: p["metadata"].setdefault("annotations", {}).update({str(key): value}))

    def owned(self, kind: str, name: str, uid: str) -> PodBuilder:
        """A controller created the pod, and creates another to replace it."""
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}
        return self._with(lambda made: made["metadata"].update(ownerReferences=[owner]))

    def labelled(self, key: str, value: str) -> PodBuilder:
        """A label."""
        return self._with(lambda p: p["metadata"].setdefault("labels", {}).update({str(key): value}))

    # -- spec and status ------------------------------------------------------------------------------------------

    def spec(self, **fields: Any) -> PodBuilder:
        """Any fields of the spec, such as `nodeSelector={...}`."""
        return self._with(lambda p: p["spec"].update(_copied(fields)))

    def on(self, node: str) -> PodBuilder:
        """Bound to a node."""
        return self.spec(nodeName=node)

    def selects(self, **labels: str) -> PodBuilder:
        """A nodeSelector, for label keys that are Python names; `spec(nodeSelector=...)` for others."""
        return self.spec(nodeSelector=labels)

    def tolerates(self, key: str = "", *, operator: str = "Exists", value: str = "", effect: str = "") -> PodBuilder:
        """One more toleration; empty fields are left out."""
        fields = {"key": key, "operator": operator, "value": value, "effect": effect}
        entry = {name: text for name, text in fields.items() if text}
        return self._with(lambda p: p["spec"].setdefault("tolerations", []).append(entry))

    def affinity(self, *terms: JSON) -> PodBuilder:
        """Required node affinity: one of these terms must match."""
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return self.spec(affinity={"nodeAffinity": required})

    def gated(self, *gates: str) -> PodBuilder:
        """The pod waits behind these scheduling gates; behind gpufraction's gate if none is given."""
        return self.spec(schedulingGates=[{"name": str(gate)} for gate in gates or (names.GATE,)])

    def phase(self, phase: str) -> PodBuilder:
        """The status' phase."""
        return self._with(lambda p: p.setdefault("status", {}).update(phase=phase))

    # -- the result -----------------------------------------------------------------------------------------------

    def json(self) -> JSON:
        """The pod as the API server hands it to a webhook or a watch."""
        made: JSON = _copied(self._ready()._pod)
        given = made["spec"]
        tolerations = [*(given.pop("tolerations", [])), *defaults()["tolerations"]]
        made["spec"] = {**defaults(), **given, "tolerations": tolerations}
        for kind in ("initContainers", "containers"):
            for each in made["spec"].get(kind, []):
                _default_requests(each)
        return made

    def manifest(self) -> JSON:
        """The pod as a tenant writes it, without defaults."""
        made: JSON = _copied(self._ready()._pod)
        return made

    # -- inside ---------------------------------------------------------------------------------------------------

    def _ready(self) -> PodBuilder:
        return self if self._pod["spec"]["containers"] else self.container("main")

    def _with(self, change: Callable[[JSON], object]) -> PodBuilder:
        """A copy with changes down to the depth of `metadata.labels`. It shares everything deeper with this builder."""
        made = _copied(self._pod, 3)
        change(made)
        return replace(self, _pod=made)

    def _add(self, kind: str, made: JSON) -> PodBuilder:
        added = self._with(lambda p: p["spec"].setdefault(kind, []).append(made))
        return replace(added, _last=(kind, len(added._pod["spec"][kind]) - 1))

    def _in_container(self, change: Callable[[JSON], object]) -> PodBuilder:
        if self._last is None:
            return self.container("main")._in_container(change)
        kind, position = self._last

        def of_the_last(p: JSON) -> None:
            listed = p["spec"][kind]
            listed[position] = _copied(listed[position])
            change(listed[position])

        return self._with(of_the_last)

    def _resource(self, kind: str, amounts: JSON) -> PodBuilder:
        return self._in_container(lambda c: c["resources"].setdefault(kind, {}).update(amounts))


def _copied(value: Any, depth: int = 1_000) -> Any:
    """
    Lists and objects copied to this depth. This is faster than `copy.deepcopy`, which checks for shared references.
    """
    if not depth or not isinstance(value, dict | list):
        return value
    if isinstance(value, dict):
        return {key: _copied(each, depth - 1) for key, each in value.items()}
    return [_copied(each, depth - 1) for each in value]


def _default_requests(made: JSON) -> None:
    limits = made["resources"].get("limits")
    if limits:
        made["resources"]["requests"] = {**limits, **made["resources"].get("requests", {})}


def node(name: str) -> NodeBuilder:
    """A ready node with 32 CPUs, 128 GiB of memory, 200 GiB of disk, room for 110 pods, and no GPU."""
    return NodeBuilder(name)


_ROOMY = Compute(cpu=32_000, memory=128 * quantity.GIB, storage=200 * quantity.GIB, pods=110)
_NOTHING = Compute()


@dataclass(frozen=True)
class NodeBuilder:
    """Builds a node as a `NodeState`, a Node, a GPUNode or an `Inventory`."""

    name: str
    _gpus: tuple[Gpu, ...] = ()
    _usage: tuple[Usage, ...] = ()
    _labels: Mapping[str, str] = field(default_factory=dict)
    _taints: tuple[Taint, ...] = ()
    _cordoned: bool = False
    _ready: bool = True
    _silent: bool = False
    _allocatable: Compute = _ROOMY
    _requested: Compute = _NOTHING
    _host_ports: frozenset[tuple[str, str, int]] = frozenset()
    _problem: str = ""
    _isolation: tuple[str, ...] = ()
    _delivery: Delivery | None = None

    def gpu(
        self,
        model: str = "Tesla T4",
        *,
        mib: int = 15109,
        usable_mib: int | None = None,
        used_mib: int = 0,
        cores: int = 0,
        sharers: int | None = None,
        exclusive: bool = False,
        sick: str = "",
        withheld: str = "",
        uuid: str = "",
        index: int | None = None,
        numa: int = -1,
        sharing: PoolSharing = AS_SET,
    ) -> NodeBuilder:
        """
        Add a GPU of `mib` MiB. `used_mib`, `cores`, `sharers` and `exclusive` say what is already allocated on it (one
        sharer if anything is); `sick` is why it is unhealthy, and `withheld` why a healthy one accepts no pods. Its
        UUID is `GPU-<node>-<index>` unless given.
        """
        position = len(self._gpus) if index is None else index
        usable = mib if usable_mib is None else usable_mib
        made = Gpu(
            uuid=uuid or f"GPU-{self.name}-{position}",
            index=position,
            model=model,
            memory=mib * quantity.MIB,
            usable=usable * quantity.MIB,
            healthy=not (sick or withheld),
            reason=sick,
            withheld=withheld,
            numa=numa,
            sharing=sharing,
        )
        busy = int(bool(used_mib or cores or exclusive))
        usage = Usage(used_mib * quantity.MIB, cores, busy if sharers is None else sharers, exclusive)
        return replace(self, _gpus=(*self._gpus, made), _usage=(*self._usage, usage))

    def gpus(self, count: int, model: str = "Tesla T4", *, mib: int = 15109) -> NodeBuilder:
        """`count` free GPUs of one model."""
        made = self
        for _ in range(count):
            made = made.gpu(model, mib=mib)
        return made

    def labelled(self, key: str, value: str = "") -> NodeBuilder:
        """A label."""
        return replace(self, _labels={**self._labels, key: value})

    def tainted(self, key: str, value: str = "", *, effect: str = "NoSchedule") -> NodeBuilder:
        """A taint."""
        return replace(self, _taints=(*self._taints, Taint(key, value, effect)))

    def cordoned(self) -> NodeBuilder:
        """`kubectl cordon`."""
        return replace(self, _cordoned=True)

    def not_ready(self) -> NodeBuilder:
        """Its kubelet is not ready."""
        return replace(self, _ready=False)

    def silent(self) -> NodeBuilder:
        """Its agent has stopped writing."""
        return replace(self, _silent=True)

    def broken(self, problem: str) -> NodeBuilder:
        """Its agent cannot see the GPUs, for this reason."""
        return replace(self, _problem=problem)

    def isolating(self, *levels: str) -> NodeBuilder:
        """Its agent enforces these levels of isolation."""
        return replace(self, _isolation=levels)

    def delivering(self, delivery: Delivery) -> NodeBuilder:
        """How its agent says that GPUs reach containers."""
        return replace(self, _delivery=delivery)

    def allocatable(self, **amounts: Any) -> NodeBuilder:
        """What it has for pods, in the units of `Compute`. Amounts that are not given stay the same."""
        return replace(self, _allocatable=replace(self._allocatable, **amounts))

    def requested(self, **amounts: Any) -> NodeBuilder:
        """What its pods already request of that, in the units of `Compute`."""
        return replace(self, _requested=replace(self._requested, **amounts))

    def port_taken(self, port: int, *, protocol: str = "TCP", ip: str = "") -> NodeBuilder:
        """A host port in use."""
        return replace(self, _host_ports=self._host_ports | {(ip, protocol, port)})

    def state(self) -> NodeState:
        """The node as the allocator sees it when it decides."""
        return NodeState(
            name=self.name,
            gpus=self._gpus,
            usage=self._usage,
            labels={"kubernetes.io/hostname": self.name, **self._labels},
            taints=self._taints,
            cordoned=self._cordoned,
            ready=self._ready,
            silent=self._silent,
            allocatable=self._allocatable,
            requested=self._requested,
            host_ports=self._host_ports,
            isolation=self._isolation,
            delivery=self._delivery,
        )

    def inventory(self) -> Inventory:
        """What the node's agent publishes."""
        return Inventory(
            self.name,
            self._gpus,
            "550.54.15",
            "12.4",
            self._problem,
            isolation=self._isolation,
            delivery=self._delivery,
        )

    def gpunode(self) -> JSON:
        """The GPUNode object."""
        return {
            "apiVersion": names.GPUNODE_GROUP_VERSION,
            "kind": names.GPUNODE_KIND,
            "metadata": {"name": self.name, "creationTimestamp": CREATED},
            "status": inventory_to_status(self.inventory()),
        }

    def json(self) -> JSON:
        """The Node object, its GPUs counted in capacity and allocatable."""
        amounts = {
            "cpu": f"{self._allocatable.cpu}m",
            "memory": quantity.format_bytes(self._allocatable.memory),
            "ephemeral-storage": quantity.format_bytes(self._allocatable.storage),
            "pods": str(self._allocatable.pods),
        }
        if self._gpus:
            amounts[str(names.GPU_MEMORY)] = quantity.format_bytes(sum(gpu.usable for gpu in self._gpus))
            amounts[str(names.GPU_CORES)] = str(WHOLE * len(self._gpus))
        taints = [{"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})} for t in self._taints]
        spec = {**({"taints": taints} if taints else {}), **({"unschedulable": True} if self._cordoned else {})}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "creationTimestamp": CREATED,
                "labels": {"kubernetes.io/hostname": self.name, **self._labels},
            },
            "spec": spec,
            "status": {
                "capacity": dict(amounts),
                "allocatable": dict(amounts),
                "conditions": [{"type": "Ready", "status": "True" if self._ready else "False"}],
            },
        }


def selecting(model: str) -> JSON:
    """A selector of a ResourceClaim: the cards whose model contains this text."""
    return {"cel": {"expression": f"device.attributes['gpufraction.io'].productName.contains('{model}')"}}
