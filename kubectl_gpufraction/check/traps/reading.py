"""
Reads which of the programs run, and the objects that their traps concern, with the user's own rights.

It lists two kinds of workloads in any cluster. It lists a program's objects only where the API server serves the kind.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from kubectl_gpufraction.check.facts import Programs
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.check.requests import absent, listed, tried
from kubectl_gpufraction.check.traps.table import DAEMONSETS, DEPLOYMENTS, PROGRAMS
from kubectl_gpufraction.check.traps.view import CLUSTER, PODS
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
_GROUPS = "/apis"
_FIRST = (DEPLOYMENTS, DAEMONSETS)
"""Kinds that are read in any cluster."""
_WITHOUT_PROGRAM = "autoscaling.x-k8s.io"
"""A group that a condition looks for."""


def read(kube: Kube) -> Programs:
    """The served kinds and the running programs. Raises no errors of the API server; an unreadable part is `Unseen`."""
    served = tried("read which kinds are served", lambda: _served(kube))
    if isinstance(served, Unseen):
        return Programs(unseen=served)
    found = [each for each in PROGRAMS if each.kind in served]
    wanted = dict.fromkeys(_FIRST)
    wanted |= dict.fromkeys(kind for each in found for trap in each.traps for kind in (*trap.kinds, *trap.besides))
    read_here = [kind for kind in wanted if kind not in (CLUSTER, PODS) and kind in served]
    configmaps = {name for each in found for trap in each.traps for name in trap.configmaps}
    return Programs(
        served=frozenset(served),
        objects={
            kind: listed(kube, served[kind], f"{kind.removesuffix('.apps')} of all namespaces") for kind in read_here
        },
        configmaps={
            name: tried(
                f"get the ConfigMap {name}", functools.partial(absent, kube, paths.configmaps(*name.split("/")))
            )
            for name in sorted(configmaps)
        },
    )


def _served(kube: Kube) -> dict[str, str]:
    """The collection of each requested kind, by `PLURAL.GROUP`."""
    wanted = {_group(kind) for each in PROGRAMS for trap in each.traps for kind in trap.kinds}
    wanted |= {_group(each.kind) for each in PROGRAMS} | {_WITHOUT_PROGRAM}
    found = dict[str, str]()
    for group in kube.get(_GROUPS).get("groups") or ():
        name, version = str(group.get("name")), str((group.get("preferredVersion") or {}).get("groupVersion"))
        if name in wanted:
            found |= {f"{plural}.{name}": paths.path(version, plural) for plural in _plurals(kube, version)}
    return found


def _plurals(kube: Kube, version: str) -> Iterable[str]:
    """The plurals that a version of a group serves; none if the group does not answer, such as an aggregated one."""
    try:
        answer = kube.get(f"/apis/{version}")
    except KubeError:
        return ()
    return [str(each.get("name")) for each in answer.get("resources") or () if "/" not in str(each.get("name"))]


def _group(kind: str) -> str:
    return kind.partition(".")[2]
