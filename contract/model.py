"""
The types that the three programs share: a pod's request, a node's inventory, and a decision.

Frozen values only. Memory is in bytes, cores are in percent of one GPU's multiprocessors (a whole GPU has 100), and CPU
is in thousandths. No I/O and no Kubernetes JSON, which the codecs read and write.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WHOLE = 100
"""All of a GPU's cores, or all of its memory, in percent."""
MOST_MEMBERS = 256
"""Pods of a gang at most: one scheduling cycle decides about each of them."""
MOST_GPUS = 64
"""GPUs of one container at most. No machine has more, so a larger number is a typing error."""
MOST_ON_NODE = 1_024
"""GPUs and MIG slices of one node at most. No node has more, and a node's report may be forged."""
MOST_MEMORY = 1 << 46
"""Bytes of memory on one GPU; none has more, and a larger number is a typing error. With this bound, all that a pod can
request stays within the 64 bits in which the allocator counts."""
LEAST_USED = 256 << 20
"""The least memory of a share in bytes. No CUDA program starts in less, so a smaller share is a typing error. No card
has this many GiB, so most often the author wrote GiB for a resource that counts MiB."""
MOST_CONTAINERS = 256
"""Containers of a pod that requests a share; a pod rarely has more than ten. Each gets environment entries, and each
message, annotation and decision about the pod grows with their number."""
MOST_CLAIMS = 64
"""ResourceClaims of one pod that requests a share, including those of other drivers."""
NUMA, PRODUCT_NAME, UUID = "numa", "productName", "uuid"
"""Attributes of cards that the constraints of a ResourceClaim may name."""
MOST_CONSTRAINTS = 32
"""Constraints of one claim (resource.k8s.io/v1, DeviceConstraintsMaxSize)."""
MOST_CONSUMERS = 256
"""Pods that use one ResourceClaim at the same time (resource.k8s.io/v1, ResourceClaimReservedForMaxSize)."""
MOST_SHARING = 64
"""Containers of one pod that request a share; a pod rarely has more than a few. Each takes about 1 KiB of the 256 KiB
of annotations that Kubernetes stores, and costs time in every decision."""
MOST_SHARES = 256
"""GPUs of one pod, each counted once for every container that requests it: 64 containers with 4 each, or 4 with 64."""
MOST_WORDS, LONGEST_WORD = 256, 128
"""Words of one list of models or UUIDs, and characters of one word; a UUID has 40."""
MOST_SELECTORS, MOST_ALTERNATIVES = 8, 8
"""
CEL expressions of one request of a ResourceClaim, and alternatives (resource.k8s.io/v1, FirstAvailableDeviceRequestMax)
of one; also the orders in which a pod's alternatives are tried.
"""
MOST_EXPRESSED = 2 << 10
"""Characters of all expressions of a pod, equal ones counted once."""
MOST_WISHED = 1_000
"""Words of all such lists of a pod, lists that are equal counted once."""
MOST_COMPUTE = 1 << 52
"""Thousandths of CPU, or bytes. A larger amount of a pod or a node counts as this: Kubernetes accepts amounts up to
2**63, and their sums must stay within 64 bits too."""
UNKNOWN_DIALECT = "unknown"
"""Stands for a dialect that this program does not know: another version wrote the request, or it is forged."""
RESOURCE_CLAIMS = "resourceclaims"
"""The dialect of pods that name ResourceClaims of `names.SHARE_CLASS`."""
POLICIES = ("binpack", "spread")
"""The preferences that a tenant may choose, for nodes and for the GPUs of a node."""
WITHHELD = ("Cordoned", "NotShared")
"""Why a healthy GPU takes no new pods: an administrator cordoned it, or the vendor's device plugin uses it."""
PINS = ("auto", "nodeName", "affinity")
"""The ways to pin a pod to its node."""
MOUNTS = BY_CDI, BY_HOST_PATH = ("cdi", "hostPath")
"""How a container gets its limiter's files: by a CDI description of the node's agent, for which tenants need no
permission, or by a hostPath volume of the pod, which its namespace must allow."""
SHARE_KIND = "gpufraction.io/share"
"""Our own CDI kind (CDI specification: vendor/class): the limiter's files, the same for all containers on one GPU."""
PARTITION_KIND = "gpufraction.io/partition"
"""Our CDI kind for pods with reserved multiprocessors of a GPU: a device for each pod and GPU, see `partition`."""
LINKS = ("NVLink", "Board", "Switch", "Switches", "HostBridge", "NumaNode", "System")
"""Paths between two GPUs, the nearest first: NVLink; one board; one PCIe switch, several; one host bridge; one NUMA
node; across NUMA nodes. `nvidia-smi topo -m` calls them NV#, PIX, PXB, PHB, NODE and SYS."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """
    The GPUs that a container accepts. Empty tuples accept all.

    Models match when the GPU's model contains one of the words, whatever their case; UUIDs match exactly.
    `least_memory`: bytes that the whole card must have, whatever the share.
    """

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    least_memory: int = 0
    ordered: bool = False
    """Whether `use_models` is in order of preference."""
    selectors: tuple[str, ...] = ()
    """CEL expressions of a ResourceClaim, all of which must accept a GPU: `contract.encoding.selectors`."""
    alternatives: tuple[tuple[str, ...], ...] = ()
    """
    Lists of such expressions, in order of preference. One and the same list must accept all GPUs of the container.
    Empty: there are no alternatives.
    """
    first: int = 0
    """The index of the first of `alternatives` in the container's own list, if a decision considers only some."""

    @property
    def selects(self) -> bool:
        """Whether there are expressions."""
        return bool(self.selectors or self.alternatives)

    @property
    def expressions(self) -> tuple[str, ...]:
        """All expressions."""
        return (*self.selectors, *(each for alternative in self.alternatives for each in alternative))

    @property
    def lists(self) -> tuple[tuple[str, ...], ...]:
        return self.use_models, self.avoid_models, self.use_uuids, self.avoid_uuids


ANY_GPU = Wishes()


@dataclass(frozen=True, slots=True)
class FractionRequest:
    """
    The request of one container: `count` distinct GPUs, and the same share of each.

    `memory` is in bytes on each GPU. If it is 0, the request is `percent` of each GPU's memory (exactly one of the two
    is positive). `cores` is in percent of each GPU's multiprocessors; 0 reserves none. With `exclusive`, no other pod
    shares the GPU, however small the share is. `limit` is the memory of each GPU that the container may use while no
    other pod needs it, in the unit of the request and above it; 0: no more than the request. Only the request is
    booked.
    """

    container: str
    count: int = 1
    memory: int = 0
    percent: int = 0
    cores: int = 0
    exclusive: bool = False
    init: bool = False
    """An init container that ends before the app containers start, so not a sidecar (restartPolicy Always)."""
    wishes: Wishes = ANY_GPU
    one_numa: bool = False
    """All its GPUs are on one NUMA node. GPUs without a known NUMA node count as one NUMA node."""
    one_model: bool = False
    """All its GPUs are of one model."""
    apart: bool = False
    """It shares no GPU with another such container of its pod."""
    limit: int = 0
    alone: bool = False
    """It shares no GPU with another such pod that is starting (`names.START`). It is the same for all containers."""

    @property
    def alike(self) -> bool:
        """Whether its GPUs depend on each other: each alone may be acceptable, but not all of them together."""
        return self.count > 1 and (self.one_numa or self.one_model or len(self.wishes.alternatives) > 1)

    def memory_on(self, gpu_memory: int) -> int:
        """Bytes of this share on a GPU with `gpu_memory` usable bytes; a percentage is rounded down."""
        return self.memory or gpu_memory * self.percent // WHOLE

    def burst_on(self, gpu_memory: int) -> int:
        """Bytes between this share and its limit on a GPU with `gpu_memory` usable bytes."""
        if not self.limit:
            return 0
        limit = self.limit if self.memory else gpu_memory * self.limit // WHOLE
        return max(0, limit - self.memory_on(gpu_memory))


@dataclass(frozen=True, slots=True, order=True)
class GpuKind:
    """One kind of GPU. `memory`: all of its bytes; `usable`: the bytes for shares."""

    model: str
    memory: int
    usable: int


@dataclass(frozen=True, slots=True)
class PodRequest:
    """
    The request of a pod: the containers with a request, in the pod's order (init containers first).

    `same_gpus`: all containers use the same GPUs and their shares add up there (Aliyun's rule: a pod is on one GPU).
    Then all of them request bytes, and the same count.
    `node_policy`, `gpu_policy`: the tenant's choice, or empty for the administrator's default.
    `unit`: bytes of the unit in which the dialect counts memory, if it writes such counts back; else 0.
    `priority`: among waiting pods of the same namespace and Kubernetes priority, those with 1 go before those with 0.
    `claim`: the pod uses the share of the ElasticGPUClaim with this name in its namespace; its containers then have no
    amounts.
    `counted`: the bytes that Kubernetes counts for the stored pod, of a request with shares by percent: these were
    counted before the pod had its cards. 0: as many as its shares have on its cards. It is read from the pod, and not
    stored in the request.
    `warnings`: how the pod was read, if its author may have meant something else. Admission shows them once. They are
    neither stored nor compared.
    """

    dialect: str
    containers: tuple[FractionRequest, ...]
    same_gpus: bool = False
    node_policy: str = ""
    gpu_policy: str = ""
    unit: int = 0
    priority: int = 0
    claim: str = ""
    counted: int = 0
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def own_claims(self) -> bool:
        """Whether the pod requests its share by its author's ResourceClaims, which also deliver its devices."""
        return self.dialect == RESOURCE_CLAIMS

    @property
    def selects(self) -> bool:
        """Whether CEL expressions also restrict a container's GPUs."""
        return any(fraction.wishes.selects for fraction in self.containers)

    @property
    def several(self) -> bool:
        """Whether a container requests more than one GPU."""
        return any(fraction.count > 1 for fraction in self.containers)

    @property
    def bursts(self) -> bool:
        """Whether a container has a memory limit above its request."""
        return any(fraction.limit for fraction in self.containers)

    @property
    def alone(self) -> bool:
        """Whether the pod starts on no GPU on which another such pod is starting."""
        return any(fraction.alone for fraction in self.containers)

    @property
    def excess(self) -> tuple[str, str] | None:
        """The amount that exceeds the bounds of one pod, and what would work; None if no amount does."""
        sharing, shares = len(self.containers), sum(fraction.count for fraction in self.containers)
        if sharing > MOST_SHARING:
            return f"{sharing} containers that request a share", (
                f"request a share in at most {MOST_SHARING} containers of a pod"
            )
        if shares > MOST_SHARES:
            return f"{shares} GPUs in all containers together", (
                f"request at most {MOST_SHARES} in all containers together"
            )
        lists = {words for fraction in self.containers for words in fraction.wishes.lists}
        wished = sum(map(len, lists))
        if wished > MOST_WISHED:
            return f"{wished} models and UUIDs", f"name at most {MOST_WISHED} in all lists together"
        return self._excess_of_expressions()

    def _excess_of_expressions(self) -> tuple[str, str] | None:
        listed = {each for fraction in self.containers for each in fraction.wishes.expressions}
        if sum(map(len, listed)) > MOST_EXPRESSED:
            return f"CEL expressions of {sum(map(len, listed))} characters", f"give at most {MOST_EXPRESSED} in all"
        orders = math.prod(max(1, len(fraction.wishes.alternatives)) for fraction in self.containers)
        if orders > MOST_ALTERNATIVES:
            cure = f"give at most {MOST_ALTERNATIVES}: the numbers of alternatives of all containers are multiplied"
            return f"{orders} combinations of alternatives", cure
        return None


@dataclass(frozen=True, slots=True)
class ClaimEntry:
    """A ResourceClaim that a pod names: the pod's own name for it, and the template or else the claim."""

    name: str
    template: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several ways to serve a request of a ResourceClaim: its name, and the selectors of its cards."""

    name: str
    selectors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """
    The cards of some requests of a ResourceClaim must have the same value of `attribute`, one of `NUMA`, `PRODUCT_NAME`
    and `UUID`. `distinct`: each card must have a different value instead.
    """

    attribute: str
    requests: tuple[str, ...]
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """
    One request of a ResourceClaim: `count` cards, and the same share of each. `memory`: bytes; 0: whole cards. `limit`:
    as in `FractionRequest`. `isolation`: the least that it accepts; empty for any. `selectors`, `alternatives`: which
    cards it accepts, as in `Wishes`. `constraints`: those of its claim that are about it.
    """

    name: str
    count: int = 1
    memory: int = 0
    cores: int = 0
    limit: int = 0
    isolation: str = ""
    selectors: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A container's share of one GPU: memory in bytes, cores in percent."""

    uuid: str
    index: int
    memory: int
    cores: int
    gpu_memory: int
    """The GPU's whole memory in bytes, which the older systems also show to containers."""
    cdi: str = ""
    """The CDI kinds whose device of this UUID the container gets, separated by commas: the kind of the node's runtime,
    and ours where the node has it. Empty if the runtime identifies GPUs by UUID alone."""
    nri: bool = False
    """Whether a pod's annotation names the devices to the NRI plugin of NVIDIA's container toolkit."""
    dra: bool = False
    """Whether the pod's ResourceClaim delivers the devices, and not the container's environment."""
    cores_free: bool = False
    """Whether `cores` is counted and not enforced, by the options of the node's pool when the pod was placed."""
    as_whole: bool = False
    """Whether a container sees this share as all of the GPU's memory, by what limits it on the node; see
    `contract.scheduling.fit.shown_as_whole`."""
    burst: int = 0
    """Bytes above `memory` that the container may use while no other pod needs them."""

    @property
    def limit(self) -> int:
        """Bytes beyond which the container gets no more memory of the GPU."""
        return self.memory + self.burst


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """The shares of one container, in the order in which it sees its GPUs."""

    container: str
    shares: tuple[GpuShare, ...]
    alternative: int = 0
    """The index of their alternative (`Wishes.alternatives`); 0 without alternatives."""


def claim_group(share: str) -> str:
    """`Allocation.group` of the pods that use the share of an ElasticGPU, by the ElasticGPU's name."""
    return f"claim/{share}"


@dataclass(frozen=True, slots=True)
class Allocation:
    """
    One decision. `id` cannot be guessed, and identifies a reservation of admission on the pod that appears later.

    Containers are in the order of the request.
    """

    id: str
    node: str
    containers: tuple[ContainerAllocation, ...]
    claim: str = ""
    """
    The ElasticGPU whose share this is; empty for the pod's own share. All pods with the same name here use one share,
    and each of their containers may use all of it.
    """
    shared: str = ""
    """
    The uid of the ResourceClaim whose share this is, if other pods may use the claim at the same time; else empty. All
    pods with the same uid here use one share.
    """

    @property
    def group(self) -> str:
        """The same key for all pods with one share; empty for the pod's own share. No pod's uid has a slash."""
        return claim_group(self.claim) if self.claim else f"resourceclaim/{self.shared}" if self.shared else ""

    def partition(self, uuid: str) -> str:
        """The name of the device of `PARTITION_KIND` on a GPU. Pods with the same claim use the same device."""
        return f"{uuid}.{self.claim or self.shared or self.id}"

    @property
    def by_claim(self) -> bool:
        """Whether the pod's ResourceClaim delivers the devices."""
        return any(share.dra for each in self.containers for share in each.shares)


@dataclass(frozen=True, slots=True)
class PoolSharing:
    """How pods share the GPUs of a node, by the options of its pool. 0: by the allocator's settings."""

    max_sharers: int = 0
    """Pods on one GPU."""
    memory_factor: float = 0.0
    """The memory that a GPU may promise, as a multiple of its usable memory."""
    cores_free: bool = False
    """Whether cores are counted and not enforced."""
    limit_ratio: float = 0.0
    """The bound on the sum of the memory limits of a GPU's pods, as a multiple of its usable memory. 0: no bound."""

    def promised(self, usable: int) -> int:
        """Bytes that a GPU with `usable` bytes may promise: by the factor of these options, else all of them."""
        return usable if self.memory_factor in (0.0, 1.0) else int(usable * self.memory_factor)


AS_SET = PoolSharing()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as reported by its node's agent."""

    uuid: str
    index: int
    model: str
    memory: int
    """All of the card's memory, in bytes."""
    usable: int
    """The memory for shares: the card's memory less the agent's reserve, in bytes."""
    healthy: bool = True
    reason: str = ""
    """Why it takes no new pods; empty if it takes them."""
    withheld: str = ""
    """One of `WITHHELD` where a healthy GPU takes no new pods; `healthy` is then False too."""
    pci: str = ""
    """Its address on the PCI bus, such as `00000000:3B:00.0`."""
    capability: str = ""
    """CUDA compute capability, such as `8.6`."""
    numa: int = -1
    """The NUMA node that it is attached to; -1 where there is none or it is unknown."""
    nvlinks: int = 0
    """NVLinks that are up."""
    links: tuple[tuple[str, str], ...] = ()
    """The nearest paths to the node's other GPUs: (UUID, one of `LINKS`)."""
    parent: str = ""
    """UUID of the GPU that this is a MIG slice of; empty for a whole GPU."""
    sharing: PoolSharing = AS_SET
    """The options of the node, repeated on each of its GPUs for decisions."""

    @property
    def health(self) -> str:
        """Its health in one word, as it is published."""
        return self.withheld or ("Healthy" if self.healthy else "Unhealthy")


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    How a GPU reaches a container of a node without a device plugin.

    `classes`: the runtime classes with which it does; the empty one is for pods without a class. None: it never does.
    `kind`: the CDI kind in the runtime's names of GPUs; empty: the runtime identifies them by UUID alone.
    `nri`: an annotation names the GPU to NVIDIA's NRI plugin, which needs no runtime class.
    `dra`: the pod's ResourceClaim names the GPU to the agent, which is a kubelet plugin (Dynamic Resource Allocation).
    `mounts`: how a container gets the files of its limiter (MPS's sockets, the preloaded library), one of `MOUNTS`;
    empty if it needs none.
    `single`: a container can use only one GPU, because each GPU has its own MPS daemon and a client uses one daemon.
    `partitions`: MPS partitions reserve cores, so a container gets its pod's own device of our kind.
    """

    classes: tuple[str, ...] = ()
    kind: str = ""
    nri: bool = False
    mounts: str = ""
    single: bool = False
    partitions: bool = False
    dra: bool = False

    @property
    def kinds(self) -> str:
        """`GpuShare.cdi` for shares on the node. `SHARE_KIND` has a device of the same name for every GPU."""
        ours = PARTITION_KIND if self.partitions else SHARE_KIND
        return f"{self.kind},{ours}" if self.mounts == BY_CDI else self.kind


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of a GPUNode's status, which the node's agent publishes."""

    node: str
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    problem: str = ""
    """Why there is no inventory (no driver, no library); empty if there is one."""
    kernel: str = ""
    """The running Linux kernel's release."""
    cgroup: str = ""
    """`v1` or `v2`; empty where it is unknown."""
    delivery: Delivery | None = None
    """None if it is unknown; then pods are placed as if every way of delivery worked."""
    isolation: tuple[str, ...] = ()
    """The levels of `contract.isolation` that the agent has seen working here, not those that are configured."""
    pool: str = ""
    """The node pool whose options apply here; empty if only the cluster's options apply."""
    options: tuple[tuple[str, str], ...] = ()
    """The administrator's options that apply: (name, value), sorted by name; see `inventories.sharing_of`."""
    proof: str | None = None
    """The proof of the limiting levels, as a `contract.nodes.proofs.ProofState`; None: no proof is needed."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Usage:
    """
    The usage of one GPU by all pods. `exclusive`: one pod holds the whole GPU. `burst`: the sum of their limits' bytes
    above `memory`. `starting`: the number of pods that start alone and have not finished their start.
    """

    memory: int = 0
    cores: int = 0
    sharers: int = 0
    exclusive: bool = False
    burst: int = 0
    starting: int = 0


FREE = Usage()


Scalars = tuple[tuple[str, int], ...]
"""Names of resources and their amounts, sorted by name."""


@dataclass(frozen=True, slots=True)
class Compute:
    """The amounts by which kubelet admits: CPU in thousandths, bytes of memory and ephemeral storage, pods."""

    cpu: int = 0
    memory: int = 0
    storage: int = 0
    pods: int = 0
    scalars: Scalars | None = ()
    """Every other resource: extended resources and huge pages, without ours. None, for a node: its resources are
    unknown, and it counts as having any amount."""


@dataclass(frozen=True, slots=True)
class Overcount:
    """The amounts that Kubernetes counts for pods beyond those that they hold: bytes, and percent of cores."""

    memory: int = 0
    cores: int = 0

    def __bool__(self) -> bool:
        return self.memory > 0 or self.cores > 0

    def __add__(self, other: Overcount) -> Overcount:
        return Overcount(self.memory + other.memory, self.cores + other.cores)

    def __sub__(self, other: Overcount) -> Overcount:
        return Overcount(self.memory - other.memory, self.cores - other.cores)


NO_OVERCOUNT = Overcount()


@dataclass(frozen=True, slots=True)
class NodeState:
    """
    One node for a decision: its resources and their usage.

    `usage` runs parallel to `gpus`. `host_ports` holds (ip, protocol, port) in use, ip empty for all addresses.
    """

    name: str
    gpus: tuple[Gpu, ...] = ()
    usage: tuple[Usage, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True
    allocatable: Compute = Compute()
    requested: Compute = Compute()
    host_ports: frozenset[tuple[str, str, int]] = frozenset()
    delivery: Delivery | None = None
    """As in `Inventory`."""
    isolation: tuple[str, ...] = ()
    """As in `Inventory`."""
    features: frozenset[str] | None = None
    """Those of its declared features that decide about pods; None: they are not checked."""
    overcount: Overcount = NO_OVERCOUNT
    """Of the pods that hold a share here; see `contract.scheduling.counting`."""
    silent: bool = False
    """Its agent has been silent for too long, so faults of its GPUs would not be detected."""
