"""The requests of our programs that faults can select, distinguished by what they are on the wire."""

from __future__ import annotations

import re

from contract import names
from runtime.kubernetes import paths
from tests.cluster.trouble.proxy import Request, Wanted

LEASE = paths.leases(names.NAMESPACE, "gpufraction-allocator")
_POD = re.compile(r"/api/v1/namespaces/default/pods/([^/]+)(/status)?")


def everything(request: Request) -> bool:
    """Every request of a program."""
    return True


def writes(request: Request) -> bool:
    """Every request that changes something."""
    return request.method != "GET"


def commits(name: str = "") -> Wanted:
    """The write that places a pod, or the pod of that name."""
    return _on_a_pod("PATCH", name, "")


def condition_of(name: str = "") -> Wanted:
    """The write of a pod's condition."""
    return _on_a_pod("PATCH", name, "/status")


def read_back(name: str = "") -> Wanted:
    """The read of one pod."""
    return _on_a_pod("GET", name, "")


def renewals(request: Request) -> bool:
    """The write by which a leader renews its term, or another replica becomes the leader."""
    return request.method == "PUT" and request.path == LEASE


def lists(request: Request) -> bool:
    """The read of a whole collection."""
    return request.method == "GET" and not request.watches and request.path in _COLLECTIONS


def watches(request: Request) -> bool:
    """The watch of a collection."""
    return request.watches


_COLLECTIONS = (
    paths.pods(),
    paths.nodes(),
    paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL),
)


def _on_a_pod(method: str, name: str, part: str) -> Wanted:
    def wanted(request: Request) -> bool:
        found = _POD.fullmatch(request.path)
        if request.method != method or found is None:
            return False
        return found[1] == (name or found[1]) and (found[2] or "") == part

    return wanted
