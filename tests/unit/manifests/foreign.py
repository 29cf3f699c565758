"""
Kinds from outside Kubernetes: schemas for the objects that we write, checked by hand, and definitions for a real API.
"""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]

_REFERENCE: JSON = {
    "type": "object",
    "required": ["name", "kind", "group"],
    "properties": {key: {"type": "string"} for key in ("name", "kind", "group")},
}
_TEXTS: JSON = {"type": "array", "items": {"type": "string"}}

_RELABELING = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["replace", "keep", "drop", "labeldrop", "labelkeep"]},
        "sourceLabels": {"type": "array", "items": {"type": "string"}},
        "regex": {"type": "string"},
        "targetLabel": {"type": "string"},
        "replacement": {"type": "string"},
    },
}
_LABELS: JSON = {"type": "object", "additionalProperties": {"type": "string"}}

SPECS: dict[tuple[str, str], JSON] = {
    # From cert-manager's reference, v1: the fields that we use, so that a misspelt field is not accepted.
    ("cert-manager.io/v1", "Issuer"): {
        "type": "object",
        "properties": {
            "selfSigned": {"type": "object"},
            "ca": {"type": "object", "required": ["secretName"], "properties": {"secretName": {"type": "string"}}},
        },
    },
    ("cert-manager.io/v1", "Certificate"): {
        "type": "object",
        "required": ["secretName", "issuerRef"],
        "properties": {
            "isCA": {"type": "boolean"},
            "commonName": {"type": "string", "maxLength": 64},
            "secretName": {"type": "string"},
            "duration": {"type": "string", "pattern": "^[0-9]+h$"},
            "renewBefore": {"type": "string", "pattern": "^[0-9]+h$"},
            "dnsNames": _TEXTS,
            "usages": _TEXTS,
            "privateKey": {
                "type": "object",
                "properties": {
                    "algorithm": {"type": "string", "enum": ["RSA", "ECDSA", "Ed25519"]},
                    "size": {"type": "integer"},
                    "rotationPolicy": {"type": "string", "enum": ["Never", "Always"]},
                },
            },
            "issuerRef": _REFERENCE,
        },
    },
    # From the Prometheus operator's reference, v1.
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "type": "object",
        "required": ["selector", "podMetricsEndpoints"],
        "properties": {
            "selector": {"type": "object", "properties": {"matchLabels": _LABELS}},
            "namespaceSelector": {
                "type": "object",
                "properties": {"matchNames": {"type": "array", "items": {"type": "string"}}},
            },
            "sampleLimit": {"type": "integer"},
            "labelLimit": {"type": "integer"},
            "labelNameLengthLimit": {"type": "integer"},
            "labelValueLengthLimit": {"type": "integer"},
            "podMetricsEndpoints": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "port": {"type": "string"},
                        "honorLabels": {"type": "boolean"},
                        "scheme": {"type": "string", "enum": ["http", "https"]},
                        "tlsConfig": {"type": "object", "properties": {"insecureSkipVerify": {"type": "boolean"}}},
                        "authorization": {
                            "type": "object",
                            "properties": {
                                "type": {"type": "string"},
                                "credentials": {
                                    "type": "object",
                                    "required": ["key"],
                                    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                                },
                            },
                        },
                        "relabelings": {"type": "array", "items": _RELABELING},
                        "metricRelabelings": {"type": "array", "items": _RELABELING},
                    },
                },
            },
        },
    },
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "type": "object",
        "properties": {
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "rules"],
                    "properties": {
                        "name": {"type": "string"},
                        "interval": {"type": "string", "pattern": "^[0-9]+[smh]$"},
                        "rules": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["expr"],
                                "properties": {
                                    "alert": {"type": "string"},
                                    "record": {"type": "string"},
                                    "expr": {"type": "string"},
                                    "for": {"type": "string", "pattern": "^[0-9]+[smh]$"},
                                    "labels": _LABELS,
                                    "annotations": _LABELS,
                                },
                            },
                        },
                    },
                },
            }
        },
    },
}


def definitions() -> list[JSON]:
    """CustomResourceDefinitions of these kinds, strict enough for the API server to warn about unknown fields."""
    return [_definition(group_version, kind, spec) for (group_version, kind), spec in SPECS.items()]


def _definition(group_version: str, kind: str, spec: JSON) -> JSON:
    group, version = group_version.split("/")
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def problem(item: JSON) -> str | None:
    """The first field of a foreign object that its schema lacks or does not allow; None if there is none."""
    return _problem(item.get("spec"), SPECS[item["apiVersion"], item["kind"]], "spec")


_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def _problem(value: Any, schema: JSON, path: str) -> str | None:
    if not isinstance(value, _TYPES[schema["type"]]):
        return f"{path}: {value!r} is no {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, list):
        inner = [(f"{path}[{position}]", one, schema["items"]) for position, one in enumerate(value)]
    elif isinstance(value, dict):
        others = schema.get("additionalProperties")
        if others:
            return next(
                (wrong for key, one in value.items() if (wrong := _problem(one, others, f"{path}.{key}"))), None
            )
        lacking = [key for key in schema.get("required", ()) if key not in value]
        unknown = [key for key in value if key not in schema.get("properties", {})]
        if lacking or unknown:
            return f"{path}: lacks {lacking}, does not know {unknown}"
        inner = [(f"{path}.{key}", one, schema["properties"][key]) for key, one in value.items()]
    else:
        inner = []
    return next((found for where, one, of in inner if (found := _problem(one, of, where))), None)
