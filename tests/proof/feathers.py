"""
An invented dialect in one file: a resource that counts GiB, what is written back, and its message for a full card.
"""

from __future__ import annotations

from contract import names
from contract.dialects.base import LIMITS, Decided, Dialect, PodReader, Rendering, Word, indexes, pod_request, wishes
from contract.encoding.quantity import GIB
from contract.model import FractionRequest, PodRequest

FEATHERS = "feather.example/feathers"
PLUMES = "feather.example/plumes"
"""A former name of an annotation, which nothing reads."""
CARD, FLIES = "feather.example/card", "feather.example/flies"


def _read(context: PodReader) -> PodRequest | None:
    asked = ((each, each.amount(FEATHERS, least=1, most=1000, cure="give 1 to 1000")) for each in context.containers())
    return pod_request(
        "feathers",
        context,
        [
            FractionRequest(each.name, memory=amount * GIB, init=each.init, wishes=wishes(context, each))
            for each, amount in asked
            if amount
        ],
    )


def _render(decided: Decided) -> Rendering:
    return Rendering({CARD: ";".join(map(indexes, decided.allocation.containers))})


DIALECT = Dialect(
    name="feathers",
    title="feathers",
    resources=(FEATHERS,),
    read=_read,
    render=_render,
    started=lambda annotations: {FLIES: "true"} if CARD in annotations and FLIES not in annotations else {},
    environment=lambda request, fraction: [{"name": "FEATHERS", "value": str(fraction.memory // GIB)}],
    short_of_memory="not a feather more",
    glossary=(Word(FEATHERS, LIMITS, f"GiB of {names.GPU_MEMORY}"),),
)
