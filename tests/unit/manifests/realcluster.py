"""
A real kube-apiserver and its etcd on loopback, from the folder that KUBEBUILDER_ASSETS names (envtest's convention).

It has the base applied, but for the pods and the webhook configuration, which nothing here would serve.
"""

from __future__ import annotations

import datetime
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from playground.programs.probes import free_port
from webhook.certificates.authority import renewed

JSON = dict[str, Any]
ADMIN = "admin-token"
_DEADLINE = 60.0


@dataclass(frozen=True)
class Who:
    """A user to act as. `node`: the node that the user's token is bound to."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    node: str = ""


MASTER = Who("admin", ("system:masters", "system:authenticated"))


@dataclass(frozen=True)
class Answer:
    """What the API server said: the status code, and the object or Status."""

    code: int
    body: JSON

    @property
    def message(self) -> str:
        """The Status' message; empty for an object."""
        return str(self.body.get("message", ""))


class RealCluster:
    """Speaks to the server as anybody, by impersonation."""

    def __init__(self, url: str, authority: Path) -> None:
        self.url, self._context = url, ssl.create_default_context(cafile=str(authority))

    def call(self, who: Who, method: str, path: str, body: Any = None, *, form: str = "application/json") -> Answer:
        """One request. `form` is the body's media type."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method, headers=_headers(who, form))
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as reply:
                return Answer(reply.status, json.loads(reply.read()))
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, json.loads(refused.read()))

    def must(self, method: str, path: str, body: Any = None) -> JSON:
        """A request as administrator that has to succeed."""
        answer = self.call(MASTER, method, path, body)
        assert answer.code < 300, answer
        return answer.body

    def ready(self) -> bool:
        """Whether the server serves yet."""
        request = urllib.request.Request(self.url + "/readyz", headers={"Authorization": f"Bearer {ADMIN}"})
        try:
            with urllib.request.urlopen(request, timeout=2, context=self._context) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


def _headers(who: Who, form: str) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": form, "Impersonate-User": who.name}
    # One header of each name is all that urllib sends, so a user here has one group beside the implied one.
    headers["Impersonate-Group"] = who.groups[0]
    if who.node:
        headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = who.node
    return headers


@contextmanager
def running(directory: Path) -> Iterator[RealCluster]:
    """Start both, wait until the server is ready, and stop exactly these two in the end."""
    assets = Path(os.environ["KUBEBUILDER_ASSETS"])
    etcd, peers, port = _free_ports(3)
    bundle = renewed(None, datetime.datetime.now(datetime.UTC), ["localhost"])
    for name, content in (("ca.crt", bundle.ca), ("tls.crt", bundle.certificate), ("tls.key", bundle.key)):
        (directory / name).write_bytes(content)
    (directory / "tokens.csv").write_text(f"{ADMIN},admin,1,system:masters\n", encoding="utf-8")
    with ExitStack() as stack:
        stack.enter_context(_process([assets / "etcd", *_etcd_flags(directory, etcd, peers)], directory / "etcd.log"))
        server = [assets / "kube-apiserver", *_server_flags(directory, etcd, port)]
        started = stack.enter_context(_process(server, directory / "apiserver.log"))
        cluster = RealCluster(f"https://localhost:{port}", directory / "ca.crt")
        until(lambda: started.poll() is not None or cluster.ready(), "the API server is ready")
        assert started.poll() is None, (directory / "apiserver.log").read_text(encoding="utf-8")[-2000:]
        yield cluster


def _etcd_flags(directory: Path, port: int, peers: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    return [
        f"--data-dir={directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _server_flags(directory: Path, etcd: int, port: int) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",  # as every cluster has it whose GPU nodes work
        f"--tls-cert-file={directory / 'tls.crt'}",
        f"--tls-private-key-file={directory / 'tls.key'}",
        f"--token-auth-file={directory / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={directory / 'tls.crt'}",
        f"--service-account-signing-key-file={directory / 'tls.key'}",
        # Without controllers nobody makes the account that it wants in every namespace.
        "--disable-admission-plugins=ServiceAccount",
    ]


@contextmanager
def _process(command: list[Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out, subprocess.Popen([str(part) for part in command], stdout=out, stderr=out) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds, a minute at most."""
    end = time.monotonic() + _DEADLINE
    while not holds():
        assert time.monotonic() < end, f"waited {_DEADLINE:.0f} s in vain until {what}"
        time.sleep(0.1)


def kubeconfig(cluster: RealCluster, directory: Path) -> Path:
    """A kubeconfig of the administrator."""
    path = directory / "kubeconfig"
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": cluster.url, "certificate-authority": str(directory / "ca.crt")}}
        ],
        "users": [{"name": "u", "user": {"token": ADMIN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return path
