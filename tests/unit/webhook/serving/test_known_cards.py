"""
No pod is refused because the allocator next to the webhook restarts. A request by percentage is counted with the cards
that were known a moment ago, and never as less than it gets.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.engine.engine import Engine
from allocator.selectors import holds
from contract.encoding import quantity
from contract.encoding.protocol import CARDS_PATH, Answer, Question, Wait, cards_from_json, cards_to_json
from contract.encoding.reading import Malformed
from contract.metrics import metrics_of
from contract.model import FractionRequest, Gpu, GpuKind, NodeState, Wishes
from contract.scheduling.cards import floor, smallest_of
from contract.scheduling.filters import Limits
from playground.waiting import wait_for
from runtime.httpserver import Reply, Request, json_reply, serve_http
from runtime.metrics import Metrics
from runtime.unixhttp import UnixClient
from tests.examples import examples
from tests.unit.webhook.admission.test_made_up_pods import asking_pods
from tests.unit.webhook.builders import JSON, container, patched, pod, review
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import LATE, MALFORMED, NOT_READY, REFUSED, UNREACHABLE, Allocator, NoAnswer, cards
from webhook.serving.health import Health
from webhook.serving.known import KEPT, KnownCards

GIB = 1 << 30
T4, A100 = GpuKind("Tesla T4", 16 * GIB, 15 * GIB), GpuKind("NVIDIA A100-SXM4-80GB", 80 * GIB, 79 * GIB)
MIXED = frozenset((T4, A100))


class Clock:
    """A clock that shows the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def knowing(*listed: GpuKind, age: float = 0.0) -> KnownCards:
    clock = Clock()
    known = KnownCards(clock)
    known.learn(frozenset(listed))
    clock.now = age
    return known


def _nano(percent: str) -> JSON:
    """A container in the format of Nano GPU, whose name is not a Python identifier."""
    resources: JSON = {"nano-gpu__gpu_percent": percent}
    return container(**resources)


PODS = {
    "a whole GPU": (pod(container(nvidia_com__gpu="1")), 15 * GIB),
    "two whole GPUs": (pod(container(nvidia_com__gpu="2")), 30 * GIB),
    "HAMi's percentage": (pod(container(nvidia_com__gpu="1", nvidia_com__gpumem_percentage="20")), 3 * GIB),
    "our percentage": (pod(container(gpufraction_io__gpu_percent="20")), 3 * GIB),
    "nano's percentage": (pod(_nano("20")), 3 * GIB),
    "cores of Elastic GPU": (pod(container(elasticgpu_io__gpu_core="100")), 15 * GIB),
    "KAI's fraction": (pod(container(), annotations={"gpu-fraction": "0.2"}), 3 * GIB),
    "of one model": (
        pod(container(gpufraction_io__gpu_percent="50"), annotations={"gpufraction.io/gpu-models": "A100"}),
        79 * GIB // 2,
    ),
    "on a node of its choice": (pod(container(gpufraction_io__gpu_percent="20"), nodeName="gpu-1"), 3 * GIB),
    "on single GPUs, as on the largest": (
        pod(container(gpufraction_io__gpu_percent="100"), annotations={"gpufraction.io/gpu-uuids": "GPU-a"}),
        79 * GIB,
    ),
    "an amount": (pod(container(gpufraction_io__gpu_memory="5Gi")), 5 * GIB),
}
SILENCES = (UNREACHABLE, LATE, NOT_READY, REFUSED, MALFORMED)


def answered(made: JSON, known: KnownCards, code: str) -> JSON:
    return asked(made, Allocator(lambda question, within: NoAnswer(code), floor=known.floor))


def asked(made: JSON, allocator: Allocator) -> JSON:
    app = create_app(lambda: Configuration(), allocator, Metrics(metrics_of("webhook")), health=Health(lambda: None))
    found = app.test_client().post("/mutate", data=json.dumps(review(made))).get_json()["response"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("code", SILENCES)
@pytest.mark.parametrize(("made", "counted"), PODS.values(), ids=PODS.keys())
def test_without_an_answer_a_pod_waits_and_is_counted(made: JSON, counted: int, code: str) -> None:
    response = answered(made, knowing(T4, A100), code)
    assert response["allowed"] is True, response
    assert response["warnings"][-1] == "waiting: the allocator does not answer; the pod is placed as soon as it does"
    spec = patched(made, response)["spec"]
    assert {"name": "gpufraction.io/allocation"} in spec["schedulingGates"]
    assert "nodeName" not in spec
    assert quantity.integer(spec["containers"][0]["resources"]["requests"]["gpufraction.io/gpu-memory"]) == counted


@settings(max_examples=examples(20), deadline=None)
@given(asking_pods())
def test_a_silence_refuses_nobody_whom_a_full_cluster_lets_wait(made: JSON) -> None:
    def full(question: Question, within: float) -> Answer:
        return Wait("NoRoom", "full", floor(question.request, smallest_of(MIXED)))

    waits, silence = asked(made, Allocator(full)), answered(made, knowing(*MIXED), UNREACHABLE)
    if waits["allowed"]:
        assert (silence["allowed"], silence.get("patch")) == (True, waits.get("patch"))


UNKNOWN = {
    "never told": KnownCards(),
    "too long ago": knowing(T4, age=KEPT + 1),
    "no cards at all": knowing(),
    "none that the share accepts": knowing(T4),
}


@pytest.mark.parametrize("known", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_nobody_can_count_does_not_come_in(known: KnownCards) -> None:
    response = answered(PODS["of one model"][0], known, UNREACHABLE)
    assert response["allowed"] is False
    assert "the memory that a quota counts for it is unknown now" in response["status"]["message"]


def test_an_answer_counts_until_it_is_too_old() -> None:
    made = PODS["a whole GPU"][0]
    assert [answered(made, knowing(T4, age=age), LATE)["allowed"] for age in (0, 60, KEPT, KEPT + 1)] == [
        True,
        True,
        True,
        False,
    ]


MODELS = st.sampled_from(["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H100", "NVIDIA L4"])
KINDS = st.builds(
    lambda model, memory, kept: GpuKind(model, memory * GIB, (memory - kept) * GIB),
    MODELS,
    st.integers(8, 80),
    st.integers(0, 4),
)
MOST_OF_THEM = "device.capacity['gpufraction.io'].memory.isGreaterThan(quantity('2Gi'))"
WORDS = st.lists(st.sampled_from(["A100", "T4", "h100", "L4", "X"]), max_size=2).map(tuple)
UUIDS = st.lists(st.integers(0, 7).map("GPU-{}".format), max_size=3).map(tuple)


@given(st.lists(KINDS, min_size=1, max_size=8), WORDS, WORDS, UUIDS, UUIDS, st.integers(0, 80))
def test_no_share_is_counted_with_less_than_the_allocator_counts(
    listed: list[GpuKind],
    use: tuple[str, ...],
    avoid: tuple[str, ...],
    uses: tuple[str, ...],
    avoids: tuple[str, ...],
    gib: int,
) -> None:
    engine = Engine(limits=Limits(selects=holds))
    for at, card in enumerate(listed):
        engine.put(node_with(f"GPU-{at}", card))
    wishes = Wishes(use, avoid, uses, avoids, gib * GIB)
    fraction = FractionRequest("main", percent=50, wishes=wishes)
    found, exact = smallest_of(engine.cards())(fraction), engine.smallest_accepted(fraction)
    assert found >= exact
    if not uses and not avoids:
        assert found == exact
    # The webhook evaluates no expressions, so it counts the largest card that they may accept.
    for expression in ("device.attributes['gpufraction.io'].uuid == 'GPU-1'", MOST_OF_THEM):
        selecting = replace(fraction, wishes=replace(wishes, alternatives=((expression,),)))
        assert smallest_of(engine.cards())(selecting) >= engine.smallest_accepted(selecting)


def node_with(uuid: str, card: GpuKind) -> NodeState:
    return NodeState(name=f"node-{uuid}", gpus=(Gpu(uuid, 0, card.model, card.memory, usable=card.usable),))


@given(st.frozensets(KINDS, max_size=8))
def test_the_answer_is_read_as_it_was_given(listed: frozenset[GpuKind]) -> None:
    assert cards_from_json(json.loads(json.dumps(cards_to_json(listed)))) == listed


@pytest.mark.parametrize("document", [None, [], {"cards": 1}, {"cards": [1]}, {"cards": [{"model": 1}]}])
def test_what_is_no_list_of_cards_is_malformed(document: object) -> None:
    with pytest.raises(Malformed):
        cards_from_json(document)


def test_it_is_not_ready_until_its_allocator_has_answered_once(tmp_path: Path) -> None:
    """It stays ready after the allocator has ended: outside the Service it could not let pods wait either."""
    path, ready = tmp_path / "allocator.sock", [False]

    def answer(request: Request) -> Reply:
        return json_reply(cards_to_json(MIXED)) if ready[0] else json_reply({"error": "still listing pods"}, 503)

    known, stopping = KnownCards(), threading.Event()
    known.poll(cards(UnixClient(path), patience=1.0), stopping)
    assert known.unready() == "the allocator has not answered yet"
    server = serve_http({("GET", CARDS_PATH): answer}, path, name="allocator")
    try:
        assert known.unready() == "the allocator has not answered yet"
        ready[0] = True
        wait_for(lambda: known.unready() is None, "it is never ready", 10)
    finally:
        stopping.set()
        server.close()
    assert known.unready() is None
