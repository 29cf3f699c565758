"""The plugin shows the allocator's queue position; pods of the same second show the positions that they share."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.podinfo import read_pod
from allocator.queue.queue import SchedulingQueue
from contract import pods
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.commands import explain, waiting
from tests.unit.kubectl_gpufraction.objects import admitted

JSON = dict[str, Any]
SECONDS = ("2030-01-01T00:00:00Z", "2030-01-01T00:00:01Z")


def one(name: str, created: str, priority: int) -> JSON:
    made = admitted(name, "gpufraction.io/gpu-memory", "5Gi", created=created, priority=priority)
    made["metadata"]["uid"] = name
    return made


WAITING = st.lists(
    st.builds(one, st.text("abc", min_size=1, max_size=4), st.sampled_from(SECONDS), st.sampled_from((0, 0, 0, 10))),
    max_size=8,
    unique_by=lambda pod: str(pod["metadata"]["name"]),
)


@given(WAITING, st.randoms())
def test_the_allocators_place_is_among_those_that_are_shown(made: list[JSON], order: Any) -> None:
    queue = SchedulingQueue()
    for pod in sorted(made, key=lambda _: order.random()):
        queue.put(read_pod(pods.trim(pod)))
    shown = ClusterView.of([], [], made).places()
    assert shown.keys() == {pods.key(pod) for pod in made}
    for place, entry in enumerate(queue.in_order(), 1):
        assert shown[entry.key].first <= place <= shown[entry.key].last


def test_pods_of_one_second_share_their_places() -> None:
    made = [one("d", SECONDS[1], 0), one("b", SECONDS[0], 0), one("a", SECONDS[0], 0), one("c", SECONDS[1], 10)]
    state = ClusterView.of([], [], made)
    assert {key: str(places) for key, places in state.places().items()} == {
        "default/c": "1",
        "default/a": "2-3",
        "default/b": "2-3",
        "default/d": "4",
    }
    assert [(row["name"], row["place"]) for row in waiting.rows(state, None)] == [
        ("c", 1),
        ("a", "2-3"),
        ("b", "2-3"),
        ("d", 4),
    ]
    explained = {pod.name: explain.explanation(state, pod) for pod in state.pods}
    assert explained["b"][1:4] == [
        "It waits, 2-3 of 4 in the queue: not decided yet; if this lasts, no allocator leads: "
        "kubectl -n gpufraction-system get pods,leases",
        "Before it: default/c (1x5Gi)",
        "Created in the same second, in an order that only the allocator knows: default/a",
    ]
    assert explained["d"][2:3] == ["Before it: default/c (1x5Gi), default/a (1x5Gi), default/b (1x5Gi)"]
