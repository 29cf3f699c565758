"""
How much memory the allocator keeps for each waiting pod: it is bounded, whatever the pod is like.

    python -m pytest -s tests/unit/allocator/queue/test_memory_of_queued_pods.py

prints the figures of `docs/benchmarks.md`.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from allocator.cache.podinfo import read_pod
from allocator.queue.queue import SchedulingQueue
from contract import names, pods
from contract.bounds import MOST_SELECTING
from contract.model import MOST_SHARING
from tests.builders import PodBuilder
from tests.unit.allocator.one_gpu import waiting, worker

KIB = 1 << 10
PODS = 10


def expressions(number: int, at: int) -> dict[str, Any]:
    return {"matchExpressions": [{"key": f"pod{at}-{n}", "operator": "DoesNotExist"} for n in range(number)]}


def ordinary(at: int) -> PodBuilder:
    """Pods as a Deployment creates them: labels, an owner, a selector."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    made = worker(f"p{at}").labelled("app", "x").labelled("pod-template-hash", "5d8f").selects(pool="gpu")
    made._pod["metadata"]["ownerReferences"] = [owner]
    return made


def large_affinity(at: int) -> PodBuilder:
    return worker(f"p{at}").affinity(expressions(MOST_SELECTING - 2, at))


def many_tolerations(at: int) -> PodBuilder:
    return worker(f"p{at}").spec(tolerations=[{"key": f"pod{at}-{n}", "operator": "Exists"} for n in range(990)])


def long_texts(at: int) -> PodBuilder:
    made = worker(f"p{at}").annotated("example.com/notes", f"{at}" + "x" * (200 * KIB))
    for n in range(1_000):
        made._pod["metadata"].setdefault("labels", {})[f"pod{at}-{n}"] = "v" * 60
    return made


def many_containers(at: int) -> PodBuilder:
    made = worker(f"p{at}")
    for n in range(MOST_SHARING - 1):
        made = made.container(f"c{n}").asks(names.GPU_MEMORY, "1Mi")
    return made


def beyond_the_bound(at: int) -> PodBuilder:
    return worker(f"p{at}").affinity(expressions(8_000, at))


SHAPES: dict[str, tuple[Callable[[int], PodBuilder], int]] = {
    "an ordinary pod": (ordinary, 6 * KIB),
    "as many expressions as may be": (large_affinity, 256 * KIB),
    "as many tolerations as may be": (many_tolerations, 256 * KIB),
    "long annotations and labels": (long_texts, 6 * KIB),
    "as many containers as may ask": (many_containers, 64 * KIB),
    "8,000 expressions, stored before there was a bound": (beyond_the_bound, 2 * KIB),
}


@pytest.fixture(scope="module")
def alone() -> Iterator[ProcessPoolExecutor]:
    """A separate process, because memory of other threads, such as other tests' clusters, would be counted."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize(("made", "most"), SHAPES.values(), ids=SHAPES.keys())
def test_a_waiting_pod_takes_no_more_than(
    made: Callable[[int], PodBuilder], most: int, alone: ProcessPoolExecutor
) -> None:
    texts = []
    for at in range(PODS):
        pod = waiting(made(at))
        pod["metadata"]["name"], pod["metadata"]["uid"] = f"p{at}", f"uid-{at}"
        texts.append(json.dumps(pod))
    found, counted = alone.submit(_kept_when_warm, texts).result()
    print(f"\n{len(texts[0]) / KIB:8.1f} KiB of JSON, {found / KIB:6.1f} KiB kept, {counted / KIB:6.1f} KiB counted")
    assert found < most
    assert not counted or found / 2 < counted < 5 * found + 8 * KIB  # the unit of a namespace's budget


def _kept_when_warm(texts: list[str]) -> tuple[int, int]:
    """The result of the second run: objects that a process creates only once exist by then."""
    _kept(texts)
    return _kept(texts)


def _kept(texts: list[str]) -> tuple[int, int]:
    """Bytes that the queue keeps for each of these pods, and bytes that it counts for each."""
    queue = SchedulingQueue()
    gc.collect()
    tracemalloc.start()
    try:
        for text in texts:
            queue.put(read_pod(pods.trim(json.loads(text))))
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] // PODS
    finally:
        tracemalloc.stop()
    assert len(queue) + len(queue.unreadable) == PODS
    return each, queue.parking.used // PODS
