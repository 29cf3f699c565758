"""
Rules about the programs that create pods or nodes: which run here, and which of their traps apply.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contract.encoding.plain import NAME, plain
from kubectl_gpufraction.check.facts import ClusterFacts, Objects
from kubectl_gpufraction.check.findings import OK, UNKNOWN, WARN, Finding, Unseen
from kubectl_gpufraction.check.traps.table import DEPLOYMENTS, PROGRAMS, OtherProgram, Trap
from kubectl_gpufraction.check.traps.view import View, has_labels
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
FOUND, TRAP = "other-programs", "traps"


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """The programs that were found, each trap that applies, and what could not be read for either."""
    view = View(facts)
    found = [each for each in PROGRAMS if each.always or is_found(each, facts)]
    named = [each.name for each in found if not each.always]
    if named:
        yield Finding(OK, FOUND, f"found: {', '.join(named)}")
    yield from _unseen(facts)
    for program in found:
        for trap in program.traps:
            yield from _findings(view, program, trap)


def is_found(program: OtherProgram, facts: ClusterFacts) -> bool:
    """Whether the program's kind is served, or its Deployment was seen."""
    if program.kind:
        return program.kind in facts.programs.served
    return any(_is_of(program, each) for each in _seen(facts.programs.objects.get(DEPLOYMENTS, ())))


def _is_of(program: OtherProgram, deployment: JSON) -> bool:
    """Whether a Deployment is the program's, by its labels or the image of a container. One of an odd form is not."""
    try:
        spec = deployment["spec"]["template"]["spec"]
        images = {
            str(each["image"]).rpartition("/")[2].partition("@")[0].partition(":")[0] for each in spec["containers"]
        }
        return bool(images & set(program.images)) or any(has_labels(deployment, each) for each in program.labels)
    except (KeyError, TypeError, AttributeError):
        return False


def _unseen(facts: ClusterFacts) -> Iterator[Finding]:
    """One line for what is needed to find programs."""
    programs = facts.programs
    if programs.unseen is not None:
        yield Finding(UNKNOWN, FOUND, f"unknown: {programs.unseen.why}")
    found = programs.objects.get(DEPLOYMENTS, ())
    if isinstance(found, Unseen):
        hidden = ", ".join(each.name for each in PROGRAMS if each.images or each.labels)
        yield Finding(UNKNOWN, FOUND, f"unknown whether there is {hidden}: {found.why}")


def _findings(view: View, program: OtherProgram, trap: Trap) -> Iterator[Finding]:
    """The trap where it applies, and one line for what the user may not read of it."""
    if program.kind:  # of others, what is needed to find them was reported
        kinds = (view.unseen(each) for each in (*trap.kinds, *trap.besides))
        config = (view.facts.programs.configmaps.get(each) for each in trap.configmaps)
        why = next((each.why for each in (*kinds, *config) if isinstance(each, Unseen)), "")
        if why:
            yield Finding(UNKNOWN, TRAP, f"{program.name}: unknown: {why}")
            return
    where = sorted({_shown(each) for kind in trap.kinds for each in view.items(kind) if _applies(view, trap, each)})
    if where:
        who = f"{program.name}: {few(where)}: " if any(where) else f"{program.name} "
        yield Finding(WARN, TRAP, _shown_text(f"{who}{trap.what}"), _shown_text(f"{trap.cure}: {trap.page}"))


def _shown_text(text: str) -> str:
    """Text of the table as a terminal shows it."""
    return text.replace("`", "")


def _applies(view: View, trap: Trap, item: JSON) -> bool:
    """Whether the trap holds for the object; False where the object is not as its kind promises."""
    try:
        return trap.applies(view, item)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError):
        return False


def _shown(item: JSON) -> str:
    """The object as `namespace/name`; empty for the cluster as a whole."""
    metadata = item.get("metadata") or {}
    return plain("/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)), 2 * NAME)


def _seen(items: Objects | Unseen) -> Objects:
    return items if isinstance(items, tuple) else ()
