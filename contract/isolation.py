"""
The levels of isolation: how a node keeps containers within their shares of a GPU's memory.

Every list of levels and every decision about one reads this table: `fit` and the filters, the words that tenants write,
the webhook's volumes, the node agent, metrics. Tests compare the GPUNode's definition and `docs/isolation.md` with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """
    `name`: in annotations, GPUNodes, metrics and the containers' environment. `limits`: whether it keeps a container
    from using more memory than its limit; otherwise it finds out afterwards. `shows_share`: whether a container sees
    its share as all of the GPU's memory; None if another level decides that. `volumes`: whether the webhook
    can bring it to a container by hostPath volumes.
    """

    name: str
    limits: bool = True
    shows_share: bool | None = None
    volumes: bool = False


DRIVER = Level("driver", shows_share=True)
"""The driver enforces memory limits of control groups."""
LEAST_DRIVER = 615
"""The first release of NVIDIA's driver that does."""
MPS = Level("mps", shows_share=False, volumes=True)
"""NVIDIA MPS enforces memory limits of its clients."""
PRELOAD = Level("preload", shows_share=True, volumes=True)
"""A library that is loaded into the container's programs enforces them."""
WATCH = Level("watch", limits=False)
"""Usage is watched; pods are warned and evicted."""

LEVELS = (DRIVER, MPS, PRELOAD, WATCH)
"""All levels, the strongest first."""
NO_LEVEL = "none"
"""Where a text names the level and nothing is enforced."""
ISOLATION = tuple(level.name for level in LEVELS)
LIMITING = tuple(level.name for level in LEVELS if level.limits)
SHOWING_SHARES = frozenset(level.name for level in LEVELS if level.shows_share)
SHOWING_CARDS = frozenset(level.name for level in LEVELS if level.shows_share is False)
"""A container under one of these sees the card's memory, regardless of other limits."""
WITH_VOLUMES = tuple(level.name for level in LEVELS if level.volumes)


def listed(names: Iterable[str], last: str = "or") -> str:
    """The names as a sentence lists them: `a, b or c`."""
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final


def quoted(names: Iterable[str]) -> tuple[str, ...]:
    """The names as code in Markdown."""
    return tuple(f"`{name}`" for name in names)
