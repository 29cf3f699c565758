"""
The programs' metrics, read as a Prometheus reads them: by TLS, with the token of the account that the manifests make.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import yaml

from playground.programs import installing
from playground.programs.probes import unverified

SCRAPER = "gpufraction-metrics"
"""The account of the component monitoring."""


def manifest() -> Path:
    """The file with the account, its token and its right."""
    return installing.COMPONENTS / "monitoring" / "scraper.yaml"


def token_of(kubeconfig: str) -> str:
    """The token in a kubeconfig; empty where its user shows a certificate."""
    document: Any = yaml.safe_load(kubeconfig)
    return str(document["users"][0]["user"].get("token", ""))


def scrape(port: int, token: str, *, timeout: float = 5.0) -> str:
    """The response of a program's port to `/metrics`. Raises `OSError`; `urllib.error.HTTPError` is one."""
    https = urllib.request.HTTPSHandler(context=unverified())  # it is self-signed
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://127.0.0.1:{port}/metrics", headers=headers)
    with direct.open(request, timeout=timeout) as answer:
        text: str = answer.read().decode()
        return text
