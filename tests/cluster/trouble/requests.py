"""The requests of our programs that things happen to, told apart by what they are on the wire."""

from __future__ import annotations

import re

from contract import names
from runtime.kubernetes import paths
from tests.cluster.trouble.proxy import Request, Wanted

LEASE = paths.leases(names.NAMESPACE, "gpufraction-allocator")
_POD = re.compile(r"/api/v1/namespaces/default/pods/([^/]+)(/status)?")


def everything(asked: Request) -> bool:
    """Whatever a program asks."""
    return True


def writes(asked: Request) -> bool:
    """Whatever changes something."""
    return asked.method != "GET"


def commits(name: str = "") -> Wanted:
    """The write that places a pod, or the pod of that name."""
    return _on_a_pod("PATCH", name, "")


def told(name: str = "") -> Wanted:
    """The write that says on a pod what became of it."""
    return _on_a_pod("PATCH", name, "/status")


def read_back(name: str = "") -> Wanted:
    """The reading of one pod."""
    return _on_a_pod("GET", name, "")


def renewals(asked: Request) -> bool:
    """The write by which a leader stays one, or another becomes it."""
    return asked.method == "PUT" and asked.path == LEASE


def lists(asked: Request) -> bool:
    """The reading of a whole collection."""
    return asked.method == "GET" and not asked.watches and asked.path in _COLLECTIONS


def watches(asked: Request) -> bool:
    """The following of a collection."""
    return asked.watches


_COLLECTIONS = (
    paths.pods(),
    paths.nodes(),
    paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL),
)


def _on_a_pod(method: str, name: str, part: str) -> Wanted:
    def wanted(asked: Request) -> bool:
        found = _POD.fullmatch(asked.path)
        if asked.method != method or found is None:
            return False
        return found[1] == (name or found[1]) and (found[2] or "") == part

    return wanted
