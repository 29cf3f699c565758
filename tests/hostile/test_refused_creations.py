"""A tenant whose pods are refused after they were admitted: what was reserved for them comes back."""

from __future__ import annotations

import pytest

from runtime import kubepaths
from runtime.kube import KubeForbidden
from tests.builders import pod
from tests.hostile.attack import TENANT, Hostile

pytestmark = pytest.mark.hostile


def test_a_quota_of_zero_leaves_no_reservation(hostile: Hostile) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"requests.gpufraction.io/gpu-memory": "0"}}}
    hostile.kube.create(kubepaths.path("v1", "resourcequotas", TENANT), quota)
    try:
        for number in range(12):
            with pytest.raises(KubeForbidden, match="exceeded quota"):
                hostile.create(pod(f"refused-{number}").asks("gpufraction.io/gpu-memory", "8Gi"))
        assert hostile.pods() == []
    finally:
        hostile.kube.delete(kubepaths.path("v1", "resourcequotas", TENANT, "none"))
