"""
The installation as the tests read it: its pods, its containers and their commands, and what is wrong with objects.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import kubernetes_validate

import webhook.settings
from runtime.settings import load
from tests.unit.manifests.kube import JSON, sources

VERSION = "1.30"
"""The oldest Kubernetes version that we support; what is valid there stays valid."""
CONFIGURATION = "zz-gpufraction-webhook"


def pods() -> Iterator[JSON]:
    """The pod specs of the installation."""
    for item in sources():
        if item["kind"] in ("Deployment", "DaemonSet"):
            yield item["spec"]["template"]["spec"]


def containers() -> dict[str, JSON]:
    """Every container of the installation, by name."""
    return {c["name"]: c for spec in pods() for c in [*spec.get("initContainers", []), *spec["containers"]]}


def command(name: str) -> tuple[str, str, list[str]]:
    """A container's program, its command and its flags."""
    python, dash, program, verb = containers()[name]["command"]
    assert (python, dash) == ("python", "-m")
    return program, verb, containers()[name]["args"]


def wrong(items: list[JSON]) -> dict[str, str]:
    """What is wrong with the objects by Kubernetes' published schemas, by kind and name."""
    found = {f"{item['kind']} {item['metadata']['name']}": _wrong(json.dumps(item)) for item in items}
    return {name: message for name, message in found.items() if message}


@functools.cache
def _wrong(text: str) -> str:
    """What is wrong with one object, given as JSON. Cached, because many overlays repeat it and a check is slow."""
    try:
        try:
            kubernetes_validate.validate(json.loads(text), VERSION, strict=True)
        except kubernetes_validate.SchemaNotFoundError:  # a kind of later versions, in a component that needs them
            kubernetes_validate.validate(json.loads(text), kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""


def serve_settings() -> webhook.settings.ServeSettings:
    """The webhook's settings as the manifest sets them."""
    program, verb, flags = command("webhook")
    assert (program, verb) == ("webhook", "serve")
    return load(webhook.settings.ServeSettings, file=None, env={}, argv=flags)
