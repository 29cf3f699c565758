"""
The pods that reach the webhook: matchConditions in CEL, generated from the table of dialects.

With failurePolicy Fail, a webhook that is down stops every pod that the API server sends it. So the API server itself
checks first whether a pod names a resource or an annotation of a dialect, and admits all other pods without us. A test
holds the conditions equal to `contract.dialects.detect`. A pod with our request annotation or our gate is sent too: it
was admitted before, or restored from a backup, and only we can check whether its annotations are still valid. So is a
pod that only misspells a dialect's resource, found by the prefix of the name, so that its author gets a message.

Conditions of one webhook are ANDed, hence the single expression for all dialects. A name is looked up in the pod's
maps, which costs CEL one step. Only prefixes of annotations need a loop over all of them; 256 KiB of annotations, all
that a pod may have, stay below CEL's cost limit for an expression.
"""

from __future__ import annotations

from collections.abc import Iterable

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Dialect

NAME = "asks-for-a-gpu-share"
OTHERS_NAME = "asks-for-no-gpu-share"


def match_conditions(dialects: Iterable[Dialect] = DIALECTS, renamed: Iterable[str] = ()) -> list[dict[str, str]]:
    """
    The `matchConditions` of the webhook for pods with a share, as `{name, expression}`; `object` in them is the pod.

    `renamed`: a cluster's own names of the dialects' resources. Raises ValueError for an invalid name.
    """
    table = tuple(dialects)
    resources = [*(resource for dialect in table for resource in dialect.resources), *renamed]
    stems = [stem for dialect in table for stem in dialect.stems]
    annotations = [str(names.REQUEST), *(annotation for dialect in table for annotation in dialect.annotations)]
    ways = []
    if resources:
        ways.append(_any(resources, f"{_in_some('containers')} ||\n  {_in_some('initContainers')}"))
    if stems:
        # Few containers name a resource with a domain, so most cost one step here.
        starts = " || ".join(f"r.startsWith({_literal(stem)})" for stem in stems)
        ways.append(_stems(starts))
    ways.append(_any(annotations, "has(object.metadata.annotations) && name in object.metadata.annotations"))
    prefixes = [prefix for dialect in table for prefix in dialect.annotation_prefixes]
    if prefixes:
        starts = " || ".join(f"name.startsWith({_literal(prefix)})" for prefix in prefixes)
        # A pod may have very many short names, so most cost one step here.
        found = f"name.contains('/') && ({starts})" if all("/" in prefix for prefix in prefixes) else starts
        ways.append(f"has(object.metadata.annotations) && object.metadata.annotations.exists(name, {found})")
    gates = "object.spec.schedulingGates"
    ways.append(f"has({gates}) && {gates}.exists(gate, gate.name == {_literal(names.GATE)})")
    return [{"name": NAME, "expression": " ||\n".join(ways)}]


def other_conditions(dialects: Iterable[Dialect] = DIALECTS, renamed: Iterable[str] = ()) -> list[dict[str, str]]:
    """The `matchConditions` of the webhook for all other pods, if an administrator hides their GPUs."""
    [ours] = match_conditions(dialects, renamed)
    return [{"name": OTHERS_NAME, "expression": negated(ours["expression"])}]


def unnamed(expression: str, resources: Iterable[str]) -> tuple[str, ...]:
    """The resources that an expression, generated here or written by hand, does not name."""
    return tuple(resource for resource in resources if _literal(resource) not in expression)


def extended(expression: str, resources: Iterable[str]) -> str | None:
    """
    The expression with those of the resources that it does not name, at the end of its first list; None for one that
    was not made here. The policy of the keeper of certificates allows this change and no other.
    """
    head, end, tail = expression.partition(_END_OF_LIST)
    if not end or not head.removeprefix("!(").startswith(_LIST):
        return None
    return head + "".join(f"{_NEXT}{_literal(each)}" for each in unnamed(expression, resources)) + end + tail


def negated(expression: str) -> str:
    """The condition of all other pods."""
    return f"!({expression})"


_LIST, _NEXT, _END_OF_LIST = "[\n  ", ",\n  ", "\n].exists(name,"


def _any(wanted: Iterable[str], found: str) -> str:
    """An expression: does the condition `found` hold for any of the names?"""
    listed = _NEXT.join(_literal(text) for text in wanted)
    return f"{_LIST}{listed}{_END_OF_LIST}\n  {found})"


def _in_some(kind: str) -> str:
    """An expression: does a container of this kind have `name` in its limits or requests?"""
    named = " || ".join(f"has({path}) && name in {path}" for path in ("c.resources.limits", "c.resources.requests"))
    return f"has(object.spec.{kind}) && object.spec.{kind}.exists(c, has(c.resources) && (\n    {named}))"


def _stems(starts: str) -> str:
    """An expression: does any container name a resource that may be misspelt?"""
    each = (
        f"has(object.spec.{kind}) && object.spec.{kind}.exists(c, has(c.resources) && (\n    "
        + " ||\n    ".join(
            f"has({path}) && {path}.exists(r, r.contains('/') && ({starts}))"
            for path in ("c.resources.limits", "c.resources.requests")
        )
        + "))"
        for kind in ("containers", "initContainers")
    )
    return " ||\n".join(each)


def _literal(text: str) -> str:
    """A CEL string. Raises ValueError for quotes and backslashes, which no name of a resource or annotation has."""
    if not text.isascii() or not text.isprintable() or "'" in text or "\\" in text:
        raise ValueError(f"{text!r} is not the name of a resource or an annotation")
    return f"'{text}'"
