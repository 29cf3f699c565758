"""
Every name that we write on, or read from, a Kubernetes object: one documented registry.

Other people's manifests, quotas, dashboards and policies depend on these strings, so a change here is a change of
contract. Other modules use these constants and no literals. The names of an older system are in its dialect.

Must not: do more than make a name from a container's name.
"""

from __future__ import annotations

import hashlib

from contract import isolation

GROUP = "gpufraction.io"
NAMESPACE = "gpufraction-system"
"""The namespace of our programs, at the Restricted level of Pod Security."""
NODES_NAMESPACE = "gpufraction-nodes"
"""The namespace of the programs that need more of their node than that level allows; empty without such a program."""
VERSION = "v1alpha1"
"""Of the GPUNode: what programs of this release read and write."""
NEXT_VERSION = "v1beta1"
"""The same, as a later release will: served already, and of the same form."""


class Key(str):
    """A name of ours, a `str`. `on`: the kind of object or field; `writer`: who writes it; `doc`: its meaning."""

    doc: str
    on: str
    writer: str

    def __new__(cls, name: str, *, on: str, writer: str, doc: str) -> Key:
        key = super().__new__(cls, name)
        key.on = on
        key.writer = writer
        key.doc = doc
        REGISTRY.append(key)
        return key

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy is plain text, not a second entry of the registry."""
        return str, (str(self),)


REGISTRY: list[Key] = []
"""Every `Key` in the order of definition, for the documentation."""

# -- labels, gate -------------------------------------------------------------------------------------------------

INJECT_LABEL = Key(
    f"{GROUP}/inject",
    on="Namespace label",
    writer="administrator",
    doc="`enabled`: gpufraction places the pods created here that request a GPU share.",
)
INJECT_ENABLED = "enabled"
GPUS_LABEL = Key(
    f"{GROUP}/gpus",
    on="Namespace label",
    writer="administrator",
    doc="`unguarded`: with the component guard-gpus, pods created here may still name GPUs and bypass the scheduler.",
)
UNGUARDED = "unguarded"
METRICS_LABEL = Key(
    f"{GROUP}/metrics",
    on="Namespace label",
    writer="administrator",
    doc="`scraper`: with the component multitenant, only pods of such namespaces reach the ports of the metrics.",
)
METRICS_SCRAPER = "scraper"
QUOTA_LABEL = Key(
    f"{GROUP}/quota",
    on="Namespace label",
    writer="administrator",
    doc="`bounded`: the ResourceQuota `gpufraction` limits the namespace's GPU shares. With the component multitenant, "
    "pods get shares only in namespaces with this label, and no pod is created in one whose quota is missing.",
)
QUOTA_BOUNDED = "bounded"
QUOTA = "gpufraction"
"""The ResourceQuota of such a namespace."""
QUEUE_WEIGHT = Key(
    f"{GROUP}/queue-weight",
    on="Namespace label",
    writer="administrator",
    doc="With the allocator's `queue.order: fair`: the weight of the namespace, a whole number from 1 to 1000. A "
    "namespace with twice the weight may hold twice as much as another before its waiting pods come after the "
    "other's. 1 if absent or invalid.",
)
RESERVED_NODES = Key(
    f"{GROUP}/reserved-nodes",
    on="Lease annotation",
    writer="allocator",
    doc="On the Lease of the leading allocator: the nodes that are reserved for waiting pods, and the uids of these "
    "pods, as JSON. For information only: `kubectl gpufraction explain` and `waiting` name the pods.",
)
DEFRAGMENT = Key(
    f"{GROUP}/defragment",
    on="Namespace label",
    writer="administrator",
    doc="`allowed`: consent to evict pods here if each of them has room on another node and a larger pod can then "
    "start. Requires the allocator's setting `defragmentation.evictions_per_hour` above 0.",
)
CONFORMANCE = Key(
    f"{GROUP}/conformance",
    on="Namespace and Pod label",
    writer="kubectl gpufraction conformance",
    doc="An id of the run that made it. The command removes it when it ends, or when it runs next.",
)
UNSERVED_NAMESPACES = frozenset(("kube-system", "kube-node-lease", "kube-public", NAMESPACE, NODES_NAMESPACE))
"""Never served, whatever their labels: pods there must start while the webhook is down."""

GATE = Key(
    f"{GROUP}/allocation",
    on="Pod scheduling gate",
    writer="webhook adds it, allocator removes it",
    doc="The pod waits for its GPU share. kube-scheduler ignores it until the gate is removed.",
)

# -- Dynamic Resource Allocation ----------------------------------------------------------------------------------

DELIVERY = Key(
    f"{GROUP}/delivery",
    on="Node label",
    writer="administrator",
    doc="`dra`: GPUs reach containers of this node by Dynamic Resource Allocation; see docs/dra.md. Without it, the "
    "node's agent detects how they do.",
)
BY_DRA = "dra"
POD_CLAIM = Key(
    "gpufraction",
    on="Pod spec.resourceClaims[].name",
    writer="webhook",
    doc="The pod's ResourceClaim with its GPUs, where nodes deliver by Dynamic Resource Allocation.",
)
CLAIM_PREFIX = Key(
    f"{GROUP}-",
    on="ResourceClaim name",
    writer="webhook names it, allocator creates it",
    doc="Followed by 32 hexadecimal digits: the ResourceClaim of one pod. Its driver and its device class are "
    "`gpufraction.io`; neither a DeviceClass nor a ResourceSlice of that name exists.",
)
SHARE_CLASS = Key(
    "share.gpufraction.io",
    on="DeviceClass, and ResourceClaim spec.devices.requests[].exactly.deviceClassName",
    writer="tenant",
    doc="A share of GPUs by a ResourceClaim that a tenant writes; see docs/upstream.md. No ResourceSlice has devices "
    "of this class: the allocator allocates such claims, never kube-scheduler.",
)
RESOURCE_CLAIMS_LABEL = Key(
    f"{GROUP}/resource-claims",
    on="Namespace label",
    writer="administrator",
    doc="`enabled`: with the component resourceclaims, pods created here may ask for GPU shares by ResourceClaims of "
    "the DeviceClass `share.gpufraction.io`, and every pod created here that names ResourceClaims passes through the "
    "webhook.",
)

# -- resources ----------------------------------------------------------------------------------------------------

GPU_MEMORY = Key(
    f"{GROUP}/gpu-memory",
    on="container limits; Node capacity",
    writer="tenant, webhook; nodeagent",
    doc="As requested: memory on each GPU, a quantity of bytes such as `8Gi`. After admission, and on the Node: the "
    "total over the container's GPUs, in bytes.",
)
GPU_CORES = Key(
    f"{GROUP}/gpu-cores",
    on="container limits; Node capacity",
    writer="tenant, webhook; nodeagent",
    doc="As requested: percent of each GPU's multiprocessors, 1 to 100. After admission, and on the Node: the total "
    "over "
    "the container's GPUs, where one whole GPU is 100.",
)
GPU_PERCENT = Key(
    f"{GROUP}/gpu-percent",
    on="container limits",
    writer="tenant",
    doc="Percent of each GPU's memory, 1 to 100. Also the percent of its multiprocessors, unless gpu-cores is given.",
)
GPU_MEMORY_LIMIT = Key(
    f"{GROUP}/gpu-memory-limit",
    on="container limits; Node capacity",
    writer="tenant, webhook; nodeagent",
    doc="As requested, with gpu-memory, and at least as much: the memory of each GPU that the container may use while "
    "no other pod needs it. It is not booked. After admission: the total over the container's GPUs, in bytes, "
    "which quotas count; a container without a limit above its request has none. On the Node, if the administrator "
    "allows such limits: an amount that no sum of limits exceeds.",
)
GPU_PERCENT_LIMIT = Key(
    f"{GROUP}/gpu-percent-limit",
    on="container limits",
    writer="tenant",
    doc="The same with gpu-percent: percent of each GPU's memory, up to 100.",
)
GPU_COUNT = Key(
    f"{GROUP}/gpu-count",
    on="container limits",
    writer="tenant",
    doc="Number of distinct GPUs; each provides the requested memory and cores. 1 if absent.",
)

# -- other systems' objects ---------------------------------------------------------------------------------------

FITS = Key(
    f"{GROUP}/fits",
    on="AdmissionCheck spec.controllerName",
    writer="administrator",
    doc="The allocator answers this Kueue check: whether all pods of a Workload fit on the GPUs together.",
)

# -- annotations on pods ------------------------------------------------------------------------------------------


def _by_tenant(name: str, doc: str) -> Key:
    return Key(f"{GROUP}/{name}", on="Pod annotation", writer="tenant", doc=doc)


def _of_container(name: str, doc: str) -> Key:
    writer = "webhook or allocator, with the allocation"
    return Key(f"{GROUP}/{name}.", on="Pod annotation, one per container", writer=writer, doc=doc)


REQUEST = Key(
    f"{GROUP}/request",
    on="Pod annotation",
    writer="webhook",
    doc="The canonical request as JSON, and the dialect in which it was written.",
)
ALLOCATION = Key(
    f"{GROUP}/allocation",
    on="Pod annotation",
    writer="webhook or allocator, once",
    doc="The decision as JSON: id, node, and per container its GPUs with memory bytes and cores percent. On an "
    "ElasticGPU: the share that its claim has.",
)
FENCE = Key(
    f"{GROUP}/fence",
    on="Pod annotation",
    writer="allocator",
    doc="On a pod that waited when the leader changed: a token of the new leader. The write itself is the fence: no "
    "write of the previous leader can take effect after it. On one other pod: the token by which the new leader knows "
    "that its watch is up to date. Or the id of a share that could not be written a second time while the first "
    "write might still take effect.",
)
PIN = Key(
    f"{GROUP}/pin",
    on="Pod annotation",
    writer="webhook",
    doc="How the webhook pinned the pod to its node, `nodeName` or `affinity`; absent where the pod named the node "
    "itself. When the pod is admitted again, the pin is removed before a node is chosen.",
)
RETURNED = Key(
    f"{GROUP}/returned",
    on="Pod annotation",
    writer="webhook",
    doc="On a pod that got a share at its first admission but must wait after its second: the id of the first "
    "allocation, which is released when the allocator sees the pod.",
)
WITHDRAWN = Key(
    f"{GROUP}/withdrawn",
    on="Pod annotation",
    writer="allocator",
    doc="The node of a share that was taken back, since kube-scheduler did not bind the pod there in time. The same "
    "write removes the allocation: the pod holds nothing, and its containers see no GPU.",
)
PROTECTED = Key(
    f"{GROUP}/protected",
    on="Pod annotation",
    writer="webhook or allocator, with the allocation",
    doc="If the setting `placement.scale_down` is `block`: the annotations against scale-down that gpufraction wrote "
    "with the share, separated by commas. They are removed with the share; those of the pod's author stay.",
)
GANG = _by_tenant(
    "gang",
    "The gang of the pod: all pods in the namespace with the same name get their shares together or not at all. It "
    "takes precedence over the groups of other programs. `none`: the pod is in no gang.",
)
GANG_MINIMUM = _by_tenant(
    "gang-minimum",
    "How many pods of the gang start together, 1 to 256. Without the annotation gang, and without another program's "
    "group, the gang is the pods of the pod's controller.",
)
GANG_PLAN = Key(
    f"{GROUP}/gang-plan",
    on="Pod annotation",
    writer="allocator, with the allocation",
    doc="On the first placed pod of a gang: the share of each pod of the gang, as JSON. From then on the gang has "
    "begun, and the leading allocator gives the other pods these shares.",
)
START = _by_tenant(
    "start",
    "`alone`: the pod gets no share of a GPU on which another such pod is starting, so that the two do not measure the "
    "GPU's free memory at the same time. It waits, or gets another GPU.",
)
ALONE = "alone"
"""The one value of `START`."""
PLACEMENT = _by_tenant(
    "placement",
    "How the node is pinned: `auto` (the default), `nodeName` or `affinity`. `nodeName` counts as `affinity` if only "
    "a scheduler can evaluate the pod or bind its claims.",
)
NODE_POLICY = _by_tenant(
    "node-policy",
    "`binpack` or `spread` over nodes; if absent, the administrator's default.",
)
GPU_POLICY = _by_tenant(
    "gpu-policy",
    "`binpack` or `spread` over the GPUs of a node; if absent, the administrator's default.",
)
USE_MODELS = _by_tenant(
    "gpu-models",
    "Comma list: only GPUs whose model contains one of these words (`H100,A100`), ignoring case; the first model with "
    "room is used.",
)
LEAST_MEMORY = _by_tenant(
    "min-gpu-memory",
    "Only GPUs with at least this much total memory, a quantity of bytes such as `40Gi`.",
)
AVOID_MODELS = _by_tenant(
    "avoid-gpu-models",
    "Comma list: no GPU whose model contains one of these words, ignoring case.",
)
USE_UUIDS = _by_tenant("gpu-uuids", "Comma list: only these GPUs, by exact UUID.")
AVOID_UUIDS = _by_tenant("avoid-gpu-uuids", "Comma list: none of these GPUs.")

ISOLATION = _by_tenant(
    "isolation",
    "The weakest isolation that the pod accepts between itself and the pods on its GPUs: "
    f"{isolation.listed(isolation.quoted(isolation.ISOLATION))}, from strongest to weakest. The pod is placed only on "
    f"nodes that enforce this level or a stronger one.",
)

EVICTION_REASON = Key(
    f"{GROUP}/eviction-reason",
    on="annotation of a request for an eviction",
    writer="allocator",
    doc="Why the allocator evicts a pod, for the API server's audit log. No stored object has it.",
)

IDLE_AFTER = Key(
    f"{GROUP}/idle-after",
    on="Pod annotation; Namespace label",
    writer="tenant; administrator",
    doc="Consent to eviction: when the pod's share has been idle for this time (`2h`, `90m`), the pod may be evicted "
    "for a waiting pod of equal or higher priority, if the allocator's setting `idle.evict` is on. The pod's "
    "annotation takes precedence over its namespace's label; `0` or nothing is no consent.",
)

PROOF = Key(
    f"{GROUP}/isolation-proof",
    on="GPUNode annotation",
    writer="allocator",
    doc="With the component canary: whether the last canary on the node was held to its share, when it was created, "
    "and the driver's version at that time. The agent publishes limiting levels only while this proof is fresh.",
)
CANARY = Key(
    f"{GROUP}/canary",
    on="Pod label",
    writer="allocator",
    doc="`true` on canaries, which try to exceed their share, in the namespace `gpufraction-canary`.",
)
CANARY_NAMESPACE = "gpufraction-canary"
"""Where canaries run; the component canary creates it."""

NUMA_BIND = _by_tenant(
    "numa-bind",
    "`true`: all GPUs of a container are on one NUMA node of their machine; the pod is placed where there are enough.",
)

DEVICES_PREFIX = _of_container(
    "devices",
    "Comma list of GPU UUIDs, as CDI device names if the node needs that; the container's "
    "`NVIDIA_VISIBLE_DEVICES` reads it through `fieldRef`.",
)
MEMORY_MIB_PREFIX = _of_container(
    "memory-mib",
    "Booked memory on each GPU in MiB, a plain integer, never more than the GPU has. `GPUFRACTION_MEMORY_MIB` reads "
    "it, and so does `GPUFRACTION_MEMORY_LIMIT_MIB` if the share may not burst.",
)
MEMORY_LIMIT_MIB_PREFIX = _of_container(
    "memory-limit-mib",
    "The memory limit on each GPU in the same form, if it is above the booked memory. `GPUFRACTION_MEMORY_LIMIT_MIB` "
    "then reads it.",
)
MEMORY_LIMIT_PREFIX = _of_container(
    "memory-limit",
    "The memory limit on each GPU as `<MiB>m`, the only form that HAMi-core reads without ambiguity.",
)
CORES_LIMIT_PREFIX = _of_container(
    "cores-limit",
    "Percent of each GPU's multiprocessors for `CUDA_DEVICE_SM_LIMIT`; 0 is no limit.",
)
MPS_MEMORY_PREFIX = _of_container(
    "mps-memory",
    "`0=<MiB>M,1=<MiB>M`: the memory limit, with one key for each visible GPU, all with the same value, for "
    "`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.",
)
MPS_THREADS_PREFIX = _of_container(
    "mps-threads",
    "Percent of threads for `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`; 100 if no cores were requested.",
)
MEMORY_FRACTION_PREFIX = _of_container(
    "memory-fraction",
    "The booked fraction of the memory that the container sees on each GPU, a decimal above 0 and at most 1, rounded "
    "down to six places; the smallest over the GPUs. 1 if the share is shown as the whole GPU and may not burst.",
)
CONTAINER_PREFIXES = (
    DEVICES_PREFIX,
    MEMORY_MIB_PREFIX,
    MEMORY_LIMIT_MIB_PREFIX,
    MEMORY_LIMIT_PREFIX,
    CORES_LIMIT_PREFIX,
    MPS_MEMORY_PREFIX,
    MPS_THREADS_PREFIX,
    MEMORY_FRACTION_PREFIX,
)

CONTAINER_WISHES = (USE_MODELS, AVOID_MODELS, USE_UUIDS, AVOID_UUIDS, LEAST_MEMORY)
"""Preferences for the whole pod. `<name>.<container>` overrides one for a single container."""

_NAME_PART_MAX = 63
"""Characters of an annotation's name after the slash (Kubernetes, qualified names); a container's name has as many."""
DEVICE_ANNOTATION_PREFIXES = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
"""
Annotations by which a pod names devices to its container runtime (CDI; NVIDIA's NRI plugin reads
`nvidia.cdi.k8s.io/container.<name>` in any namespace). Admission removes them from pods with a share, since they could
name every GPU.
"""


def nri_annotation(container: str) -> str:
    """
    The annotation by which NVIDIA's NRI plugin gives CDI devices to one container; empty if the container's name is
    too long, and then it gets none.
    """
    name = f"container.{container}"
    return f"nvidia.cdi.k8s.io/{name}" if len(name) <= _NAME_PART_MAX else ""


RESERVED_ANNOTATIONS = (REQUEST, ALLOCATION, WITHDRAWN, GANG_PLAN)
"""Annotations that only we write, besides those with `CONTAINER_PREFIXES`."""

_DIGEST = 32
"""Characters of the hash: 128 bits, since a tenant chooses container names and could profit from a collision."""


def per_container(prefix: str, container: str) -> str:
    """
    The annotation `prefix` for one container: always a valid name, and different for different containers.

    A container's name that is too long is replaced by its beginning and a hash of it, long enough that nobody can find
    a collision. The `_` between them cannot occur in a container's name, so no short name equals a hashed one.
    """
    room = _NAME_PART_MAX - len(prefix.split("/", 1)[1])
    if len(container) <= room:
        return prefix + container
    digest = hashlib.sha256(container.encode()).hexdigest()[:_DIGEST]
    return f"{prefix}{container[: room - _DIGEST - 1]}_{digest}"


# -- on Nodes ------------------------------------------------------------------------------------------------------

CORDON = Key(
    f"{GROUP}/cordon",
    on="Node annotation",
    writer="administrator",
    doc="Comma list of GPUs, by index or UUID, that accept no new pods. Running pods stay.",
)

OWNERSHIP = Key(
    f"{GROUP}/ownership",
    on="Node label",
    writer="administrator",
    doc="How GPUs are kept apart from a vendor's device plugin: `dedicated` (the plugin does not run here) or `held` "
    "(holder pods take GPUs from it). Without the label, no GPU is shared where a plugin offers GPUs.",
)
STARTUP_TAINT = Key(
    "startup-taint.cluster-autoscaler.kubernetes.io/gpufraction",
    on="Node taint",
    writer="administrator, by the pool",
    doc="Keeps pods off a new node until its GPUs are published. Then the agent removes it, if the component "
    "startup-taint is installed. Autoscalers regard such a node as still starting.",
)
MPS_NODE = Key(
    f"{GROUP}/mps",
    on="Node label",
    writer="administrator",
    doc="`enabled`: an MPS daemon runs for each shared GPU of the node, if the component mps is installed.",
)
POOL = Key(
    f"{GROUP}/pool",
    on="label of node requests in our own namespace",
    writer="allocator",
    doc="The pool of the options for which nodes are requested: on ProvisioningRequests, CapacityBuffers, "
    "PodTemplates and "
    "placeholder pods.",
)
NODE_REQUEST = Key(
    f"{GROUP}/node-request",
    on="label of placeholder pods in our own namespace",
    writer="allocator",
    doc="The request for nodes to which the placeholder pod belongs.",
)
HOLDER = Key(
    f"{GROUP}/holder",
    on="Pod label",
    writer="administrator",
    doc="`true` on the holder pods in gpufraction's namespace.",
)
HELD_GPUS = Key(
    f"{GROUP}/held-gpus",
    on="Pod annotation",
    writer="holder pod",
    doc="Comma list of the UUIDs that the device plugin gave the holder pod.",
)

BEYOND = Key(
    f"{GROUP}/held-beyond",
    on="GPUNode annotation",
    writer="allocator",
    doc="What pods hold beyond what the node's GPUs promise, because GPUs were removed or promise less: bytes of "
    "memory, percent of cores, and a digest of that promise. The agent adds it to the Node's capacity.",
)

REPEATED = Key(
    f"{GROUP}/repeated-gpus",
    on="GPUNode annotation",
    writer="allocator",
    doc="GPUs of the node whose UUID another node also reports: for each its UUID, that node, and whether the GPU is "
    "open or closed to new pods here. The agent shows it as the condition GpusUnique.",
)

# -- conditions, Events, the custom resource ----------------------------------------------------------------------

ALLOCATED_CONDITION = Key(
    f"{GROUP}/Allocated",
    on="Pod condition",
    writer="allocator",
    doc="`False` with the reason while the pod waits for its share, `True` afterwards. A pod that is placed at once "
    "has it only where the setting `placement.condition` is `always`.",
)
SCHEDULABLE_CONDITION = Key(
    f"{GROUP}/Schedulable",
    on="Pod condition",
    writer="allocator",
    doc="Of a pod that Argo Workflows created: `False` with the reason `Unschedulable` and the message of "
    "`gpufraction.io/Allocated` while that is `False`, since Argo shows the message of a condition with this reason. "
    "`True` afterwards.",
)
CLAIM_FINALIZER = Key(
    f"{GROUP}/claim-in-use",
    on="ElasticGPUClaim finalizer",
    writer="allocator",
    doc="The claim has a share. A deleted claim stays until no pod uses it and its share is released.",
)
SHARE_FINALIZER = Key(
    f"{GROUP}/share-in-use",
    on="ElasticGPU finalizer",
    writer="allocator",
    doc="The share is booked. A deleted ElasticGPU stays until no pod uses it.",
)
RECLAIM = Key(
    f"{GROUP}/reclaim-policy",
    on="ElasticGPU annotation",
    writer="allocator",
    doc="`Delete` or `Retain`: what happens to the ElasticGPU when its claim is deleted; taken from its class at "
    "creation.",
)
GPUNODE_KIND = "GPUNode"
GPUNODE_PLURAL = "gpunodes"
GPUNODE_GROUP_VERSION = f"{GROUP}/{VERSION}"

OPTIONS = Key(
    "gpufraction-options",
    on="ConfigMap in our namespace",
    writer="administrator",
    doc="`options.yaml`: how GPUs are shared and how older manifests are read, for the cluster and for pools of nodes.",
)
OPTIONS_FILE = "options.yaml"
CONFIGURATION = "zz-gpufraction-webhook"
"""The MutatingWebhookConfiguration. Webhooks run in the order of their configurations' names, and ours is the last."""
LEASE = "gpufraction-allocator"
"""The Lease of the allocator that decides, in our namespace."""
SERVICE = "gpufraction-webhook"
"""The Service in front of the webhook."""
SETTINGS = "gpufraction-{program}-settings"
"""The ConfigMap of a program's settings, in our namespace: `webhook`, `allocator` or `nodeagent`."""
POOLS = Key(
    "gpufraction-pools",
    on="ConfigMap of our own namespace",
    writer="allocator",
    doc="With the component node-provisioning: the state of the declared pools as the leading allocator sees it, "
    "shown by `kubectl gpufraction pools`. No decision depends on it.",
)

# -- environment --------------------------------------------------------------------------------------------------

VISIBLE_DEVICES = Key(
    "NVIDIA_VISIBLE_DEVICES",
    on="container environment",
    writer="webhook",
    doc="Which GPUs the NVIDIA runtime injects. `void` in a container of a GPU pod that requested none.",
)
NO_DEVICES = "void"
"""The value of `NVIDIA_VISIBLE_DEVICES` for no injection, not even of the driver (NVIDIA container toolkit)."""

MEMORY_FRACTION = Key(
    "GPUFRACTION_MEMORY_FRACTION",
    on="container environment",
    writer="webhook",
    doc="For programs that take a fraction of a GPU: `--gpu-memory-utilization=$(GPUFRACTION_MEMORY_FRACTION)`.",
)

ENVIRONMENT: tuple[tuple[str, Key], ...] = (
    (VISIBLE_DEVICES, DEVICES_PREFIX),
    ("GPUFRACTION_MEMORY_MIB", MEMORY_MIB_PREFIX),
    ("GPUFRACTION_MEMORY_LIMIT_MIB", MEMORY_MIB_PREFIX),
    ("CUDA_DEVICE_MEMORY_LIMIT", MEMORY_LIMIT_PREFIX),
    ("CUDA_DEVICE_SM_LIMIT", CORES_LIMIT_PREFIX),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", MPS_MEMORY_PREFIX),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", MPS_THREADS_PREFIX),
    (MEMORY_FRACTION, MEMORY_FRACTION_PREFIX),
)
"""Environment of a container with a share: the variable, and the prefix of the annotation that it reads."""
BURST_ENVIRONMENT: tuple[tuple[str, Key], ...] = (("GPUFRACTION_MEMORY_LIMIT_MIB", MEMORY_LIMIT_MIB_PREFIX),)
"""The difference for a container whose memory limit is above its request."""
TOOLKIT_ENVIRONMENT = (
    ("NVIDIA_GPU_MEMORY_REQUEST", "GPUFRACTION_MEMORY_MIB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", "GPUFRACTION_MEMORY_LIMIT_MIB"),
)
"""
Variables by which NVIDIA's container toolkit, from 1.20.1 on, has the driver limit a container, and those of ours with
the same values. Where the driver cannot, the toolkit fails the container's start.
"""

RESERVED_ENVIRONMENT = (
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "CUDA_DISABLE_CONTROL",
    "CUDA_REDIRECT",
    "GPU_CORE_UTILIZATION_POLICY",
)
RESERVED_ENVIRONMENT_PREFIXES = ("CUDA_MPS_", "NVIDIA_GPU_MEMORY_", "GPUFRACTION_MEMORY_", "CUDA_DEVICE_")
"""
Variables by which a tenant could enlarge a share, so ours replace them. By the MIG ones NVIDIA's runtime grants the
right to change a card; the next three switch HAMi-core's limits off. `CUDA_DEVICE_ORDER` is harmless but falls
under the prefix; without it CUDA orders by speed, which among the cards of one container is a stable order too.
"""
LIMITER_LIBRARY = "libvgpu.so"
"""HAMi-core's limiter, which a node with it loads into every program: `LD_PRELOAD` must not name another."""
