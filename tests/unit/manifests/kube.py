"""Reads our manifests for the tests: files as documents, and folders as kustomize builds them."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

JSON = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
MANIFESTS, SAMPLES = ROOT / "manifests", ROOT / "samples"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml, ten times as fast, if PyYAML was built with it: these tests read several hundred megabytes."""


def read(text: str) -> list[JSON]:
    """The objects in one of our YAML texts."""
    return [found for found in yaml.load_all(text, _LOADER) if found is not None]


def files() -> list[Path]:
    """Every YAML file that we ship for kubectl, ordered by name."""
    return sorted([*MANIFESTS.rglob("*.yaml"), *SAMPLES.rglob("*.yaml")])


def documents(path: Path) -> list[JSON]:
    """The objects of one file."""
    found: list[JSON] = pickle.loads(_of_file(path))
    return found


@functools.cache
def _of_file(path: Path) -> bytes:
    """The objects of one file in packed form, so that every test gets its own copy to change."""
    return pickle.dumps(read(path.read_text(encoding="utf-8")))


def sources(*folders: str) -> list[JSON]:
    """The objects of base and policies, or of these folders, as in their files, without kustomize's own."""
    found = [
        item
        for folder in (MANIFESTS / name for name in folders or ("base", "policies"))
        for path in sorted(folder.glob("*.yaml"))
        for item in documents(path)
    ]
    return [item for item in found if not item["apiVersion"].startswith("kustomize.")]


@functools.cache
def _built(folder: str) -> bytes:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH, and it is what builds kustomizations")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return pickle.dumps(read(done.stdout))


def built(folder: str = "base") -> list[JSON]:
    """The objects of `kubectl kustomize manifests/FOLDER`. Skips the test if there is no kubectl."""
    return parsed(MANIFESTS / folder)


def with_components(*components: str, resource: str = "base", **more: Any) -> list[JSON]:
    """
    The base or an overlay with components, and `more`, as an administrator's own kustomization would include them.
    """
    listed = [f"{_ABOVE}/components/{name}" for name in components]
    whole = {"resources": [f"{_ABOVE}/{resource}"], "components": listed, **more}
    found: list[JSON] = pickle.loads(_of_kustomization(yaml.safe_dump(whole)))
    return found


_ABOVE = "{manifests}"
"""Placeholder for the path from a kustomization's folder to `manifests`, until the folder is created."""


@functools.cache
def _of_kustomization(text: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        # kustomize takes relative paths only.
        above = os.path.relpath(MANIFESTS, Path(folder).resolve())
        (Path(folder) / "kustomization.yaml").write_text(text.replace(_ABOVE, above), encoding="utf-8")
        return _built(str(Path(folder).resolve()))


def parsed(folder: Path) -> list[JSON]:
    """The objects of any kustomization. Skips the test if there is no kubectl."""
    found: list[JSON] = pickle.loads(_built(str(folder)))
    return found


def below(folder: str) -> list[str]:
    """The names of the kustomizations in a folder of the manifests."""
    return sorted(path.parent.name for path in (MANIFESTS / folder).glob("*/kustomization.yaml"))


def of(items: list[JSON], kind: str) -> list[JSON]:
    """The objects of one kind."""
    return [item for item in items if item["kind"] == kind]


def one(items: list[JSON], kind: str, name: str) -> JSON:
    """The one object of that kind and name."""
    [found] = [item for item in of(items, kind) if item["metadata"]["name"] == name]
    return found


def texts(value: Any) -> Iterator[str]:
    """Every string in a document, including the keys of its maps."""
    match value:
        case str():
            yield value
        case dict():
            for key, inner in value.items():
                yield key
                yield from texts(inner)
        case list():
            for inner in value:
                yield from texts(inner)
