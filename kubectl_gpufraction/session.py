"""
One call of the command: its arguments, the cluster that it reads, and its result.

A command is a value (`Command`): its name, its help, its arguments, and a function from the session to its output.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from contract import kinds, names
from contract.encoding import moments
from contract.nodes import excluded
from contract.nodes.excluded import KeptOut
from contract.nodes.reservations import reserved_nodes
from contract.options import BadOption
from contract.scheduling import default_spread
from contract.scheduling.clusterfilters.objects import Profile
from kubectl_gpufraction.cluster import neighbours, options
from kubectl_gpufraction.cluster.leadership import NOTHING_KNOWN, LeaderStatus, leader
from kubectl_gpufraction.cluster.neighbours import NeighbourReader, PendingPod, Surroundings
from kubectl_gpufraction.cluster.programs import settings_of
from kubectl_gpufraction.cluster.state import ClusterView, trimmed
from kubectl_gpufraction.cluster.unserved import UnservedPod, cure, is_served
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.wording import suggestion
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeForbidden, KubeNotFound
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]
_MOST_READ = 100_000
"""Objects of one kind that are read to judge a pod by; filters that need more are not evaluated."""
_MOST_CURED = 3
"""Namespaces for which the cure of pods that ask in vain is printed."""
_STORAGE = "storage.k8s.io/v1"
_PATHS = {
    neighbours.NAMESPACES: paths.namespaces(),
    neighbours.CLAIMS: paths.path("v1", neighbours.CLAIMS),
    neighbours.VOLUMES: paths.path("v1", neighbours.VOLUMES),
    **{
        plural: paths.path(_STORAGE, plural)
        for plural in (
            neighbours.CLASSES,
            neighbours.CSI_NODES,
            neighbours.DRIVERS,
            neighbours.CAPACITIES,
            neighbours.ATTACHMENTS,
        )
    },
}


def _named(found: JSON) -> JSON:
    """An object's name alone."""
    metadata = found.get("metadata") or {}
    return {"metadata": {key: metadata[key] for key in ("namespace", "name") if key in metadata}}


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
    The command failed; the message is for the user. `shown`: output that is still printed. `status`: the exit status.
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
    say: Callable[[object], None] = lambda message: None
    """Reports progress to the user while a command takes long."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when a command that takes long shall end."""

    def state(self, reader: NeighbourReader | None = None) -> ClusterView:
        """The cluster now. `reader` takes in the nodes and pods too."""
        nodes, pods = self.items(paths.nodes()), self.pods(reader=reader)
        if reader is not None:
            reader.see_nodes(nodes)
        return ClusterView.of(self.gpunodes(), nodes, pods, self.elasticgpus(), self.kept_out(), weights=self.weights())

    def seen(self, reader: NeighbourReader | None = None) -> ClusterView:
        """
        The cluster now; for a tenant, who may not list it, the pods of one namespace. `reader` takes in what is listed.
        """
        try:
            return self.state(reader)
        except KubeForbidden:
            if self.given.all_namespaces:
                raise
            return ClusterView.of((), (), self.pods(self.namespace, reader), whole=False)

    def surroundings(self, reader: NeighbourReader, pending: Sequence[PendingPod], *, whole: bool) -> Surroundings:
        """
        The input of the filters for these pods, if the user may list it. `whole`: nodes, GPUNodes and all pods were
        listed, and `reader` has them.
        """
        unread = {} if whole else self.unlisted()
        profiles = self._profiles(unread)
        wanted = neighbours.kinds_for(pending, profiles)
        found = {kind: self._bounded(kind, unread) for kind in _PATHS if kind in wanted}
        namespaces = sorted({pod.rules.namespace for pod in pending})
        if unread.get(neighbours.CLAIMS) == neighbours.FORBIDDEN:
            unread[neighbours.ALL_CLAIMS] = unread.pop(neighbours.CLAIMS)
            own = sorted({pod.rules.namespace for pod in pending if pod.rules.volumes})
            found[neighbours.CLAIMS] = self._of(own, neighbours.CLAIMS, "v1", unread)
        for kind, (version, _) in default_spread.SELECTING.items():
            if kind in wanted:
                found[kind] = self._of(namespaces, kind, version, unread)
        labels = {
            str(each["metadata"].get("name")): each["metadata"].get("labels") or {}
            for each in found.get(neighbours.NAMESPACES, ())
        }
        return Surroundings(
            reader, labels, neighbours.storage_of(found), unread, profiles, neighbours.selectors_of(found)
        )

    def _of(self, namespaces: Iterable[str], kind: str, version: str, unread: dict[str, str]) -> list[JSON]:
        """The objects of a kind in these namespaces; `unread` as in `_bounded`."""
        at = paths.NamespacedResource(version, kind)
        return [each for namespace in namespaces for each in self._bounded(kind, unread, at(namespace))]

    def _profiles(self, unread: dict[str, str]) -> Mapping[str, Profile] | None:
        """The kube-scheduler profiles of the options; None if the options are `unread`."""
        try:
            return options.options_of(self.kube.get(paths.configmaps(names.NAMESPACE, names.OPTIONS))).profiles
        except KubeNotFound:
            return {}
        except KubeForbidden:
            unread[neighbours.OPTIONS] = f"you may not read {options.WHERE}"
        except BadOption as error:
            unread[neighbours.OPTIONS] = f"{options.WHERE}: {error}"
        return None

    def unlisted(self) -> dict[str, str]:
        """Which of nodes, GPUNodes and all pods the user may not list: one object of each is requested."""
        found = {}
        tried = ((neighbours.NODES, paths.nodes()), (neighbours.GPU_NODES, paths.gpunodes()))
        for kind, path in (*tried, (neighbours.PODS, paths.pods())):
            try:
                next(iter(self.kube.pages(path, page=1, of=kinds.SHOWN)), None)
            except KubeForbidden:
                found[kind] = neighbours.FORBIDDEN
            except KubeNotFound:
                continue
        return found

    def _bounded(self, kind: str, unread: dict[str, str], path: str = "") -> list[JSON]:
        """The objects of a kind; none where that kind is `unread`: forbidden, or more than so many."""
        found: list[JSON] = []
        try:
            for part in self.kube.pages(path or _PATHS[kind], of=kinds.SHOWN):
                found = [*part.items] if part.first else [*found, *part.items]
                if len(found) > _MOST_READ:
                    unread[kind] = f"there are more than {_MOST_READ} {kind}"
                    return []
        except KubeForbidden:
            unread[kind] = neighbours.FORBIDDEN
            return []
        except KubeNotFound:
            return []  # the cluster serves no such kind, so there are none
        return found

    def nothing(self, what: str) -> str:
        """The sentence for an empty table of pods; a namespace that does not exist is named with one that does."""
        what = f"No {what}" + (f" and has the labels {self.given.selector}" if self.given.selector else "")
        if self.given.all_namespaces:
            return f"{what}."
        try:
            self.kube.get(paths.namespaces(self.namespace))
        except KubeNotFound:
            there = self.items(paths.namespaces(), KubeForbidden, KubeNotFound)
            known = (str((each.get("metadata") or {}).get("name", "")) for each in there)
            close = suggestion(self.namespace, known) or "."
            return f"{what} in namespace {self.namespace}, which does not exist{close}"
        except KubeForbidden:
            pass
        return f"{what} in namespace {self.namespace}; -A looks in all."

    def items(self, path: str, *absent: type[KubeError]) -> list[JSON]:
        """A whole collection; none on one of the errors `absent`."""
        try:
            return self.kube.list(path, of=kinds.SHOWN).items
        except absent:
            return []

    def pods(self, namespace: str | None = None, reader: NeighbourReader | None = None) -> list[JSON]:
        """The pods of one namespace or of all, as far as `ClusterView` reads them."""
        trim = reader.pod if reader is not None else trimmed
        return self.kube.list(paths.pods(namespace), of=kinds.SHOWN, trim=trim).items

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

    def allocator_settings(self) -> dict[str, str] | None:
        """The allocator's settings in the form of its flags; None where the user may not see its Deployment."""
        ours = self.items(paths.deployments(names.NAMESPACE), KubeNotFound, KubeForbidden)
        configmaps = self.items(paths.configmaps(names.NAMESPACE), KubeNotFound, KubeForbidden) if ours else []
        return settings_of(ours, "allocator", configmaps) if ours else None

    def weights(self) -> dict[str, str] | None:
        """
        The weights on namespaces' labels where the queue is fair by the allocator's settings; None where it is
        in the order of age, or the user may not see that.
        """
        if (self.allocator_settings() or {}).get("queue-order") != "fair":
            return None
        try:
            labelled = self.kube.list(
                paths.namespaces(), {"labelSelector": names.QUEUE_WEIGHT}, of=kinds.NAMESPACES
            ).items
        except KubeForbidden:
            return {}
        metadata = [each.get("metadata") or {} for each in labelled]
        return {each["name"]: str((each.get("labels") or {}).get(names.QUEUE_WEIGHT, "")) for each in metadata}

    def selected(self, path: str) -> Collection[tuple[str, str]] | None:
        """Namespace and name of the objects that have the labels of `--selector`; None where it is not given."""
        selector = self.given.selector
        if not selector:
            return None
        found = self.kube.list(path, {"labelSelector": selector}, of=kinds.SHOWN, trim=_named).items
        metadata = [each.get("metadata") or {} for each in found]
        return {(str(each.get("namespace", "")), str(each.get("name", ""))) for each in metadata}

    def is_served(self, namespace: str) -> bool | None:
        """Whether pods of the namespace reach the webhook; None where the user may not see its labels."""
        try:
            return is_served(self.kube.get(paths.namespaces(namespace)))
        except (KubeForbidden, KubeNotFound):
            return None

    def leadership(self) -> LeaderStatus:
        """Whether an allocator leads, and the nodes that it reserves; nothing where the user may not read the Lease."""
        try:
            lease = self.kube.get(paths.leases(names.NAMESPACE, names.LEASE))
        except KubeNotFound:
            lease = None
        except KubeForbidden:
            return NOTHING_KNOWN
        return LeaderStatus(leader(lease, self.now())[1], reserved_nodes(lease))

    def unserved(self, state: ClusterView, *, everywhere: bool = False) -> list[str]:
        """The sentences about pods that ask for a share in vain, in the namespace that is shown, or `everywhere`."""
        by_namespace: dict[str, list[UnservedPod]] = {}
        for pod in state.unserved:
            if everywhere or self.shown_namespace() in (None, pod.namespace):
                by_namespace.setdefault(pod.namespace, []).append(pod)
        lines = [
            line
            for namespace, found in list(by_namespace.items())[:_MOST_CURED]
            for line in cure(namespace, found, served=self.is_served(namespace))
        ]
        more = len(by_namespace) - _MOST_CURED
        return [*lines, f"{more} more namespaces have such pods; -n shows them"] if more > 0 else lines

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


OUTPUT = frozenset(("output",))
"""The flag of commands whose answer does not change over time."""
TABLE = OUTPUT | {"watch", "no_headers"}
LABELLED = TABLE | {"selector"}
OF_PODS = TABLE | {"namespace", "all_namespaces"}
IN_NAMESPACE = OUTPUT | {"watch", "namespace"}
"""The common flags that a command may have; those of the connection all have."""


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
    flags: frozenset[str] = TABLE
    """The common flags that it has and its help lists, besides those of the connection."""
    example: str = ""
    """Lines to type, each after a comment with its purpose."""
