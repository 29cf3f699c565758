"""What all engines have in common: the folder with their programs, and the check that their kinds are served."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
ENVIRONMENT = "ENGINES_ASSETS"


def assets(*needed: str) -> Path | str:
    """The folder that ENGINES_ASSETS names if it has these files, else one line that says what is missing."""
    named = os.environ.get(ENVIRONMENT, "")
    if not named:
        return f"{ENVIRONMENT} is not set; it names a folder with {' and '.join(needed)}"
    missing = [name for name in needed if not (Path(named) / name).is_file()]
    return f"{ENVIRONMENT}: {named} has no {' and no '.join(missing)}" if missing else Path(named)


def are_served(kube: Kube, documents: Iterable[JSON]) -> bool:
    """Whether the API server's discovery lists all versions of the kinds that these documents define."""
    for document in documents:
        if document["kind"] == "CustomResourceDefinition":
            spec = document["spec"]
            for version in (each["name"] for each in spec["versions"] if each["served"]):
                try:
                    found = kube.get(f"/apis/{spec['group']}/{version}")
                except KubeError:
                    return False
                if spec["names"]["plural"] not in {each["name"] for each in found["resources"]}:
                    return False
    return True
