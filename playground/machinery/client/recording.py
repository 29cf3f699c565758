"""
Events: messages about an object for its user, from a controller, the scheduler or a kubelet.

A repeated Event increases the count of the existing one, as in client-go's recorder. So a pod that stays unschedulable
for an hour has one Event and not a thousand. An Event that cannot be written is dropped: no work may wait for it.
"""

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from playground.api.kinds.values import JSON, timestamp
from playground.machinery.client.client import EVENTS, Client, Refused

log = logging.getLogger(__name__)

_Key: TypeAlias = tuple[str, str, str]

REMEMBERED = 4096
MESSAGE_MAX = 1024
"""The characters that an Event's message may have (Kubernetes, Event v1)."""
NORMAL, WARNING = "Normal", "Warning"


class Recorder:
    """Writes Events in the name of one component. Thread safe."""

    def __init__(self, client: Client, component: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._lock = threading.Lock()
        self._recorded: OrderedDict[_Key, JSON] = OrderedDict()

    def event(self, about: JSON, type_: str, reason: str, message: str, *, host: str = "") -> None:
        """Write it; `host` is the node of the reporting kubelet."""
        message = message[:MESSAGE_MAX]
        key = (about["metadata"].get("uid", ""), reason, message)
        with self._lock:
            recorded = self._recorded.get(key)
            if recorded is not None and self._again(key, recorded):
                return
            answer = self._client.create(EVENTS, _namespace(about), self._make(about, type_, reason, message, host))
            if isinstance(answer, Refused):
                log.info("event dropped", extra={"reason": reason, "said": answer.message})
            else:
                self._remember(key, answer)

    def _again(self, key: _Key, recorded: JSON) -> bool:
        patch = {"count": recorded.get("count", 1) + 1, "lastTimestamp": timestamp(self._clock())}
        answer = self._client.patch(EVENTS, recorded, patch)
        if isinstance(answer, Refused):
            del self._recorded[key]
            return False
        self._remember(key, answer)
        return True

    def _remember(self, key: _Key, value: JSON) -> None:
        self._recorded[key] = value
        self._recorded.move_to_end(key)
        if len(self._recorded) > REMEMBERED:
            self._recorded.popitem(last=False)

    def _make(self, about: JSON, type_: str, reason: str, message: str, host: str) -> JSON:
        metadata, now = about["metadata"], timestamp(self._clock())
        involved = {
            "apiVersion": about.get("apiVersion", ""),
            "kind": about.get("kind", ""),
            "name": metadata["name"],
            "namespace": metadata.get("namespace", ""),
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        return {
            "metadata": {"name": f"{metadata['name'][:230]}.{uuid.uuid4().hex[:16]}", "namespace": _namespace(about)},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": type_,
            "reason": reason,
            "message": message,
            "source": {"component": self._component, **({"host": host} if host else {})},
            "reportingComponent": self._component,
            "reportingInstance": host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "eventTime": None,
            "count": 1,
        }


def _namespace(about: JSON) -> str:
    """Events about a Node are in `default`, as kubelet and the scheduler write them."""
    return str(about["metadata"].get("namespace") or "default")
