"""All targets, and their corpus in the repository."""

from __future__ import annotations

from pathlib import Path

import tests.fuzzing.targets.annotations as texts
import tests.fuzzing.targets.documents as documents
import tests.fuzzing.targets.groups as groups
import tests.fuzzing.targets.kit as kit
import tests.fuzzing.targets.objects as objects
import tests.fuzzing.targets.views as views
import tests.fuzzing.targets.wires as wires
from tests.fuzzing.judge import Target

CORPUS = Path(__file__).parent / "corpus"
TARGETS: tuple[Target, ...] = (
    *texts.TARGETS,
    *objects.TARGETS,
    *wires.TARGETS,
    *views.TARGETS,
    *documents.TARGETS,
    *kit.TARGETS,
    *groups.TARGETS,
)


def target_named(name: str) -> Target:
    """The target. Raises `KeyError`."""
    return {target.name: target for target in TARGETS}[name]


def corpus_of(target: Target, folder: Path = CORPUS) -> tuple[Path, ...]:
    """The files of a target's corpus, by name."""
    return tuple(sorted((folder / target.name).glob("*")))
