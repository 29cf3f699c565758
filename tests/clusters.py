"""
The two control planes that one suite runs on, the embedded one and a real kube-apiserver.

A fixture that needs one takes `params=control_planes()` and gives `request.param` to whatever it builds. No test asks
which of the two it has: what differs is a fault of the embedded one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from playground.api.api import SERVER_VERSION
from playground.embedded import ControlPlane, Embedded
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.realapi.components import ENVIRONMENT, Assets, assets_of
from playground.realapi.real import Real

GpusOf = Callable[[str], NodeGpus]


def embedded(gpus_of: GpusOf, version: str = SERVER_VERSION) -> ControlPlane:
    """The embedded control plane; `version`: what it says of itself."""
    return Embedded(gpus_of=gpus_of, version=version)


def real(gpus_of: GpusOf) -> ControlPlane:
    """A real one with everything that the folder of KUBEBUILDER_ASSETS has; skips the test where it is not there."""
    assets = assets_of(os.environ)
    if isinstance(assets, str):
        pytest.skip(assets)
    return Real(assets, gpus_of=gpus_of)


def assets_with(*programs: str) -> Assets | str:
    """The folder of KUBEBUILDER_ASSETS where it has these programs too, or one line on what is missing."""
    assets = assets_of(os.environ)
    if isinstance(assets, str):
        return assets
    missing = [name for name in programs if not assets.has(name)]
    return f"{ENVIRONMENT}: {assets.folder} has no {' and no '.join(missing)}" if missing else assets


def forget_history(plane: ControlPlane) -> None:
    """Make the API server unable to tell what changed before now: watches from before are too old."""
    if isinstance(plane, Real):
        plane.server.restart(crash=True)  # its watch cache starts empty
    elif isinstance(plane, Embedded):
        plane.api.store.compact()


def crash_api_server(plane: ControlPlane) -> None:
    """End the API server without warning and have it back: requests under way get no answer, watches end."""
    if isinstance(plane, Real):
        plane.server.restart(crash=True)
    elif isinstance(plane, Embedded):
        plane.server.interrupt()
        plane.api.store.compact()  # a new process knows no history


def only_real() -> list[Any]:
    """
    Parameters for a fixture: the real control plane alone. What `tests/simulation` shows for every change, in more ways
    and in less time, needs no second run here: docs/decisions/0247-scenes-of-trouble-stay-on-the-real-control-plane.md.
    """
    return control_planes()[1:]


def control_planes(*, long: bool = False, version: str = SERVER_VERSION) -> list[Any]:
    """
    Parameters for a fixture: each a function from `gpus_of` to a control plane that is not started.

    `long`: for tests that take too long for every run; on the embedded one `make test-long` runs them. `version`: of
    Kubernetes, what the embedded one says of itself; programs ask.
    """
    assets = assets_of(os.environ)
    skipped = [pytest.mark.skip(reason=assets)] if isinstance(assets, str) else []
    ours = functools.partial(embedded, version=version)
    return [
        pytest.param(ours, id="embedded", marks=[pytest.mark.long] if long else []),
        pytest.param(real, id="real", marks=[pytest.mark.realcluster, *skipped]),
    ]
