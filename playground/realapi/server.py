"""
A real kube-apiserver and its etcd: the harness of all tests with a real API server.

Both listen on loopback only, are ended by their process ids, and leave no files behind.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from playground.api.http.certificates import Authority
from playground.api.kinds.values import ADMIN, User
from playground.programs.installing import takes_pods
from playground.programs.process import Program, ProgramFailed
from playground.realapi import components
from playground.realapi.components import Assets, Files, Ports
from playground.waiting import NotInTime, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.transport import Transport, connect_transport

JSON = dict[str, Any]
_BOUND = {"authentication.kubernetes.io/node-name": "Node", "authentication.kubernetes.io/pod-name": "Pod"}
"""The objects to which a token can be bound, by the key that the API server then adds to its user's `extra`."""
_ACCOUNT = "system:serviceaccount:"
_READY_SECONDS = 60.0
_TOKEN_SECONDS = 24 * 3600
_PAUSE = 0.1


class NotReady(Exception):
    """The control plane does not serve; the message says what is missing."""


class RealServer:
    """
    Start with `start`, end with `stop`, or use it as a context.

    `enabled` and `disabled`: admission plugins, in addition to those that are on by default. NodeRestriction is off by
    default, but on in every installed cluster. `audit`: the file that gets an event for each write, without its object.
    """

    def __init__(
        self,
        assets: Assets,
        *,
        enabled: Sequence[str] = ("NodeRestriction",),
        disabled: Sequence[str] = (),
        audit: Path | None = None,
    ) -> None:
        self.assets = assets
        self.directory = Path(tempfile.mkdtemp(prefix="real-"))
        self.ports = Ports.free()
        self.authority = Authority()
        self.files = Files(self.directory / "pki", self.authority)
        self.programs: dict[str, Program] = {}
        self._flags = [*components.plugins("enable", enabled), *components.plugins("disable", disabled)]
        if audit is not None:
            self._flags += components.auditing(self.directory, audit)

    def __enter__(self) -> RealServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self.ports.api}"

    def identify_to_webhooks(self, certificate: bytes, key: bytes) -> None:
        """Present this client certificate (PEM) to webhooks. Call it before the start."""
        self._flags += components.identifying(self.directory, certificate, key)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start both; the API server answers when this returns. Raises `NotReady`."""
        self.files.write()
        self.add("etcd", components.etcd_flags(self.ports, self.directory / "etcd")).start()
        self.add("kube-apiserver", self._apiserver_flags()).start()
        self._await_ready()

    def _apiserver_flags(self) -> Iterator[str]:
        yield from components.apiserver_flags(self.ports, self.files)
        yield from components.gates(self.assets.minor())
        yield from self._flags

    def stop(self) -> None:
        """End every program, and remove the directory."""
        for program in reversed(self.programs.values()):
            program.terminate()
            program.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def restart(self, *, crash: bool = False) -> None:
        """End kube-apiserver and start it again on the same port and the same store. Raises `NotReady`."""
        program = self.programs["kube-apiserver"]
        if crash:
            program.kill()
        else:
            program.terminate()
            program.wait()
        program.start()
        self._await_ready()

    def await_namespace(self, name: str) -> None:
        """Wait until pods can be created there. Raises `NotReady`."""
        kube = self.kube()
        self._await(lambda: takes_pods(kube, name), f"namespace {name} has no default service account")

    # -- credentials ----------------------------------------------------------------------------------------------

    def kubeconfig(self, user: User) -> str:
        """
        A kubeconfig, as YAML, with which a client is that user.

        A service account gets a token that the API server issued, bound to its node or pod if the user has one, as its
        pod's would be; any other user gets a client certificate. Raises ValueError for a user that neither can express.
        """
        if user.name.startswith(_ACCOUNT):
            return self._document({"token": self._token(user)})
        if user.extra:
            raise ValueError(f"user {user.name}: extra {sorted(user.extra)} can only be had by a service account")
        return self._certified(user)

    def _token(self, user: User) -> str:
        namespace, _, name = user.name.removeprefix(_ACCOUNT).partition(":")
        spec: JSON = {"expirationSeconds": _TOKEN_SECONDS}
        others = sorted(set(user.extra) - set(_BOUND))
        if others or len(user.extra) > 1:
            raise ValueError(
                f"user {user.name}: extra {others or sorted(user.extra)} is nothing that a token can carry"
            )
        for key, (name_of_bound,) in user.extra.items():
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": _BOUND[key], "name": name_of_bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.kube().create(paths.path("v1", "serviceaccounts", namespace, name, "token"), request)
        return str(answer["status"]["token"])

    def _certified(self, user: User) -> str:
        certificate, key = self.authority.client(user)
        return self._document({"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)})

    def _document(self, credentials: JSON) -> str:
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.authority.pem)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": credentials}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
            "current-context": "real",
        }
        return json.dumps(document, indent=1)  # which is YAML too

    def certified(self, user: User) -> Path:
        """
        A file with a kubeconfig in which the user has a client certificate. It lies in the directory.

        The file is replaced atomically, because a program may be reading the earlier one.
        """
        path = self.directory / f"kubeconfig-{user.name.replace(':', '-')}"
        whole = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        whole.touch(mode=0o600)
        whole.write_text(self._certified(user))
        return whole.replace(path)

    def connect(self, user: User) -> Transport:
        """A transport as that user."""
        return connect_transport(kubeconfig=str(self.certified(user)), context=None, user_agent="playground")

    def kube(self) -> Kube:
        """A client as administrator."""
        return Kube.connect(kubeconfig=str(self.certified(ADMIN)), user_agent="playground")

    # -- processes ------------------------------------------------------------------------------------------------

    def add(self, name: str, flags: Iterable[str]) -> Program:
        """Add a program of the folder. It is not started yet, and `stop` ends it."""
        program = self.assets.program(name, list(flags), self.directory)
        self.programs[name] = program
        return program

    def _await_ready(self) -> None:
        kube = self.kube()

        def ready() -> bool:
            try:
                return kube.text("/readyz", timeout=2.0) == "ok"
            except KubeError:
                return False

        self._await(ready, "kube-apiserver is not ready")

    def _await(self, done: Callable[[], bool], missing: str) -> None:
        def done_by_living() -> bool:
            for program in self.programs.values():
                program.check()
            return done()

        try:
            wait_for(done_by_living, missing, _READY_SECONDS, every=_PAUSE)
        except (NotInTime, ProgramFailed) as error:
            raise NotReady(str(error)) from error


def called_by_url(configuration: JSON, port: int) -> JSON:
    """A webhook configuration that calls a loopback port by URL, because no process here implements Services."""
    reached = deepcopy(configuration)
    for webhook in reached["webhooks"]:
        service = webhook["clientConfig"].pop("service")
        webhook["clientConfig"]["url"] = f"https://localhost:{port}{service.get('path', '/')}"
    return reached


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
