"""
Kubernetes Events (`v1`) as our programs write them.

One place renders them, so that `kubectl describe` and `kubectl get events` show the Events of every program alike.
"""

from __future__ import annotations

from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.wire import JSON

_LONGEST_NAME = 200
"""Characters of the object's name in the Event's name, which Kubernetes completes and limits to 253."""
_LONGEST_MESSAGE = 1024
"""Characters; the API server refuses an Event with a longer message."""
_NO_NAMESPACE = "default"
"""Where Kubernetes keeps the Events of objects that have no namespace."""


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
) -> None:
    """
    Write one Event about the object `involved` (see `about`), of type Warning or Normal. Raises `KubeError`.

    `at`: the time as Kubernetes writes it. `component`, `host`: the program that reports, and its node if it has one.
    `message` is cut to what the API server accepts.
    """
    namespace = involved.get("namespace") or _NO_NAMESPACE
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{involved['name'][:_LONGEST_NAME]}.", "namespace": namespace},
        "involvedObject": involved,
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "source": {"component": component, **({"host": host} if host else {})},
        "reportingComponent": component,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    kube.create(paths.events(namespace), event)
