"""A pod that comes and goes before anything is measured: a peer works once it has placed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.throughput.peers.peer import Host
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.errors import KubeError

JSON = dict[str, Any]
Programs = Mapping[str, Program]
_NAME = "trial"
_TIMEOUT, _EVERY = 180.0, 0.2


def made(asks: Callable[[JSON], None]) -> JSON:
    """A pod with the requests of a peer's pods."""
    container = {"name": "main", "image": "registry.example/bench:1", "resources": {}}
    pod: JSON = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _NAME}, "spec": {"containers": [container]}}
    asks(pod)
    return pod


def admitted(host: Host, asks: Callable[[JSON], None], by: Callable[[JSON], bool], programs: Programs) -> None:
    """Wait until the API server calls the peer's webhook, which `by` detects from a pod. Raises `NotInTime`."""

    def called() -> bool:
        try:
            return by(host.kube.create(paths.pods(host.namespace), made(asks), {"dryRun": "All"}))
        except KubeError:
            return False  # a webhook that is required does not answer yet

    _wait(called, "the API server does not call the peer's webhook", programs)


def placed(host: Host, asks: Callable[[JSON], None], done: Callable[[JSON], bool], programs: Programs) -> None:
    """Create a pod, wait until it is `done`, and delete it. Raises `NotInTime`."""
    path = paths.pods(host.namespace, _NAME)
    host.kube.create(paths.pods(host.namespace), made(asks))
    _wait(lambda: done(host.kube.get(path)), "no pod is placed", programs)
    host.kube.delete(path, {"gracePeriodSeconds": 0})


def _wait(asked: Callable[[], bool], missing: str, programs: Programs) -> None:
    """Raises `ProgramFailed` as soon as a program has ended."""

    def while_all_live() -> bool:
        for program in programs.values():
            program.check()
        return asked()

    def said() -> str:
        return "\n".join((missing, *(f"{name}: {program.tail(5)}" for name, program in programs.items())))

    wait_for(while_all_live, said, _TIMEOUT, every=_EVERY)
