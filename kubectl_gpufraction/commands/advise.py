"""
`kubectl gpufraction advise`: advice in rows and sentences, carried out with `--evict`.

It requests the evictions from the API server with the user's own rights. The API server refuses an eviction that a
PodDisruptionBudget forbids at that moment, even if the budget allowed it when the advice was made.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.encoding.quantity import mib
from contract.model import MOST_GPUS
from kubectl_gpufraction.advice import hosts, search
from kubectl_gpufraction.advice.hosts import AdviceInput, Waiter
from kubectl_gpufraction.advice.search import Advice, AdvisedEviction, Nothing
from kubectl_gpufraction.cluster.room import RoomRequest
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import few, request_text
from kubectl_gpufraction.session import IN_NAMESPACE, Command, Exit, Failed, Session
from runtime.kubernetes import paths
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
class AdviceReport:
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


def report_for(given: AdviceInput, waiter: Waiter | None, gpus: int) -> AdviceReport:
    """The advice for one pod in the queue, or for this many whole GPUs."""
    if waiter is not None:
        wanted, priority = RoomRequest(waiter.pod.request, waiter.needs), waiter.pod.priority
        found = search.advise(given.hosts, wanted, given.allowed, priority=priority)
    else:
        found = search.advise(given.hosts, search.whole_gpus(gpus), given.allowed)
    staying = tuple(f"{each.pod.key} ({each.stays})" for host in given.hosts for each in host.holders if each.stays)
    return AdviceReport(waiter, gpus, found, staying, given.leaving)


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


def rows(report: AdviceReport, done: Mapping[str, str]) -> list[Mapping[str, Any]]:
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
        for each in report.evictions
    ]


def sentences(report: AdviceReport, done: Mapping[str, str], *, evicting: bool) -> list[str]:
    """The advice for a person."""
    what = (
        f"{report.waiter.pod.key} (requests {request_text(report.waiter.pod)})"
        if report.waiter is not None
        else f"{report.gpus} whole GPU{'s' if report.gpus > 1 else ''} of one node"
    )
    ending = [f"(once these pods, which are being deleted, have ended: {few(report.leaving)})"]
    after = ending if report.leaving else []
    if isinstance(report.found, Nothing):
        return [*_nothing(report, what), *after]
    where = f"on node {report.found.node}, GPU {', '.join(map(str, report.found.gpus))}"
    if not report.evictions:
        verb = "fits" if report.waiter is not None else "are free" if report.gpus > 1 else "is free"
        return [f"No eviction is needed: {what} {verb} {where}.", *after]
    number = f"{len(report.evictions)} eviction{'s' if len(report.evictions) > 1 else ''}"
    lines = [f"{number} would make room for {what} {where}:", *after]
    for each in report.evictions:
        pod = each.holder.pod
        then = (
            f"then there is room for it on node {each.to}"
            if each.to
            else ("then it waits, since its priority is lower")
        )
        outcome = f" [{done[each.holder.uid]}]" if each.holder.uid in done else ""
        lines.append(f"  {pod.key} ({mib(each.holder.memory)} MiB, priority {pod.priority}): {then}{outcome}")
    if any(each.returns for each in report.evictions):
        lines.append(_RETURNS)
    if not evicting:
        lines.append("Nothing was changed; --evict requests these evictions from the API server.")
    return lines


def _nothing(report: AdviceReport, what: str) -> list[str]:
    bound = f"up to {search.MOST}"
    lines = [f"No evictions ({bound}, of one node) would make room for {what}."]
    if report.found == Nothing(exhausted=True):
        lines = [f"No evictions that make room for {what} were found within the time limit; there may be some."]
    if report.staying:
        lines.append(f"Cannot be evicted: {few(report.staying)}.")
    lines.append("Pods of the same or a higher priority are evicted only if there is room for them elsewhere.")
    return lines


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_GPUS:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {MOST_GPUS}")
    return number


def _arguments(parser: argparse.ArgumentParser) -> None:
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("pod", nargs="?", metavar="POD", help="a waiting pod; default: the first in the queue")
    wanted.add_argument(
        "--gpus", type=_count, default=0, metavar="N", help="free this many whole GPUs of one node instead"
    )
    parser.add_argument("--evict", action="store_true", help="request the evictions from the API server")


def run(session: Session) -> CommandOutput:
    """The advice, and with --evict the results."""
    given = session.given
    cluster = hosts.advice_input(
        session.gpunodes(),
        session.items(paths.nodes()),
        session.items(paths.pods()),
        session.items(paths.poddisruptionbudgets()),
        session.elasticgpus(),
        session.kept_out(),
    )
    waiter = None
    if not given.gpus:
        name = given.pod.removeprefix("pod/") if given.pod else ""
        waiter = cluster.waiter(f"{session.namespace}/{name}" if name else "")
        if waiter is None and name:
            raise Failed(f"pod {name!r} in namespace {session.namespace!r} does not wait for a GPU share")
        if waiter is None:
            return CommandOutput(COLUMNS, empty="No pod waits for a GPU share.")
    if waiter is not None and waiter.pod.request.selects:
        raise Failed(
            f"{waiter.pod.key}: its ResourceClaims have selectors, which only the allocator evaluates; name another "
            "pod, or use --gpus N to free whole GPUs"
        )
    report = report_for(cluster, waiter, given.gpus)
    done = carried_out(session.kube, report.evictions) if given.evict else {}
    refused = any(outcome != EVICTED for outcome in done.values())
    return CommandOutput(
        COLUMNS,
        rows(report, done),
        lines=sentences(report, done, evicting=given.evict),
        names=[f"pod/{each.holder.pod.name}" for each in report.evictions],
        status=Exit.FAILED if refused else Exit.OK,
    )


COMMAND = Command(
    "advise",
    "the fewest evictions that let a pod start, or free whole GPUs; changes nothing without --evict",
    run,
    _arguments,
    flags=IN_NAMESPACE,
    example="""\
# Make room for the first pod of the queue, or for a pod of your choice
kubectl gpufraction advise
kubectl gpufraction advise web-0
# Free two whole GPUs, and have the pods evicted
kubectl gpufraction advise --gpus 2 --evict""",
)
