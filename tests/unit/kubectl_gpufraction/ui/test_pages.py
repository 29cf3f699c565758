"""What the page shows of a cluster: nodes to scale, sums, filters, the queue, namespaces, and a pod's story."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from contract import names
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.ui.pages import MOST, MOST_TILES, Picture, Selection, story, trimmed_event
from tests.unit.kubectl_gpufraction.objects import admitted, by_claim, gpunode, node, share_of_claim

JSON = dict[str, Any]
NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
FULL = "0 of 2 GPU nodes fit: 2 short of memory"


def picture(*pods: JSON, gpunodes: tuple[JSON, ...] = (), shares: tuple[JSON, ...] = ()) -> Picture:
    found = gpunodes or (gpunode("n1", 15109, 15109), gpunode("n2", 15109, unhealthy=0))
    nodes = [node(each["metadata"]["name"]) for each in found]
    return Picture(ClusterView.of(found, nodes, pods, shares), NOW, "default")


RUNS = admitted("runs", "gpufraction.io/gpu-memory", "2Gi", on="n1")
LARGE = admitted("large", "gpufraction.io/gpu-memory", "8Gi", on="n1")
WAITS = admitted("waits", "gpufraction.io/gpu-memory", "20Gi", waits=FULL)


def test_a_gpu_has_its_sharers_to_scale_the_largest_first() -> None:
    view = picture(RUNS, LARGE).gpus(Selection())
    gpu = view["rows"][0]["gpus"][0]
    assert [(each["name"], each["memoryMiB"]) for each in gpu["sharers"]] == [("large", 8192), ("runs", 2048)]
    assert (gpu["memoryMiB"], gpu["freeMiB"], gpu["promisedMiB"]) == (10240, 15109 - 10240, 15109)


def test_a_node_has_its_state_and_what_is_enforced_there() -> None:
    watched = gpunode("n1", 15109)
    watched["status"] |= {"isolation": ["mps", "watch"], "observedAt": "2026-01-05T08:00:00Z"}
    state = ClusterView.of([watched], [node("n1", cordoned=True)], [])
    [row] = Picture(state, NOW, "default").gpus(Selection("is:closed"))["rows"]
    assert (row["state"], row["open"], row["isolation"]) == ("Cordoned,AgentSilent", False, ["mps", "watch"])


def test_the_share_of_a_claim_is_drawn_once_however_many_pods_use_it() -> None:
    users = (by_claim("one", "c", on="n1"), by_claim("two", "c", on="n1"))
    gpu = picture(*users, shares=(share_of_claim("c", "n1"),)).gpus(Selection())["rows"][0]["gpus"][0]
    assert [(each["kind"], each["name"], each["memoryMiB"]) for each in gpu["sharers"]] == [("claim", "c", 2048)]


def test_more_sharers_than_can_be_drawn_are_summed_up() -> None:
    many = [admitted(f"p{at:02}", "gpufraction.io/gpu-memory", "256Mi", on="n1") for at in range(30)]
    gpu = picture(*many).gpus(Selection())["rows"][0]["gpus"][0]
    assert (len(gpu["sharers"]), gpu["more"]["count"], gpu["more"]["memoryMiB"]) == (24, 6, 6 * 256)


def test_the_head_has_the_sums_and_the_largest_piece_that_a_pod_could_get() -> None:
    head = picture(RUNS, WAITS).head()
    assert (head["nodes"], head["gpus"], head["pods"], head["waiting"]) == (2, 3, 2, 1)
    assert (head["memoryMiB"], head["usedMiB"]) == (3 * 15109, 2048)
    assert (head["unhealthy"], head["untouched"]) == (1, 1)
    assert head["largest"] == {"freeMiB": 15109, "node": "n1", "gpu": 1}


def test_every_word_of_a_filter_must_occur() -> None:
    seen = picture(RUNS)
    assert [row["name"] for row in seen.gpus(Selection("default/runs"))["rows"]] == ["n1"]
    assert [row["name"] for row in seen.gpus(Selection("is:unhealthy xid"))["rows"]] == ["n2"]
    assert [row["name"] for row in seen.gpus(Selection("is:untouched"))["rows"]] == ["n1"]
    assert seen.gpus(Selection("n1 n2"))["total"] == 0
    assert [row["name"] for row in picture(RUNS, WAITS).pods(Selection("WAIT"))["rows"]] == ["waits"]


def test_the_queue_has_places_and_reasons() -> None:
    row = picture(RUNS, WAITS).queue(Selection())["rows"][0]
    assert (row["place"], row["name"], row["asks"], row["reason"]) == (1, "waits", "1x20Gi", FULL)


def test_namespaces_have_what_they_hold_and_wait_for() -> None:
    rows = picture(RUNS, LARGE, WAITS).namespaces(Selection())["rows"]
    assert [(row["namespace"], row["memoryMiB"], row["gpus"], row["holders"], row["waiting"]) for row in rows] == [
        ("default", 10240, 1, 2, 1)
    ]


def test_a_large_cluster_comes_in_bounded_parts_with_a_map() -> None:
    seen = picture(gpunodes=tuple(gpunode(f"n{at:04}", *[15109] * 8) for at in range(MOST_TILES + 50)))
    view = seen.gpus(Selection(start=100, count=10_000))
    assert (view["total"], view["from"], len(view["rows"]), len(view["map"])) == (2050, 100, MOST, MOST_TILES)
    assert view["map"][0] == ["n0000", 0, "well"]
    assert len(json.dumps(view)) < 1_000_000
    assert seen.gpus(Selection(start=10**9))["from"] == 2049
    assert seen.gpus(Selection("n0007"))["map"] == []


def test_a_story_has_the_request_the_wait_the_place_and_the_events() -> None:
    allocated = {"type": str(names.ALLOCATED_CONDITION), "status": "True", "message": "2 GiB of GPU 0"}
    placed = RUNS | {
        "status": {"phase": "Running", "conditions": [allocated | {"lastTransitionTime": "2026-01-05T08:05:00Z"}]}
    }
    event = {"reason": "GPUAllocated", "message": "on n1", "lastTimestamp": "2026-01-05T08:05:00Z", "type": "Normal"}
    seen = picture(placed)
    shown = story(seen, seen.state.pods[0], placed, [event])
    assert shown["lines"][:2] == ["default/runs asks for 1x2Gi (native)", "It is Running on node n1:"]
    assert [(step["what"], step["text"]) for step in shown["steps"]] == [
        ("created", "asks for 1x2Gi"),
        ("share allocated", "2 GiB of GPU 0 (after 5 min)"),
    ]
    assert [(each["reason"], each["message"], each["count"]) for each in shown["events"]] == [
        ("GPUAllocated", "on n1", 1)
    ]


def test_the_story_of_a_pod_placed_at_once_has_its_place_without_a_condition() -> None:
    seen = picture(RUNS, WAITS)
    at_once, waits = (story(seen, pod, RUNS if pod.name == "runs" else WAITS, [])["steps"] for pod in seen.state.pods)
    assert [(step["what"], step["text"]) for step in at_once] == [
        ("created", "asks for 1x2Gi"),
        ("share allocated", "GPU 0 on n1"),
    ]
    assert [step["what"] for step in waits] == ["created", "waits for a share"]


def test_an_event_is_kept_as_far_as_the_page_shows_it() -> None:
    event = {
        "reason": "R",
        "count": 2,
        "message": "m" * 5000,
        "metadata": {"managedFields": []},
        "source": {"host": "n"},
    }
    assert trimmed_event(event) == {"reason": "R", "count": 2, "message": "m" * 1024}
