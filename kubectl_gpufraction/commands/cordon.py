"""
`kubectl gpufraction cordon NODE GPU...` and `uncordon NODE [GPU...]`: single GPUs take no new pods, or take them again.

They write the Node's annotation `gpufraction.io/cordon`, and check first that the node has the GPUs that are named.
Pods that are there stay. The annotation gets UUIDs, because an index may change when the node restarts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract import names
from contract.model import Gpu
from kubectl_gpufraction.cluster.state import inventory_of
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import suggestion
from kubectl_gpufraction.session import OUTPUT, Command, Exit, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeConflict, KubeForbidden, KubeNotFound

JSON = dict[str, Any]
Row = Mapping[str, Any]
COLUMNS = (
    Column("node", "NODE"),
    Column("gpu", "GPU"),
    Column("model", "MODEL"),
    Column("uuid", "UUID"),
    Column("cordoned", "CORDONED", of=lambda row, _: "yes" if row["cordoned"] else "no"),
    Column("changed", "CHANGED", of=lambda row, _: "yes" if row["changed"] else "no"),
)
_TRIES = 3


class NoSuchGpu(ValueError):
    """A word names no GPU of the node. The message lists the node's GPUs."""


@dataclass(frozen=True, slots=True)
class Cordoning:
    """The annotation's words now and before, and what they mean for each GPU of the node."""

    words: tuple[str, ...]
    before: tuple[str, ...]
    gpus: tuple[Gpu, ...]

    def rows(self, node: str) -> list[Row]:
        """One row for each GPU."""
        now, then = named(self.words, self.gpus), named(self.before, self.gpus)
        return [
            {
                "node": node,
                "gpu": gpu.index,
                "model": gpu.model,
                "uuid": gpu.uuid,
                "cordoned": gpu.uuid in now,
                "changed": (gpu.uuid in now) != (gpu.uuid in then),
            }
            for gpu in self.gpus
        ]

    @property
    def strangers(self) -> tuple[str, ...]:
        """Words of the annotation that name no GPU; they stay as they are."""
        return tuple(word for word in self.words if not any(_means(word, gpu) for gpu in self.gpus))


def named(words: Iterable[str], gpus: Sequence[Gpu]) -> frozenset[str]:
    """The UUIDs of the GPUs that these words mean; a card's slices too."""
    cards = {gpu.uuid for word in words for gpu in gpus if _means(word, gpu)}
    return frozenset(gpu.uuid for gpu in gpus if gpu.uuid in cards or gpu.parent in cards)


def _means(word: str, gpu: Gpu) -> bool:
    """Whether the annotation's word is this GPU, by the node agent's rule: its UUID, or a card's index."""
    plain = word.isascii() and word.isdecimal() and len(word) <= 4
    return word == gpu.uuid or (not gpu.parent and plain and int(word) == gpu.index)


def _found(words: Iterable[str], gpus: Sequence[Gpu], node: str) -> list[str]:
    """The UUIDs of the named GPUs, in the order of the words. Raises `NoSuchGpu`."""
    uuids = []
    for word in words:
        gpu = next((gpu for gpu in gpus if _means(word, gpu)), None)
        if gpu is None:
            here = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise NoSuchGpu(f"node {node!r} has no GPU {word!r}; it has {here}")
        uuids.append(gpu.uuid)
    return uuids


def cordoned(before: Sequence[str], wanted: Sequence[str], gpus: Sequence[Gpu], node: str) -> Cordoning:
    """The annotation with these GPUs. Raises `NoSuchGpu`."""
    added = [uuid for uuid in _found(wanted, gpus, node) if uuid not in named(before, gpus)]
    return Cordoning((*before, *dict.fromkeys(added)), tuple(before), tuple(gpus))


def uncordoned(before: Sequence[str], wanted: Sequence[str], gpus: Sequence[Gpu], node: str) -> Cordoning:
    """The annotation without these GPUs; without all if none is named. Raises `NoSuchGpu`."""
    if not wanted:
        return Cordoning((), tuple(before), tuple(gpus))
    uuids = _found(wanted, gpus, node)
    kept = tuple(word for word in before if not any(_means(word, gpu) for gpu in gpus if gpu.uuid in uuids))
    left = named(kept, gpus)
    for gpu in gpus:
        if gpu.uuid in uuids and gpu.uuid in left:
            raise NoSuchGpu(f"{gpu.uuid} is a slice of the card {gpu.parent}, which is cordoned as a whole")
    return Cordoning(kept, tuple(before), tuple(gpus))


def _arguments(parser: argparse.ArgumentParser, *, least: str) -> None:
    parser.add_argument("node", metavar="NODE", help="a node with GPUs")
    parser.add_argument("gpu", metavar="GPU", nargs=least, help="index or UUID")


def _run(session: Session, change: Any) -> CommandOutput:
    node, wanted = session.given.node, session.given.gpu
    try:
        inventory = inventory_of(session.kube.get(paths.gpunodes(node)), {})
    except KubeNotFound:
        there = session.items(paths.gpunodes(), KubeForbidden, KubeNotFound)
        known = suggestion(node, (str((each.get("metadata") or {}).get("name", "")) for each in there))
        listed = "kubectl gpufraction nodes lists those that have one"
        raise Failed(f"node {node!r} has no GPUNode{known or '; ' + listed}") from None
    if inventory is None:
        raise Failed(f"the GPUNode {node!r} cannot be read")
    for _ in range(_TRIES):
        found = session.kube.get(paths.nodes(node))
        try:
            made: Cordoning = change(_words(found), wanted, inventory.gpus, node)
        except NoSuchGpu as error:
            raise Failed(str(error), status=Exit.USAGE) from None
        try:
            _write(session, found, made)
        except KubeConflict:
            continue
        return _output(session, node, made)
    raise Failed(f"node {node!r} was changed by other clients {_TRIES} times meanwhile; try again")


def _words(node: JSON) -> tuple[str, ...]:
    text = (node["metadata"].get("annotations") or {}).get(names.CORDON) or ""
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def _write(session: Session, node: JSON, made: Cordoning) -> None:
    """Store the words. Raises `KubeConflict` if the Node has changed since it was read."""
    if made.words == made.before:
        return
    metadata = {
        "annotations": {str(names.CORDON): ",".join(made.words) or None},
        "resourceVersion": node["metadata"].get("resourceVersion"),
    }
    session.kube.patch_merge(paths.nodes(node["metadata"]["name"]), {"metadata": metadata})


def _output(session: Session, node: str, made: Cordoning) -> CommandOutput:
    notes = ["The node's agent applies this within seconds. Running pods stay."]
    if made.words == made.before:
        notes = ["Nothing was changed."]
    if made.strangers:
        notes.append(f"The annotation {names.CORDON} also has words that name no GPU: {', '.join(made.strangers)}")
    try:
        listed = session.kept_out().get(node)
    except KubeForbidden:
        listed = None
    if listed is not None:
        notes.append(f"ConfigMap kube-system/unhealthy-gpu-{node} also excludes GPUs; this command does not change it.")
    return CommandOutput(COLUMNS, made.rows(node), empty="The node has no GPUs.", notes=notes, names=[f"node/{node}"])


CORDON = Command(
    "cordon",
    "stop placing new pods on single GPUs of a node; running pods stay",
    lambda session: _run(session, cordoned),
    lambda parser: _arguments(parser, least="+"),
    once=True,
    flags=OUTPUT | {"no_headers"},
    example="""\
# Two GPUs of a node, by index; a UUID works too
kubectl gpufraction cordon NODE 0 1""",
)
UNCORDON = Command(
    "uncordon",
    "let GPUs of a node accept new pods again; all of them if none is named",
    lambda session: _run(session, uncordoned),
    lambda parser: _arguments(parser, least="*"),
    once=True,
    flags=OUTPUT | {"no_headers"},
    example="""\
# One GPU of a node, and all of them
kubectl gpufraction uncordon NODE 0
kubectl gpufraction uncordon NODE""",
)
