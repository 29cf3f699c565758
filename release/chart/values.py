"""
The choices of a chart's user: `values.yaml` with its comments, and the JSON schema by which Helm checks it.

Figures come from the manifests: the image, replicas and resources are theirs, and the names of components and overlays
are those of the folders. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from release.chart import settings
from release.chart.settings import PROGRAMS
from release.chart.template import plain

JSON = dict[str, Any]
_WIDTH = 100


@dataclass
class Choices:
    """The parts of the manifests that values may change."""

    image: JSON = field(default_factory=dict)
    images: dict[str, JSON] = field(default_factory=dict)
    """Images of others: a short name, and name, tag and digest."""
    replicas: int = 1
    resources: dict[str, JSON] = field(default_factory=dict)
    """By container."""
    args: dict[str, frozenset[str]] = field(default_factory=dict)
    """Containers that take settings as arguments, and the flags that each has whatever is chosen."""
    workloads: list[str] = field(default_factory=list)
    """The pods' label `app.kubernetes.io/component`."""


def values(found: Choices, overlays: Sequence[str], notes: Mapping[str, str]) -> str:
    """The text of `values.yaml`. `notes` has a comment for each component."""
    return "\n".join(_values(found, overlays, notes)) + "\n"


def _values(found: Choices, overlays: Sequence[str], notes: Mapping[str, str]) -> Iterator[str]:
    yield "# The chart's values. values.schema.json refuses a value of the wrong kind and names its field."
    yield from _part(
        "The image of all programs. The name includes the registry. With a digest, exactly that image runs."
    )
    yield from plain({"image": {**found.image, "pullSecrets": []}})
    yield "  # Names of Secrets in gpufraction-system and gpufraction-nodes, for a registry that requires a login:"
    yield "  # pullSecrets: [{name: registry}]"
    yield from _part("Images of other projects that components use.")
    yield from plain({"images": found.images})
    yield from _part("The overlay, as in manifests/overlays; docs/clouds has a page for each cloud. One of")
    yield from _comment(", ".join(overlays) + ". Empty: only the base.")
    yield 'overlay: ""'
    yield from _part(
        "Components, as in manifests/components (each kustomization.yaml describes one): NAME: true adds one; NAME: "
        "false removes one that the overlay adds. In your own values: components: {claims: true}."
    )
    yield "components: {}"
    for name, note in notes.items():
        yield ""
        yield from (f"  # {line}".rstrip() for line in note.splitlines())
        yield f"  # {name}: true"
    yield from _part(
        "How GPUs are shared: the document options.yaml of the ConfigMap gpufraction-options, whose names "
        "manifests/base/options.configmap.yaml and docs/settings.md explain. It replaces the whole document, "
        "including that of the overlay. Empty: the document of the base or the overlay."
    )
    yield "options: {}"
    yield "  # deviceSplitCount: 10"
    yield "  # pools: [{name: notebooks, nodeSelector: {matchLabels: {pool: notebooks}}, deviceMemoryScaling: 2}]"
    yield from _part("Replicas of webhook and allocator. One of them decides.")
    yield from plain({"replicas": found.replicas})
    yield from _part(
        "Settings (docs/settings.md) of webhook, allocator and node agent, for their ConfigMaps: "
        "allocator: {queue: {order: fair}}. A change restarts the program's pods."
    )
    yield from plain({"settings": {program: {} for program in PROGRAMS}})
    yield from _part(
        "Further arguments: [--log-level=debug]. They come before the settings above; if a setting is given twice, "
        "the last one counts."
    )
    yield from plain({"args": {name: [] for name in found.args}})
    yield from _part("Requests and limits by container, as in the manifests.")
    yield from plain({"resources": found.resources})
    yield from _part(
        "Further labels that a node must have, by the pods' label app.kubernetes.io/component: {pool: gpu}. They are "
        "added to the manifests' own; values given here override those of the manifests."
    )
    yield from plain({"nodeSelector": {name: {} for name in found.workloads}})
    yield from _part("Further tolerations. The programs on GPU nodes already tolerate every taint.")
    yield from plain({"tolerations": {name: [] for name in found.workloads}})
    yield from _part(
        "The Namespace gpufraction-system as an object of the chart. `helm install` creates the namespace itself, so "
        "leave this false. For `helm template` and tools that apply its output: true."
    )
    yield from plain({"namespace": {"create": False}})
    yield from _part(
        "The custom resource definitions. They are templates, so that `helm upgrade` upgrades them. keep: `helm "
        "uninstall` keeps them, with all GPUNodes and ElasticGPUClaims."
    )
    yield from plain({"crds": {"install": True, "keep": True}})


def _part(text: str) -> Iterator[str]:
    yield ""
    yield from _comment(text)


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False))


def schema(found: Choices, overlays: Sequence[str], components: Sequence[str]) -> JSON:
    """The JSON schema (draft 7). No field is allowed that it does not name."""
    image = {"name": {"type": "string", "minLength": 1, "pattern": "^[^@ ]+$"}, "tag": _TAG, "digest": _DIGEST}
    pull = {"type": "array", "items": _closed({"name": _NAME}, "name")}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart gpufraction",
        **_closed(
            {
                "global": {"type": "object"},
                "image": _closed({**image, "pullSecrets": pull}),
                "images": _closed({name: _closed(image) for name in found.images}),
                "overlay": {"enum": ["", *overlays]},
                "components": _closed({name: {"type": "boolean"} for name in components}),
                "options": _OPTIONS,
                "replicas": {"type": "integer", "minimum": 1},
                "settings": _closed({program: settings.schema(program, found.args[program]) for program in PROGRAMS}),
                "args": _closed({name: _ARGUMENTS for name in found.args}),
                "resources": _closed({name: _RESOURCES for name in found.resources}),
                "nodeSelector": _closed({name: _LABELS for name in found.workloads}),
                "tolerations": _closed({name: _TOLERATIONS for name in found.workloads}),
                "namespace": _closed({"create": {"type": "boolean"}}),
                "crds": _closed({"install": {"type": "boolean"}, "keep": {"type": "boolean"}}),
            }
        ),
    }


def _closed(properties: JSON, *required: str) -> JSON:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


_TAG: JSON = {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"}
_DIGEST: JSON = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_NAME: JSON = {"type": "string", "minLength": 1}
_LABELS: JSON = {"type": "object", "additionalProperties": {"type": "string"}}
_ARGUMENTS: JSON = {"type": "array", "items": {"type": "string", "pattern": "^--[a-z0-9][a-z0-9-]*(=(.|\\n)*)?$"}}
_AMOUNT: JSON = {"type": ["string", "number"]}
_AMOUNTS: JSON = {"type": "object", "additionalProperties": _AMOUNT}
_RESOURCES = _closed({"requests": _AMOUNTS, "limits": _AMOUNTS})
_TOLERATIONS: JSON = {
    "type": "array",
    "items": _closed(
        {
            "key": {"type": "string"},
            "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
            "value": {"type": "string"},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer"},
        }
    ),
}


def _whole(least: int, most: int) -> JSON:
    return {"type": "integer", "minimum": least, "maximum": most}


_OF_NODES: JSON = {
    "deviceSplitCount": _whole(1, 1024),
    "deviceMemoryScaling": {"type": "number", "minimum": 1, "maximum": 10},
    "memoryLimitRatio": {"type": "number", "minimum": 1, "maximum": 10},
    "defaultMem": {"type": "integer", "minimum": 0},
    "defaultCores": _whole(0, 100),
    "disablecorelimit": {"type": "boolean"},
    "migStrategy": {"enum": ["none", "single", "mixed"]},
    "reserveMem": {"type": "integer", "minimum": 0},
    "reserveMemPercentage": _whole(0, 50),
}
_SELECTOR = _closed(
    {
        "matchLabels": _LABELS,
        "matchExpressions": {
            "type": "array",
            "items": _closed(
                {
                    "key": _NAME,
                    "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                    "values": {"type": "array", "items": {"type": "string"}},
                },
                "key",
                "operator",
            ),
        },
    }
)
_POOL = _closed(
    {
        **_OF_NODES,
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "nodeSelector": {**_SELECTOR, "minProperties": 1},
        # The programs read what a node has, and refuse invalid content.
        "node": {"type": "object"},
        "spare": {"type": "integer", "minimum": 0},
    },
    "name",
    "nodeSelector",
)
_OPTIONS = _closed(
    {
        **_OF_NODES,
        **{
            name: _NAME
            for name in ("resourceName", "resourceMem", "resourceMemPercentage", "resourceCores", "resourcePriority")
        },
        "aliyunUnit": {"enum": ["GiB", "MiB"]},
        "coreOnlyMemory": _AMOUNT,
        "wholeGPUs": {"enum": ["ours", "vendor"]},
        "minMemory": _AMOUNT,
        "minPercent": _whole(1, 100),
        "pools": {"type": "array", "items": _POOL},
        # The programs read the arguments of kube-scheduler, and refuse invalid ones.
        "schedulerProfiles": {"type": "array", "items": {"type": "object"}},
    }
)
