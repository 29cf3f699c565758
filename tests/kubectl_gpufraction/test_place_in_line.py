"""The plugin and the allocator put the pods that wait in the same order, those of one second too."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocator.queue import Queue
from contract import pods
from kubectl_gpufraction.state import State
from tests.kubectl_gpufraction.objects import admitted

JSON = dict[str, Any]
SECONDS = ("2030-01-01T00:00:00Z", "2030-01-01T00:00:01Z")


def one(name: str, uid: str, created: str, priority: int) -> JSON:
    made = admitted(name, "gpufraction.io/gpu-memory", "5Gi", created=created, priority=priority)
    made["metadata"]["uid"] = uid
    return made


WAITING = st.lists(
    st.builds(
        one,
        st.text("abc", min_size=1, max_size=4),
        st.uuids().map(str),
        st.sampled_from(SECONDS),
        st.sampled_from((0, 0, 0, 10)),
    ),
    max_size=8,
    unique_by=(lambda pod: pod["metadata"]["name"], lambda pod: pod["metadata"]["uid"]),
)


@given(WAITING, st.randoms())
def test_both_know_the_same_order(made: list[JSON], order: Any) -> None:
    queue = Queue()
    for pod in sorted(made, key=lambda _: order.random()):
        queue.put(pods.uid(pod), pods.trim(pod))
    assert [entry.key for entry in queue.in_order()] == [pod.key for pod in State.of([], [], made).waiting()]
