"""What `kubectl gpufraction pools` shows: a row for each pool, and a sentence if an action is needed."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.nodes import pool_status
from contract.nodes.pool_status import PoolsStatus, PoolStatus
from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.commands import pools
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.wires import status_body

JSON = dict[str, Any]
PATH = "/api/v1/namespaces/gpufraction-system/configmaps/gpufraction-pools"
POOL = PoolStatus("t4", 10, 1, ready=2)
PAUSED = replace(POOL, state="paused", failures=3, until=1_767_600_000.0, waits=True)

STATES: dict[str, tuple[PoolStatus, str, str]] = {
    "nodes and nothing to do": (POOL, "ready", ""),
    "no node and nothing to do": (replace(POOL, ready=0), "no node", ""),
    "asked": (
        replace(POOL, state="asked", asked=2, since=1_767_600_000.0),
        "requested 2 at 2026-01-05T08:00:00Z",
        "",
    ),
    "coming": (replace(POOL, state="coming", coming=1), "not all nodes are ready", ""),
    "not asked": (replace(POOL, state="not-asked", why="forbidden"), "could not be asked", "t4: forbidden."),
    "too late": (
        replace(PAUSED, outcome="too-late"),
        "failed 3 times; requested again at 2026-01-05T08:00:00Z",
        "t4: its nodes did not join in time. See the autoscaler's log, the cloud's quota, and the setting "
        "provisioning.patience.",
    ),
    "refused": (
        replace(PAUSED, failures=1, outcome="refused", why="Expired: no capacity"),
        "failed once; requested again at 2026-01-05T08:00:00Z",
        "t4: the autoscaler could not add its nodes (Expired: no capacity).",
    ),
    "without GPUs": (
        replace(PAUSED, outcome="without-gpus"),
        "failed 3 times; requested again at 2026-01-05T08:00:00Z",
        "t4: nodes joined, but their GPUs were not published in time. kubectl get events -A --field-selector "
        "reason=NodeWithoutGPUs names them.",
    ),
    "full": (
        replace(POOL, state="full", waits=True),
        "at max, and pods wait",
        "t4: raise node.max, which is 10, or wait until other pods end.",
    ),
    "an idle node": (
        replace(POOL, state="idle-node", waits=True),
        "an idle node cannot serve the waiting pods",
        "t4: pods fit on an empty node as declared, but not on the existing one. Compare the pool's node in the "
        "options with kubectl gpufraction nodes; no further node is requested.",
    ),
    "unknown": (
        PoolStatus("t4", 10, state="unknown"),
        "too little is known",
        "t4: declare gpus, gpuMemory, cpu and memory under node, or let one node of the pool come.",
    ),
}


@pytest.mark.parametrize(("pool", "state", "cure"), STATES.values(), ids=STATES.keys())
def test_a_state_in_words_and_its_cure(pool: PoolStatus, state: str, cure: str) -> None:
    status = PoolsStatus(1_767_600_000.0, (pool,))
    [row] = pools.rows(status)
    assert (row["state"], pools.sentences(status, status.at)) == (state, [cure] if cure else [])


def test_every_state_has_words() -> None:
    assert {pool.state for pool, _, _ in STATES.values()} == set(pools.STATES)


TROUBLE = "the cluster serves no ProvisioningRequests"


def test_what_prevents_requests_to_all_pools_is_shown_once() -> None:
    status = PoolsStatus(0.0, (replace(POOL, state="not-asked", why=TROUBLE),), TROUBLE)
    assert pools.sentences(status, 60.0) == [f"No nodes can be requested: {TROUBLE}."]


def test_an_old_status_says_so() -> None:
    status = PoolsStatus(1_767_600_000.0, (POOL,))
    assert pools.sentences(status, status.at + 241) == [
        "This was written at 2026-01-05T08:00:00Z; does an allocator lead? "
        "kubectl -n gpufraction-system get pods,leases"
    ]


def shown(directory: Path, given: tuple[int, JSON] | None, *flags: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with answering({} if given is None else {PATH: given}) as port:
        arguments = ["pools", "--kubeconfig", str(kubeconfig(directory, port)), *flags]
        return main(arguments, out=out, err=err, environment={}), out.getvalue(), err.getvalue()


def published(*found: PoolStatus) -> tuple[int, JSON]:
    return 200, {"data": {pool_status.FILE: pool_status.document(PoolsStatus(time.time(), found))}}


def test_the_command_shows_a_table_with_ages_that_fits_a_terminal(tmp_path: Path) -> None:
    now = time.time()
    called = replace(POOL, state="asked", asked=2, since=now - 3_700, coming=1)
    paused = replace(PAUSED, name="a100", outcome="too-late", until=now + 290)
    status, text, _ = shown(tmp_path, published(called, paused))
    heading, *lines = text.splitlines()
    assert (status, heading.split()) == (0, ["POOL", "READY", "COMING", "ASKED", "MAX", "SPARE", "STATE"])
    assert lines[0].split(maxsplit=6) == ["t4", "2", "1", "2", "10", "1", "requested 2 61 min ago"]
    assert lines[1].endswith("failed 3 times; requested again in 4 min")
    assert lines[2].startswith("a100: its nodes did not join in time.")
    assert max(map(len, text.splitlines()[:3])) <= 100


def test_programs_get_the_times_themselves(tmp_path: Path) -> None:
    [row] = json.loads(shown(tmp_path, published(PAUSED), "-o", "json")[1])["items"]
    assert (row["pool"], row["max"], row["state"]) == (
        "t4",
        10,
        "failed 3 times; requested again at 2026-01-05T08:00:00Z",
    )


FAILURES: dict[str, tuple[tuple[int, JSON] | None, str]] = {
    "without the component": (None, pools.NOT_INSTALLED),
    "before an allocator leads": ((200, {"metadata": {}}), pools.NOT_WRITTEN),
    "when somebody else wrote it": (
        (200, {"data": {pool_status.FILE: "?"}}),
        "ConfigMap gpufraction-system/gpufraction-pools: pools.json: found '?'; only the allocator writes it",
    ),
}


@pytest.mark.parametrize(("given", "want"), FAILURES.values(), ids=FAILURES.keys())
def test_where_nothing_is_shown_it_says_why(tmp_path: Path, given: tuple[int, JSON] | None, want: str) -> None:
    assert shown(tmp_path, given) == (1, "", f"{want}\n")


def test_a_user_who_may_not_read_it_gets_the_api_servers_answer(tmp_path: Path) -> None:
    refused = (403, status_body(403, "Forbidden", "you may not get configmaps"))
    status, _, errors = shown(tmp_path, refused)
    assert (status, "you may not get configmaps" in errors) == (1, True)


def test_without_a_pool_the_options_are_named(tmp_path: Path) -> None:
    assert shown(tmp_path, published())[:2] == (0, f"{pools.NONE}\n")
