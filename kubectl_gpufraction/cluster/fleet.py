"""
Several clusters side by side: what each has, and how its installation differs from most others. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.components import COMPONENTS
from kubectl_gpufraction.cluster.programs import PROGRAMS, Installed, pod_spec, settings_of

JSON = dict[str, Any]
_OWN = frozenset(("kubeconfig", "node", "namespace", "pod-name", "identity"))
"""Settings that differ between clusters and pods by themselves."""
ABSENT = "not set"
_SHORT = 24
"""Characters of a value in a sentence."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed in a cluster and may be read. Facts by name, such as `allocator preemption`."""

    programs: tuple[Installed, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    unseen: str = ""
    """Why it is unknown; empty where it is known."""

    @property
    def version(self) -> str:
        """The versions of our programs, each once."""
        return ",".join(sorted({each.version or "?" for each in self.programs}))


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A cluster. `failed`: why it did not answer; empty where it did, and then the figures count."""

    context: str
    failed: str = ""
    kubernetes: str = ""
    nodes: int = 0
    cards: int = 0
    healthy: int = 0
    used: int = 0
    """Bytes that shares hold."""
    promised: int = 0
    """Bytes that the cards may promise."""
    waiting: int = 0
    installation: Installation = Installation()


@dataclass(frozen=True, slots=True)
class Drift:
    """How some clusters differ from most others."""

    fact: str
    most: str
    others: Mapping[str, str]
    """Their values, by context."""


def installation_of(
    workloads: Sequence[JSON],
    configmaps: Sequence[JSON],
    policies: Iterable[str],
    options: str,
    found: Iterable[Installed],
) -> Installation:
    """
    The facts by which clusters are compared. `options`: the text of the options document; `policies`: names of ours
    that have a binding.
    """
    facts = dict[str, str]()
    settings = {program: settings_of(workloads, program, configmaps) for program in PROGRAMS}
    for program, chosen in settings.items():
        facts |= {f"{program} {name}": value for name, value in chosen.items() if name not in _OWN}
    for component in COMPONENTS:
        if component.settings:
            there = all(
                settings.get(program, {}).get(name) == value
                for program, wanted in component.settings.items()
                for name, value in wanted.items()
            )
            facts[f"component {component.name}"] = "installed" if there else ABSENT
    for workload in workloads:
        kind, name = workload.get("kind") or "workload", (workload.get("metadata") or {}).get("name")
        if pod_spec(workload):
            facts[f"{str(kind).lower()} {name}"] = "installed"
    facts |= {f"policy {name}": "installed" for name in policies}
    facts["options"] = normalised(options) or "none"
    return Installation(tuple(found), facts)


def normalised(text: str) -> str:
    """A document without comments and empty lines, which change nothing."""
    lines = (line.partition(" #")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def drift(members: Sequence[FleetMember]) -> list[Drift]:
    """What differs, by fact. Of values that are equally frequent, that of the first cluster is taken for the usual."""
    known = [each for each in members if not each.failed and not each.installation.unseen]
    found = []
    for fact in sorted({fact for each in known for fact in each.installation.facts}):
        values = {each.context: each.installation.facts.get(fact, ABSENT) for each in known}
        counted = Counter(values.values())
        most = max(values.values(), key=lambda value: counted[value])
        others = {context: value for context, value in values.items() if value != most}
        if others:
            found.append(Drift(fact, most, others))
    return found


def differences(found: Sequence[Drift], context: str) -> int:
    """The number of facts in which a cluster differs."""
    return sum(context in each.others for each in found)


def sentences(found: Sequence[Drift], most: int) -> Iterator[str]:
    """The differences for people, at most so many."""
    for each in found[:most]:
        if each.fact == "options":
            yield f"options: {', '.join(sorted(each.others))} differ from the other clusters"
            continue
        others = ", ".join(f"{_short(value)} in {context}" for context, value in sorted(each.others.items()))
        yield f"{each.fact}: {others}; {_short(each.most)} elsewhere"
    if len(found) > most:
        yield f"{len(found) - most} more differences; -o json has all"


def _short(value: str) -> str:
    return value if len(value) <= _SHORT else f"{value[: _SHORT - 3]}..."
