"""The reasons that are not about pods or claims: conditions of GPUNodes and checks, Events about Nodes and lists."""

from __future__ import annotations

from contract.reasons.base import NEVER, Cure, ReasonKind, Reasons, Row, either

_MPS = "isolation.md"
_SEE = "Repair the node; see its agent's log and the driver."


def _is(text: str, cure: str = "", page: str = "") -> Row:
    return Row(ReasonKind.GPUNODE, text, cure, either(Cure.GPUS) if cure else NEVER, page)


class GPUNodeReason(Reasons):
    """Reasons of a GPUNode's conditions. The condition's type is the subject."""

    ALL_HEALTHY = "AllGPUsHealthy", _is("Ready: all GPUs are healthy.")
    SOME_UNHEALTHY = "SomeGPUsUnhealthy", _is("Ready: some GPUs are unhealthy; the message says which and why.", _SEE)
    NONE_HEALTHY = "NoHealthyGPU", _is("Ready: no GPU is healthy.", _SEE)
    NO_GPU = "NoGPU", _is("Ready: the driver works but reports no GPU.", _SEE)
    LIBRARY_BROKEN = "LibraryBroken", _is("Ready: the driver's library fails.", _SEE)
    LIBRARY_MISSING = "LibraryMissing", _is("Ready: no NVML library can be loaded.", "Install the driver on the node.")
    LIBRARY_OUTDATED = (
        "LibraryOutdated",
        _is(
            "Ready: library and kernel driver are of different versions.",
            "Wait: the agent restarts. If this lasts, reboot the node.",
        ),
    )
    DRIVER_GONE = "DriverGone", _is("Ready: the library is present, but the driver is not.", "Load the driver.")
    DRIVER_HANGS = "DriverHangs", _is("Ready: the driver does not answer.", "Reboot the node.")
    NO_PERMISSION = "NoPermission", _is("Ready: the agent may not use the GPUs.", _SEE)
    AGENT_FAILED = "AgentFailed", _is("Ready: the agent failed while looking at the GPUs.", "Report it.")
    PLUGIN_STILL_ON = (
        "PluginStillOn",
        _is("PluginConflict: a device plugin still offers GPUs here.", "Do what the message says.", "installing.md"),
    )
    NO_CHOICE = (
        "NoChoice",
        _is("PluginConflict: a device plugin offers GPUs here.", "Do what the message says.", "installing.md"),
    )
    HELD = "GPUsHeld", _is("Held: holder pods hold GPUs against the device plugin.")
    NOTHING_HELD = (
        "NothingHeld",
        _is("Held: no holder pod holds a GPU.", "See the node's holder pods.", "installing.md"),
    )
    NO_SUCH_GPU = (
        "NoSuchGPU",
        _is("CordonNamesNoGpu: the annotation names a GPU that the node does not have.", "Correct the annotation."),
    )
    REPEATED_UUID = (
        "RepeatedUUID",
        _is(
            "GpusUnique: another node reports the same UUID; the GPU accepts new pods on only one node.",
            "Do what it says.",
        ),
    )
    SHARE_UNREAD = (
        "ShareUnread",
        _is(
            "SharesRead: the agent cannot read a pod's share; its GPUs accept no new pods.",
            "Run the version that placed the pod, or a later one.",
            "compatibility.md",
        ),
    )
    CANNOT_BE_READ = (
        "CannotBeRead",
        _is("OptionsRefused: the ConfigMap is invalid; the previous options stay in effect.", "Correct the line."),
    )
    REMOVAL_REFUSED = (
        "RemovalRefused",
        _is("StartupTaint: the API server does not let the agent remove it.", "Change the policy that refuses it."),
    )
    MAY_NOT_REMOVE = (
        "MayNotRemove",
        _is("StartupTaint: the agent has no right to remove it.", "Apply the component `startup-taint`."),
    )
    PROVEN = "Proven", _is("IsolationProven: a canary could not exceed its share.", page=_MPS)
    UNPROVEN = (
        "Unproven",
        _is("IsolationProven: no canary has tested the levels recently.", "Wait until a GPU is idle.", _MPS),
    )
    PROOF_FAILED = (
        "ProofFailed",
        _is(
            "IsolationProven: a canary exceeded its share.",
            "Repair the limiter on the node.",
            "runbooks.md#gpufractionisolationnotheld",
        ),
    )
    LIBRARY_READY = "LibraryReady", _is("PreloadedLibrary: the library is on the node.", page=_MPS)
    LIBRARY_NOT_USABLE = (
        "LibraryNotUsable",
        _is("PreloadedLibrary: the library cannot be used.", "Do what it says.", _MPS),
    )
    BY_CDI = "ByCDI", _is("LimitsReachContainers: by a CDI description that the agent writes.", page=_MPS)
    BY_HOST_PATH = "ByHostPath", _is("LimitsReachContainers: by hostPath volumes of pods.", page=_MPS)
    NOT_WRITTEN = (
        "NotWritten",
        _is("LimitsReachContainers: the CDI description is missing.", "See the agent's log.", _MPS),
    )
    DELIVERY_UNKNOWN = (
        "DeliveryUnknown",
        _is("LimitsReachContainers: how GPUs reach containers is unknown.", "Set `host_root` or `delivery`.", _MPS),
    )
    NEEDS_HOST_PATH = (
        "NeedsHostPath",
        _is("LimitsReachContainers: only hostPath volumes would work.", "Set `host_paths` of agent and webhook.", _MPS),
    )
    NEEDS_CDI = "NeedsCDI", _is("CoresReserved: GPUs are not delivered by CDI here.", "Do what the message says.", _MPS)
    CAPPED = "Capped", _is("CoresReserved: cores are capped and not reserved on some GPUs.", "Do what it says.", _MPS)
    PARTITIONED = "Partitioned", _is("CoresReserved: a pod has its cores to itself.", page=_MPS)
    LIMITED = (
        "Limited",
        _is("MpsDaemons: running daemons cannot apply the current settings.", "Do what the message says.", _MPS),
    )
    NOT_REGISTERED = (
        "NotRegistered",
        _is("DeliversByClaim: kubelet has not registered the plugin.", "Do what the message says.", "dra.md"),
    )
    NOT_REGISTERED_YET = "NotRegisteredYet", _is("DeliversByClaim: kubelet has not answered yet.", "Wait.", "dra.md")
    NO_DESCRIPTION = (
        "NoDescription",
        _is("DeliversByClaim: no CDI description of the GPUs was found.", "Do what the message says.", "dra.md"),
    )
    REGISTERED = "Registered", _is("DeliversByClaim: kubelet uses the plugin.", page="dra.md")


class CheckReason(Reasons):
    """Reasons of the condition of an AdmissionCheck that we answer."""

    ACTIVE = "Active", Row(ReasonKind.CHECK, "gpufraction judges whether the pods of a Workload fit on the GPUs", "")


def _event(text: str, cure: str, page: str = "") -> Row:
    return Row(ReasonKind.NODE_EVENT, text, cure, NEVER, page)


class NodeEventReason(Reasons):
    """Reasons of Events about Nodes, and about the ConfigMaps that list excluded GPUs."""

    GPU_GONE = "GPUGone", _event("A GPU of the node was removed.", "Restart its pods.")
    GPU_REPLACED = "GPUReplaced", _event("A GPU of the node was replaced.", "Restart the pods of the old one.")
    GPU_REPEATED = (
        "GPURepeated",
        _event(
            "Another node reports a GPU of the same UUID.",
            "Find out which node has the GPU, and restart the agent of the other.",
        ),
    )
    OVERCOMMITTED = (
        "GPUOvercommitted",
        _event(
            "More is allocated on a GPU than it has.",
            "After a reduction of oversubscription, this ends by itself. Otherwise, delete the youngest pod on the "
            "GPU.",
            "troubleshooting.md#more-is-allocated-than-there-is",
        ),
    )
    CORDON_NAMES_NO_GPU = (
        "CordonNamesNoGPU",
        _event("The annotation that cordons GPUs names one that the node does not have.", "Correct the annotation."),
    )
    REPORT_IGNORED = (
        "AgentReportIgnored",
        _event(
            "The node's agent reports pods that have no share there.",
            "If this continues, someone else may be using the agent's token: replace it.",
            "security.md",
        ),
    )
    WITHOUT_GPUS = (
        "NodeWithoutGPUs",
        _event(
            "A requested node has joined and cannot serve pods.",
            "Check its agent: `kubectl get gpunodes`.",
            "autoscaling.md",
        ),
    )
    AGENT_SILENT = (
        "AgentSilent",
        _event(
            "The node's agent has not reported for too long, so the node accepts no new pods. Running pods stay.",
            "Check the agent's pod on the node and its log.",
            "runbooks.md#gpufractionagentsilent",
        ),
    )
    LIST_UNREADABLE = (
        "ListUnreadable",
        _event("A list of excluded GPUs cannot be read, so no GPU of the node accepts new pods.", "Correct the list."),
    )
    LIST_NAMES_NO_GPU = (
        "ListNamesNoGPU",
        _event("A list of excluded GPUs names one that the node does not have.", "Correct the list."),
    )


FORMER = {"GpuGone": NodeEventReason.GPU_GONE, "GpuReplaced": NodeEventReason.GPU_REPLACED}
"""How node agents of former versions spell the reasons of their Events."""
