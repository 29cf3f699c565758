"""The administrator's document of options, as the cluster has it."""

from __future__ import annotations

from contract import names
from contract.options import NO_OPTIONS, BadOption, PoolOptions, pool_options
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound

WHERE = f"ConfigMap {names.NAMESPACE}/{names.OPTIONS}"


def read(kube: Kube) -> PoolOptions:
    """The options; none where there is no document. Raises `BadOption` for one that cannot be used, and `KubeError`."""
    import yaml  # commands without it start sooner

    try:
        found = kube.get(paths.configmaps(names.NAMESPACE, names.OPTIONS)).get("data") or {}
        return pool_options(yaml.safe_load(found.get(names.OPTIONS_FILE, "")))
    except KubeNotFound:
        return NO_OPTIONS
    except yaml.YAMLError as error:
        raise BadOption(str(error)) from error
