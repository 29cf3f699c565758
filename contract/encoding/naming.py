"""
Names as Kubernetes has them, for whatever comes over the wire: nothing else may become part of a path, a key or a log.

Sources: Kubernetes, "Object Names and IDs" (RFC 1123 labels and subdomains). A name that is generated is known by its
beginning only, which may end in a dash or a dot.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[!-~]{1,128}")
_LONGEST = 253


def is_label(text: str) -> bool:
    """Whether a namespace or a container can have this name."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether a pod or a node can have this name."""
    return len(text) <= _LONGEST and _SUBDOMAIN.fullmatch(text) is not None


def is_beginning(text: str) -> bool:
    """Whether this can be a pod's `generateName`."""
    return len(text) <= _LONGEST and is_subdomain(text.rstrip("-.") or "-") and ".." not in text


def is_uid(text: str) -> bool:
    """Whether this can be an object's or a review's uid; an API server makes UUIDs, others what is short."""
    return _UID.fullmatch(text) is not None
