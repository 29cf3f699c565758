"""`kubectl gpufraction idle`: which shares compute nothing, for how long, and whether they give way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.idle.shares import gives_way, rows
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode
from tests.unit.kubectl_gpufraction.test_manners import DEFAULT, GPUNODES, called
from tests.unit.kubectl_gpufraction.test_tenants import NO, collection

JSON = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/gpufraction-system/configmaps"
FIRST, LATER = "2026-01-05T09:00:00Z", "2026-01-05T10:00:00Z"


def holds(name: str, word: str | None = None, *, on: str = "n1") -> JSON:
    made = admitted(name, "gpufraction.io/gpu-memory", "2Gi", on=on)
    if word is not None:
        made["metadata"]["annotations"][str(names.IDLE_AFTER)] = word
    return made


def says(node: str, **since: str) -> JSON:
    made = gpunode(node, 15109)
    made["status"]["idle"] = [{"pod": uid, "since": at} for uid, at in since.items()]
    return made


def test_the_longest_idle_come_first_and_pods_that_compute_are_left_out() -> None:
    listed = [holds("short"), holds("long"), holds("computes"), holds("elsewhere", on="n2")]
    found = rows([says("n1", short=LATER, long=FIRST, elsewhere=FIRST), says("n2")], listed, {})
    assert [(row["name"], row["since"]) for row in found] == [("long", FIRST), ("short", LATER)]
    assert (found[0]["node"], found[0]["gpus"], found[0]["memoryMiB"]) == ("n1", [0], 2048)


WORDS = {
    "nobody agreed": (None, {}, "no", "none"),
    "the namespace agreed": (None, {"default": "2h"}, "after 2h", "namespace"),
    "another namespace agreed": (None, {"other": "2h"}, "no", "none"),
    "the pod agreed": ("90m", {"default": "2h"}, "after 90m", "pod"),
    "the pod did not agree": ("0", {"default": "2h"}, "no", "pod"),
    "the pod's word cannot be read": ("soon", {"default": "2h"}, "no", "pod"),
    "the namespace's word cannot be read": (None, {"default": "soon"}, "no", "namespace"),
    "who may not list namespaces": (None, None, "unknown", "unknown"),
}


@pytest.mark.parametrize("case", WORDS.values(), ids=WORDS.keys())
def test_whether_an_idle_pod_gives_way(case: tuple[str | None, dict[str, str] | None, str, str]) -> None:
    word, labels, cell, by = case
    (row,) = rows([says("n1", one=FIRST)], [holds("one", word)], labels)
    assert (gives_way(row), row["consent"]) == (cell, by)


def test_a_tenant_sees_the_pods_of_its_namespace(tmp_path: Path) -> None:
    given = {GPUNODES: collection(says("n1", one=FIRST, two=FIRST)), "/api/v1/pods": NO, "/api/v1/namespaces": NO}
    given[DEFAULT] = collection(holds("one"))
    status, shown, errors = called(tmp_path, "idle", given=given)
    assert (status, errors, shown.splitlines()[1].split()[:2]) == (0, "", ["default", "one"])
    assert shown.splitlines()[2:] == ["1 idle pod holds 2048 MiB; 0 consented to eviction"]


def test_an_administrator_learns_that_no_pod_is_evicted(tmp_path: Path) -> None:
    containers: list[dict[str, Any]] = [{"command": ["python", "-m", "allocator", "run"], "args": []}]
    deployment = {"metadata": {"name": "gpufraction"}, "spec": {"template": {"spec": {"containers": containers}}}}
    path = "/apis/apps/v1/namespaces/gpufraction-system/deployments"
    given = {GPUNODES: collection(says("n1", one=FIRST)), DEFAULT: collection(holds("one", "2h"))}
    _, shown, _ = called(tmp_path, "idle", given={**given, path: collection(deployment)})
    assert shown.splitlines()[-1] == "No pod is evicted for this: the allocator's setting idle.evict is off."
    containers[0]["args"] = ["--idle-evict=true"]
    _, shown, _ = called(tmp_path, "idle", given={**given, path: collection(deployment)})
    assert shown.splitlines()[-1] == "1 idle pod holds 2048 MiB; 1 consented to eviction"
    containers[0] |= {"args": [], "envFrom": [{"configMapRef": {"name": "ours"}}]}
    settings = {"metadata": {"name": "ours"}, "data": {"GPUFRACTION_IDLE_EVICT": "true"}}
    of_ours = {path: collection(deployment), CONFIGMAPS: collection(settings)}
    _, shown, _ = called(tmp_path, "idle", given={**given, **of_ours})
    assert shown.splitlines()[-1] == "1 idle pod holds 2048 MiB; 1 consented to eviction"
    _, form, _ = called(tmp_path, "idle", "-o", "json", given=given)
    (row,) = json.loads(form)["items"]
    assert (row["givesWayAfter"], row["since"]) == ("2h", FIRST)
