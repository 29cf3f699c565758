"""Renders our chart with a real Helm: the program that HELM names, or the one on PATH."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.chart.__main__ import files, packed
from release.chart.render import NAMESPACE

JSON = dict[str, Any]
AS_KUSTOMIZE: JSON = {"namespace": {"create": True}, "crds": {"keep": False}}
"""Values with which the chart has exactly the objects that kustomize builds."""


@functools.cache
def program() -> str:
    """Helm's path. Skips the test if there is none."""
    found = os.environ.get("HELM") or shutil.which("helm")
    if not found:
        pytest.skip("HELM is not set, and helm is not on PATH; `make helm` gets one")
    return found


@functools.cache
def is_third() -> bool:
    """Whether it is Helm 3, which knows fewer flags and words some messages differently."""
    done = subprocess.run([program(), "version", "--short"], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.startswith("v3.")


@functools.cache
def content() -> dict[str, str]:
    """The chart's files."""
    return files()


def package(folder: Path) -> Path:
    """The packed chart, written into the test's own folder."""
    path = folder / "gpufraction.tgz"
    if not path.exists():
        path.write_bytes(packed(content()))
    return path


def run(folder: Path, *arguments: str, values: JSON | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm with these arguments and values, without its own configuration."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HELM_CACHE_HOME": str(folder / "cache")}
    command = [program(), "--namespace", NAMESPACE, *arguments]
    if values is not None:
        (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")
        command += ["--values", str(folder / "values.json")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def rendered(folder: Path, values: JSON | None = None) -> list[JSON]:
    """The objects of `helm template` with these values."""
    done = run(folder, "template", "gpufraction", str(package(folder)), values=values or {})
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item is not None]


def refusal(folder: Path, values: JSON, *arguments: str) -> str:
    """Helm's message about values that it refuses."""
    done = run(folder, "template", "gpufraction", str(package(folder)), *arguments, values=values)
    assert (done.returncode != 0, done.stdout) == (True, ""), done.stdout[:2000]
    return done.stderr


def by_name(items: list[JSON]) -> dict[tuple[str, str, str], JSON]:
    """Objects by kind, namespace and name. Two with the same name are an error."""
    found = {(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in items}
    assert len(found) == len(items)
    return found
