"""Pods that say far more than anybody needs: many containers, many expressions, much text."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from contract.bounds import MOST_SELECTING
from contract.model import MOST_ASKING
from playground import scenarios
from runtime import kubepaths
from runtime.kube import KubeInvalid
from tests.builders import PodBuilder, container, pod
from tests.hostile.attack import TENANT, Hostile

pytestmark = pytest.mark.hostile
MEMORY = str(names.GPU_MEMORY)


def of_containers(number: int) -> PodBuilder:
    """A pod of containers that ask for 1 MiB each."""
    asked = {"limits": {MEMORY: "1Mi"}}
    return pod("many").spec(containers=[container(f"c{at}", resources=asked) for at in range(number)])


def selecting(number: int) -> dict[str, Any]:
    """Required node affinity of so many expressions, none of them like another's."""
    return {"matchExpressions": [{"key": f"k{at}", "operator": "DoesNotExist"} for at in range(number)]}


def placed(hostile: Hostile, name: str) -> None:
    """Wait until a pod has its node."""
    path = kubepaths.pods(TENANT, name)
    scenarios.wait_for(
        lambda: bool(hostile.kube.get(path)["spec"].get("nodeName")),
        lambda: f"not placed: {scenarios.shown([hostile.kube.get(path)])}",
    )


def test_a_pod_of_a_thousand_containers_is_refused(hostile: Hostile) -> None:
    """A1: each of 1,050 containers asks for a share. It is told how many may; as many as may are placed."""
    with pytest.raises(KubeInvalid, match=r"spec.containers: found 1050 containers; a pod that asks .* at most 256"):
        hostile.create(of_containers(1_050))
    with pytest.raises(KubeInvalid, match=r"found 65 containers that ask for a share; let at most 64 containers"):
        hostile.create(of_containers(MOST_ASKING + 1))
    assert hostile.pods() == []
    hostile.create(of_containers(MOST_ASKING))
    placed(hostile, "many")


def test_eight_thousand_expressions_are_refused(hostile: Hostile) -> None:
    """A4: one pod with 8,000 expressions of node affinity; as many as may are placed."""
    made = pod("large").asks(MEMORY, "1Mi")
    with pytest.raises(KubeInvalid, match=r"found 8000 expressions and values; a pod that asks .* at most 1000"):
        hostile.create(made.affinity(selecting(8_000)))
    hostile.create(made.affinity(selecting(MOST_SELECTING - 10)))
    placed(hostile, "large")


def test_annotations_without_room_for_the_share_are_refused(hostile: Hostile) -> None:
    """A4: annotations of 255 KiB, to which the share's would not fit: said at admission, by the annotation's name."""
    made = pod("long").asks(MEMORY, "1Mi").annotated("example.com/notes", "x" * (255 << 10))
    with pytest.raises(KubeInvalid, match=r"Kubernetes takes 262144 in all: shorten .*example.com/notes"):
        hostile.create(made)
