"""
The recorder as it runs: informers of nodes, GPUNodes and pods on their threads, the recorder and its files behind one
lock.

It only lists and watches. Nodes are listed before pods, because a pod without a GPU is recorded only on nodes with
cards. A failed write to the disk ends the process, which then starts again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from contract import kinds, names, pods
from runtime.httpserver import PROBED, Serve, Server, serve_http
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Deleted, Event, Informer, Part, Put, Replaced
from runtime.metrics import Metrics
from runtime.process import HealthChecks, Process, health_routes
from shadow.recording.recorder import Recorder
from shadow.recording.records import Record
from shadow.recording.store import RecordingWriter
from shadow.settings import RecorderSettings

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_LEFT_OUT_EVERY = 60.0
_STALE_AFTER = 180.0
_NODES_FIRST = 60.0
"""Seconds for which pods wait for the list of nodes; after them they are recorded without it."""


class RunningRecorder:
    """The parts that must be stopped."""

    def __init__(self, settings: RecorderSettings, kube: Kube, process: Process, clock: Callable[[], float]) -> None:
        self._lock = threading.Lock()  # guards the recorder and its files
        self._clock = clock
        self._process = process
        self._recorder = Recorder()
        self._writer = RecordingWriter(settings.directory, lambda: self._recorder.snapshot(clock()), most=settings.size)
        self._nodes = self._informer(kube, "nodes", paths.nodes(), kinds.RECORDED_NODES, self._node)
        self._gpunodes = self._informer(
            kube,
            "gpunodes",
            paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL),
            kinds.GPUNODES,
            self._gpunode,
            optional=True,
        )
        self._pods = self._informer(kube, "pods", paths.pods(), kinds.RECORDED_PODS, self._pod, parts=True)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """All of them."""
        return self._nodes, self._gpunodes, self._pods

    def start(self) -> None:
        """Begin to record. Raises `OSError` if the folder cannot be written."""
        with self._lock:
            self._writer.open()
            self._writer.write(self._recorder.begin(self._clock()))
        self._nodes.start()
        self._gpunodes.start()
        self._process.spawn("recording", self._run)

    def stop(self) -> None:
        """End the watches, and write the remaining records."""
        for informer in self.informers:
            informer.stop()
        with self._lock:
            self._writer.write(self._recorder.left_out(self._clock()))
            self._writer.close()

    def problem(self) -> str | None:
        """Why nothing is recorded now; None where it is."""
        if not self._recorder.synced:
            return "nodes and pods have not been listed"
        for informer in (self._nodes, self._pods):
            age = informer.age()
            if age is not None and age > _STALE_AFTER:
                return f"no news from the watch of {informer.name} for {age:.0f} s"
        return None

    def _run(self) -> None:
        self._nodes.synced.wait(_NODES_FIRST)
        self._gpunodes.synced.wait(1.0)
        if not self._process.stop.is_set():
            self._pods.start()
        while not self._process.stop.wait(_LEFT_OUT_EVERY):
            self._take(lambda now: self._recorder.left_out(now))

    def _informer(
        self,
        kube: Kube,
        name: str,
        path: str,
        of: kinds.ObjectKind,
        handler: Callable[[Event], None],
        *,
        parts: bool = False,
        optional: bool = False,
    ) -> Informer:
        return Informer(kube, path, handler, name=name, of=of, parts=parts, optional=optional)

    def _take(self, event: Callable[[float], Iterable[Record]]) -> None:
        with self._lock:
            try:
                self._writer.write(event(self._clock()))
            except OSError as error:
                self._process.fail(f"the recording cannot be written: {error.strerror or error}")

    def _node(self, event: Event) -> None:
        recorder = self._recorder
        match event:
            case Replaced(items):
                self._take(lambda now: recorder.nodes_listed(items, now))
            case Put(node):
                self._take(lambda now: recorder.node_changed(node, now))
            case Deleted(node):
                self._take(lambda now: recorder.node_deleted(kinds.name_of(node), now))

    def _gpunode(self, event: Event) -> None:
        recorder = self._recorder
        match event:
            case Replaced(items):
                self._take(lambda now: recorder.gpunodes_listed(items, now))
            case Put(gpunode):
                self._take(lambda now: recorder.gpunode_changed(gpunode, now))
            case Deleted(gpunode):
                self._take(lambda now: recorder.gpunode_changed(gpunode, now, deleted=True))

    def _pod(self, event: Event) -> None:
        recorder = self._recorder
        match event:
            case Part(items, first, last):
                self._take(lambda now: recorder.pods_listed(items, now, first=first, last=last))
            case Put(pod):
                self._take(lambda now: recorder.pod_changed(pod, now))
            case Deleted(pod):
                self._take(lambda now: recorder.pod_deleted(pods.uid(pod), now))


def start(
    settings: RecorderSettings,
    kube: Kube,
    process: Process,
    *,
    clock: Callable[[], float] = time.time,
    serve: Serve = serve_http,
) -> tuple[RunningRecorder, Server | None]:
    """Make everything and start it. Raises `OSError`, or an error of the runtime; nothing keeps running then."""
    running = RunningRecorder(settings, kube, process, clock)
    server = None
    if settings.listen:
        host, port = settings.listen.rsplit(":", 1)
        routes = health_routes(Metrics(()), ready=HealthChecks(recording=running.problem))
        routes = {key: route for key, route in routes.items() if key[1] != "/metrics"}
        server = serve(routes, (host, int(port)), name="health", limits=PROBED)
    running.start()
    return running, server
