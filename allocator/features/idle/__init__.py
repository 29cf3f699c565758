"""
Idle shares: pods that compute nothing make room for waiting pods if they or their namespaces agreed to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocator.features.base import Feature, Running, Shell
from allocator.features.idle.part import ConsentsListed, IdlePods, WarnIdlePods
from allocator.features.idle.settings import IdleSettings
from allocator.features.idle.warner import Warner
from allocator.workers.namespaces import NamespaceLabel
from contract import names
from contract.metrics import allocator as specs
from contract.scheduling import consent


def _run(shell: Shell, chosen: IdleSettings, inside: IdlePods) -> Running:
    def counted() -> Iterator[tuple[tuple[str, ...], float]]:
        agreed, others = shell.controller.locked(inside.counts)
        yield ("yes",), agreed
        yield ("no",), others

    shell.metrics.rows(specs.IDLE_PODS, counted)
    if not chosen.evict:
        return Running()
    label = NamespaceLabel(
        names.IDLE_AFTER,
        consent.seconds_of,
        consent.misread,
        lambda namespaces: shell.controller.handle(ConsentsListed(namespaces)),
    )
    outcomes = shell.metrics.counter(specs.IDLE_WARNINGS)
    warner = Warner(
        shell.kube,
        shell.controller,
        counted=lambda outcome: outcomes.labels(outcome=outcome).inc(),
        faulted=shell.faulted,
    )
    return Running(labels=(label,), carries={WarnIdlePods: warner.warn})


FEATURE = Feature(
    name="idle",
    group="idle",
    settings=IdleSettings,
    inside=IdlePods,
    part=IdlePods.part,
    run=_run,
)
