"""
ElasticGPUClaims (elasticgpu.io): shares that outlive pods. `store` keeps the watched objects, `manager` decides,
`steps` has the next writes, and `worker` writes them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allocator.features.base import Feature, Running, Shell
from allocator.features.elasticgpuclaims import informers
from allocator.features.elasticgpuclaims.part import ClaimsPart
from allocator.features.elasticgpuclaims.worker import Claims
from allocator.scheduler.parts import Core
from contract.metrics import allocator as specs
from runtime.metrics import Metrics
from runtime.settings import setting


@dataclass(frozen=True)
class ClaimSettings:
    """ElasticGPUClaims."""

    claims: bool = setting(
        False,
        "Serve ElasticGPUClaims (elasticgpu.io); needs the rights of manifests/components/claims, which sets it. Off: "
        "no object of that group is read, and a pod that names a claim waits.",
    )
    claim_memory: int = setting(
        0,
        "GPU memory that the ElasticGPUClaims of one namespace may have together; further ones wait. 0: no limit. "
        "Quotas of gpufraction.io/gpu-memory count only pods.",
        unit="bytes",
        minimum=0,
    )
    card_writes: int = setting(
        10,
        "Maximum number of GPU objects (elasticgpu.io) written per second. Each shows what a GPU has left, and is "
        "written when that has changed. 0: none are written.",
        minimum=0,
        maximum=1000,
    )


def _inside(core: Core, chosen: ClaimSettings) -> ClaimsPart:
    return ClaimsPart(core, most_memory=chosen.claim_memory)


def _run(shell: Shell, chosen: ClaimSettings, inside: ClaimsPart) -> Running:
    woken = threading.Event()
    worker = Claims(
        kube=shell.kube,
        controller=shell.controller,
        part=inside,
        woken=woken,
        limits=shell.limits,
        card_writes=chosen.card_writes,
        timeout=shell.write_timeout,
        faulted=shell.faulted,
    )
    show_counts(shell.metrics, lambda: shell.controller.locked(inside.counts))
    return Running(
        threads={"claims": worker.run},
        follows=informers.followed(shell.controller),
        decided=woken.set,
    )


def show_counts(metrics: Metrics, counts: Callable[[], tuple[Counter[tuple[str, str]], Counter[str]]]) -> None:
    """The gauges of claims and shares; `counts` gives `ClaimsPart.counts`."""
    metrics.rows(specs.CLAIMS, lambda: counts()[0].items())
    metrics.rows(specs.ELASTIC_GPUS, lambda: _of_shares(counts()[1]))


def _of_shares(phases: dict[str, int]) -> Iterator[tuple[tuple[str, ...], float]]:
    for phase, count in phases.items():
        yield (phase,), count


FEATURE = Feature(
    name="elasticgpuclaims",
    settings=ClaimSettings,
    inside=_inside,
    part=ClaimsPart.part,
    run=_run,
    enabled=lambda chosen: chosen.claims,
)
