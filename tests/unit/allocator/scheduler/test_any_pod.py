"""Whatever a stored pod contains, in any field, no other pod is affected, and nothing is allocated twice."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.scheduler.events import TickPhase, pods_listed
from contract import pods
from contract.encoding.protocol import Placed
from contract.encoding.quantity import MIB
from contract.model import Allocation, ContainerAllocation, GpuShare
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import ONE_GPU, keys, running, waiting, worker
from tests.unit.contract.strategies import JSON as ANYTHING

JSON = dict[str, Any]
SHARE = Allocation("id", "t4", (ContainerAllocation("main", (GpuShare("GPU-t4-0", 0, 10_000 * MIB, 0, 15109 * MIB),)),))


def paths(part: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every field of a pod, except those that identify it."""
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    below = [found for key, value in inside for found in paths(value, (*here, key))]
    return [path for path in [here, *below] if path and path[:2] not in (("metadata", "uid"), ("metadata", "name"))]


def with_another(pod: JSON, path: tuple[Any, ...], value: Any) -> JSON:
    made = copy.deepcopy(pod)
    part: Any = made
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return made


WAITS, HOLDS = waiting(worker("odd", mib=1000)), running(worker("odd"), SHARE)


def trimmed(pod: JSON) -> JSON:
    """The pod as the informer trims it; a pod that cannot be trimmed is taken as it is."""
    try:
        return pods.trim(pod)
    except Exception:
        return pod


@given(data=st.data(), whole=st.sampled_from((WAITS, HOLDS)), value=ANYTHING)
@settings(max_examples=examples(100), deadline=None)
def test_one_odd_pod_keeps_nobody_from_being_placed(data: st.DataObject, whole: JSON, value: Any) -> None:
    odd = with_another(whole, data.draw(st.sampled_from(paths(whole))), value)
    harness = SchedulerHarness([ONE_GPU], faults=[])
    harness.controller.handle(pods_listed([trimmed(odd), waiting(worker("a", mib=100)), waiting(worker("z", mib=100))]))
    harness.controller.tick(TickPhase.UPKEEP)
    bindings, _ = harness.controller.schedule_pending()
    closed = not any(gpu.healthy for state in harness.controller.nodes() for gpu in state.gpus)
    assert closed or {"default/a", "default/z"} <= set(keys(bindings))
    harness.controller.look()
    harness.controller.report_overcommitted()
    harness.controller.preempt()
    harness.controller.check_invariants()
    harness.controller.handle(pods_listed([]))
    harness.controller.check_invariants()
    assert harness.controller.look().quarantined == 0


@given(data=st.data(), value=ANYTHING)
@settings(max_examples=examples(60), deadline=None)
def test_who_held_a_share_and_is_odd_now_does_not_have_it_given_away(data: st.DataObject, value: Any) -> None:
    """This excludes the annotations and the phase, which say whether it has a share."""
    places = [path for path in paths(HOLDS) if path[:2] != ("metadata", "annotations") and path[0] != "status"]
    odd = with_another(HOLDS, data.draw(st.sampled_from([path for path in places if path != ("metadata",)])), value)
    harness = SchedulerHarness([ONE_GPU], faults=[])
    harness.controller.handle(pod_event(trimmed(HOLDS)))
    harness.controller.handle(pod_event(trimmed(odd)))
    if harness.faults:  # what it holds does not depend on what it says now
        assert not isinstance(harness.controller.reserve(question(worker("b", mib=6_000))), Placed)
    harness.controller.check_invariants()
