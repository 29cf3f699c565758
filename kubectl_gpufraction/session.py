"""
One call of the command: its arguments, the cluster that it asks, and what it hands back.

A command is a value (`Command`): its name, its help, its arguments, and a function from the session to its output.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from contract import kinds, names
from contract.encoding import moments
from contract.nodes import excluded
from contract.nodes.excluded import KeptOut
from kubectl_gpufraction.cluster.programs import settings_of
from kubectl_gpufraction.cluster.state import ClusterView, trimmed
from kubectl_gpufraction.output.forms import CommandOutput
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeForbidden, KubeNotFound
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]


class Exit(IntEnum):
    """The exit statuses. Each command documents which of them it has."""

    OK = 0
    FAILED = 1
    """No answer from the API server, no such object, the request was refused, or `check` found a failure."""
    USAGE = 2
    """Wrong arguments."""
    DENIED = 3
    """`dry-run`: the API server would refuse at least one pod."""
    WAITS = 4
    """`dry-run`: at least one pod would wait, and none would be refused."""
    INTERRUPTED = 130


class Failed(Exception):
    """
    The command failed; the message is for the user. `shown`: what is printed nevertheless. `status`: the exit status.
    """

    def __init__(self, message: str, *, shown: CommandOutput | None = None, status: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.shown = shown
        self.status = status


@dataclass(frozen=True, slots=True)
class Session:
    """One call of the command: its arguments, the cluster, and the clock."""

    given: argparse.Namespace
    kube: Kube
    listening: WarningTransport
    namespace: str
    now: Callable[[], float] = time.time

    def state(self) -> ClusterView:
        """The cluster now."""
        nodes, pods = self.items(paths.nodes()), self.pods()
        return ClusterView.of(self.gpunodes(), nodes, pods, self.elasticgpus(), self.kept_out(), weights=self.weights())

    def seen(self) -> ClusterView:
        """The cluster now; for a tenant, who may not list it, the pods of one namespace."""
        try:
            return self.state()
        except KubeForbidden:
            if self.given.all_namespaces:
                raise
            return ClusterView.of((), (), self.pods(self.namespace), whole=False)

    def nothing(self, what: str) -> str:
        """The sentence for an empty table of pods."""
        where = "" if self.given.all_namespaces else f" in namespace {self.namespace}; -A looks in all"
        return f"No {what}{where}."

    def items(self, path: str, *absent: type[KubeError]) -> list[JSON]:
        """A whole collection; none on one of the errors `absent`."""
        try:
            return self.kube.list(path, of=kinds.SHOWN).items
        except absent:
            return []

    def pods(self, namespace: str | None = None) -> list[JSON]:
        """The pods of one namespace or of all, as far as `ClusterView` reads them."""
        return self.kube.list(paths.pods(namespace), of=kinds.SHOWN, trim=trimmed).items

    def gpunodes(self) -> list[JSON]:
        """The inventories. Raises `Failed` if their kind is not installed."""
        try:
            return self.items(paths.gpunodes())
        except KubeNotFound:
            raise Failed("this cluster has no GPUNodes: gpufraction is not installed there") from None

    def elasticgpus(self) -> list[JSON]:
        """The shares of claims; none if the cluster does not serve them or the user may not list them."""
        return self.items(paths.path("elasticgpu.io/v1alpha1", "elasticgpus"), KubeNotFound, KubeForbidden)

    def kept_out(self) -> dict[str, KeptOut]:
        """The lists of cards that an administrator excludes, by node; none if the user may not see them."""
        found = self.items(paths.configmaps(excluded.NAMESPACE), KubeNotFound, KubeForbidden)
        return {each.node: each for each in map(excluded.read, found) if each is not None}

    def weights(self) -> dict[str, str] | None:
        """
        The weights on namespaces' labels where the allocator's Deployment says that the queue is fair; None where it is
        in the order of age, or the user may not see that.
        """
        ours = self.items(paths.deployments(names.NAMESPACE), KubeNotFound, KubeForbidden)
        if settings_of(ours, "allocator").get("queue-order") != "fair":
            return None
        try:
            labelled = self.kube.list(
                paths.namespaces(), {"labelSelector": names.QUEUE_WEIGHT}, of=kinds.NAMESPACES
            ).items
        except KubeForbidden:
            return {}
        metadata = [each.get("metadata") or {} for each in labelled]
        return {each["name"]: str((each.get("labels") or {}).get(names.QUEUE_WEIGHT, "")) for each in metadata}

    def shown_namespace(self) -> str | None:
        """The namespace to show, None for all."""
        return None if self.given.all_namespaces else self.namespace

    def spoken(self, text: str) -> str:
        """A sentence with ages in place of times; with --watch or for a program as it is, since ages never rest."""
        return text if self.given.watch or not self.for_people else moments.spoken(text, self.now())

    @property
    def for_people(self) -> bool:
        """Whether a person reads the output; else a program does."""
        return self.given.output in ("table", "wide")


def _none(parser: argparse.ArgumentParser) -> None:
    """No arguments but the common ones."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `run` answers, and raises `Failed` or `KubeError` where it cannot."""

    name: str
    help: str
    run: Callable[[Session], CommandOutput]
    arguments: Callable[[argparse.ArgumentParser], None] = _none
    once: bool = False
    """Whether it changes something, so that --watch makes no sense."""
