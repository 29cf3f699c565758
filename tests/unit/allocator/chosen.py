"""Settings of the core by short names, so that a test names only those that it is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from allocator.settings import Settings

_PLACES: Mapping[str, str] = {
    "placement": "placement.pin",
    "when": "placement.when",
    "condition": "placement.condition",
    "unsatisfiable": "placement.unsatisfiable",
    "max_unconfirmed": "sharing.max_unconfirmed",
    "queue_order": "queue.order",
    "queue_memory": "queue.memory",
    "queue_memory_total": "queue.memory_total",
}


def chosen(**given: Any) -> Settings:
    """The settings with these values. Unconfirmed shares of a namespace have no bound unless a test sets one."""
    settings = Settings()
    for name, value in {"max_unconfirmed": 0, **given}.items():
        group, _, field = _PLACES.get(name, name).rpartition(".")
        changed = dataclasses.replace(getattr(settings, group), **{field: value}) if group else value
        settings = dataclasses.replace(settings, **{group or field: changed})
    return settings
