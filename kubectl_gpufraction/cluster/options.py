"""The administrator's document of options, as the cluster has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import names
from contract.options import NO_OPTIONS, BadOption, PoolOptions, pool_options

WHERE = f"ConfigMap {names.NAMESPACE}/{names.OPTIONS}"


def options_of(configmap: Mapping[str, Any] | None) -> PoolOptions:
    """The options of the ConfigMap; none where there is none. Raises `BadOption` for a document that cannot be used."""
    import yaml  # commands without it start sooner

    if configmap is None:
        return NO_OPTIONS
    try:
        return pool_options(yaml.safe_load((configmap.get("data") or {}).get(names.OPTIONS_FILE, "")))
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        raise BadOption(str(error)) from error
