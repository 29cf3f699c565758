"""
The GPUs that the selectors of a ResourceClaim accept.

A decision asks here, and the evaluation itself is passed in (`Limits.selects`): it needs a CEL library, which only the
allocator has. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from contract.encoding import selectors
from contract.model import Gpu, Wishes


class CardSeen(NamedTuple):
    """The attributes of a GPU for an expression. `uuid`: empty if the expression does not name it."""

    model: str
    memory: int
    numa: int
    capability: str
    slice: bool
    uuid: str


Selects = Callable[[str, CardSeen], bool]
"""Whether an expression accepts a GPU."""


def nothing_selected(expression: str, card: CardSeen) -> bool:
    """For programs that evaluate no expressions: accepts no GPU."""
    return False


def kind_seen(gpu: Gpu) -> CardSeen:
    """The attributes of a GPU for an expression that does not name it."""
    return CardSeen(gpu.model, gpu.memory, gpu.numa, gpu.capability, bool(gpu.parent), "")


def accepts(gpu: Gpu, expressions: tuple[str, ...], selects: Selects) -> bool:
    """Whether all expressions accept the GPU."""
    kind = kind_seen(gpu)
    return all(
        selects(each, kind._replace(uuid=gpu.uuid) if gpu.uuid in selectors.uuids_of(each) else kind)
        for each in expressions
    )


def accepted_by(gpu: Gpu, wishes: Wishes, selects: Selects) -> tuple[int, ...]:
    """The indexes of the alternatives that accept the GPU."""
    return tuple(at for at, each in enumerate(wishes.alternatives) if accepts(gpu, each, selects))


def is_selected(gpu: Gpu, wishes: Wishes, selects: Selects) -> bool:
    """Whether the selectors accept the GPU, and one of the alternatives does if there are any."""
    if not accepts(gpu, wishes.selectors, selects):
        return False
    return not wishes.alternatives or any(accepts(gpu, each, selects) for each in wishes.alternatives)


def named_uuids(wishes: Wishes) -> frozenset[str]:
    """The UUIDs that the expressions name."""
    return frozenset().union(*map(selectors.uuids_of, wishes.expressions))
