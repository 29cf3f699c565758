"""The parts of a row in the table of edges."""

from __future__ import annotations

from dataclasses import dataclass

TENANT, STRANGER, NODE, TOKEN = "tenant", "stranger", "one node", "one token"
ADMINISTRATOR, WEBHOOKS, LOCAL = "administrator", "other webhooks", "user of the machine"
WRITERS = (TENANT, STRANGER, NODE, TOKEN, ADMINISTRATOR, WEBHOOKS, LOCAL)
FUZZING = "fuzzing "
"""The prefix of a fuzzer target, which can stand in place of a test."""


@dataclass(frozen=True, slots=True)
class Edge:
    """
    One row. `writes`: what they may write; `arrives`: the module that reads it first; `bound`: what keeps it harmless;
    `tests`: paths below `tests/` with the test's name, or targets of the fuzzer; `covers`: the edges.
    """

    who: str
    writes: str
    arrives: str
    bound: str
    tests: tuple[str, ...]
    covers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureEdges:
    """The rows of one feature."""

    title: str
    rows: tuple[Edge, ...]


def names_of(*keys: str) -> tuple[str, ...]:
    return tuple(f"name {key}" for key in keys)


def rights(role: str, verbs: str, resources: str) -> tuple[str, ...]:
    return tuple(f"right {role} {verb} {resource}" for verb in verbs.split() for resource in resources.split())


def fields(kind: str, below: str, fields: str) -> tuple[str, ...]:
    return tuple(f"field {kind} {below}{field}" for field in fields.split())


def routes(server: str, *routes: str) -> tuple[str, ...]:
    return tuple(f"route {server} {route}" for route in routes)


STOLEN = "cluster/hostile/test_stolen_tokens.py::"
"""The common prefix of the tests of stolen tokens."""
