"""Kubernetes' own programs that peers start: the unchanged kube-scheduler, and single controllers."""

from __future__ import annotations

from benchmarks.throughput.peers.peer import KUBERNETES, Host, Needed
from playground.api.kinds.values import User
from playground.machinery.cluster import SCHEDULER as SCHEDULER_USER
from playground.programs.process import Program
from playground.realapi import components

SCHEDULER = Needed(components.SCHEDULER, components.SCHEDULER, KUBERNETES)
CONTROLLERS = Needed(components.CONTROLLERS, components.CONTROLLERS, KUBERNETES)


def scheduler(host: Host) -> Program:
    """The default scheduler, as it is."""
    return host.start(SCHEDULER, list(components.scheduler_flags(host.server.certified(SCHEDULER_USER))))


def controllers(host: Host, *names: str) -> Program:
    """kube-controller-manager with these controllers only, so that no other one writes."""
    kubeconfig = host.server.certified(User("system:kube-controller-manager"))
    flags = components.controllers_flags(host.server.files, kubeconfig, judging=False)
    chosen = f"--controllers={','.join(names)}"
    return host.start(CONTROLLERS, [*(flag for flag in flags if not flag.startswith("--controllers=")), chosen])
