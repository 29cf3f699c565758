"""
The two control planes that the suite runs on: the embedded one and a real kube-apiserver.

A fixture that needs one takes `params=control_planes()` and gives `request.param` to whatever it builds. No test asks
which of the two it has, because any difference is a defect of the embedded one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from contract import names
from contract.encoding import resourceclaims
from playground.api.api import SERVER_VERSION
from playground.embedded import ControlPlane, Embedded
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.realapi.components import ENVIRONMENT, Assets, assets_of
from playground.realapi.real import Real
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeInvalid

GpusOf = Callable[[str], NodeGpus]


def embedded(gpus_of: GpusOf, version: str = SERVER_VERSION) -> ControlPlane:
    """The embedded control plane. `version`: the version that it reports."""
    return Embedded(gpus_of=gpus_of, version=version)


def real(gpus_of: GpusOf) -> ControlPlane:
    """
    A real control plane with all programs in the folder of KUBEBUILDER_ASSETS. Skips the test if the folder is missing.
    """
    assets = assets_of(os.environ)
    if isinstance(assets, str):
        pytest.skip(assets)
    return Real(assets, gpus_of=gpus_of)


def assets_with(*programs: str) -> Assets | str:
    """The folder of KUBEBUILDER_ASSETS if it has these programs too; otherwise one line that says what is missing."""
    assets = assets_of(os.environ)
    if isinstance(assets, str):
        return assets
    missing = [name for name in programs if not assets.has(name)]
    return f"{ENVIRONMENT}: {assets.folder} has no {' and no '.join(missing)}" if missing else assets


def forget_history(plane: ControlPlane) -> None:
    """Make the API server forget earlier changes: watches that start at an earlier version are too old."""
    if isinstance(plane, Real):
        plane.server.restart(crash=True)  # its watch cache starts empty
    elif isinstance(plane, Embedded):
        plane.api.store.compact()


def crash_api_server(plane: ControlPlane) -> None:
    """End the API server without warning and start it again: requests in progress get no answer, and watches end."""
    if isinstance(plane, Real):
        plane.server.restart(crash=True)
    elif isinstance(plane, Embedded):
        plane.server.interrupt()
        plane.api.store.compact()  # a new process has no history


def only_real() -> list[Any]:
    """
    Parameters for a fixture: only the real control plane. `tests/simulation` already shows these facts for every
    change, in more variants and in less time, so they need no second run here:
    docs/decisions/0247-scenes-of-trouble-stay-on-the-real-control-plane.md.
    """
    return control_planes()[1:]


def control_planes(*, long: bool = False, version: str = SERVER_VERSION) -> list[Any]:
    """
    Parameters for a fixture: each a function from `gpus_of` to a control plane that is not started.

    `long`: for tests that take too long for every run; `make test-long` runs them on the embedded one. `version`: the
    Kubernetes version that the embedded one reports to programs.
    """
    assets = assets_of(os.environ)
    skipped = [pytest.mark.skip(reason=assets)] if isinstance(assets, str) else []
    ours = functools.partial(embedded, version=version)
    return [
        pytest.param(ours, id="embedded", marks=[pytest.mark.long] if long else []),
        pytest.param(real, id="real", marks=[pytest.mark.realcluster, *skipped]),
    ]


def allow_claims(kube: Kube, namespace: str = "default") -> None:
    """
    Label the namespace so that its pods may request shares by ResourceClaims, and wait until policies see the label.

    The API server takes a policy's namespace from a cache, which on a busy machine is late.
    """
    labels = {"metadata": {"labels": {str(names.RESOURCE_CLAIMS_LABEL): "enabled"}}}
    kube.patch_merge(paths.namespaces(namespace), labels)
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": "1Gi"}}}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    probe = {"apiVersion": resourceclaims.API, "kind": "ResourceClaimTemplate", "metadata": {"name": "probe"}}

    def accepted() -> bool:
        try:
            kube.create(paths.resourceclaimtemplates(namespace), {**probe, "spec": spec}, {"dryRun": "All"})
        except KubeInvalid:
            return False
        return True

    wait_for(accepted, f"namespace {namespace} may not request by ResourceClaims", 30)
