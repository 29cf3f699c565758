"""
The administrator's document of options by node pool (`contract.nodes.pools`), as a file that the programs follow live.

Must not: know what a program does with an option.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from contract.dialects.options import BadOption
from contract.nodes.pools import PoolOptions, pool_options
from runtime.livefile import LiveFile, UnreadableContent
from runtime.settings import NOT_YAML

SETTING = (
    "YAML file of options for the cluster and its node pools under the vGPU systems' own names, such as a mounted "
    "ConfigMap; read again when it changes. Empty: none. It goes before the settings here."
)
"""What the setting `options` of a program means."""


def follow(path: Path) -> LiveFile[PoolOptions]:
    """The document at `path`; one that says nothing for the empty path."""
    return LiveFile(None if path == Path() else path, _read)


def _read(text: str) -> PoolOptions:
    try:
        return pool_options(yaml.safe_load(text))
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UnreadableContent(f"{where}{error.problem or 'neither YAML nor JSON'}; give YAML") from error
    except BadOption as error:
        raise UnreadableContent(str(error)) from error
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise UnreadableContent("neither YAML nor JSON; give YAML") from error
