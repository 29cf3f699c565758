"""An agent whose writes are refused or lost: its node's GPUs are published in the end, and pods are placed on them."""

from __future__ import annotations

import pytest

from contract import names
from playground.scenarios import Outcome
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.trouble import requests
from tests.cluster.trouble.conftest import Troubled, card
from tests.cluster.trouble.proxy import Drop, Lose, Refuse

pytestmark = pytest.mark.system
GPUNODE = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name="t4")


def published(trouble: Troubled) -> int:
    """GPUs that the node must have."""
    try:
        return len((trouble.cluster.kube.get(GPUNODE).get("status") or {}).get("gpus") or [])
    except KubeNotFound:
        return 0


def test_gpus_are_published_however_the_first_writes_end(trouble: Troubled) -> None:
    agent = trouble.cluster.programs["nodeagent-t4"]
    agent.kill()
    trouble.cluster.kube.delete(GPUNODE)
    with (
        trouble.fault(requests.writes, Refuse(429, "TooManyRequests"), times=1, only=agent) as busy,
        trouble.fault(requests.writes, Drop(), times=1, only=agent) as dropped,
        trouble.fault(requests.writes, Lose(), times=1, only=agent) as lost,
    ):
        agent.start()
        wait_for(lambda: published(trouble) == 2, lambda: f"{published(trouble)} GPUs are published", 60)
    assert (busy.hits, dropped.hits, lost.hits) == (1, 1, 1)
    trouble.create(card("a"), card("b"))
    trouble.becomes(Outcome(running=2, nodes=("t4",), gpus=2))
