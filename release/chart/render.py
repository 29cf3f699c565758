"""
The chart's files from the manifests: templates, values, schema and notes.

Nothing of an object is written here a second time. The manifests give every object; this module defines which of their
fields values may change, and which choices are refused. Pure: text in, text out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from contract.components import COMPONENTS
from release.chart import settings, values
from release.chart.kustomizations import Entry, Manifests
from release.chart.template import written
from release.chart.tree import ABSENT, MORE, Expression, Node, Text, Unsupported, Values, When, where_present

JSON = dict[str, Any]
NAMESPACE = "gpufraction-system"
_LABEL = "app.kubernetes.io/component"
_HELPERS = """\
{{- define "gpufraction.image" -}}
{{- .name }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
"""


@dataclass
class _Chart:
    """The facts that are collected while the objects are written."""

    choices: values.Choices = field(default_factory=values.Choices)
    files: dict[str, list[str]] = field(default_factory=dict)


def files(manifests: Manifests, version: str, notes: str) -> dict[str, str]:
    """
    The chart's files by their path in it. Raises `Unsupported`.

    `version` is the project's; `notes` is the text of NOTES.txt, a template.
    """
    chart = _Chart()
    [(name, image)] = manifests.images.items()
    chart.choices.image = {
        "name": image.get("newName", name),
        "tag": image.get("newTag", ""),
        "digest": image.get("digest", ""),
    }
    for entry in manifests.entries:
        change = partial(_with_values, identity=entry.identity, image=name, choices=chart.choices)
        node = where_present(entry.node, change)
        _write(chart, entry, node, manifests)
    schema = values.schema(chart.choices, manifests.overlays, [*manifests.components])
    found = {
        "Chart.yaml": _description(version),
        "values.yaml": values.values(chart.choices, manifests.overlays, manifests.notes),
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
        "templates/checks.yaml": _checks(manifests),
        "templates/_image.tpl": _HELPERS,
        "templates/_settings.tpl": settings.HELPERS,
        "templates/NOTES.txt": notes,
    }
    return found | {path: "\n".join(lines) + "\n" for path, lines in chart.files.items()}


def _description(version: str) -> str:
    return f"""\
apiVersion: v2
name: gpufraction
description: GPU fractions on any Kubernetes, without touching kube-scheduler
type: application
version: {version}
appVersion: "{version}"
# Scheduling gates and match conditions are stable there.
kubeVersion: ">=1.30.0-0"
"""


# -- objects ---------------------------------------------------------------------------------------------------------


def _with_values(node: JSON, identity: JSON, image: str, choices: values.Choices) -> JSON:
    """The object with the fields that values may change."""
    kind = identity["kind"]
    if kind == "CustomResourceDefinition":
        metadata = node["metadata"]
        kept = {**metadata.get("annotations", {}), "helm.sh/resource-policy": "keep"}
        chosen = When(".Values.crds.keep", kept, metadata.get("annotations", ABSENT))
        return {**node, "metadata": {**metadata, "annotations": chosen}}
    if kind == "ConfigMap" and identity["metadata"]["name"] == "gpufraction-options":
        document = When(".Values.options", Text(".Values.options"), node["data"]["options.yaml"])
        return {**node, "data": {**node["data"], "options.yaml": document}}
    if kind == "ConfigMap":
        return settings.configured(identity, node)
    if kind not in ("Deployment", "DaemonSet"):
        return node
    spec = node["spec"]
    label = spec["template"]["metadata"]["labels"][_LABEL]
    choices.workloads.append(label)
    if label == "admission":
        choices.replicas = spec["replicas"]
        spec = {**spec, "replicas": Expression(".Values.replicas")}
    template = spec["template"]
    pod = _pod(template["spec"], label, image, choices)
    metadata = settings.restarted(template["metadata"], _programs(pod["containers"]))
    return {**node, "spec": {**spec, "template": {**template, "metadata": metadata, "spec": pod}}}


def _pod(pod: JSON, label: str, image: str, choices: values.Choices) -> JSON:
    secrets = ".Values.image.pullSecrets"
    labels, tolerated = f".Values.nodeSelector.{label}", f".Values.tolerations.{label}"
    selector, tolerations = pod["nodeSelector"], pod["tolerations"]
    if not isinstance(selector, dict) or not isinstance(tolerations, list):
        raise Unsupported(f"{label}: a component sets the whole nodeSelector or the whole list of tolerations")
    changed = {
        **pod,
        "imagePullSecrets": When(secrets, Values(secrets)),
        # A label of the values takes the place of the manifests' one.
        "nodeSelector": {
            key: When(f"not (hasKey ({labels} | default dict) {json.dumps(key)})", value)
            for key, value in selector.items()
        }
        | {MORE: Values(labels)},
        "tolerations": [*tolerations, Values(tolerated)],
    }
    for key in ("initContainers", "containers"):
        if key in pod:
            changed[key] = _containers(pod[key], image, choices)
    return changed


def _containers(node: Node, image: str, choices: values.Choices) -> Node:
    if isinstance(node, list):
        return [where_present(item, lambda found: _container(found, image, choices)) for item in node]
    return where_present(node, lambda found: _containers(found, image, choices))


def _container(node: JSON, image: str, choices: values.Choices) -> JSON:
    name, changed = node["name"], dict(node)
    if node["image"] == image:
        changed["image"] = _image(".Values.image")
    else:
        of, _, digest = node["image"].partition("@")
        whole, _, tag = of.rpartition(":")
        other = whole.rpartition("/")[2]
        choices.images[other] = {"name": whole, "tag": tag, "digest": digest}
        changed["image"] = _image(f".Values.images.{other}")
    if "resources" in node:
        choices.resources[name] = node["resources"]
        changed["resources"] = Values(f".Values.resources.{name}")
    if isinstance(node.get("args"), list):
        choices.args[name] = frozenset(flag for item in node["args"] for flag in _flags(item))
        changed["args"] = [*node["args"], Values(f".Values.args.{name}")]
    return changed


def _flags(node: Node) -> frozenset[str]:
    """The flags that an item of the arguments gives in every case."""
    if isinstance(node, When):
        return _flags(node.then) & _flags(node.otherwise)
    return frozenset({node.partition("=")[0]}) if isinstance(node, str) else frozenset()


def _programs(containers: Node) -> set[str]:
    """The names of these containers that are there in every case."""
    return {each["name"] for each in containers if isinstance(each, dict)}


def _image(path: str) -> Expression:
    return Expression(f'include "gpufraction.image" {path} | toJson')


# -- templates -------------------------------------------------------------------------------------------------------


def _write(chart: _Chart, entry: Entry, node: Node, manifests: Manifests) -> None:
    path = "templates/" + entry.source.removeprefix("base/")
    kind = entry.identity["kind"]
    if kind == "CustomResourceDefinition":
        node = When(".Values.crds.install", node)
    if kind == "Namespace" and entry.identity["metadata"]["name"] == NAMESPACE:
        lines = written(node, lambda condition: _expression(condition, manifests))
        text = ['{{- define "gpufraction.namespace" -}}', *_variables(lines, manifests), *lines, "{{- end }}"]
        chart.files["templates/_namespace.tpl"] = text
        lines = ["{{- if .Values.namespace.create }}", '{{ include "gpufraction.namespace" . }}', "{{- end }}"]
    else:
        lines = written(node, lambda condition: _expression(condition, manifests))
    if path not in chart.files:
        chart.files[path] = [f"{{{{- /* Made from manifests/{entry.source} by `make chart`. */ -}}}}"]
    have = set(chart.files[path])
    chart.files[path] += [line for line in _variables(lines, manifests) if line not in have]
    chart.files[path] += lines


def _expression(condition: str, manifests: Manifests) -> str:
    """A condition of the tree in the template language."""
    kind, _, name = condition.partition("/")
    if kind == "overlay":
        return f'eq .Values.overlay "{name}"'
    return _variable(name) if kind == "component" else condition


def _variable(name: str) -> str:
    first, *rest = name.split("-")
    return "$" + first + "".join(part.capitalize() for part in rest)


def _variables(lines: list[str], manifests: Manifests) -> list[str]:
    """The lines that set the variables which these lines use, each after those that it uses itself."""
    used = {name for name in manifests.components if re.search(re.escape(_variable(name)) + r"\b", "\n".join(lines))}
    while more := {n for name in used for n in _turning_on(name, manifests)} - used:
        used |= more
    return [_set(name, manifests) for name in _in_order(manifests) if name in used]


def _in_order(manifests: Manifests) -> list[str]:
    """The components, each after those that turn it on."""
    found = list[str]()

    def add(name: str) -> None:
        for other in _turning_on(name, manifests):
            add(other)
        if name not in found:
            found.append(name)

    for name in manifests.components:
        add(name)
    return found


def _turning_on(name: str, manifests: Manifests) -> Iterator[str]:
    for switch in manifests.components[name]:
        kind, _, other = switch.partition("/")
        if kind == "component":
            yield other


def _set(name: str, manifests: Manifests) -> str:
    """A component is on if the values say so, or else if an overlay or another component has it."""
    overlays = [switch.partition("/")[2] for switch in manifests.components[name] if switch.startswith("overlay/")]
    parts = [_variable(other) for other in _turning_on(name, manifests)]
    if overlays:
        parts.append(f"(has .Values.overlay (list {' '.join(json.dumps(other) for other in overlays)}))")
    default = "false" if not parts else parts[0] if len(parts) == 1 else f"(or {' '.join(parts)})"
    return f'{{{{- {_variable(name)} := dig "{name}" {default} .Values.components }}}}'


def _checks(manifests: Manifests) -> str:
    """A template without objects: it refuses choices that cannot be combined."""
    lines = ["{{- /* Refuses what cannot work. Made by `make chart`. */ -}}"]
    lines += [_set(name, manifests) for name in _in_order(manifests)]
    lines += _refused(
        f'ne .Release.Namespace "{NAMESPACE}"',
        f"the namespace must be {NAMESPACE}, which policies and certificates name; add --namespace {NAMESPACE}",
    )
    for each in COMPONENTS:
        here = _variable(each.name)
        for other, reason in each.needs.items():
            text = f"components.{each.name} needs components.{other}: true, because {reason}"
            lines += _refused(f"and {here} (not {_variable(other)})", text)
        for other, reason in each.excludes.items():
            text = f"components.{each.name} and components.{other} cannot be combined: {reason}"
            lines += _refused(f"and {here} {_variable(other)}", text)
        for overlay, reason in each.excluded_by.items():
            text = f"overlay: {overlay} and components.{each.name} cannot be combined: {reason}"
            lines += _refused(f'and (eq .Values.overlay "{overlay}") {here}', text)
    return "\n".join(lines) + "\n"


def _refused(condition: str, message: str) -> list[str]:
    return [f"{{{{- if {condition} }}}}", f"{{{{- fail {json.dumps(message)} }}}}", "{{- end }}"]
