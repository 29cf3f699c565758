"""
The pages of the documentation that are made from code: names, metrics, reasons, and the dialects with their examples.

`python -m playground.documentation [FOLDER]` writes them, into `docs` where no folder is named; a test holds the
committed pages to what is made here. The dialect itself reads the examples, so their meaning is always correct.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from contract import names
from contract.bounds import MOST_GATES, MOST_SELECTING, MOST_TERMS
from contract.deprecations import DEPRECATED
from contract.dialects import DIALECTS
from contract.dialects.base import Dialect, Example, Refusal
from contract.encoding.quantity import format_bytes
from contract.metrics import metrics_of
from contract.model import (
    MOST_CONTAINERS,
    MOST_SHARES,
    MOST_SHARING,
    MOST_WISHED,
    MOST_WORDS,
    FractionRequest,
    PodRequest,
)
from contract.reasons import REGISTRY, Cure, ReasonKind, ReasonName, Row
from contract.reasons.base import STORAGE
from contract.scheduling.needs import MOST_PORTS
from playground.edges.table import FEATURES

_MADE = "<!-- Made by `python -m playground.documentation`; change the code, not this page. -->"


def names_page() -> str:
    """`docs/names.md`: every name of ours on or in a Kubernetes object."""
    rows = [(f"`{_full(key)}`", key.on, key.writer, key.doc) for key in names.REGISTRY]
    environment = [(f"`{variable}`", f"`{_full(key)}`") for variable, key in names.ENVIRONMENT]
    exact, prefixes = names.RESERVED_ENVIRONMENT, names.RESERVED_ENVIRONMENT_PREFIXES
    return _page(
        "# Names",
        "All names that gpufraction writes to or reads from Kubernetes objects. The names of the older systems are in "
        "[dialects.md](dialects.md). Changing any of these names changes the contract.",
        _table(("Name", "On", "Written by", "Meaning"), rows),
        "If a container's name does not fit after a prefix, it is replaced by the start of the name, `_` and a hash.",
        "## Custom resources",
        f"`{names.GPUNODE_KIND}` (`{names.GPUNODE_PLURAL}.{names.GROUP}`, versions `{names.VERSION}` and "
        f"`{names.NEXT_VERSION}`, cluster scoped): "
        "one for each node with GPUs, with the same name, written by that node's agent.",
        "`ElasticGPUClaim`, `ElasticGPUClass`, `ElasticGPU` and `GPU` of `elasticgpu.io/v1alpha1`, as in that system: "
        "see [claims.md](claims.md).",
        "## Environment",
        "The environment of a container with a share, and the annotation that each variable reads when the container "
        "starts. Without the annotation, a variable is empty, and an empty list of devices means no GPU.",
        _table(("Variable", "Reads"), environment),
        f"Values that a tenant sets for these names are replaced: {_listed(exact)}, and everything that starts with "
        f"{_listed(prefixes)}. A library named `{names.LIMITER_LIBRARY}` is removed from `LD_PRELOAD`.",
    )


def _full(key: names.Key) -> str:
    return f"{key}<container>" if key in names.CONTAINER_PREFIXES else str(key)


def dialects_page(dialects: Iterable[Dialect] = DIALECTS) -> str:
    """`docs/dialects.md`: how gpufraction reads the pods of each older system."""
    general = (
        "English | [简体中文](zh/dialects.md)",
        "Find what your manifest's names request. A dialect is one system's names for a GPU share. Every dialect is "
        "read into the same request, per container: a number of distinct GPUs, and on each of them memory and cores. "
        "[Recipes](recipes.md#add-a-dialect) say how to add one.",
        _table(("What a manifest says", "What happens"), _RULES),
        "The examples show the limits of one container called `main`, and the request that results from them.",
    )
    return _page("# Dialects", *general, *(part for dialect in dialects for part in _dialect(dialect)))


_RULES: tuple[tuple[str, str], ...] = (
    ("names of two dialects in one pod, even in different containers", "It is refused; the message names both places."),
    (
        "a negative amount, a fraction of a unit, text that is not a quantity, more than any machine has",
        "It is refused; the message says what would work.",
    ),
    ("0", "It requests nothing in Aliyun gpushare, Elastic GPU and `nvidia.com/gpu`. In all others it is refused."),
    ("a name only in requests", "It counts as a limit."),
    (
        "an init container",
        "It has its share while it runs. The pod takes the largest sum of shares that are in use at the same time.",
    ),
    ("a sidecar (`restartPolicy: Always`)", "It counts like an app container, from its start."),
    (
        "a container without a share alongside others with one",
        "It sees no GPU, whatever its image sets. nano-gpu's annotation has `-1` for it.",
    ),
    (
        "a percentage, or a whole GPU",
        "A quota of `gpufraction.io/gpu-memory` counts its bytes on the GPU that it got, or, if the pod had to wait, "
        "on the smallest GPU that it accepts. While no such GPU is known, the pod is refused.",
    ),
    (
        "a resource whose name is nearly one of these (`nvidia.com/gpu-mem`, `nano-gpu/gpu-percentage`)",
        "Together with a share, it is refused, and the message suggests a name. Alone, it causes [a "
        "warning](troubleshooting.md#kubectl-warns-of-a-manifest), and the pod waits for a resource that no node has. "
        "A misspelt annotation, label or domain causes a warning too.",
    ),
    (
        "a container that another webhook adds after us",
        "It is read with the others in the pod's dialect, and refused in another one.",
    ),
    ("what a LimitRange of the namespace wrote", "See [LimitRanges](operations.md#limitranges)."),
    (
        f"more than {MOST_SHARING} containers that request a share, {MOST_CONTAINERS} containers, {MOST_SHARES} GPUs "
        f"in all containers together, {MOST_WORDS} words in a list of wishes or {MOST_WISHED:,} in all; {MOST_TERMS} "
        f"terms of node affinity, {MOST_SELECTING:,} expressions, values, selector labels and tolerations, "
        f"{MOST_PORTS} host ports, {MOST_GATES} gates; annotations of more than 256 KiB with those of the share",
        "It is refused. The message has the number found and the maximum.",
    ),
    ("requirements on models and GPUs, and policies", "They work with every dialect; see [names.md](names.md)."),
    ("a scheduler of one of the systems as `schedulerName`", "The pod gets the default scheduler."),
)


def _dialect(dialect: Dialect) -> Iterable[str]:
    yield f"## {dialect.title}"
    yield dialect.about.strip()
    yield _table(("Name", "On", "Meaning"), [(f"`{word.name}`", word.on, word.meaning) for word in dialect.glossary])
    if dialect.examples:
        yield _table(("Example", "Read as"), [(_written(example), outcome(example)) for example in dialect.examples])


def _written(example: Example) -> str:
    kinds: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("", example.limits),
        ("annotation ", example.annotations),
        ("label ", example.labels),
    )
    return "<br>".join(f"{kind}`{key}: {value}`" for kind, found in kinds for key, value in found.items())


def outcome(example: Example) -> str:
    """The result of reading an example, in words."""
    metadata = {"annotations": dict(example.annotations), "labels": dict(example.labels)}
    container = {"name": "main", "resources": {"limits": dict(example.limits)}}
    found = DIALECTS.read({"metadata": metadata, "spec": {"containers": [container]}})
    match found:
        case PodRequest():
            if found.claim:
                return f"the share of the claim `{found.claim}`"
            warnings = (f"warns: `{warning}`" for warning in found.warnings)
            first = ("is placed before others of its namespace",) if found.priority else ()
            needed = example.annotations.get(names.ISOLATION, "")
            where = (f"only where {needed} or stronger is enforced",) if needed else ()
            return "; ".join((*(described(fraction) for fraction in found.containers), *where, *first, *warnings))
        case Refusal():
            return f"refused: `{found}`"
        case None:
            return "no share asked"


def described(fraction: FractionRequest) -> str:
    """A container's share in words."""
    gpus = "1 GPU" if fraction.count == 1 else f"{fraction.count} GPUs, on each"
    memory = _amount(fraction, fraction.memory or fraction.percent)
    limit = f", up to {_amount(fraction, fraction.limit)} while no other pod needs it" if fraction.limit else ""
    cores = f"{fraction.cores} % of the cores" if fraction.cores else "no cores reserved"
    words = f"{gpus}: {memory} of memory{limit}, {cores}"
    wished = fraction.wishes
    for verb, wanted, between in (
        ("models", wished.use_models, ", then " if wished.ordered else " or "),
        ("no models", wished.avoid_models, " or "),
    ):
        words += f", {verb} {between.join(wanted)}" if wanted else ""
    words += f", GPUs of {format_bytes(wished.least_memory)} or more" if wished.least_memory else ""
    words += ", all on one NUMA node" if fraction.one_numa else ""
    return f"{words}, shared with no other pod" if fraction.exclusive else words


def _amount(fraction: FractionRequest, amount: int) -> str:
    return format_bytes(amount) if fraction.memory else f"{amount} %"


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((title, _MADE, *parts)) + "\n"


def metrics_page() -> str:
    """`docs/metrics.md`: every metric, by the program that exposes it."""
    tables = []
    for program, where in _SCRAPED:
        rows = [(f"`{spec.name}`", spec.kind, _listed(spec.labels), spec.help) for spec in metrics_of(program)]
        tables += [f"## {program.capitalize()}", where, _table(("Name", "Kind", "Labels", "Meaning"), rows)]
    return _page(
        "# Metrics",
        "The metrics of the programs, under `/metrics`. [operations.md](operations.md) explains which to watch and "
        "what to do; dashboards are in [monitoring.md](monitoring.md). Changing a name or a label changes the "
        "contract.",
        *tables,
    )


def edges_page() -> str:
    """`docs/edges.md`: who may write what, where it arrives, what bounds it and which test shows that."""
    parts = []
    found: dict[str, list[str]] = {}
    for feature in FEATURES:
        link = f"[{feature.title}](#{_anchor(feature.title)})"
        rows = [(row.who, row.writes, row.arrives, row.bound, _listed(row.tests)) for row in feature.rows]
        parts += [f"## {feature.title}", _table(("Who", "May write", "Arrives at", "Bounded by", "Shown by"), rows)]
        for edge in dict.fromkeys(each for row in feature.rows for each in row.covers):
            found.setdefault(edge, []).append(link)
    listed = [
        (kind, f"`{rest}`", ", ".join(found[edge])) for edge in sorted(found) for kind, _, rest in [edge.partition(" ")]
    ]
    return _page(
        "# Who may write what",
        "For each feature, this page lists what untrusted actors may write, where it arrives, what bounds it, and "
        "which test shows that. Attacks are in [security.md](security.md), as is [who is "
        "trusted](security.md#who-is-trusted). `fuzzing NAME` is a target of `make fuzz-coverage`; see "
        "[testing.md](testing.md#fuzzing-with-coverage). Other tests are in `tests/`.",
        f"Features: {', '.join(f'[{each.title}](#{_anchor(each.title)})' for each in FEATURES)}. At the end is [every "
        "edge](#every-edge), in alphabetical order.",
        *parts,
        "## Every edge",
        "A test compares this list with the names, dialects, roles, routes, kinds and host paths in the code and the "
        "manifests. A new edge without a row above fails that test.",
        _table(("Kind", "Edge", "Feature"), listed),
    )


def _anchor(title: str) -> str:
    """The anchor of a heading, for links to it."""
    return "".join(character for character in title.lower() if character.isalnum() or character in " -").replace(
        " ", "-"
    )


def reasons_page() -> str:
    """`docs/reasons.md`: every reason of a condition or Event, by the object on which it appears."""
    parts = []
    for kind, about in _READ:
        rows = [_reason(word, row) for word, row in REGISTRY if row.kind is kind]
        columns = [number for number in range(5) if number < 2 or any(row[number] for row in rows)]
        head = ("Reason", "What it says", "What you can do", "Cured by", "More")
        listed = _table(_only(columns, head), [_only(columns, row) for row in rows])
        parts += [f"## {kind}", about, listed]
    return _page(
        "# Reasons",
        "This page lists the reasons in gpufraction's conditions and Events: what each of them says, what you can do, "
        "and [what can cure it](#what-can-cure-a-reason). To find the reason for a symptom, see "
        "[troubleshooting.md](troubleshooting.md).",
        *parts,
        "## What can cure a reason",
        "A waiting pod is tried again when something happens that can cure one of the reasons in its message, and "
        "whenever its figures are refreshed: at least every 15 s while the cluster changes.",
        _table(("Cured by", "What happens"), [(change.value, change.doc) for change in Cure]),
    )


def _reason(word: ReasonName, row: Row) -> tuple[str, ...]:
    cured_by = "objects of storage" if row.cured_by >= STORAGE else ""
    others = row.cured_by - STORAGE if cured_by else row.cured_by
    listed = ", ".join(filter(None, (*(change for change in Cure if change in others), cured_by)))
    return (f"`{word}`", _shown(row), row.cure, listed, _page_of(row))


def _only(columns: Iterable[int], cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cells[number] for number in columns)


def _shown(row: Row) -> str:
    text = row.text
    for figure, shown in (("{free}", " free"), ("{most}", "..."), ("{wanted}", "..."), ("{what}", "...")):
        text = text.replace(figure, shown)
    return text


def _page_of(row: Row) -> str:
    return f"[{row.page.partition('#')[0]}]({row.page})" if row.page else ""


_READ: tuple[tuple[ReasonKind, str], ...] = (
    (
        ReasonKind.NODE,
        "The message of a waiting pod has these phrases with a number of nodes and figures: `0 of 3 GPU nodes fit: 2 "
        "short of memory (largest free 5120 MiB, wanted 8192), 1 cordoned`. The condition has the reason of the node "
        "on which the pod passed the most checks: of the reasons in the message, it is the lowest in this table. A "
        "pod that no GPU of the cluster can ever serve is denied with the same phrases.",
    ),
    (
        ReasonKind.WAITS,
        "Reasons of the condition `gpufraction.io/Allocated` of a waiting pod that are not about nodes. A pod whose "
        "ElasticGPUClaim waits has the claim's reason with the prefix `Claim`, such as `ClaimInvalid`.",
    ),
    (
        ReasonKind.PLACED,
        "Reasons of the condition `gpufraction.io/Allocated` when it is True: for a pod that waited, and for one that "
        "is not bound. A pod that was placed at once has its share only in its annotations.",
    ),
    (
        ReasonKind.ANSWER,
        "What the webhook says about a pod that waits behind the gate. kubectl shows it as a warning.",
    ),
    (
        ReasonKind.POD_EVENT,
        "If an administrator must act on a reason of the condition, it is also the reason of a Warning Event.",
    ),
    (
        ReasonKind.NODE_EVENT,
        "See `kubectl describe node NODE`. Events about a list are on its ConfigMap in kube-system.",
    ),
    (
        ReasonKind.CLAIM,
        "Reasons in the status of the objects. If no node has room for a claim, its reason is one of those for nodes.",
    ),
    (ReasonKind.CLAIM_EVENT, "See `kubectl describe egpuc NAME`."),
    (ReasonKind.GPUNODE, "See `kubectl get gpunode NODE -o yaml`. The text starts with the type of the condition."),
    (ReasonKind.CHECK, "See `kubectl get admissionchecks.kueue.x-k8s.io -o yaml`, and [kueue.md](kueue.md)."),
)


_SCRAPED = (
    ("webhook", "Port `health` of the Deployment's pods (9444)."),
    ("allocator", "Port `http` of the Deployment's pods (9402). If replicas differ, the leader's figure counts."),
    ("nodeagent", "Port `http` of the DaemonSet's pods (9445)."),
)


def deprecations_page() -> str:
    """`docs/deprecations.md`: the names that a later release no longer reads."""
    rows = [(f"`{each.name}`", each.since, each.until, each.instead) for each in DEPRECATED]
    table = _table(("Name", "Deprecated since", "Read until", "Instead"), rows)
    return _page(
        "# Deprecated names",
        "Annotations, labels and resources that pods may still have, but that a later release does not read. While "
        "you use one, kubectl shows a warning when the pod is created, and the metric "
        "`gpufraction_deprecated_names_total` counts it. "
        "[compatibility.md](compatibility.md#how-a-name-is-deprecated) says what you can rely on.",
        table if rows else "Nothing is deprecated.",
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "deprecations.md": deprecations_page,
    "edges.md": edges_page,
    "names.md": names_page,
    "dialects.md": dialects_page,
    "metrics.md": metrics_page,
    "reasons.md": reasons_page,
}
"""Each page that is made, by its name in `docs`."""


def main(arguments: list[str]) -> int:
    """Write every page into the folder that the arguments name."""
    folder = Path(arguments[0] if arguments else "docs")
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
