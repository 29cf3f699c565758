"""
The command: its arguments, reading the cluster, and printing. Other modules make the text, from values alone.

Exit status: 0 success, 1 if the API server gave no answer or the object does not exist, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from contract import names
from contract.encoding import moments, quantity
from contract.encoding.reading import Malformed
from contract.model import MOST_GPUS
from contract.nodes import excluded
from contract.nodes.excluded import KeptOut
from contract.options import BadOption, Options, pool_options
from kubectl_gpufraction import advised, dryrun, gpushare, hosts, kueue, pools, views
from kubectl_gpufraction.state import ClusterView
from kubectl_gpufraction.tables import FORMS, Column, joined, rendered
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConfigError, KubeError, KubeForbidden, KubeNotFound, KubeUnavailable
from runtime.kubernetes.transport import connect_transport

JSON = dict[str, Any]
_AGENT = "kubectl-gpufraction"
_VERSION = (Column("plugin", "PLUGIN"), Column("kubernetes", "KUBERNETES"), Column("nodes", "GPU-NODES"))
_EVERY = 2.0
"""Seconds between two looks with --watch; each costs the API server a list of pods."""


class Failed(Exception):
    """The command failed; the message is for the user. `shown`: what is printed nevertheless."""

    def __init__(self, message: str, *, shown: str = "") -> None:
        super().__init__(message)
        self.shown = shown


@dataclass(frozen=True, slots=True)
class Session:
    """One call of the command: its arguments, the cluster, and where it prints."""

    given: argparse.Namespace
    kube: Kube
    listening: dryrun.WarningTransport
    namespace: str
    colour: bool

    def state(self) -> ClusterView:
        """The cluster now."""
        nodes, pods = self.items(paths.nodes()), self.items(paths.pods())
        return ClusterView.of(self.gpunodes(), nodes, pods, self.elasticgpus(), self.kept_out())

    def seen(self) -> ClusterView:
        """The cluster now; for a tenant, who may not list it, the pods of one namespace."""
        try:
            return self.state()
        except KubeForbidden:
            if self.given.all_namespaces:
                raise
            return ClusterView.of((), (), self.items(paths.pods(self.namespace)), whole=False)

    def nothing(self, what: str) -> str:
        """The sentence for an empty table of pods."""
        where = "" if self.given.all_namespaces else f" in namespace {self.namespace}; -A looks in all"
        return f"No {what}{where}."

    def items(self, path: str, *absent: type[KubeError]) -> list[JSON]:
        """A whole collection; none on one of the errors `absent`."""
        try:
            return self.kube.list(path).items
        except absent:
            return []

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

    def shown_namespace(self) -> str | None:
        """The namespace to show, None for all."""
        return None if self.given.all_namespaces else self.namespace

    def table(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], empty: str) -> str:
        """The rows as the user wants them."""
        return rendered(columns, rows, form=self.given.output, colour=self.colour, empty=empty)

    def spoken(self, text: str) -> str:
        """A sentence with ages in place of times; with --watch or for a program as it is, since ages never rest."""
        absolute = self.given.watch or self.given.output in ("json", "yaml")
        return text if absolute else moments.spoken(text, time.time())


def _nodes(session: Session) -> str:
    now = datetime.now(UTC)
    return session.table(views.NODES, views.nodes(session.state(), now), "No GPUs found.")


def _pods(session: Session) -> str:
    rows = views.pods(session.seen(), session.shown_namespace())
    return session.table(views.PODS, rows, session.nothing("pod asks for a GPU share"))


def _waiting(session: Session) -> str:
    found = views.waiting(session.seen(), session.shown_namespace())
    rows = [{**row, "reason": session.spoken(row["reason"])} for row in found]
    return session.table(views.WAITING, rows, session.nothing("pod waits for a GPU share"))


def _pools(session: Session) -> str:
    path = paths.configmaps(names.NAMESPACE, names.POOLS)
    try:
        status = pools.read(session.kube.get(path))
    except KubeNotFound:
        raise Failed(pools.NOT_INSTALLED) from None
    except Malformed as error:
        raise Failed(f"ConfigMap {names.NAMESPACE}/{names.POOLS}: {error}") from None
    if status is None:
        raise Failed(pools.NOT_WRITTEN)
    rows = [{**row, "state": session.spoken(row["state"])} for row in pools.rows(status)]
    text = session.table(pools.COLUMNS, rows, pools.NONE)
    if session.given.output in ("json", "yaml"):
        return text
    return text + session.spoken(joined(pools.sentences(status, time.time())))


def _explain(session: Session) -> str:
    state, name = session.seen(), session.given.pod.removeprefix("pod/")
    found = next((pod for pod in state.pods if pod.key == f"{session.namespace}/{name}"), None)
    if found is None:
        about = f"pod {name!r} in namespace {session.namespace!r}"
        try:
            raise Failed(f"{about}: {views.without_share(session.kube.get(paths.pods(session.namespace, name)))}")
        except KubeNotFound:
            raise Failed(f"{about}: not there; -n names another namespace") from None
    return session.spoken(joined(views.explanation(state, found)))


def _dry_run(session: Session) -> str:
    import yaml

    try:
        text = sys.stdin.read() if session.given.filename == "-" else Path(session.given.filename).read_text("utf-8")
        found = list(dryrun.pods_of(yaml.safe_load_all(text), session.namespace))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Failed(f"{session.given.filename}: {error}") from error
    rows = [dryrun.tried(session.kube, session.listening, name, pod) for name, pod in found]
    return session.table(dryrun.COLUMNS, rows, "No pod and no pod template in the manifest.")


def _advise(session: Session) -> str:
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
            return session.table(advised.COLUMNS, [], "No pod waits for a GPU share.")
    asked = advised.asked_for(cluster, waiter, given.gpus)
    done = advised.carried_out(session.kube, asked.evictions) if given.evict else {}
    if given.output in ("json", "yaml"):
        text = session.table(advised.COLUMNS, advised.rows(asked, done), "")
    else:
        text = joined(advised.sentences(asked, done, evicting=given.evict))
    if any(outcome != advised.EVICTED for outcome in done.values()):
        raise Failed(text.rstrip())
    return text


def _version(session: Session) -> str:
    kubernetes = ".".join(map(str, session.kube.version()))
    try:
        nodes = len(session.gpunodes())
    except (KubeError, Failed) as error:
        raise Failed(str(error), shown=_versions(session.given, kubernetes)) from error
    return _versions(session.given, kubernetes, nodes)


def _versions(given: argparse.Namespace, kubernetes: str | None = None, nodes: int | None = None) -> str:
    """This command's version, and the cluster's if known: a user who asks for versions often has a broken cluster."""
    try:
        plugin = metadata.version("gpufraction")
    except metadata.PackageNotFoundError:
        plugin = "unknown"
    row = {"plugin": plugin, "kubernetes": kubernetes, "nodes": nodes}
    return rendered(_VERSION, [row], form=given.output, colour=False, empty="")


def _inspect(session: Session) -> str:
    given = session.given
    nodes = [session.kube.get(paths.nodes(given.node))] if given.node else session.items(paths.nodes())
    names = {node["metadata"]["name"] for node in nodes}
    all_pods = session.items(paths.pods())
    gpunodes = session.items(paths.gpunodes(), KubeNotFound)
    state = ClusterView.of(gpunodes, nodes, all_pods, session.elasticgpus())
    unit = gpushare.unit_of(state)
    found = [node for node in gpushare.gpu_nodes(state, nodes, all_pods, unit) if node.name in names]
    return gpushare.details(found) if given.details else gpushare.summary(found, gpushare.unit_name(unit))


def _kueue_config(session: Session) -> str:
    import yaml

    base = Options(aliyun_unit=quantity.MIB if session.given.aliyun_unit == "MiB" else quantity.GIB)
    where = f"ConfigMap {names.NAMESPACE}/{names.OPTIONS}"
    try:
        found = session.kube.get(paths.configmaps(names.NAMESPACE, names.OPTIONS)).get("data") or {}
        return kueue.document(pool_options(yaml.safe_load(found.get(names.OPTIONS_FILE, ""))).cluster.reading(base))
    except KubeNotFound:
        return kueue.document(base)
    except (BadOption, yaml.YAMLError) as error:
        raise Failed(f"{where}: {error}") from None


_COMMANDS: Mapping[str, tuple[Callable[[Session], str], str]] = {
    "nodes": (_nodes, "every GPU: who shares it, what is free, whether it is well, what is enforced"),
    "pods": (_pods, "pods that asked for a GPU share, and where they have it"),
    "waiting": (_waiting, "the queue: which pods wait, for what, and why"),
    "pools": (_pools, "the pools from which nodes may come: what is asked for, and why nothing is"),
    "explain": (_explain, "why a pod waits, its place in the queue, and which pods' end would make room"),
    "advise": (
        _advise,
        "the fewest evictions that let a pod start, or free whole GPUs; changes nothing without --evict",
    ),
    "dry-run": (_dry_run, "where a manifest's pods would go now; changes nothing"),
    "kueue-config": (_kueue_config, "what Kueue needs in its configuration to count GPU shares of Jobs"),
    "version": (_version, "versions of this command and of the cluster"),
    "inspect": (_inspect, "the same text as kubectl-inspect-gpushare"),
}


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    # A flag may stand before or after the command. The one after it must not reset the one before it to its default.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    _add_common(common)
    top = argparse.ArgumentParser(
        prog="kubectl gpufraction", description="GPU shares: which pods have them, and which wait."
    )
    top.set_defaults(kubeconfig=None, context=None, namespace=None, all_namespaces=False, output="table", watch=False)
    _add_common(top, shown=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {name: commands.add_parser(name, help=says, parents=[common]) for name, (_, says) in _COMMANDS.items()}
    made["explain"].add_argument("pod", metavar="POD", help="name of a pod")
    wanted = made["advise"].add_mutually_exclusive_group()
    wanted.add_argument("pod", nargs="?", metavar="POD", help="a waiting pod; else the first in the queue")
    wanted.add_argument(
        "--gpus", type=_count, default=0, metavar="N", help="free so many whole GPUs of one node instead"
    )
    made["advise"].add_argument("--evict", action="store_true", help="do it: ask the API server for the evictions")
    made["dry-run"].add_argument("-f", "--filename", required=True, help="manifest; - reads the standard input")
    made["kueue-config"].add_argument(
        "--aliyun-unit", choices=("GiB", "MiB"), default="GiB", help="what one aliyun.com/gpu-mem is; GiB"
    )
    made["inspect"].add_argument("-d", "--details", action="store_true", help="pods of each node too")
    made["inspect"].add_argument("node", nargs="?", metavar="NODE", help="this node only")
    return top


def _add_common(to: argparse.ArgumentParser, *, shown: bool = True) -> None:
    """The flags of every command. `shown`: whether the help lists them."""

    def says(text: str) -> str:
        return text if shown else argparse.SUPPRESS

    to.add_argument("--kubeconfig", help=says("kubeconfig file; else $KUBECONFIG, else ~/.kube/config"))
    to.add_argument("--context", help=says("context in it"))
    to.add_argument("-n", "--namespace", help=says("namespace; else the context's"))
    to.add_argument("-A", "--all-namespaces", action="store_true", help=says("all namespaces"))
    to.add_argument("-o", "--output", choices=FORMS, help=says("form of the output"))
    to.add_argument("-w", "--watch", action="store_true", help=says("print again whenever it changes"))


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_GPUS:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {MOST_GPUS}")
    return number


def main(
    arguments: Sequence[str] | None = None,
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Run the command; the exit status. `stop` ends a watch."""
    out, err = out or sys.stdout, err or sys.stderr
    environment = os.environ if environment is None else environment
    try:
        given = parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    if given.watch and getattr(given, "evict", False):
        print("--evict is done once; leave --watch out", file=err)
        return 2
    try:
        session = _session(given, colour=out.isatty() and "NO_COLOR" not in environment)
        _print(session, out, stop or threading.Event())
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except KubeError as error:
        if given.command == "inspect":
            out.write(f"Failed due to {error}\n")
            return 1
        if given.command == "version":
            out.write(_versions(given))
            unreached = isinstance(error, KubeUnavailable | KubeConfigError) and error.status == 0
            what = "the cluster cannot be reached" if unreached else "the cluster does not report its version"
            print(f"{what}: {error}", file=err)
            return 1
        print(error, file=err)
        if isinstance(error, KubeForbidden) and (given.command in ("nodes", "advise") or given.all_namespaces):
            print("waiting, pods and explain need no more than to list the pods of your namespace", file=err)
        return 1
    except Failed as error:
        out.write(error.shown)
        print(error, file=err)
        return 1
    return 0


def _print(session: Session, out: TextIO, stop: threading.Event) -> None:
    """Print; with --watch again whenever the text changes, until stopped."""
    show, before = _COMMANDS[session.given.command][0], ""
    while True:
        text = show(session)
        if text != before:
            out.write(text if not before or session.given.output in ("json", "yaml") else f"\n{text}")
            out.flush()
            before = text
        if not session.given.watch or stop.wait(_EVERY):
            return


def _session(given: argparse.Namespace, *, colour: bool) -> Session:
    transport = connect_transport(kubeconfig=given.kubeconfig, context=given.context, user_agent=_AGENT)
    listening = dryrun.WarningTransport(transport)
    namespace = given.namespace or _namespace(given.kubeconfig, given.context)
    return Session(given, Kube(listening), listening, namespace, colour)


def _namespace(kubeconfig: str | None, context: str | None) -> str:
    """The context's namespace, as kubectl takes it."""
    from kubernetes import config

    try:
        listed: Any = config.list_kube_config_contexts
        contexts, active = listed(config_file=kubeconfig)
    except config.ConfigException as error:
        raise KubeConfigError(f"kubeconfig: {error}") from error
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str((chosen.get("context") or {}).get("namespace") or "default")


def run() -> None:
    """The entry of the single-file form: the process ends with the command's status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
