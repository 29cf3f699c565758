"""
Where a manifest would go now: each pod, or each workload's pod template, through the API server's own dry run.

The webhook answers as for a real pod, and reserves nothing for a dry run. The returned pod has the verdict, and the API
server's warnings say why it would wait.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contract import names
from contract import pods as podfields
from contract.encoding import codec
from contract.encoding.reading import Malformed
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.session import Command, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.errors import KubeForbidden, KubeInvalid
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]
Row = Mapping[str, Any]
_TEMPLATES = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "ReplicationController", "CronJob")

COLUMNS = (
    Column("object", "OBJECT"),
    Column("verdict", "VERDICT"),
    Column("node", "NODE"),
    Column("gpus", "GPUS"),
    Column("reason", "REASON"),
)


def pods_of(documents: Iterable[Any], namespace: str) -> Iterator[tuple[str, JSON]]:
    """The pods of the manifest, each with its object's name; one pod stands for all replicas of a workload."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        kind, metadata = str(document.get("kind", "")), document.get("metadata") or {}
        name = f"{kind}/{metadata.get('name') or metadata.get('generateName', '')}"
        if kind == "List":
            yield from pods_of(document.get("items") or [], namespace)
        elif kind == "Pod":
            yield name, _pod(metadata, document.get("spec") or {}, metadata, namespace)
        elif kind in _TEMPLATES:
            spec = document.get("spec") or {}
            spec = (spec.get("jobTemplate") or {}).get("spec") or {} if kind == "CronJob" else spec
            template = spec.get("template") or {}
            yield name, _pod(template.get("metadata") or {}, template.get("spec") or {}, metadata, namespace)


def _pod(metadata: JSON, spec: JSON, owner: JSON, namespace: str) -> JSON:
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    # A generated name, since the API server refuses a dry run with a name that exists.
    named = {"generateName": f"{str(owner.get('name', 'pod'))[:50]}-", "namespace": owner.get("namespace") or namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, **named}, "spec": spec}


def tried(kube: Kube, listening: WarningTransport, name: str, pod: JSON) -> Row:
    """The verdict on a pod. Raises `KubeError` if the API server gives none."""
    try:
        answer = kube.create(paths.pods(pod["metadata"]["namespace"]), pod, {"dryRun": "All"})
    except (KubeInvalid, KubeForbidden) as error:
        return _row(name, "Denied", reason=_text(error))
    return verdict(name, answer, listening.warnings)


def _text(error: KubeError) -> str:
    """The API server's own words, without the call in front of them."""
    text = str(error)
    return text.partition(f": {error.status}")[2].partition(": ")[2] or text


def verdict(name: str, pod: JSON, warnings: Iterable[str]) -> Row:
    """The verdict in the pod that admission returned."""
    text = " ".join(warnings)
    if names.GATE in podfields.gates(pod):
        return _row(name, "Waiting", reason=text.removeprefix("waiting: "))
    try:
        allocation = codec.allocation_from_text(podfields.annotations_of(pod).get(names.ALLOCATION))
    except Malformed:
        return _row(name, "Untouched", reason="asks for no GPU share, or its namespace is not labelled")
    gpus = sorted({share.index for container in allocation.containers for share in container.shares})
    return _row(name, "Placed", node=allocation.node, gpus=gpus, reason=text)


def _row(name: str, verdict: str, *, node: str = "", gpus: Iterable[int] = (), reason: str = "") -> Row:
    return {"object": name, "verdict": verdict, "node": node, "gpus": list(gpus), "reason": reason}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--filename", required=True, help="manifest; - reads the standard input")


def run(session: Session) -> CommandOutput:
    """The verdict on each pod of a manifest."""
    import yaml

    try:
        text = sys.stdin.read() if session.given.filename == "-" else Path(session.given.filename).read_text("utf-8")
        found = list(pods_of(yaml.safe_load_all(text), session.namespace))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Failed(f"{session.given.filename}: {error}") from error
    rows = [tried(session.kube, session.listening, name, pod) for name, pod in found]
    return CommandOutput(COLUMNS, rows, empty="No pod and no pod template in the manifest.")


COMMAND = Command("dry-run", "where a manifest's pods would go now; changes nothing", run, _arguments)
