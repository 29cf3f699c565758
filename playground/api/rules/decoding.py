"""
From a request's body to an object of the kind that the path names: the step before defaulting.
"""

import base64

from playground.api.kinds.requests import Request
from playground.api.kinds.values import JSON
from playground.api.rules import crds, fields


def decode(request: Request, value: JSON, known: JSON | None = None) -> JSON:
    """
    The object. Raises `ApiError` 400 for a wrong type, and under strict validation for an unknown field.

    `known`: the stored state that the object was made from, see `fields.decode`.
    """
    value, unknown = fields.decode(request.kind, value, known)
    if request.kind.custom is not None:
        value, dropped = crds.decode(request.kind, value)
        unknown += dropped
    crds.report_unknown(request, unknown)
    return _encoded(value) if request.kind.key == "secrets" and value.get("stringData") else value


def _encoded(secret: JSON) -> JSON:
    """`stringData` is for writing only: it ends up in `data`."""
    added = {key: base64.b64encode(str(text).encode()).decode() for key, text in secret["stringData"].items()}
    rest = {key: part for key, part in secret.items() if key != "stringData"}
    return {**rest, "data": {**(secret.get("data") or {}), **added}}
