"""
Defragmentation: evicts small pods of namespaces that agreed to it, if each has room on another node, so that a larger
pod starts.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell
from allocator.features.defragmentation import moves
from allocator.features.defragmentation.part import DefragmentationAgreed, Defragmenter
from allocator.features.defragmentation.settings import DefragmentationSettings
from allocator.workers.namespaces import NamespaceLabel
from contract import names


def _run(shell: Shell, chosen: DefragmentationSettings, inside: Defragmenter) -> Running:
    label = NamespaceLabel(
        names.DEFRAGMENT,
        moves.agreed,
        moves.misread,
        lambda found: shell.controller.handle(DefragmentationAgreed(frozenset(found))),
    )
    return Running(labels=(label,))


FEATURE = Feature(
    name="defragmentation",
    group="defragmentation",
    settings=DefragmentationSettings,
    inside=Defragmenter,
    part=Defragmenter.part,
    run=_run,
    enabled=lambda chosen: chosen.evictions_per_hour > 0,
)
