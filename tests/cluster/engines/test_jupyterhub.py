"""JupyterHub's own program with KubeSpawner: a waiting user's page says why, and nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import jupyterhub
from playground.engines.jupyterhub import JupyterHub
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.engines.programs import folder_of
from tests.cluster.system import invariants

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
NO_ROOM = "Memory"
"""The reason of a pod for which no card has enough memory."""
SPAWNER = {
    "image": "notebook",
    "extra_resource_limits": {str(names.GPU_MEMORY): "10000Mi"},
    "node_selector": {"gpushare": "true"},
    "start_timeout": 20,
}
"""A notebook that takes a card of the node t4, which has two; and a time limit that is short enough for tests."""


@pytest.fixture(scope="module")
def hub(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterHub]:
    folder = folder_of(jupyterhub.assets())
    with jupyterhub.running(us, folder, tmp_path_factory.mktemp("hub") / "run", SPAWNER) as found:
        yield found


@pytest.fixture
def full(us: Cluster) -> Iterator[Cluster]:
    """Two pods have both cards. Afterwards the cluster is empty, and nothing was allocated twice."""
    for number in range(2):
        made = pod(f"first-{number}").asks(names.GPU_MEMORY, "10000Mi")
        made = made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)
        us.kube.create(paths.pods("default"), made.manifest())
    wait_for(lambda: [phase for _, phase in shown(us)] == ["Running"] * 2, lambda: f"{shown(us)}")
    yield us
    invariants.check(us)
    scenarios.clear(us.kube)
    invariants.check(us)


def shown(cluster: Cluster) -> list[tuple[str, str]]:
    found = [(e["metadata"]["name"], scenarios.waits(e) or e["status"]["phase"]) for e in there(cluster)]
    return sorted(found)


def there(cluster: Cluster) -> list[dict[str, Any]]:
    return scenarios.all_pods(cluster.kube)


def notebook(cluster: Cluster, user: str) -> str:
    """What the person's pod waits for, or its phase; empty if there is no pod."""
    return dict(shown(cluster)).get(f"jupyter-{user}", "")


def free_a_card(cluster: Cluster) -> None:
    cluster.kube.delete(paths.pods("default", "first-0"))


def test_the_page_of_a_spawn_says_why_the_notebook_waits(hub: JupyterHub, full: Cluster) -> None:
    hub.spawn("ann")
    wait_for(lambda: notebook(full, "ann") == NO_ROOM, lambda: f"{shown(full)}")
    message = next(line for line in hub.progress("ann") if "GPU nodes fit" in line)
    assert "short of memory" in message
    free_a_card(full)
    wait_for(lambda: notebook(full, "ann") == "Running", lambda: f"{shown(full)}")


def test_a_start_that_the_person_stops_leaves_nothing(hub: JupyterHub, full: Cluster) -> None:
    hub.spawn("ben")
    wait_for(lambda: notebook(full, "ben") == NO_ROOM, lambda: f"{shown(full)}")
    hub.stop("ben")
    wait_for(lambda: not notebook(full, "ben"), lambda: f"{shown(full)}", 30)


def test_a_notebook_that_waits_beyond_the_spawners_limit_is_given_up(hub: JupyterHub, full: Cluster) -> None:
    """As docs/workloads/jupyterhub.md warns. The person requests it again and then gets the free card."""
    hub.spawn("eve")
    wait_for(lambda: notebook(full, "eve") == NO_ROOM, lambda: f"{shown(full)}")
    wait_for(lambda: not notebook(full, "eve") and not hub.pending("eve"), lambda: f"{shown(full)}", 60)
    free_a_card(full)
    hub.spawn("eve")
    wait_for(lambda: notebook(full, "eve") == "Running", lambda: f"{shown(full)}")
