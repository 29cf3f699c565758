"""What the page shows of a cluster: nodes to scale, sums, filters, the queue, namespaces, and a pod's history."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.check.facts import ClusterFacts
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.ui.groups import MOST_TILES
from kubectl_gpufraction.ui.health import InstallationHealth
from kubectl_gpufraction.ui.pages import MOST, About, Picture, Selection, story, trimmed_event
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
    assert (head["unhealthy"], head["unused"], head["missing"]) == (1, 1, 0)
    assert head["largest"] == {"freeMiB": 15109, "node": "n1", "gpu": 1}


def test_every_word_of_a_filter_must_occur() -> None:
    seen = picture(RUNS)
    assert [row["name"] for row in seen.gpus(Selection("default/runs"))["rows"]] == ["n1"]
    assert [row["name"] for row in seen.gpus(Selection("is:unhealthy xid"))["rows"]] == ["n2"]
    assert [row["name"] for row in seen.gpus(Selection("is:unused"))["rows"]] == ["n1"]
    assert seen.gpus(Selection("n1 n2"))["total"] == 0
    assert [row["name"] for row in picture(RUNS, WAITS).pods(Selection("WAIT"))["rows"]] == ["waits"]


def test_the_queue_has_places_and_reasons() -> None:
    row = picture(RUNS, WAITS).queue(Selection())["rows"][0]
    assert (row["place"], row["name"], row["asks"], row["reason"]) == (1, "waits", "1x20Gi", FULL)


def test_the_queue_is_grouped_by_reason_the_most_frequent_first() -> None:
    other = admitted("other", "gpufraction.io/gpu-memory", "30Gi", waits="0 of 2 GPU nodes fit: 2 cordoned")
    waits = [admitted(f"w{at}", "gpufraction.io/gpu-memory", "20Gi", waits=FULL) for at in range(2)]
    fresh = admitted("fresh", "gpufraction.io/gpu-memory", "20Gi")
    del fresh["status"]["conditions"]
    for each in waits:
        each["status"]["conditions"][0]["reason"] = "Cores"
    view = picture(other, fresh, *waits).queue(Selection())
    assert view["reasons"] == [
        {"code": "Cores", "count": 2, "reason": FULL, "filter": "why:cores/"},
        {"code": "", "count": 1, "reason": "", "filter": "why:undecided/"},
        {"code": "Memory", "count": 1, "reason": "0 of 2 GPU nodes fit: 2 cordoned", "filter": "why:memory/"},
    ]
    assert [row["name"] for row in view["rows"]] == ["w0", "w1", "fresh", "other"]
    assert [row["name"] for row in picture(other, *waits).queue(Selection("why:memory/"))["rows"]] == ["other"]


@pytest.mark.parametrize(
    ("sort", "want"),
    [
        ("place", ["late", "early", "b"]),
        ("-place", ["b", "early", "late"]),
        ("name", ["b", "early", "late"]),
        ("-name", ["late", "early", "b"]),
        ("priority", ["early", "b", "late"]),
        ("-since", ["b", "late", "early"]),
    ],
)
def test_the_queue_sorts_by_what_is_chosen(sort: str, want: list[str]) -> None:
    def pod(name: str, since: str, priority: int = 0, created: str = "2026-01-05T08:00:00Z") -> JSON:
        made = admitted(name, "gpufraction.io/gpu-memory", "20Gi", waits=FULL, priority=priority, created=created)
        made["status"]["conditions"][0]["lastTransitionTime"] = since
        return made

    pods = (
        pod("late", "2026-01-05T09:00:00Z", 5),
        pod("early", "2026-01-05T08:30:00Z"),
        pod("b", "2026-01-05T09:30:00Z", created="2026-01-05T08:01:00Z"),
    )
    assert [row["name"] for row in picture(*pods).queue(Selection(sort=sort))["rows"]] == want


def test_the_legend_names_the_namespaces_with_shares_and_a_filter() -> None:
    others = [RUNS | {"metadata": RUNS["metadata"] | {"namespace": f"team-{at:02}"}} for at in range(14)]
    legend = picture(LARGE, WAITS, *others).gpus(Selection())["legend"]
    assert (len(legend["names"]), legend["more"]) == (12, 3)
    assert legend["names"][0] == {"namespace": "default", "tone": 0, "memoryMiB": 8192, "filter": "ns:default/"}
    view = picture(LARGE, *others).gpus(Selection("ns:team-01/"))
    assert [row["name"] for row in view["rows"]] == ["n1"]
    assert picture(LARGE, *others).gpus(Selection("ns:team/"))["total"] == 0


def reading(*cards: int, pods: tuple[JSON, ...] = (), at: datetime = NOW, before: Picture | None = None) -> Picture:
    state = ClusterView.of([gpunode("n1", *cards)], [node("n1")], pods)
    return Picture(state, at, "default", before=before)


def row_of(seen: Picture) -> list[tuple[Any, ...]]:
    [found] = seen.gpus(Selection())["rows"]
    return [(gpu["gpu"], gpu["health"], gpu["model"], gpu["memoryMiB"], gpu["freeMiB"]) for gpu in found["gpus"]]


def test_a_missing_card_keeps_its_row_for_an_hour_and_with_a_share_longer() -> None:
    share = admitted("second", "gpufraction.io/gpu-memory", "2Gi", on="n1", gpu=1)
    first = reading(15109, 15109, 15109, pods=(share,))
    gone = reading(15109, pods=(share,), before=first)
    assert row_of(gone) == [
        (0, "Healthy", "Tesla T4", 0, 15109),
        (1, "Missing", "Tesla T4", 2048, 0),
        (2, "Missing", "Tesla T4", 0, 0),
    ]
    late = reading(15109, pods=(share,), at=NOW + timedelta(hours=2), before=gone)
    assert row_of(late) == [(0, "Healthy", "Tesla T4", 0, 15109), (1, "Missing", "", 2048, 0)]
    back = reading(15109, 15109, 15109, pods=(share,), before=gone)
    assert [health for _, health, *_ in row_of(back)] == ["Healthy"] * 3


def test_a_share_that_computes_nothing_says_since_when() -> None:
    idle = gpunode("n1", 15109)
    idle["status"]["idle"] = [{"pod": "runs", "since": "2026-01-05T09:00:00Z"}]
    seen = Picture(ClusterView.of([idle], [node("n1")], [RUNS, LARGE]), NOW, "default")
    [row] = seen.gpus(Selection("is:idle"))["rows"]
    since = {sharer["name"]: sharer["idleSince"] for sharer in row["gpus"][0]["sharers"]}
    assert since == {"large": "", "runs": "2026-01-05T09:00:00Z"}
    assert picture(RUNS).gpus(Selection("is:idle"))["total"] == 0


def test_missing_cards_are_counted_apart_and_not_as_room() -> None:
    share = admitted("second", "gpufraction.io/gpu-memory", "2Gi", on="n1", gpu=1)
    seen = reading(15109, pods=(share,))
    head = seen.head()
    assert (head["gpus"], head["missing"], head["withheld"], head["memoryMiB"], head["usedMiB"]) == (1, 1, 0, 15109, 0)
    assert [row["name"] for row in seen.gpus(Selection("is:missing"))["rows"]] == ["n1"]


def test_the_head_has_the_cluster_the_banners_and_what_is_not_seen() -> None:
    silent = gpunode("n1", 15109)
    silent["status"]["observedAt"] = "2026-01-05T08:00:00Z"
    lease = {"spec": {"holderIdentity": "a", "renewTime": "2026-01-05T10:00:00Z"}}
    hook: JSON = {"webhooks": [{}]}
    facts = ClusterFacts(NOW.timestamp(), (0, 0), lease=lease, webhook=hook, deployments=Unseen("you may not"))
    about = About("prod", "https://grafana.example", True, InstallationHealth(facts), ("nodes",))
    head = Picture(ClusterView.of([silent], [node("n1")], []), NOW, "default", about).head()
    assert [each["kind"] for each in head["banners"]] == ["agents"]
    assert {key: head[key] for key in ("cluster", "dashboard", "measured", "unlisted", "unseen")} == {
        "cluster": "prod",
        "dashboard": "https://grafana.example",
        "measured": True,
        "unlisted": ["nodes"],
        "unseen": ["whether the webhook is ready: you may not"],
    }


def test_nodes_whose_agent_never_reported_are_silent_once_it_had_time() -> None:
    def bare(name: str, created: str, **labels: str) -> JSON:
        made = node(name)
        made["metadata"] |= {"creationTimestamp": created, "labels": labels}
        return made

    gpus, old = {"nvidia.com/gpu.present": "true"}, "2026-01-05T09:00:00Z"
    nodes = [bare("n2", old, **gpus), bare("cpu", old), bare("new", "2026-01-05T09:55:00Z", **gpus), node("n1")]
    lease = {"spec": {"holderIdentity": "a", "renewTime": "2026-01-05T10:00:00Z"}}
    health = InstallationHealth(ClusterFacts(NOW.timestamp(), (0, 0), lease=lease, webhook={}))
    state = ClusterView.of([gpunode("n1", 15109)], nodes, [])
    [banner] = Picture(state, NOW, "default", About(health=health)).head()["banners"]
    assert banner["what"] == "1 agent is silent: n2 (never reported)"


def test_namespaces_have_what_they_hold_and_wait_for() -> None:
    rows = picture(RUNS, LARGE, WAITS).namespaces(Selection())["rows"]
    assert [(row["namespace"], row["memoryMiB"], row["gpus"], row["holders"], row["waiting"]) for row in rows] == [
        ("default", 10240, 1, 2, 1)
    ]


def test_a_large_cluster_comes_in_bounded_parts_with_a_map() -> None:
    seen = picture(gpunodes=tuple(gpunode(f"n{at:04}", *[15109] * 8) for at in range(MOST_TILES + 50)))
    view = seen.gpus(Selection(start=100, count=10_000))
    [group] = view["map"]
    assert (view["total"], view["from"], len(view["rows"]), len(group["tiles"])) == (2050, 100, MOST, MOST_TILES)
    assert (group["model"], group["nodes"], group["tiles"][0]) == ("Tesla T4", 2050, ["n0000", 0, "well"])
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
    assert shown["lines"][:2] == ["default/runs requests 1x2Gi (native)", "It is Running on node n1:"]
    assert [(step["what"], step["text"]) for step in shown["steps"]] == [
        ("created", "requests 1x2Gi"),
        ("share allocated", "2 GiB of GPU 0 (after 5 min)"),
    ]
    assert [(each["reason"], each["message"], each["count"]) for each in shown["events"]] == [
        ("GPUAllocated", "on n1", 1)
    ]


def test_the_story_of_a_pod_placed_at_once_has_its_place_without_a_condition() -> None:
    seen = picture(RUNS, WAITS)
    at_once, waits = (story(seen, pod, RUNS if pod.name == "runs" else WAITS, [])["steps"] for pod in seen.state.pods)
    assert [(step["what"], step["text"]) for step in at_once] == [
        ("created", "requests 1x2Gi"),
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
