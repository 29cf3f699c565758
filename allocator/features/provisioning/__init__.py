"""
Provisioning: requests nodes of declared pools from an autoscaler while pods wait that fit on no node.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell
from allocator.features.provisioning.part import ProvisioningPart
from allocator.features.provisioning.settings import ProvisioningSettings
from allocator.features.provisioning.worker import PoolReport, Provisioner, ProvisioningCounters
from allocator.scheduler.parts import Core


def _inside(core: Core, chosen: ProvisioningSettings) -> ProvisioningPart:
    return ProvisioningPart(core)


def _run(shell: Shell, chosen: ProvisioningSettings, inside: ProvisioningPart) -> Running:
    worker = Provisioner(
        kube=shell.kube,
        controller=shell.controller,
        part=inside,
        options=shell.options,
        settings=chosen,
        limits=shell.limits,
        report=PoolReport(shell.kube, shell.metrics),
        tell=shell.recorder.put,
        counted=ProvisioningCounters.of(shell.metrics),
        faulted=shell.faulted,
    )
    return Running(threads={"provisioner": worker.run})


FEATURE = Feature(
    name="provisioning",
    group="provisioning",
    settings=ProvisioningSettings,
    inside=_inside,
    part=ProvisioningPart.part,
    run=_run,
    enabled=lambda chosen: chosen.enabled,
    nodes_within=lambda chosen: chosen.patience,
)
