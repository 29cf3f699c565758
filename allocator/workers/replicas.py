"""The allocators' own pods: how they are found, and the image that nodes can pull. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contract.encoding import moments

JSON = dict[str, Any]
REPLICAS = {"labelSelector": "app.kubernetes.io/component=admission"}
"""The query for them."""
NO_IMAGE = "gpufraction"
"""If no allocator runs in a pod."""


def image_of(replicas: Iterable[JSON]) -> str:
    """
    The image of the allocators' own pods, which nodes can pull: that of the youngest pod; `NO_IMAGE` without any.

    So the image's name, with its registry, is configured only once, in kustomize.
    """
    found = max(replicas, key=moments.created, default={})
    containers = (found.get("spec") or {}).get("containers") or []
    return next((str(each["image"]) for each in containers if each.get("name") == "allocator"), NO_IMAGE)
