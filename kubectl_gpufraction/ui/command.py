"""
`kubectl gpufraction ui`: start the page's server, print its address, and serve until Ctrl-C.

The address is printed and not opened in a browser: a browser is started with the address among its arguments, which
every user of the machine can read, and the token with it.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import urlsplit

from contract import kinds, names
from contract.encoding.plain import NAME, plain
from contract.options import NO_OPTIONS, BadOption, PoolOptions
from kubectl_gpufraction import connection
from kubectl_gpufraction.check import reader as checked
from kubectl_gpufraction.cluster import options
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.terminal import Terminal
from kubectl_gpufraction.session import Command, Exit, Failed, Session
from kubectl_gpufraction.ui import pages, usage
from kubectl_gpufraction.ui.health import InstallationHealth, LeaseWatch
from kubectl_gpufraction.ui.pages import About, Selection
from kubectl_gpufraction.ui.reading import LEAST_REST, KeptAnswers, PictureReader
from kubectl_gpufraction.ui.server import LIMITS, routes, routes_for_viewers
from kubectl_gpufraction.ui.viewers import Tokens, Viewer, Viewers, by_proxy, by_token
from runtime.httpserver import HttpError, HttpServer, Routes, serve_http
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeBadName, KubeError, KubeForbidden, KubeNotFound
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]
_TOKEN_BYTES = 24
_LOOPBACK = "127.0.0.1"
_EVENTS_READ = 200
"""Events of one pod that are read; a pod that fails for days has many."""
_EVENTS_PAGE = 50
_USE_KEPT, _USE_TIMEOUT = 30.0, 15.0
"""Seconds for which the answer about the use of GPUs is kept, and that Prometheus has for one."""
VIEWERS = ("account", "token", "proxy")
_MOST_NAMESPACES, _NAMESPACES_KEPT = 200, 300.0
"""Enabled namespaces in which the viewer's rights are tried, and seconds for which their names are kept."""
_PAGES_READ = 8
"""Anyone who may create Events chooses how long they are: a page has 8 MiB at most, or is one Event."""


def add_arguments(to: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    to.add_argument("--port", type=_port, default=0, metavar="PORT", help="port on 127.0.0.1; default: any free one")
    to.add_argument(
        "--listen",
        type=_address,
        default=None,
        metavar="ADDRESS:PORT",
        help="serve there without a token: everyone who can connect sees what this account may see",
    )
    to.add_argument(
        "--viewers",
        choices=VIEWERS,
        default="account",
        help="with --listen, by whose rights the page reads: account (one for all), token (the bearer token of each "
        "request), or proxy (the user whom the proxy of --proxy-account names, by impersonation)",
    )
    to.add_argument(
        "--proxy-account",
        type=_account,
        default=None,
        metavar="NAMESPACE/NAME",
        help="with --viewers=proxy: the service account whose token the proxy sends",
    )
    to.add_argument("--host", action="append", default=[], metavar="NAME", help="a name of this server, with --listen")
    to.add_argument(
        "--cluster-name",
        default="",
        metavar="NAME",
        help="the cluster's name on the page; default: its name in the kubeconfig",
    )
    to.add_argument(
        "--prometheus",
        type=_service,
        default=None,
        metavar="NAMESPACE/SERVICE:PORT",
        help="show the real use of GPUs: Prometheus' Service, which is queried through the API server with your rights",
    )
    to.add_argument("--dashboard", type=_link, default=None, metavar="URL", help="link to this dashboard")


def _account(text: str) -> str:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAMESPACE/NAME, such as auth/oauth2-proxy")
    return text


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address:
        raise argparse.ArgumentTypeError(f"{text!r}: expected ADDRESS:PORT, such as [::]:9405")
    return address.removeprefix("[").removesuffix("]"), _port(port)


def _service(text: str) -> str:
    """The path of the Service's proxy on the API server."""
    namespace, _, service = text.partition("/")
    try:
        if not namespace or not service.rpartition(":")[0]:
            raise KubeBadName(text)
        return paths.path("v1", "services", namespace, service, "proxy")
    except KubeBadName:
        expected = "expected NAMESPACE/SERVICE:PORT, such as monitoring/prometheus-operated:9090"
        raise argparse.ArgumentTypeError(f"{text!r}: {expected}") from None


def _link(text: str) -> str:
    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).netloc:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an address that begins with https:// or http://")
    return text


@contextlib.contextmanager
def serving(
    kube: Kube,
    read: Callable[[], ClusterView],
    namespace: str,
    *,
    token: str,
    address: tuple[str, int] = (_LOOPBACK, 0),
    hosts: Collection[str] = (),
    errors: tuple[type[Exception], ...] = (KubeError,),
    least_rest: float = LEAST_REST,
    about: Callable[[ClusterView], About] = lambda _: About(),
    prometheus: str | None = None,
) -> Iterator[HttpServer]:
    """
    The page's server while it runs.

    `read` gives the cluster, `about` the rest of the page, and both may raise one of `errors`; `token`: see
    `server.routes`; `prometheus`: the path of its proxy. Raises OSError if the address is taken.
    """
    reader = PictureReader(read, namespace, errors=errors, least_rest=least_rest, about=about)
    try:
        served = _routes(kube, reader, prometheus, least_rest, token=token, hosts=hosts)
        server = serve_http(served, address, name="ui", limits=LIMITS)
        try:
            yield server
        finally:
            server.close(1.0)
    finally:
        reader.close()


def _routes(
    kube: Kube,
    reader: PictureReader,
    prometheus: str | None,
    least_rest: float,
    *,
    token: str = "",
    hosts: Collection[str] = (),
) -> Routes:
    """The routes for one reader's pictures."""
    stories = KeptAnswers[tuple[str, str]](lambda key: _story(kube, reader, *key), keep=least_rest)
    use = None
    if prometheus is not None:
        use = KeptAnswers[Selection](lambda wanted: _use(kube, reader, prometheus, wanted), keep=_USE_KEPT)
    return routes(reader, stories, use, token=token, hosts=hosts)


@contextlib.contextmanager
def serving_viewers(
    session: Session,
    *,
    address: tuple[str, int],
    hosts: Collection[str] = (),
    least_rest: float = LEAST_REST,
) -> Iterator[HttpServer]:
    """The page's server where each viewer reads with their own rights. Raises OSError if the address is taken."""
    given = session.given
    tokens = Tokens(session.kube)
    identify = by_token(tokens) if given.viewers == "token" else by_proxy(tokens, given.proxy_account or "")
    served = ServedNamespaces(session.kube)

    def make(viewer: Viewer) -> tuple[Routes, Callable[[], None]]:
        own = _session_of(session, viewer)
        reader = PictureReader(
            lambda: served.view(own),
            own.namespace,
            errors=(KubeError, Failed),
            least_rest=least_rest,
            about=_Around(own).read,
        )
        return _routes(own.kube, reader, given.prometheus, least_rest, hosts=hosts), reader.close

    viewers = Viewers(identify, make)
    try:
        found = routes_for_viewers(viewers.answering, use=given.prometheus is not None, hosts=hosts)
        server = serve_http(found, address, name="ui", limits=LIMITS)
        try:
            yield server
        finally:
            server.close(1.0)
    finally:
        viewers.close()


def _session_of(session: Session, viewer: Viewer) -> Session:
    """A session in which everything is read as the viewer."""
    given = session.given
    if viewer.token:
        transport = connection.connect_with_token(given.kubeconfig, given.context, viewer.token)
    else:
        transport = connection.connect(
            given.kubeconfig, given.context, user=viewer.name, groups=viewer.groups, timeout=None
        )
    listening = WarningTransport(transport)
    return Session(given, Kube(listening), listening, session.namespace)


class ServedNamespaces:
    """
    The view of one viewer: the whole cluster, or the pods of those enabled namespaces in which they may list pods. The
    page's own account reads which namespaces are enabled.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._lock = threading.Lock()
        self._names: tuple[str, ...] = ()
        self._until = float("-inf")

    def view(self, session: Session) -> ClusterView:
        """Raises `KubeError`, also if the viewer may see nothing at all."""
        try:
            return session.state()
        except KubeForbidden as forbidden:
            found, seen = list[JSON](), False
            for namespace in self._enabled():
                with contextlib.suppress(KubeForbidden):
                    found += session.pods(namespace)
                    seen = True
            if not seen:
                raise forbidden
            return ClusterView.of((), (), found, whole=False)

    def _enabled(self) -> tuple[str, ...]:
        with self._lock:
            if time.monotonic() > self._until:
                query = {"labelSelector": f"{names.INJECT_LABEL}={names.INJECT_ENABLED}"}
                listed = self._kube.list(paths.namespaces(), query, of=kinds.NAMESPACES).items
                known = sorted(str((each.get("metadata") or {}).get("name", "")) for each in listed)
                self._names = tuple(known[:_MOST_NAMESPACES])
                self._until = time.monotonic() + _NAMESPACES_KEPT
            return self._names


def of_session(
    session: Session,
    *,
    token: str,
    address: tuple[str, int] = (_LOOPBACK, 0),
    hosts: Collection[str] = (),
    least_rest: float = LEAST_REST,
) -> contextlib.AbstractContextManager[HttpServer]:
    """The page's server by the session's flags; see `serving`."""
    return serving(
        session.kube,
        session.seen,
        session.namespace,
        token=token,
        address=address,
        hosts=hosts,
        errors=(KubeError, Failed),
        least_rest=least_rest,
        about=_Around(session).read,
        prometheus=session.given.prometheus,
    )


def _story(kube: Kube, reader: PictureReader, namespace: str, name: str) -> JSON:
    """
    A pod and its Events, read with the rights of the account that serves the page. Raises HttpError.

    Only for a pod that has a share or waits for one: nothing is read of others, and the answer does not reveal whether
    they exist.
    """
    try:
        where = paths.pods(namespace, name)
    except KubeBadName:
        raise HttpError(400, "namespace, name: expected the names of a namespace and of a pod") from None
    seen = reader.current()
    if seen.picture is None:
        raise HttpError(503, seen.why or "the API server has not answered yet")
    missing = HttpError(404, f"no pod {namespace}/{name} has a share or waits for one (any more)")
    found = seen.picture.pod(namespace, name)
    if found is None:
        raise missing
    try:
        pod = kube.get(where)
    except KubeNotFound:
        raise missing from None
    except KubeError as error:
        raise HttpError(502, str(error)) from None
    # The picture is some seconds old; meanwhile a pod may have finished, and another one may have its name.
    if not ClusterView.of((), (), (pod,)).pods:
        raise missing
    return pages.story(seen.picture, found, pod, *_events(kube, pod))


def _use(kube: Kube, reader: PictureReader, prometheus: str, wanted: Selection) -> JSON:
    """The usage of the selected nodes' GPUs in the last hour; `why`: why it is unknown, or empty."""
    picture = reader.current().picture
    nodes = [row["name"] for row in picture.gpus(wanted)["rows"]] if picture is not None else []
    end = int(time.time()) // usage.STEP * usage.STEP
    try:
        answers = {
            figure: kube.get(f"{prometheus}/api/v1/query_range", usage.query(figure, nodes, end), timeout=_USE_TIMEOUT)
            for figure in usage.FIGURES
            if nodes
        }
    except KubeForbidden:
        return {"gpus": {}, "why": f"you may not get {prometheus.removeprefix('/api/v1/')}"}
    except KubeError as error:
        return {"gpus": {}, "why": str(error)}
    return {"gpus": usage.figures(answers, end), "why": ""}


class _Around:
    """Reads the parts of the page besides GPUs and pods: whether the programs work, what is not listed, the
    pools."""

    def __init__(self, session: Session) -> None:
        given = session.given
        self._session = session
        self._lease = LeaseWatch()
        self._cluster = plain(given.cluster_name or cluster_name(given.kubeconfig, given.context), NAME)

    def read(self, view: ClusterView) -> About:
        """The view that the user's rights allow. Raises `KubeError` if the API server does not answer."""
        session, given = self._session, self._session.given
        facts = checked.running(session.kube, session.now())
        return About(
            self._cluster,
            given.dashboard or "",
            given.prometheus is not None,
            InstallationHealth(facts, self._lease.unchanged(facts.lease, time.monotonic())),
            () if view.whole else tuple(session.unlisted()),
            self._options(),
            tuple(session.unserved(view, everywhere=True)),
        )

    def _options(self) -> PoolOptions:
        try:
            return options.options_of(self._session.kube.get(paths.configmaps(names.NAMESPACE, names.OPTIONS)))
        except (KubeError, BadOption):  # the page then groups by the cloud's pools
            return NO_OPTIONS


def cluster_name(kubeconfig: str | None, context: str | None) -> str:
    """The name of the context's cluster in the kubeconfig; empty without one, as in a pod."""
    from kubernetes import config

    try:
        listed: Any = config.list_kube_config_contexts
        contexts, active = listed(config_file=kubeconfig)
    except Exception:  # its errors depend on what is wrong with the file; the page needs no name
        return ""
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str((chosen.get("context") or {}).get("cluster") or "")


def _events(kube: Kube, pod: JSON) -> tuple[list[JSON], str]:
    """The Events of exactly this pod that are read, and why not all of them can be shown."""
    metadata, found = pod["metadata"], list[JSON]()
    try:
        about = {"kind": "Pod", "name": str(metadata["name"]), "uid": str(metadata.get("uid") or "none")}
        query = {"fieldSelector": paths.fields({f"involvedObject.{key}": value for key, value in about.items()})}
        where, trim = paths.events(str(metadata["namespace"])), pages.trimmed_event
        parts = kube.pages(where, query, _EVENTS_PAGE, of=kinds.EVENTS, trim=trim)
        for number, part in enumerate(parts, 1):
            found = part.items if part.first else found + part.items
            if not part.last and (number >= _PAGES_READ or len(found) >= _EVENTS_READ):
                return found[:_EVENTS_READ], "this pod has more Events than are read"
    except KubeForbidden:
        return [], "no right to list Events in this namespace"
    except KubeError as error:
        return [], str(error)
    return found, ""


def serve(session: Session, out: Terminal, stop: threading.Event) -> int:
    """Serve until `stop`, Ctrl-C or SIGTERM; the exit status."""
    given = session.given
    token = "" if given.listen else secrets.token_urlsafe(_TOKEN_BYTES)
    address = given.listen or (_LOOPBACK, given.port)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs are started with SIGINT ignored
            signal.signal(number, lambda *_: stop.set())
    if given.viewers != "account" and not given.listen:
        raise Failed(f"--viewers={given.viewers} needs --listen", status=Exit.USAGE)
    if (given.viewers == "proxy") != bool(given.proxy_account):
        raise Failed("--viewers=proxy and --proxy-account go together", status=Exit.USAGE)
    page = (
        of_session(session, token=token, address=address, hosts=given.host)
        if given.viewers == "account"
        else serving_viewers(session, address=address, hosts=given.host)
    )
    try:
        with page as server:
            out.say(f"http://{address[0]}:{server.port}/{token and token + '/'}")
            if token:
                out.say("Open it in a browser on this machine. Ctrl-C ends it.")
            stop.wait()
    except OSError as error:
        raise Failed(f"{address[0]}:{address[1]}: {error.strerror or error}; --port chooses another port") from error
    return Exit.OK


def run(session: Session) -> CommandOutput:
    """As `serve`, on the standard output."""
    serve(session, Terminal(sys.stdout), threading.Event())
    return CommandOutput()


COMMAND = Command(
    "ui",
    "show GPUs, the queue and each pod's history in a browser, on this machine only",
    run,
    add_arguments,
    flags=frozenset(("namespace",)),
    example="""\
# Print the page's address, and serve it until Ctrl-C
kubectl gpufraction ui --port 8080""",
)
