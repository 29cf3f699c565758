"""
`kubectl gpufraction dry-run`: where a manifest's pods would go now, through the API server's own dry run.

The webhook answers as for a real pod, and reserves nothing for a dry run. The returned pod has the verdict, and the API
server's warnings say why it would wait. So the API server decides on the first pod of each template; the further
replicas are placed here, one after another (`kubectl_gpufraction.advice.rehearsal`).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract import names
from contract import pods as podfields
from contract.encoding import codec, resourceclaims
from contract.encoding.reading import Malformed
from contract.model import Allocation
from contract.reasons import nodes as reasons
from contract.scheduling.clusterfilters.objects import read_rules
from contract.scheduling.needs import PodNeeds, needs_of, unpinned
from kubectl_gpufraction.advice import hosts
from kubectl_gpufraction.advice.rehearsal import Rehearsal, RehearsedPlacement
from kubectl_gpufraction.cluster.manifests import Template, templates
from kubectl_gpufraction.cluster.neighbours import NeighbourReader, PendingPod
from kubectl_gpufraction.cluster.room import RoomRequest
from kubectl_gpufraction.cluster.state import legible
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import few, many
from kubectl_gpufraction.session import OUTPUT, Command, Exit, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.errors import KubeForbidden, KubeInvalid
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]
Row = Mapping[str, Any]
_REFUSED = "Denied"
_OUR_PODS = ("Placed", "Waiting", "Partly")
UNTRIED = "the further replicas were not tried: that needs the right to list nodes, GPUNodes and all pods"
SELECTING = (
    "the further replicas were not tried: their ResourceClaims have selectors, which only the allocator evaluates"
)

COLUMNS = (
    Column("object", "OBJECT"),
    Column("verdict", "VERDICT"),
    Column("placed", "PLACED", of=lambda row, _: _placed(row)),
    Column("placements", "NODE", of=lambda row, _: _nodes(row)),
    Column("placements", "GPUS", of=lambda row, _: _gpus(row)),
    Column("reason", "REASON"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the API server on one pod. `pod`: as admission returned it, None where it was refused."""

    word: str
    pod: JSON | None = None
    allocation: Allocation | None = None
    reason: str = ""


def tried(kube: Kube, listening: WarningTransport, pod: JSON) -> Verdict:
    """The verdict on a pod. Raises `KubeError` if the API server gives none."""
    try:
        answer = kube.create(paths.pods(pod["metadata"]["namespace"]), pod, {"dryRun": "All"})
    except (KubeInvalid, KubeForbidden) as error:
        return Verdict(_REFUSED, reason=_text(error))
    return verdict(answer, listening.warnings)


def _text(error: KubeError) -> str:
    """The API server's own message, without the call before it."""
    text = str(error)
    return text.partition(f": {error.status}")[2].partition(": ")[2] or text


def verdict(pod: JSON, warnings: Iterable[str]) -> Verdict:
    """The verdict in the pod that admission returned."""
    text = " ".join(warnings)
    if names.GATE in podfields.gates(pod):
        return Verdict("Waiting", pod, reason=text.removeprefix("waiting: "))
    try:
        allocation = codec.allocation_from_text(podfields.annotations_of(pod).get(names.ALLOCATION))
    except Malformed:
        return Verdict("Untouched", pod, reason="requests no GPU share, or its namespace is not labelled")
    return Verdict("Placed", pod, allocation, text)


def row(template: Template, found: Verdict, rehearsal: Rehearsal | None) -> Row:
    """The verdict on all replicas of a template. `rehearsal`: None where the cluster may not be seen."""
    if found.allocation is None or found.pod is None:
        return _row(template, found.word, (), found.reason)
    first = RehearsedPlacement(found.allocation.node, _indexes(found.allocation))
    wanted = _wanted(found.pod)
    if wanted is None or wanted.request.claim:  # the pods of a claim share what it has
        return _row(template, "Placed", (first,) * template.replicas, found.reason)
    if rehearsal is None or wanted.request.selects:
        untried, why = template.replicas - 1, UNTRIED if rehearsal is None else SELECTING
        reason = "; ".join(filter(None, (found.reason, why if untried else "")))
        return _row(template, "Placed", (first,), reason, untried=untried)
    pending = replica_of(found.pod, wanted.needs)
    placed = [first] if rehearsal.book(wanted, found.allocation, pending) else []
    unevaluated = rehearsal.unevaluated(pending) if template.replicas > 1 else ()
    reason = "; ".join(
        filter(None, (found.reason, *(f"{each.filter} not evaluated: {each.why}" for each in unevaluated)))
    )
    while len(placed) < template.replicas:
        following = rehearsal.place(wanted, pending)
        if not isinstance(following, RehearsedPlacement):
            reason = reasons.summary(following)
            break
        placed.append(following)
    word = "Placed" if len(placed) == template.replicas else "Partly" if placed else "Waiting"
    return _row(template, word, placed, reason)


def replica_of(pod: JSON, needs: PodNeeds) -> PendingPod:
    """
    A further replica as filters read it. Claims that are made for one pod are left out: they exist only once the pod
    does.
    """
    rules = read_rules(pod)
    lasting = replace(rules, volumes=tuple(each for each in rules.volumes if not each.ephemeral), uid="")
    return PendingPod(lasting, needs, exists=False)


def _wanted(pod: JSON) -> RoomRequest | None:
    request = podfields.admitted(pod)
    if request is None:
        return None
    found = unpinned(needs_of(pod, several=request.several, bursts=request.bursts))
    # A pod that was placed where no claim is needed no longer names one; another replica of it would.
    return RoomRequest(request, replace(found, claim=resourceclaims.fits_claim(request)))


def _indexes(allocation: Allocation) -> tuple[int, ...]:
    return tuple(sorted({share.index for container in allocation.containers for share in container.shares}))


def _row(template: Template, word: str, placed: Sequence[RehearsedPlacement], reason: str, *, untried: int = 0) -> Row:
    return {
        "object": template.name,
        "verdict": word,
        "replicas": template.replicas,
        "placed": len(placed),
        "untried": untried,
        "placements": [{"node": each.node, "gpus": list(each.gpus)} for each in placed],
        "reason": "; ".join(filter(None, (reason, template.note))),
    }


def _placed(row: Row) -> str:
    return f"{row['placed']} of {row['replicas']}" if row["verdict"] != "Untouched" else ""


def _nodes(row: Row) -> str:
    counts = Counter(each["node"] for each in row["placements"])
    return ",".join(f"{node} x{count}" if len(counts) > 1 or count > 1 else node for node, count in counts.items())


def _gpus(row: Row) -> list[int]:
    """The GPUs, where all of them are on one node."""
    one = len({each["node"] for each in row["placements"]}) == 1
    return sorted({gpu for each in row["placements"] for gpu in each["gpus"]}) if one else []


def totals(rows: Sequence[Row]) -> list[str]:
    """How many of all pods that ask for a share are placed, and why the others wait."""
    own = [row for row in rows if row["verdict"] in _OUR_PODS]
    pods, placed = (sum(row[key] for row in own) for key in ("replicas", "placed"))
    refused = sum(row["replicas"] for row in rows if row["verdict"] == _REFUSED)
    words = [f"{placed} of {many(pods, 'pod')} placed"] if own else []
    waiting, untried = pods - placed - sum(row["untried"] for row in own), sum(row["untried"] for row in own)
    if waiting:
        reasons = {row["reason"] for row in own if row["placed"] + row["untried"] < row["replicas"]}
        why = f": {next(iter(reasons))}" if len(reasons) == 1 and "" not in reasons else ""
        words.append(f"{waiting} {'waits' if waiting == 1 else 'wait'}{why}")
    if untried:
        words.append(f"{untried} not tried")
    if refused:
        words.append(f"{many(refused, 'pod')} refused")
    return [", ".join(words)] if words else []


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--filename", required=True, help="manifest; - reads standard input")


def run(session: Session) -> CommandOutput:
    """The verdict on each template of a manifest, all replicas one after another."""
    import yaml

    try:
        text = sys.stdin.read() if session.given.filename == "-" else Path(session.given.filename).read_text("utf-8")
        found = list(templates(yaml.safe_load_all(text), session.namespace))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Failed(f"{session.given.filename}: {error}") from error
    tried_pods = [each.pod for each in found if each.pod is not None]
    several = sum(each.replicas for each in found if each.pod is not None) > 1
    pending = tuple(legible(lambda pod: replica_of(pod, PodNeeds()), tried_pods)) if several else ()
    rehearsal = _rehearsal(session, pending) if tried_pods else None
    rows, skipped = [], []
    for template in found:
        if template.pod is None:
            skipped.append(template.name)
            rows.append(_row(replace(template, replicas=0), "Skipped", (), "it makes no pods"))
        else:
            rows.append(row(template, tried(session.kube, session.listening, template.pod), rehearsal))
    tried_rows = [each for each in rows if each["verdict"] != "Skipped"]
    passed = [f"Skipped, since they create no pods: {few(skipped)}"] if skipped else []
    return CommandOutput(
        COLUMNS,
        rows,
        in_table=tried_rows,
        empty="\n".join(["No pod and no pod template in the manifest.", *passed]),
        notes=[*totals(tried_rows), *passed],
        names=[_name(template) for template in found if template.pod is not None],
        status=_status(rows),
    )


def _rehearsal(session: Session, pending: Sequence[PendingPod]) -> Rehearsal | None:
    reader = NeighbourReader()
    try:
        nodes, pods = session.items(paths.nodes()), session.items(paths.pods())
        cluster = hosts.advice_input(
            session.gpunodes(),
            nodes,
            pods,
            (),
            session.elasticgpus(),
            session.kept_out(),
        )
    except (KubeForbidden, Failed):
        return None
    if not pending:
        return Rehearsal(cluster.hosts)
    reader.see_nodes(nodes)
    for pod in pods:
        reader.pod(pod)
    return Rehearsal(cluster.hosts, session.surroundings(reader, pending, whole=True))


def _name(template: Template) -> str:
    kind, _, name = template.name.partition("/")
    return f"{kind.lower()}/{name.partition(' ')[0]}"


def _status(rows: Sequence[Row]) -> Exit:
    words = {row["verdict"] for row in rows}
    return Exit.DENIED if _REFUSED in words else Exit.WAITS if words & {"Waiting", "Partly"} else Exit.OK


COMMAND = Command(
    "dry-run",
    "show where all pods of a manifest would be placed now; changes nothing; exits 3 if one is refused, 4 if one waits",
    run,
    _arguments,
    flags=OUTPUT | {"namespace", "no_headers", "watch"},
    example="""\
# Where the pods of a manifest would be placed
kubectl gpufraction dry-run -f web.yaml
# The same for the output of another program
kubectl kustomize overlays/test | kubectl gpufraction dry-run -f -""",
)
