"""
Which pods reach the webhook at all: matchConditions in CEL, made from the table of dialects.

With failurePolicy Fail a webhook that is down stops every pod that reaches it. So the API server itself asks first
whether a pod names a resource or an annotation of some dialect, and pods that do not are none of our business, up or
down. The answer is the same as that of `contract.dialects.asked`; a test holds the two together. A pod with our request
annotation or our gate comes too: it was with us before, in an earlier pass or in the backup it was restored from, and
nobody but we can tell whether what it carries still holds.

Conditions of one webhook are ANDed, hence there is one expression for all dialects. Names are looked up in the pod's
maps, which costs CEL one step each. A pod that only misspells a dialect's resource comes as well, by what such names
start with, so that its author can be told. Only prefixes of annotations are looked for one annotation after the other;
all of a pod's may have 256 KiB together, which stays below what CEL allows an expression. Beyond that the pod is
refused.
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
    The `matchConditions` of a webhook for pods, as `{name, expression}`; `object` in them is the pod.

    `renamed`: what a cluster calls resources of the dialects besides. Raises ValueError for what is no resource's name.
    """
    table = tuple(dialects)
    resources = [*(resource for dialect in table for resource in dialect.resources), *renamed]
    stems = [stem for dialect in table for stem in dialect.stems]
    annotations = [str(names.REQUEST), *(annotation for dialect in table for annotation in dialect.annotations)]
    ways = []
    if resources:
        ways.append(_any(resources, f"{_in_some('containers')} ||\n  {_in_some('initContainers')}"))
    if stems:
        # Few containers name anything with a domain, so most cost one step here.
        starts = " || ".join(f"r.startsWith({_literal(stem)})" for stem in stems)
        ways.append(_stems(starts))
    ways.append(_any(annotations, "has(object.metadata.annotations) && name in object.metadata.annotations"))
    prefixes = [prefix for dialect in table for prefix in dialect.annotation_prefixes]
    if prefixes:
        starts = " || ".join(f"name.startsWith({_literal(prefix)})" for prefix in prefixes)
        ways.append(f"has(object.metadata.annotations) && object.metadata.annotations.exists(name, {starts})")
    gates = "object.spec.schedulingGates"
    ways.append(f"has({gates}) && {gates}.exists(gate, gate.name == {_literal(names.GATE)})")
    return [{"name": NAME, "expression": " ||\n".join(ways)}]


def other_conditions(dialects: Iterable[Dialect] = DIALECTS, renamed: Iterable[str] = ()) -> list[dict[str, str]]:
    """The `matchConditions` for all other pods, where an administrator has those changed too."""
    [ours] = match_conditions(dialects, renamed)
    return [{"name": OTHERS_NAME, "expression": f"!({ours['expression']})"}]


def unnamed(expression: str, resources: Iterable[str]) -> tuple[str, ...]:
    """Those of the resources that an expression, made here or by hand, does not name."""
    return tuple(resource for resource in resources if _literal(resource) not in expression)


def _any(wanted: Iterable[str], found: str) -> str:
    """Whether the condition `found` holds of any of the names."""
    listed = ",\n  ".join(_literal(text) for text in wanted)
    return f"[\n  {listed}\n].exists(name,\n  {found})"


def _in_some(kind: str) -> str:
    """Whether some container of a kind names it, in limits or, as dialects are read, in requests alone."""
    named = " || ".join(f"has({path}) && name in {path}" for path in ("c.resources.limits", "c.resources.requests"))
    return f"has(object.spec.{kind}) && object.spec.{kind}.exists(c, has(c.resources) && (\n    {named}))"


def _stems(starts: str) -> str:
    """Whether some container of either kind names a resource that may be misspelt."""
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
    """A CEL string. Names of resources and annotations have no quotes or backslashes; anything else is a bug here."""
    if not text.isascii() or not text.isprintable() or "'" in text or "\\" in text:
        raise ValueError(f"{text!r} is not the name of a resource or an annotation")
    return f"'{text}'"
