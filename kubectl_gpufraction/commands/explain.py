"""`kubectl gpufraction explain`: where pods are, or why they wait and what would help, in sentences."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract import pods as podfields
from contract.encoding import moments
from contract.encoding.quantity import mib
from contract.model import FREE, FractionRequest, Gpu
from contract.reasons import WAITING, Cure
from contract.reasons import nodes as reasons
from contract.reasons.nodes import Code
from contract.reasons.pods import PodReason
from contract.scheduling.demand import usage_of
from contract.scheduling.filters import DEFAULT_LIMITS, gpu_reason, lasting_reason
from kubectl_gpufraction.cluster import targets
from kubectl_gpufraction.cluster.leadership import NOTHING_KNOWN, LeaderStatus
from kubectl_gpufraction.cluster.neighbours import NO_VERDICT, NeighbourReader, NeighbourVerdict, PendingPod
from kubectl_gpufraction.cluster.state import ClusterView, Node, Pod
from kubectl_gpufraction.cluster.targets import BadTarget, Target
from kubectl_gpufraction.cluster.unserved import cure, unserved_pod, without_share
from kubectl_gpufraction.commands.select import why_absent
from kubectl_gpufraction.commands.timelimits import NONE, LimitReader, PodLimits
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.wording import behind, few, many, plain_reason, reason, request_text
from kubectl_gpufraction.session import IN_NAMESPACE, Command, Exit, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound

JSON = dict[str, Any]
Row = Mapping[str, Any]
_PODS_END = frozenset(
    word for word, row in WAITING.items() if Cure.SHARE in row.cured_by and word != Code.RESERVED.word
)
"""
Reasons that the end of another pod on a GPU can remove; a taint or a lack of CPU remains, and a reserved node is for
another pod.
"""
_GANG = frozenset((PodReason.GANG_INCOMPLETE, PodReason.GANG_DOES_NOT_FIT))
_OTHER_MODEL = Code.MODEL.word
_NO_NODE_COMES = (PodReason.NODE_NOT_BROUGHT, PodReason.POOL_FULL)
_MOST_EXPLAINED = 5
"""Pods of a workload that are explained in full; -o json has all."""


@dataclass(frozen=True, slots=True)
class PodContext:
    """The facts about a waiting pod in addition to the objects in the view. `verdict`: the filters' verdict, from other
    pods and volumes."""

    verdict: NeighbourVerdict = NO_VERDICT
    closed: frozenset[str] = frozenset()
    """Nodes that do not take the pod regardless of their GPUs, such as for a taint."""
    leadership: LeaderStatus = NOTHING_KNOWN
    """Whether an allocator leads, and for which pods it reserves nodes."""
    limits: PodLimits = NONE
    """How long its program lets it wait."""
    now: float = 0.0
    """Seconds since 1970."""


UNKNOWN = PodContext()


def explanation(state: ClusterView, pod: Pod, known: PodContext = UNKNOWN) -> list[str]:
    """Where a pod is, or why it waits, its place in the queue, and which pods' end would make room."""
    verdict = known.verdict
    lines = [f"{pod.key} requests {request_text(pod)} ({pod.request.dialect})"]
    if pod.allocation is not None:
        lines.append(f"It is {pod.phase} on node {pod.node}:")
        for share in _shares(state, pod):
            cores = f", {share['cores']} % of the cores" if share["cores"] else ""
            card = ", ".join(filter(None, (share["model"], share["uuid"])))
            memory = f"{share['memoryMiB']} MiB"
            if share["limitMiB"] > share["memoryMiB"]:
                memory += f", up to {share['limitMiB']} MiB while nobody else needs it"
            lines.append(f"  {share['container']}: GPU {share['gpu']} ({card}), {memory}{cores}")
        lines += [f"{each}: the pod keeps running without it" for each in state.trouble(pod)]
        if state.trouble(pod):
            lines += [
                "To have the pod placed again, delete it:",
                f"    kubectl -n {pod.namespace} delete pod {pod.name}",
            ]
        if pod.unbound:
            lines.append(f"kube-scheduler has not bound it: {pod.unbound}")
        return lines
    if pod.deleted:
        return [*lines, f"It is being deleted: {pod.reason}"]
    missing = known.leadership.missing
    undecided = "not decided yet" if missing else f"not decided yet; if this lasts, no allocator leads: {_LEADS}"
    why = plain_reason(state, pod) or undecided
    if not state.whole:
        limits = known.limits.lines(known.now)
        return [*lines, f"It waits: {why}", *limits, *_judged(verdict), *_cures_of_claim(pod), _MORE]
    queue, places, group = state.waiting(), state.places(), state.groups()
    place = places[pod.key]
    lines.append(f"It waits, {place} of {len(queue)} in the queue: {why}")
    lines += behind(state, pod)
    lines += known.limits.lines(known.now)
    beside = [other for other in queue if group(other) == group(pod)]
    before = [f"{other.key} ({request_text(other)})" for other in queue[: place.first - 1]]
    if before:
        lines.append(f"Before it: {few(before)}")
    others = [other.key for other in beside if other != pod]
    if others:
        lines.append(f"Created in the same second, in an order that only the allocator knows: {few(others)}")
    lines += _models(state, pod)
    lines += _judged(verdict)
    if missing:
        return [*lines, f"Nothing is placed now, since {missing}. An administrator sees why:", f"    {_LEADS}"]
    lines += _reserved(state.held_for(known.leadership.reserved), pod)
    lines += _cures(state, pod, _not_for(state, pod, known))
    return lines


def _not_for(state: ClusterView, pod: Pod, known: PodContext) -> frozenset[str]:
    """The nodes that do not take the pod regardless of their GPUs, including those that are reserved for others."""
    reserved = state.held_for(known.leadership.reserved)
    return known.closed | {node for node, pods in reserved.items() if pod not in pods}


def _reserved(reserved: Mapping[str, Sequence[Pod]], pod: Pod) -> Iterator[str]:
    """The nodes that are reserved for the pod, or for pods that wait before it."""
    for node, pods in sorted(reserved.items()):
        if pod in pods:
            yield f"Node {node} is reserved for it: it starts there as soon as enough of the other pods there end."
        else:
            yield f"Node {node} is reserved for {few([each.key for each in pods])}"


def _judged(verdict: NeighbourVerdict) -> Iterator[str]:
    """The constraints of other pods and volumes on a pod now, and the filters that could not be evaluated."""
    by_reason: dict[str, list[str]] = {}
    for each in verdict.refused:
        by_reason.setdefault(reasons.of_one(each.reason), []).append(each.node)
    if by_reason:
        why = "; ".join(f"{few(nodes)} {text}" for text, nodes in by_reason.items())
        refused = f"{len(verdict.refused)} of {many(verdict.nodes, 'GPU node')}"
        yield f"Other pods and volumes keep it off {refused} now: {why}"
    if verdict.in_the_way:
        yield f"By anti-affinity it is kept apart from: {few([f'{p.key} on {p.node}' for p in verdict.in_the_way])}"
    for name, wrong in verdict.claims:
        yield f"It names a PersistentVolumeClaim {wrong}: {name}"
    by_why: dict[str, list[str]] = {}
    for unevaluated in verdict.unevaluated:
        by_why.setdefault(unevaluated.why, []).append(unevaluated.filter)
    if by_why:
        named = [f"{', '.join(filters)} ({why})" for why, filters in by_why.items()]
        yield f"Not evaluated: {'; '.join(named)}"


def row(state: ClusterView, pod: Pod, lines: Sequence[str], known: PodContext = UNKNOWN) -> Row:
    """The same for programs. `lines`: the sentences."""
    waits, verdict = pod.waits, known.verdict
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "status": pod.status,
        "asks": request_text(pod),
        "dialect": pod.request.dialect,
        "claim": pod.request.claim,
        "node": pod.node,
        "shares": _shares(state, pod),
        "place": state.places()[pod.key].shown if waits and state.whole else None,
        "waiting": len(state.waiting()) if waits and state.whole else None,
        "code": pod.code,
        "reason": reason(state, pod),
        "behind": ahead[0].namespace if (ahead := state.ahead(pod)) else "",
        "since": (pod.since or moments.shown(pod.created)) if waits else "",
        "timeLimits": known.limits.rows(),
        "unbound": pod.unbound,
        "roomAfter": [
            {"pod": other, "node": node.name, "gpu": gpu.index}
            for node, gpu, other in _whose_end_helps(state, pod, _not_for(state, pod, known))
        ],
        "reservedNodes": [
            {"node": node, "pods": [each.key for each in pods]}
            for node, pods in sorted(state.held_for(known.leadership.reserved).items())
        ],
        "gpuTrouble": [{"code": each.code, "gpu": each.index, "uuid": each.uuid} for each in state.trouble(pod)],
        "refusedBy": [
            {"node": each.node, "filter": each.filter, "code": str(each.reason.code.word)} for each in verdict.refused
        ],
        "notEvaluated": [{"filter": each.filter, "why": each.why} for each in verdict.unevaluated],
        "sentences": list(lines),
    }


def _shares(state: ClusterView, pod: Pod) -> list[JSON]:
    models = {gpu.uuid: gpu.model for node in state.nodes if node.name == pod.node for gpu in node.inventory.gpus}
    return [
        {
            "container": container.container,
            "gpu": share.index,
            "uuid": share.uuid,
            "model": models.get(share.uuid, ""),
            "memoryMiB": mib(share.memory),
            "limitMiB": mib(share.limit),
            "cores": share.cores,
        }
        for container in (pod.allocation.containers if pod.allocation else ())
        for share in container.shares
    ]


def _models(state: ClusterView, pod: Pod) -> list[str]:
    """The existing models, for a pod that wishes one that no node has."""
    if pod.code != _OTHER_MODEL:
        return []
    found = sorted({gpu.model for node in state.nodes for gpu in node.inventory.gpus if gpu.model})
    return [f"The models of this cluster: {few(found)}"] if found else []


SELECTING = "Its ResourceClaims have selectors, which only the allocator evaluates"
_LEADS = "kubectl -n gpufraction-system get pods,leases"
_MORE = (
    "To see its place in the queue, and which pods' end would make room, you need the right to list nodes, GPUNodes "
    "and all pods."
)


def _cures(state: ClusterView, pod: Pod, closed: frozenset[str]) -> list[str]:
    if pod.request.claim:
        return _cures_of_claim(pod)
    if pod.code in _GANG:
        return ["It starts together with its gang, so room for this pod alone does not start it."]
    if not _an_end_helps(pod):
        return []
    if pod.request.selects:
        return [f"{SELECTING}; the reason above counts the GPUs that they accept."]
    if not _one_share(pod):
        return ["It needs several shares at once, so no single pod's end is sure to make room."]
    room = list(_room(state, pod.request.containers[0], closed))
    if room:
        where = few([f"GPU {gpu.index} of {node.name}" for node, gpu in room])
        return [f"There is room on {where} now, so its turn comes without the end of another pod."]
    found = [f"{other} on GPU {gpu.index} of {node.name}" for node, gpu, other in _whose_end_helps(state, pod, closed)]
    if found:
        return [f"The end of any one of these pods would make room on a GPU: {few(found)}"]
    if pod.code in _NO_NODE_COMES:
        return []  # only a new node would serve it, or several pods' end
    return ["No single pod's end would make room on a GPU that it accepts."]


def _an_end_helps(pod: Pod) -> bool:
    return not pod.code or pod.code in _PODS_END


def _one_share(pod: Pod) -> bool:
    return len(pod.request.containers) == 1 and pod.request.containers[0].count == 1


def _whose_end_helps(state: ClusterView, pod: Pod, closed: frozenset[str]) -> list[tuple[Node, Gpu, str]]:
    if not pod.waits or pod.request.claim or pod.request.selects or pod.code in _GANG:
        return []
    if not _an_end_helps(pod) or not _one_share(pod):
        return []
    fraction = pod.request.containers[0]
    return [] if any(_room(state, fraction, closed)) else list(_freeing(state, fraction, closed))


def _cures_of_claim(pod: Pod) -> list[str]:
    claim = pod.request.claim
    return [f"kubectl describe egpuc {claim} shows the state of its claim."] if claim else []


def _cards(state: ClusterView, closed: frozenset[str]) -> Iterator[tuple[Node, Gpu]]:
    """The cards of the nodes that may take the pod."""
    for node in state.nodes:
        if node.ready and not node.cordoned and node.name not in closed:
            yield from ((node, gpu) for gpu in node.inventory.gpus)


def _room(state: ClusterView, fraction: FractionRequest, closed: frozenset[str]) -> Iterator[tuple[Node, Gpu]]:
    """Cards that have room for the share now."""
    for node, gpu in _cards(state, closed):
        taken = usage_of(share for _, share in state.holders(gpu))
        if gpu_reason(gpu, taken, fraction, DEFAULT_LIMITS) is None:
            yield node, gpu


def _freeing(state: ClusterView, fraction: FractionRequest, closed: frozenset[str]) -> Iterator[tuple[Node, Gpu, str]]:
    """Pods whose end alone makes room for the share on a GPU."""
    for node, gpu in _cards(state, closed):
        holders = state.holders(gpu)
        for other, _ in holders:
            if not isinstance(other, Pod):
                continue  # no pod's end releases a claim's share
            rest = tuple(share for holder, share in holders if holder != other)
            if gpu_reason(gpu, usage_of(rest), fraction, DEFAULT_LIMITS) is None:
                yield node, gpu, other.key


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="POD|KIND/NAME", help="a pod, NAMESPACE/POD, or a workload, such as deployment/web"
    )


def run(session: Session) -> CommandOutput:
    """One pod, or the pods of a workload. Raises `Failed` where none of them waits for a share or has one."""
    try:
        target = targets.read(session.given.target, session.namespace)
    except BadTarget as error:
        raise Failed(str(error), status=Exit.USAGE) from None
    session = replace(session, namespace=target.namespace)
    reader = NeighbourReader()
    state = session.seen(reader)
    known = {pod.key: pod for pod in state.pods}
    if target.kind == "pod":
        found = known.get(f"{target.namespace}/{target.name}")
        if found is None:
            there = {pod.name: pod for pod in state.pods if pod.namespace == target.namespace}
            raise Failed(f"{target}: {why_absent(session, target.namespace, target.name, there)}")
        return _output(session, state, [found], reader)
    raw = _pods_of(session, target)
    shared = [known[key] for key in map(podfields.key, raw) if key in known]
    if not shared:
        why = without_share(raw[0], session.is_served)
        missed = list(filter(None, map(unserved_pod, raw)))
        if missed:
            why = "\n".join(cure(target.namespace, missed, served=session.is_served(target.namespace)))
        raise Failed(f"{target}: none of its {many(len(raw), 'pod')} has a share or waits: {why}")
    waiting = [pod for pod in shared if pod.waits]
    deleted = [pod for pod in shared if pod.deleted]
    have, rest = len(shared) - len(waiting) - len(deleted), len(raw) - len(shared)
    beside = f"; {len(deleted)} being deleted" if deleted else ""
    beside += f"; {rest} without a share" if rest else ""
    head = f"{target.kind}/{target.name}: {many(len(raw), 'pod')}, {have} with a share, {len(waiting)} waiting{beside}"
    return _output(session, state, [*waiting, *(pod for pod in shared if not pod.waits)], reader, head)


def _pods_of(session: Session, target: Target) -> list[JSON]:
    """The workload's pods. Raises `Failed` if there are none."""
    try:
        owner = session.kube.get(paths.path(target.api_version, target.plural, target.namespace, target.name))
    except KubeNotFound:
        raise Failed(f"{target}: not found; -n names another namespace") from None
    between = (
        session.items(paths.path(target.api_version, "replicasets", target.namespace))
        if target.kind == "deployment"
        else []
    )
    found = targets.pods_of(owner, between, session.items(paths.pods(target.namespace)))
    if not found:
        refused = next(filter(None, map(targets.trouble, [owner, *between])), "")
        raise Failed(f"{target}: it has no pods{': ' + refused if refused else ''}")
    return found


def _output(
    session: Session, state: ClusterView, pods: Sequence[Pod], reader: NeighbourReader, head: str = ""
) -> CommandOutput:
    """The pods explained; for people the first few of them, and those that wait for the same reason together."""
    known = _known(session, state, pods, reader)
    explained = {pod.key: [session.spoken(line) for line in explanation(state, pod, known[pod.key])] for pod in pods}
    alike: dict[object, list[Pod]] = {}
    held = state.held_for(next(iter(known.values())).leadership.reserved) if known else {}
    for pod in pods:
        itself = [node for node, pods in held.items() if pod in pods]
        same = (
            (request_text(pod), pod.code, pod.reason, known[pod.key].verdict, known[pod.key].limits, *itself)
            if pod.waits
            else pod.key
        )
        alike.setdefault(same, []).append(pod)
    lines = [head] if head else []
    for number, group in enumerate(list(alike.values())[:_MOST_EXPLAINED]):
        lines += [""] if head or number else []
        lines += explained[group[0].key]
        if len(group) > 1:
            others = few([pod.name for pod in group[1:]])
            lines.append(f"{many(len(group) - 1, 'more pod')} with the same request and reason: {others}")
    more = sum(map(len, list(alike.values())[_MOST_EXPLAINED:]))
    if more:
        lines += ["", f"{more} more; -o json has all of them"]
    return CommandOutput(
        rows=[row(state, pod, explained[pod.key], known[pod.key]) for pod in pods],
        lines=lines,
        names=[f"pod/{pod.name}" for pod in pods],
    )


def _known(
    session: Session, state: ClusterView, pods: Sequence[Pod], reader: NeighbourReader
) -> Mapping[str, PodContext]:
    """The facts about those that wait, by `namespace/name`; pods that are alike are judged once."""
    pending = {pod.key: reader.pending[pod.key] for pod in pods if pod.waits and pod.key in reader.pending}
    if not pending:
        return dict.fromkeys((pod.key for pod in pods), UNKNOWN)
    around = session.surroundings(reader, tuple(pending.values()), whole=state.whole)
    nodes, leadership = [node.name for node in state.nodes], session.leadership()
    judged = {
        each: PodContext(around.judge(each, nodes), _closed(state, reader, each), leadership, now=session.now())
        for each in dict.fromkeys(pending.values())
    }
    limits = LimitReader(session)
    return {
        pod.key: replace(judged[pending[pod.key]], limits=limits.of(pod)) if pod.key in pending else UNKNOWN
        for pod in pods
    }


def _closed(state: ClusterView, reader: NeighbourReader, pod: PendingPod) -> frozenset[str]:
    """The nodes that do not take the pod regardless of their GPUs."""
    found = set[str]()
    for node in state.nodes:
        here, inventory = reader.nodes.get(node.name), node.inventory
        if here is not None:
            seen = replace(
                here,
                gpus=inventory.gpus,
                usage=(FREE,) * len(inventory.gpus),
                delivery=inventory.delivery,
                isolation=inventory.isolation,
            )
            if lasting_reason(seen, pod.needs) is not None:
                found.add(node.name)
    return frozenset(found)


COMMAND = Command(
    "explain",
    "show why a pod waits, its place in the queue, and which pods' end would make room",
    run,
    _arguments,
    flags=IN_NAMESPACE,
    example="""\
# One pod, in your namespace or in another
kubectl gpufraction explain web-0
kubectl gpufraction explain team/web-0
# The pods of a workload, waiting ones first
kubectl gpufraction explain deployment/web""",
)
