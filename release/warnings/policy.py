"""
`manifests/policies/warnings.yaml`: a ValidatingAdmissionPolicy that warns of mistakes in what a tenant applies.

kubectl shows a warning where the manifest is applied; the webhook's messages about a Deployment's pods reach its
controller instead. Everything about names is made from the tables of `release.warnings.names`, and a test compares the
API server's findings with their functions. Only CEL of Kubernetes 1.30 is used.

The API server ends an expression at a million steps. So names are compared by regular expressions, which it compiles
once, and letter by letter only to report the meaning of the first wrong name. `MOST_CONTAINERS`, `MOST_RESOURCES` and
`MOST_ANNOTATIONS` bound the examined parts: a manifest beyond them has no warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from contract.dialects import DIALECTS, elastic, hami, kai
from contract.dialects.base import NOTHING_STARTS, WITH_UNIT
from contract.dialects.spelling import REMOVE, UNDER_LIMITS, UNKNOWN, UNREAD, did_you_mean
from contract.encoding.quantity import mib
from contract.model import LEAST_USED
from contract.names import GPU_MEMORY, GPU_MEMORY_LIMIT, INJECT_ENABLED, INJECT_LABEL, REQUEST, UNSERVED_NAMESPACES
from release.warnings import cel, names

NAME = "gpufraction-warnings"
MOST_CONTAINERS, MOST_RESOURCES = 16, 16
"""Containers of each kind, and limits of one."""
MOST_ANNOTATIONS = 64
LIKE_ONE_THAT_ASKS = "gpu|nvidia|aliyun|elastic|cores|priority"
"""
A pattern of all names of limits that may be meant for a share. A typing error in a resource that requests one leaves at
least one of these words as it is.
"""
COUNT_MIB = (hami.MEM, *elastic.MEMORIES)
"""Resources that count MiB unless they have a binary suffix."""


@dataclass(frozen=True, slots=True)
class CelVariable:
    """A variable of the policy, which those after it may use."""

    name: str
    expression: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Validation:
    """A condition, and the warning where it does not hold. `otherwise`: the warning if the other has no value."""

    expression: str
    warning: str
    otherwise: str


def text() -> str:
    """The file."""
    return _FILE.format(
        name=NAME,
        concerns=_indented(_concerns()),
        variables="\n".join(map(_variable, _variables())),
        validations="\n".join(map(_validation, _validations())),
    )


def documents() -> list[dict[str, Any]]:
    """The policy and its binding."""
    return list(yaml.safe_load_all(text()))


_FILE = """\
# Made by `python -m release.warnings`; change the code, not this file.
#
# Warns of mistakes in what a tenant applies; kubectl shows the warning at once. The policy refuses nothing. Where it
# cannot be evaluated, the API server goes on without it.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules:
      - apiGroups: [apps]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [deployments, statefulsets, daemonsets, replicasets]
      - apiGroups: [batch]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [jobs, cronjobs]
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
  matchConditions:
    # Nobody reads a warning about what a controller makes. An update is judged only if it changes the specification or
    # annotations. Then a limit or an annotation must resemble one that requests a share.
    - name: may-ask-for-a-gpu-share
      expression: |-
{concerns}
  variables:
{variables}
  validations:
{validations}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
spec:
  policyName: {name}
  validationActions: [Warn]
"""
_TEMPLATE = (
    "has(dyn(object).spec.jobTemplate) ? dyn(object).spec.jobTemplate.spec.template :\n"
    "has(dyn(object).spec.template) ? dyn(object).spec.template : dyn(object)"
)
_KINDS = ("containers", "initContainers")


def _concerns() -> str:
    # A typing error in an annotation that alone asks leaves either `gpu` or its end as it is.
    ends = dict.fromkeys(name.rpartition("-")[2] for name in names.ALONE)
    nearly = " || ".join(["a.contains('gpu')", *(f"a.endsWith({cel.text(end)})" for end in ends)])

    def annotated(where: str) -> str:
        found = f"{where}.metadata.annotations"
        return f"has({found}) && {found}.size() <= {MOST_ANNOTATIONS} && {found}.exists(a, {nearly})"

    def named(kind: str) -> str:
        return (
            f"has(t.spec.{kind}) && t.spec.{kind}.size() <= {MOST_CONTAINERS} && t.spec.{kind}.exists(c,\n"
            f"    has(c.resources) && has(c.resources.limits) && c.resources.limits.size() <= {MOST_RESOURCES} &&\n"
            f"    c.resources.limits.exists(r, r.contains('/') && r.matches({cel.text(LIKE_ONE_THAT_ASKS)})))"
        )

    ways = [*map(named, _KINDS), f"has(t.metadata) && {annotated('t')}"]
    both = [
        f"(has({each}.metadata.annotations) ? {each}.metadata.annotations : {{}})" for each in ("object", "oldObject")
    ]
    return (
        "!has(object.metadata.ownerReferences) &&\n"
        f"(oldObject == null || dyn(object).spec != dyn(oldObject).spec ||\n  {both[0]} !=\n  {both[1]}) &&\n"
        f"([{_TEMPLATE}].exists(t,\n  " + " ||\n  ".join(ways) + f") ||\n{annotated('object')})"
    )


def _variables() -> Iterator[CelVariable]:
    longest = max(len(names.plain(each)) for each in (*names.RESOURCES, *names.WRITTEN))
    yield CelVariable(
        "ordinary",
        cel.texts(names.ORDINARY),
        "Names of other systems that resemble known ones. Add those that your cluster has.",
    )
    yield CelVariable("resources", cel.texts(names.RESOURCES), "By which containers ask.")
    yield CelVariable("known", cel.known(names.RESOURCES), "The same, and without capitals and separators.")
    yield CelVariable("written", cel.known(names.WRITTEN), "Annotations that tenants write.")
    yield CelVariable("read", cel.texts(names.READ), "Annotations that something reads, and beginnings of such.")
    yield CelVariable("letters", "[" + ", ".join(map(str, range(longest + 1))) + "]", "Letters of a name, by number.")
    yield CelVariable("template", _TEMPLATE)
    at = _TEMPLATE.replace("dyn(object).spec.jobTemplate.spec.template :", "'spec.jobTemplate.spec.template.' :")
    at = at.replace("? dyn(object).spec.template : dyn(object)", "? 'spec.template.' : ''")
    yield CelVariable("at", at, "Where the template is; a pod is its own.")
    yield CelVariable(
        "annotations", _annotations("variables.template"), "Of the template; none where there are too many."
    )
    yield CelVariable(
        "above",
        f"variables.at == '' || {_too_many('variables.template')} ? {{}} :\n" + _annotations("object"),
        "Of the workload, likewise.",
    )
    yield CelVariable("labels", "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}")
    label = cel.text(INJECT_LABEL)
    yield CelVariable(
        "reviewed",
        f"variables.at == '' && {label} in variables.labels &&\n"
        f"variables.labels[{label}] == {cel.text(INJECT_ENABLED)}",
        "Whether the webhook sees a pod of its own, and warns itself of what it reads.",
    )
    yield CelVariable(
        "places",
        " +\n".join(map(_places, _KINDS)),
        "The API server takes an extended resource only with a limit equal to its request, so limits are enough.",
    )
    yield from _misspelt()
    yield from _of_shares()


def _places(kind: str) -> str:
    listed = f"variables.template.spec.{kind}"
    return (
        f"(has({listed}) && {listed}.size() <= {MOST_CONTAINERS} ? {listed} : [])\n"
        "  .filter(c, has(c.resources) && has(c.resources.limits) &&\n"
        f"    c.resources.limits.size() <= {MOST_RESOURCES})\n"
        f"  .map(c, {{'at': dyn(variables.at + 'spec.{kind}[' + c.name + '].resources.limits'),\n"
        "    'limits': dyn(c.resources.limits)})"
    )


def _misspelt() -> Iterator[CelVariable]:
    ours = cel.text(names.OURS)
    stems = cel.some("r", (stem for dialect in DIALECTS for stem in dialect.stems))
    yield CelVariable(
        "odd",
        _listed(
            "r.contains('/') && !(r in variables.resources) && !(r in variables.ordinary) &&\n"
            f"r.size() <= {names.LONGEST} && !(variables.reviewed && ({stems})) &&\n"
            f"(r.startsWith({ours}) || [{cel.plain('r')}].exists(q,\n"
            f"{cel.matches('q', names.patterns(names.RESOURCES, beginnings=True))}))",
            "p.at + '|' + r",
            " ",
        ),
        "Resources that nothing reads and that are of our domain or resemble a known one, each after its field.",
    )
    first = cel.plain("variables.odd[0].split('|')[1]")
    yield CelVariable(
        "meant",
        f"variables.odd.size() == 0 ? '' : [{first}].map(q,\n"
        f"  (variables.known.filter(k, {cel.misspells('q')}) +\n"
        f"  variables.known.filter(k, {cel.shortens('q')}) +\n"
        f"  variables.known.filter(k, {cel.lengthens('q')})).map(k, k.name).join(' ').split(' ')[0])[0]",
        "What the first of them may mean; empty where it resembles none.",
    )
    yield CelVariable(
        "unread",
        f"{cel.text(REQUEST)} in variables.annotations ? [] :\n"
        f"variables.annotations.filter(a, !(a in variables.read) && a.size() <= {names.LONGEST} &&\n"
        f"  (a in variables.resources || (a.startsWith({ours}) ?\n"
        "    !variables.read.exists(k, a.startsWith(k.endsWith('.') ? k : k + '.')) :\n"
        f"    [{cel.plain('a')}].exists(q,\n{cel.matches('q', names.patterns(names.WRITTEN))}))))",
        "Annotations of the template that nothing reads and that are of our domain or resemble a known one.",
    )
    yield CelVariable(
        "intended",
        f"variables.unread.size() == 0 ? '' : [{cel.plain('variables.unread[0]')}].map(q,\n"
        f"  variables.written.filter(k, {cel.misspells('q')}).map(k, k.name).join(' ').split(' ')[0])[0]",
        "What the first of them may mean; empty where it resembles none.",
    )
    written = cel.texts(names.WRITTEN)
    yield CelVariable(
        "misplaced",
        "variables.above.filter(a, !(a in variables.annotations) &&\n"
        f"  (a in {written} || {cel.some('a', (names.OURS, *names.WRITTEN_PREFIXES))}))",
        "Annotations of the workload that are read only on pods.",
    )


def _of_shares() -> Iterator[CelVariable]:
    yield CelVariable(
        "asks",
        _listed(
            f"r in variables.resources && !(r in {cel.texts(names.NO_SHARES)}) &&\n"
            f"!(variables.at == '' && r.startsWith({cel.text(names.OURS)}))",
            "p.at + '[' + r + ']'",
            " ",
        )
        + f" +\nvariables.annotations.filter(a, a in {cel.texts(names.ALONE)} ||\n"
        f"    {cel.some('a', names.WRITTEN_PREFIXES)})\n"
        "  .map(a, variables.at + 'metadata.annotations[' + a + ']')",
        "Fields that ask for a share. Of a pod, another policy refuses our own resources where nothing gives them.",
    )
    amount, plain = "string(p.limits[r])", f"r in {cel.texts(COUNT_MIB)} && !string(p.limits[r]).endsWith('i')"
    least = mib(LEAST_USED)
    mebibytes = f"variables.annotations[{cel.text(kai.MEMORY)}]"
    yield CelVariable(
        "little",
        _listed(
            f"r in {cel.texts((*COUNT_MIB, GPU_MEMORY))} && !variables.reviewed &&\n"
            f"!({cel.text(GPU_MEMORY_LIMIT)} in p.limits) && quantity({amount}).isGreaterThan(quantity('0')) &&\n"
            f"quantity({amount}).isLessThan(quantity({plain} ? '{least}' : '{least}Mi'))",
            f"p.at + '[' + r + ']: found ' + {amount} + ({plain} ?\n"
            f"    ' MiB, {NOTHING_STARTS}; for ' + {amount} + ' GiB give ' + {amount} + 'Gi' :\n"
            f"    ', {NOTHING_STARTS}; {WITH_UNIT}')",
            "|",
        )
        + f" +\n({cel.text(kai.MEMORY)} in variables.annotations &&\n"
        f"  ![{cel.text(REQUEST)}, {cel.text(kai.MEMORY_LIMIT)}].exists(each, each in variables.annotations) &&\n"
        f"  {mebibytes}.matches('^[1-9][0-9]?[0-9]?$') && int({mebibytes}) < {least} ?\n"
        f"  [variables.at + 'metadata.annotations[{kai.MEMORY}]: found ' + {mebibytes} +\n"
        f"    ' MiB, {NOTHING_STARTS}; for ' + {mebibytes} + ' GiB give ' + string(int({mebibytes}) * 1024)] : [])",
        "Amounts of memory that are too small to be meant. With a limit above it, such an amount is enough to start.",
    )
    limit, request = (f"p.limits[{cel.text(name)}]" for name in (GPU_MEMORY_LIMIT, GPU_MEMORY))
    yield CelVariable(
        "below",
        _listed(
            f"r == {cel.text(GPU_MEMORY_LIMIT)} && {cel.text(GPU_MEMORY)} in p.limits && !variables.reviewed &&\n"
            f"quantity(string({limit})).isLessThan(quantity(string({request})))",
            f"p.at + '[' + r + ']: found ' + string({limit}) + ', less than {GPU_MEMORY}, which is ' +\n"
            f"    string({request}) + '; give at least {GPU_MEMORY}, or remove the limit'",
            "|",
        ),
        "Memory limits below what is booked.",
    )


def _validations() -> Iterator[Validation]:
    amount = cel.text(UNDER_LIMITS)
    yield Validation(
        "variables.odd.size() == 0",
        f"variables.odd[0].split('|')[0] + '[' + variables.odd[0].split('|')[1] + ']: found {UNKNOWN}; ' +\n"
        f"(variables.meant != '' ? {_suggested('variables.meant')} : 'give one of {', '.join(names.NATIVE)}')",
        "a container has an unknown resource",
    )
    yield Validation(
        "variables.unread.size() == 0",
        f"variables.at + 'metadata.annotations[' + variables.unread[0] + ']: {UNREAD}; ' +\n"
        f"(variables.unread[0] in variables.resources ? {amount} :\n"
        f" variables.intended != '' ? {_suggested('variables.intended')} : {cel.text(REMOVE)})",
        "nothing reads an annotation of the template",
    )
    yield Validation(
        "variables.misplaced.size() == 0",
        f"'metadata.annotations[' + variables.misplaced[0] + ']: {UNREAD} here; ' +\n"
        f"(variables.misplaced[0] in variables.resources ? {amount} :\n"
        " 'move it to ' + variables.at + 'metadata.annotations')",
        "an annotation is on the workload instead of its template",
    )
    label, unserved = cel.text(INJECT_LABEL), cel.texts(sorted(UNSERVED_NAMESPACES))
    yield Validation(
        f"variables.asks.size() == 0 || {label} in variables.labels || request.namespace in {unserved}",
        f"variables.asks[0] + ': found in namespace ' + request.namespace + ', which has no label {INJECT_LABEL}; ' +\n"
        f"'label it {INJECT_LABEL}={INJECT_ENABLED}, or {INJECT_LABEL}=disabled if another system serves it'",
        "the namespace is not enabled for GPU shares",
    )
    yield Validation("variables.little.size() == 0", "variables.little[0]", "a share has too little memory")
    yield Validation("variables.below.size() == 0", "variables.below[0]", "a memory limit is below what is booked")


def _listed(condition: str, shown: str, between: str) -> str:
    """
    An expression: of all limits `r` of all `variables.places`, those with the condition, as one list of texts.

    CEL of 1.30 cannot flatten a list of lists, so the texts are joined and split; `between` occurs in none of them.
    """
    joined = f".join({cel.text(between)})"
    inner = condition.replace("\n", "\n    ")
    return (
        f"variables.places.map(p, p.limits.filter(r,\n    {inner})\n  .map(r, {shown}){joined}){joined}"
        f".split({cel.text(between)}).filter(f, f != '')"
    )


def _suggested(near: str) -> str:
    """An expression: the cure that names this text."""
    before, after = did_you_mean("|").split("|")
    return f"{cel.text(before)} + {near} + {cel.text(after)}"


def _annotations(where: str) -> str:
    found = f"{where}.metadata.annotations"
    return f"has({where}.metadata) && has({found}) && {found}.size() <= {MOST_ANNOTATIONS} ? {found} : {{}}"


def _too_many(where: str) -> str:
    found = f"{where}.metadata.annotations"
    return f"has({where}.metadata) && has({found}) && {found}.size() > {MOST_ANNOTATIONS}"


def _indented(value: str) -> str:
    return "\n".join(" " * 8 + line for line in value.splitlines())


def _variable(made: CelVariable) -> str:
    comment = f"    # {made.why}\n" if made.why else ""
    return f"{comment}    - name: {made.name}\n      expression: |-\n{_indented(made.expression)}"


def _validation(made: Validation) -> str:
    return (
        f"    - expression: |-\n{_indented(made.expression)}\n      message: {made.otherwise}\n"
        f"      messageExpression: |-\n{_indented(made.warning)}"
    )
