"""
The harness's kube-apiserver with the base applied, except the pods and the webhook configuration, which nothing here
would serve; and requests to it as any user.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from playground.api.kinds.values import ADMIN
from playground.realapi.components import assets_of
from playground.realapi.server import RealServer

JSON = dict[str, Any]
_MISSING = assets_of(os.environ)
REAL = pytest.mark.skipif(isinstance(_MISSING, str), reason=str(_MISSING))
"""For tests that need it: skipped if the folder of KUBEBUILDER_ASSETS is missing."""


@dataclass(frozen=True)
class Who:
    """A user to act as. `node`: the node that the user's token is bound to."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    node: str = ""


MASTER = Who("admin", ("system:masters", "system:authenticated"))


@dataclass(frozen=True)
class Answer:
    """The API server's answer: the status code, and the object or Status."""

    code: int
    body: JSON

    @property
    def message(self) -> str:
        """The Status' message; empty for an object."""
        return str(self.body.get("message", ""))


class RealCluster:
    """A client of the server as any user, by impersonation."""

    def __init__(self, server: RealServer) -> None:
        self.url, self.kubeconfig = server.url, server.certified(ADMIN)
        """A client of the server as an administrator."""
        self._context = ssl.create_default_context(cadata=server.authority.pem.decode())
        self._context.load_cert_chain(*server.files.client(ADMIN))

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
        """A request as administrator that must succeed."""
        answer = self.call(MASTER, method, path, body)
        assert answer.code < 300, answer
        return answer.body


def _headers(who: Who, form: str) -> dict[str, str]:
    headers = {"Content-Type": form, "Impersonate-User": who.name}
    # urllib sends only one header of each name, so a user here has one group in addition to the implied one.
    headers["Impersonate-Group"] = who.groups[0]
    if who.node:
        headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = who.node
    return headers


@contextmanager
def running() -> Iterator[RealCluster]:
    """An API server alone, on which only policies and RBAC refuse anything."""
    assets = assets_of(os.environ)
    assert not isinstance(assets, str), assets
    # Without controllers nothing creates the account that ServiceAccount requires in every namespace, and
    # NodeRestriction would refuse what our own policies must refuse.
    with RealServer(assets, enabled=(), disabled=("ServiceAccount",)) as server:
        yield RealCluster(server)
