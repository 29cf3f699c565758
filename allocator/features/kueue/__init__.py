"""
Kueue's admission check `gpufraction.io/fits`: a Workload is admitted when its pods would get their shares.
"""

from __future__ import annotations

from allocator.engine.reference import Policy
from allocator.features.base import Feature, Running, Shell, nothing
from allocator.features.kueue.claims import TemplateClaimReader
from allocator.features.kueue.judge import TemplateReading
from allocator.features.kueue.settings import FitsSettings
from allocator.features.kueue.worker import FitsWorker
from contract.metrics import allocator as specs


def _run(shell: Shell, chosen: FitsSettings, inside: None) -> Running:
    answered = shell.metrics.counter(specs.KUEUE_ANSWERS)
    placement = shell.settings.placement
    worker = FitsWorker(
        kube=shell.kube,
        controller=shell.controller,
        limits=shell.limits,
        policy=Policy(placement.node_policy, placement.gpu_policy),
        settings=chosen,
        rejects=placement.unsatisfiable == "deny",
        nodes_within=shell.new_nodes_within,
        reading=lambda: TemplateReading(shell.options(), chosen.runtime_class, shell.settings.dra, shell.dialects),
        timeout=shell.write_timeout,
        claims=None if shell.claims is None else TemplateClaimReader(shell.claims),
        counted=lambda state: answered.labels(state=state).inc(),
        on_restart=shell.restarted,
        workers=shell.workers,
        faulted=shell.faulted,
    )
    return Running(threads={"kueue": worker.run}, seen=worker.pod_seen)


FEATURE = Feature(
    name="kueue",
    group="fits",
    settings=FitsSettings,
    inside=nothing,
    run=_run,
    enabled=lambda chosen: chosen.enabled,
)
