"""
`kubectl gpufraction advise`: advice in rows and sentences, carried out with `--evict`.

It requests the evictions from the API server with the user's own rights. The API server refuses what a
PodDisruptionBudget forbids at that moment, whatever it allowed when the advice was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.encoding.quantity import mib
from kubectl_gpufraction import advice, views
from kubectl_gpufraction.advice import Advice, AdvisedEviction, Nothing
from kubectl_gpufraction.hosts import AdviceInput, Waiter
from kubectl_gpufraction.room import RoomRequest
from kubectl_gpufraction.tables import Column
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.evictions import evict

JSON = dict[str, Any]
COLUMNS = (
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("node", "NODE"),
    Column("memoryMiB", "MEMORY-MiB"),
    Column("priority", "PRIORITY"),
    Column("returns", "RETURNS", wide=True),
    Column("then", "THEN"),
    Column("done", "DONE"),
)


EVICTED = "evicted"
_RETURNS = (
    "While an evicted pod ends, its successor fits on the same node and may be placed there again first, unless the "
    "node is reserved for a starving pod (starvation_timeout)."
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its answer. `waiter`: None if the question is for whole GPUs."""

    waiter: Waiter | None
    gpus: int
    found: Advice | Nothing
    staying: tuple[str, ...]
    """Pods on those nodes that must stay, with the reason."""
    leaving: tuple[str, ...]

    @property
    def evictions(self) -> tuple[AdvisedEviction, ...]:
        """The pods to be evicted."""
        return self.found.evictions if isinstance(self.found, Advice) else ()


def asked_for(given: AdviceInput, waiter: Waiter | None, gpus: int) -> Asked:
    """The advice for one pod in the queue, or for so many whole GPUs."""
    if waiter is not None:
        wanted, priority = RoomRequest(waiter.pod.request, waiter.needs), waiter.pod.priority
        found = advice.advise(given.hosts, wanted, given.allowed, priority=priority)
    else:
        found = advice.advise(given.hosts, advice.whole_gpus(gpus), given.allowed)
    staying = tuple(f"{each.pod.key} ({each.stays})" for host in given.hosts for each in host.holders if each.stays)
    return Asked(waiter, gpus, found, staying, given.leaving)


def carried_out(kube: Kube, evictions: Sequence[AdvisedEviction]) -> Mapping[str, str]:
    """Request the evictions one after the other until one fails; the outcome of each by the pod's uid."""
    done = {}
    for each in evictions:
        pod = each.holder.pod
        try:
            evict(kube, pod.namespace, pod.name, uid=each.holder.uid)
        except KubeError as error:
            done[each.holder.uid] = f"refused: {error}"
            break
        done[each.holder.uid] = EVICTED
    return done


def rows(asked: Asked, done: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """One row per eviction."""
    return [
        {
            "namespace": each.holder.pod.namespace,
            "name": each.holder.pod.name,
            "node": each.holder.pod.node,
            "memoryMiB": mib(each.holder.memory),
            "priority": each.holder.pod.priority,
            "returns": each.returns,
            "then": f"room on {each.to}" if each.to else "waits",
            "done": done.get(each.holder.uid, ""),
        }
        for each in asked.evictions
    ]


def sentences(asked: Asked, done: Mapping[str, str], *, evicting: bool) -> list[str]:
    """The advice for a person."""
    what = (
        f"{asked.waiter.pod.key} (asks for {views.asked(asked.waiter.pod)})"
        if asked.waiter is not None
        else f"{asked.gpus} whole GPU{'s' if asked.gpus > 1 else ''} of one node"
    )
    ending = [f"(once these pods, which are being deleted, have ended: {views.few(asked.leaving)})"]
    after = ending if asked.leaving else []
    if isinstance(asked.found, Nothing):
        return [*_nothing(asked, what), *after]
    where = f"on node {asked.found.node}, GPU {', '.join(map(str, asked.found.gpus))}"
    if not asked.evictions:
        verb = "fits" if asked.waiter is not None else "are free" if asked.gpus > 1 else "is free"
        return [f"No eviction is needed: {what} {verb} {where}.", *after]
    number = f"{len(asked.evictions)} eviction{'s' if len(asked.evictions) > 1 else ''}"
    lines = [f"{number} would make room for {what} {where}:", *after]
    for each in asked.evictions:
        pod = each.holder.pod
        then = f"then there is room for it on node {each.to}" if each.to else "then it waits; its priority is lower"
        outcome = f" [{done[each.holder.uid]}]" if each.holder.uid in done else ""
        lines.append(f"  {pod.key} ({mib(each.holder.memory)} MiB, priority {pod.priority}): {then}{outcome}")
    if any(each.returns for each in asked.evictions):
        lines.append(_RETURNS)
    if not evicting:
        lines.append("Nothing was changed; --evict requests these evictions from the API server.")
    return lines


def _nothing(asked: Asked, what: str) -> list[str]:
    bound = f"up to {advice.MOST}"
    lines = [f"No evictions ({bound}, of one node) would make room for {what}."]
    if asked.found == Nothing(exhausted=True):
        lines = [f"No evictions that make room for {what} were found in the time for it; there may be some."]
    if asked.staying:
        lines.append(f"Not to be evicted: {views.few(asked.staying)}.")
    lines.append("Pods of its own or a higher priority go only if there is room for them elsewhere.")
    return lines
