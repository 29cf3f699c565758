"""Shared by the tests of certificates: the time, names and places, and an API server that has one configuration."""

from __future__ import annotations

import base64
import datetime
from datetime import timedelta
from pathlib import Path
from typing import Any

from runtime.kubernetes.errors import KubeInvalid
from webhook.certificates.authority import service_names
from webhook.certificates.store import Directories

JSON = dict[str, Any]
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
NAMES = service_names("gpufraction-webhook", "gpufraction-system")
YEAR = timedelta(days=365)


def places(folder: Path) -> Directories:
    """Both directories below a folder, created."""
    found = Directories(folder / "serving", folder / "authority")
    with found.locked():
        return found


class Api:
    """One configuration with the API server's rule about versions; `races` other writers come first."""

    def __init__(self, *bundles: str, races: int = 0) -> None:
        self.webhooks: list[JSON] = [{"name": f"w{i}", "clientConfig": {"caBundle": b}} for i, b in enumerate(bundles)]
        self.version, self.races, self.writes = 1, races, 0

    def get(self, path: str) -> JSON:
        assert path == "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpufraction"
        return {"metadata": {"resourceVersion": str(self.version)}, "webhooks": self.webhooks}

    def patch_json(self, path: str, ops: list[JSON]) -> JSON:
        if self.races:
            self.races -= 1
            self.version += 1
        test, *changes = ops
        if test != {"op": "test", "path": "/metadata/resourceVersion", "value": str(self.version)}:
            raise KubeInvalid("the version has moved on")
        for change in changes:
            position = int(change["path"].split("/")[2])
            assert change == {
                "op": "add",
                "path": f"/webhooks/{position}/clientConfig/caBundle",
                "value": change["value"],
            }
            self.webhooks[position]["clientConfig"]["caBundle"] = change["value"]
        self.writes += 1
        self.version += 1
        return {}


def b64(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
