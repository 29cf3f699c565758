"""
The closed vocabulary of a report: each text that a node reports becomes a product's name and a version, or "other".

Names of nodes, images and cards may contain the name of a company, a tenant or a machine. So only words from the tables
here and digits of versions are passed on. Pure.
"""

from __future__ import annotations

import re

OTHER, UNKNOWN = "other", "unknown"
_MOST = 512
"""Characters that are looked at."""
_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,2}")
_SYSTEMS = (
    "Ubuntu",
    "Debian GNU/Linux",
    "Red Hat Enterprise Linux CoreOS",
    "Red Hat Enterprise Linux",
    "CentOS Stream",
    "Rocky Linux",
    "AlmaLinux",
    "Oracle Linux Server",
    "Amazon Linux",
    "Bottlerocket OS",
    "Container-Optimized OS",
    "Azure Linux",
    "CBL-Mariner",
    "Flatcar Container Linux",
    "Talos",
    "SUSE Linux Enterprise Server",
    "openSUSE",
    "Fedora CoreOS",
    "Fedora",
    "openEuler",
    "Anolis OS",
    "TencentOS Server",
    "Alibaba Cloud Linux",
    "Kylin Linux",
)
"""Prefixes of `osImage`; longer ones come first."""
_RUNTIMES = ("containerd", "cri-o", "docker")
_ARCHITECTURES = ("amd64", "arm64")
_PRODUCTS = frozenset(
    (
        *("NVIDIA", "Tesla", "Quadro", "GeForce", "RTX", "GTX", "TITAN", "Xp", "V", "Ada", "Generation", "Laptop"),
        *("GPU", "Graphics", "Device", "Ti", "SUPER", "DGX", "Station", "GRID", "Grace", "Hopper", "Blackwell"),
        *("Server", "Edition", "Workstation", "Max", "Q", "MIG", "PCIe", "PCIE", "PG", "NVL", "SXM", "SXM2", "SXM3"),
        *("SXM4", "SXM5", "SXM6", "HBM2", "HBM2e", "HBM3", "HBM3e", "Orin", "Thor", "Jetson", "Xavier", "Pro", "PRO"),
    )
)
_CARD = re.compile(r"[A-Z]{1,2}[0-9]{1,4}[A-Za-z]{0,2}|[0-9]{3,4}|[0-9]{1,4}GB|[0-9]{1,2}g\.[0-9]{1,3}gb")
"""Names of cards (`T4`, `A100`, `L40S`, `GB200`, `4090`), sizes, and profiles of MIG (`1g.10gb`)."""
_MOST_WORDS = 10


def version(text: object, parts: int = 3) -> str:
    """The first version in a text: digits and dots, at most so many parts; `unknown` where there is none."""
    found = _VERSION.search(str(text)[:_MOST])
    return ".".join(found[0].split(".")[:parts]) if found else UNKNOWN


def system(text: object) -> str:
    """`Ubuntu 22.04` of `osImage`; `other` for an image whose name is not in the table."""
    given = str(text)[:_MOST]
    name = next((name for name in _SYSTEMS if given.lower().startswith(name.lower())), "")
    if not name:
        return OTHER if given.strip() else UNKNOWN
    number = version(given[len(name) :], 2)
    return name if number == UNKNOWN else f"{name} {number}"


def runtime(text: object) -> str:
    """`containerd 1.7.27` of `containerRuntimeVersion`."""
    name, _, rest = str(text)[:_MOST].partition("://")
    if name not in _RUNTIMES:
        return OTHER if name.strip() else UNKNOWN
    return f"{name} {version(rest)}"


def architecture(text: object) -> str:
    """`amd64` or `arm64`."""
    return str(text) if text in _ARCHITECTURES else OTHER


def model(text: object) -> str:
    """A card's product name, of which unfamiliar words are left out."""
    kept = [part for word in str(text)[:_MOST].split() if (part := _product(word))]
    return " ".join(kept[:_MOST_WORDS]) or (OTHER if str(text).strip() else UNKNOWN)


def _product(word: str) -> str:
    parts = word.split("-")
    known = [part in _PRODUCTS or _CARD.fullmatch(part) is not None for part in parts]
    return word if word in _PRODUCTS or (all(known) and len(parts) <= 4) else ""


_SHAPES = {
    "version": re.compile(rf"{UNKNOWN}|{_VERSION.pattern}"),
    "system": re.compile(rf"{OTHER}|{UNKNOWN}|(?:{'|'.join(map(re.escape, _SYSTEMS))})(?: {_VERSION.pattern})?"),
    "runtime": re.compile(rf"{OTHER}|{UNKNOWN}|(?:{'|'.join(_RUNTIMES)}) (?:{UNKNOWN}|{_VERSION.pattern})"),
    "architecture": re.compile("|".join((OTHER, *_ARCHITECTURES))),
}


def is_(kind: str, text: str) -> bool:
    """Whether a text of a report can have come from here. `kind`: the name of a function of this module."""
    if len(text) > _MOST:
        return False
    if kind == "model":
        return text in (OTHER, UNKNOWN) or model(text) == text
    return _SHAPES[kind].fullmatch(text) is not None
