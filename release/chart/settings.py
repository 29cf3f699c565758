"""
The settings of the programs as values of the chart: the JSON schema by which Helm checks them, and the ConfigMaps that
they become.

A value has the form of the file that `--settings` names: `{queue: {order: fair}}`. The schema is made of the programs'
own tables. It leaves out the flags of the manifests, which would come before the ConfigMap. Helm checks the
bounds of numbers; the program checks those of texts such as 30s and 256Mi at its start. Pure.
"""

from __future__ import annotations

import typing
from collections.abc import Collection
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import allocator.app
import nodeagent.settings
from contract import names
from release.chart.tree import Expression, Unsupported, Values, When
from runtime.settings import Leaf, choices_of, every_setting
from webhook.settings import ServeSettings

JSON = dict[str, Any]
PROGRAMS: dict[str, type[Any]] = {
    "webhook": ServeSettings,
    "allocator": allocator.app.settings_type(),
    "nodeagent": nodeagent.settings.settings_type(),
}
"""The settings of each program that has a ConfigMap, by its container."""
_OF_CONFIGMAP = {names.SETTINGS.format(program=program): program for program in PROGRAMS}
_CHECKSUM = "checksum/settings"
HELPERS = """\
{{- define "gpufraction.settings" -}}
{{- range $name, $value := . }}
{{- if kindIs "map" $value }}
{{- range $key, $one := $value }}
{{ printf "GPUFRACTION_%s_%s" $name $key | upper }}: {{ include "gpufraction.setting" $one | toJson }}
{{- end }}
{{- else }}
{{ printf "GPUFRACTION_%s" $name | upper }}: {{ include "gpufraction.setting" $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- define "gpufraction.setting" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}
"""
"""Templates that turn a program's settings into the ConfigMap's data. JSON writes numbers without exponents."""
_TEXT: JSON = {"type": "string"}
_DURATION: JSON = {
    "type": "string",
    "minLength": 2,
    "pattern": r"^([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s)?([0-9]+ms)?$",
}
_AMOUNT: JSON = {"type": ["string", "integer"], "pattern": "^[0-9.]+([kMGTPE]|[KMGTPE]i)?$"}
_OF_TYPE: dict[Any, JSON] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: _TEXT,
    Path: _TEXT,
}


def schema(program: str, fixed: Collection[str]) -> JSON:
    """The JSON schema of a program's settings. `fixed`: flags that the manifests give, and so no value."""
    found = _group()
    for each in every_setting(PROGRAMS[program]):
        if each.flag in fixed or each.default is MISSING:
            continue
        place = found
        for group in each.path[:-1]:
            place = place["properties"].setdefault(group, _group())
        place["properties"][each.path[-1]] = _value(each)
    return found


def _group() -> JSON:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _value(setting: Leaf) -> JSON:
    arms = [arm for arm in typing.get_args(setting.kind) if arm is not type(None)]
    kind = arms[0] if type(None) in typing.get_args(setting.kind) else setting.kind
    if choices := choices_of(kind):
        return {"enum": list(choices)}
    if setting.unit == "duration":
        return _DURATION
    if typing.get_origin(kind) is tuple:
        return {"type": "array", "items": _TEXT}
    bounds = {key: setting.metadata[key] for key in ("minimum", "maximum") if setting.metadata[key] is not None}
    return (_AMOUNT if setting.unit == "bytes" else _OF_TYPE[kind]) | bounds


def configured(identity: JSON, node: JSON) -> JSON:
    """A ConfigMap with the settings of the values; every other ConfigMap as it is. Raises `Unsupported`."""
    program = _OF_CONFIGMAP.get(identity["metadata"]["name"])
    if program is None:
        return node
    if "data" in node:
        raise Unsupported(f"{identity['metadata']['name']}: settings in the manifests; give them as flags")
    chosen = f".Values.settings.{program}"
    return {**node, "data": When(chosen, Values(f'(include "gpufraction.settings" {chosen} | fromYaml)'))}


def restarted(metadata: JSON, programs: Collection[str]) -> JSON:
    """A pod's metadata, changed with the settings of its programs: they read them at their start only."""
    named = [f".Values.settings.{program}" for program in PROGRAMS if program in programs]
    if not named:
        return metadata
    chosen = named[0] if len(named) == 1 else f"or {' '.join(named)}"
    checksum = Expression(f"list {' '.join(named)} | toJson | sha256sum | quote")
    before = metadata.get("annotations", {})
    changing = {**before, _CHECKSUM: When(chosen, checksum)} if before else When(chosen, {_CHECKSUM: checksum})
    return {**metadata, "annotations": changing}
