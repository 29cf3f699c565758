"""Watches all pods during a test: a pod behind another system's gate never has a share or a node."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from contract import names, pods
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
_LONGEST = 600


@contextlib.contextmanager
def watching(kube: Kube) -> Iterator[None]:
    """Assert at the end that every state that the API server showed during the test was right."""
    version = kube.list(paths.pods()).resource_version
    wrong: list[str] = []
    opened: list[Callable[[], None]] = []
    ready = threading.Event()

    def on_open(close: Callable[[], None]) -> None:
        opened.append(close)
        ready.set()

    def run() -> None:
        with contextlib.suppress(KubeError, OSError, ValueError):
            for event in kube.watch(paths.pods(), resource_version=version, timeout_seconds=_LONGEST, on_open=on_open):
                if event["type"] in ("ADDED", "MODIFIED") and (problem := _problem(event["object"])):
                    wrong.append(problem)

    thread = threading.Thread(target=run, name="witness", daemon=True)
    thread.start()
    assert ready.wait(10), "the watch of the pods does not open"
    try:
        yield
    finally:
        for close in opened:
            close()
        thread.join(10)
    assert wrong == []


def _problem(pod: JSON) -> str:
    foreign = [gate for gate in pods.gates(pod) if gate != names.GATE]
    share, node = names.ALLOCATION in pods.annotations_of(pod), pod["spec"].get("nodeName", "")
    if foreign and (share or node):
        return f"{pods.key(pod)} is behind {', '.join(foreign)} and has {'a share' if share else f'the node {node}'}"
    return ""
