"""
Kubernetes Events (`v1`) as our programs write them.

One place renders them, so that `kubectl describe` and `kubectl get events` show the Events of every program alike.
"""

from __future__ import annotations

import hashlib

from contract.encoding.plain import plain
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict
from runtime.kubernetes.wire import JSON

_LONGEST_NAME = 200
"""Characters of the object's name in the Event's name, which Kubernetes completes and limits to 253."""
_NO_NAMESPACE = "default"
"""The namespace in which Kubernetes keeps the Events of objects without one."""


def about(kind: str, namespace: str, name: str, uid: str, *, version: str = "v1") -> JSON:
    """The reference to the object that an Event is about. `namespace`: empty for a kind that has none."""
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": uid}
    return {**reference, "namespace": namespace} if namespace else reference


def record(
    kube: Kube,
    involved: JSON,
    *,
    reason: str,
    message: str,
    at: str,
    component: str,
    host: str = "",
    warns: bool = True,
    once: str = "",
) -> None:
    """
    Write one Event about the object `involved` (see `about`), of type Warning or Normal. Raises `KubeError`.

    `at`: the time as Kubernetes writes it. `component`, `host`: the program that reports, and its node if it has one.
    `message` is made fit to be shown and cut to what the API server accepts. Events with the same `once` have one name,
    so there is one of them, even if recorded several times; empty: each has its own.
    """
    namespace = involved.get("namespace") or _NO_NAMESPACE
    start = f"{involved['name'][:_LONGEST_NAME]}."
    named = {"name": start + hashlib.sha256(once.encode()).hexdigest()[:16]} if once else {"generateName": start}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {**named, "namespace": namespace},
        "involvedObject": involved,
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": plain(message),
        "source": {"component": component, **({"host": host} if host else {})},
        "reportingComponent": component,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    try:
        kube.create(paths.events(namespace), event)
    except KubeConflict:
        if not once:
            raise
