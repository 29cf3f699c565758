"""What a tenant sees who may read only the pods of one namespace, and the text if nothing is shown."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from contract.encoding import moments
from kubectl_gpufraction.__main__ import main
from tests.builders import pod
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.wires import status_body

JSON = dict[str, Any]
FULL = "0 of 1 GPU nodes fit: 1 short of memory"
PODS = "/api/v1/namespaces/default/pods"
RUNS = admitted("runs", "gpufraction.io/gpu-memory", "2Gi", on="n1")
WAITS = admitted("waits", "gpufraction.io/gpu-memory", "2Gi", waits=FULL)
NO = (403, status_body(403, "Forbidden", "you cannot list that"))


def collection(*items: JSON) -> tuple[int, JSON]:
    return 200, {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def plain(name: str, limits: dict[str, str]) -> JSON:
    return pod(name).container("main", resources={"limits": limits}).json()


SEEN: dict[str, tuple[int, Any]] = {
    "/api/v1/nodes": NO,
    "/api/v1/pods": NO,
    "/apis/gpufraction.io/v1alpha1/gpunodes": NO,
    PODS: collection(RUNS, WAITS),
    f"{PODS}/web": (200, plain("web", {"cpu": "1"})),
    f"{PODS}/missed": (200, plain("missed", {"aliyun.com/gpu-mem": "5"})),
    f"{PODS}/done": (200, RUNS | {"status": {"phase": "Succeeded"}}),
}
WHOLE: dict[str, tuple[int, Any]] = SEEN | {
    "/api/v1/nodes": collection(node("n1")),
    "/api/v1/pods": collection(RUNS, WAITS),
    "/apis/gpufraction.io/v1alpha1/gpunodes": collection(gpunode("n1", 15109)),
}


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    def called(given: dict[str, tuple[int, Any]], *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with answering(given) as port:
            flags = ("--kubeconfig", str(kubeconfig(tmp_path, port)))
            return main([*arguments, *flags], out=out, err=err, environment={}), out.getvalue(), err.getvalue()

    return called


MORE = (
    "To see its place in the queue, and which pods' end would make room, you need the right to list nodes, GPUNodes "
    "and all pods."
)


def test_a_tenant_sees_why_a_pod_waits(ask: Any) -> None:
    unread = "Not evaluated: InterPodAffinity (you may not list nodes, gpunodes, pods of all namespaces)"
    want = f"default/waits requests 1x2Gi (native)\nIt waits: {FULL}\n{unread}\n{MORE}\n"
    assert ask(SEEN, "explain", "waits") == (0, want, "")
    status, shown, _ = ask(SEEN, "waiting")
    assert (status, shown.splitlines()[1].split()[:3]) == (0, ["-", "default", "waits"])
    status, shown, _ = ask(SEEN, "pods")
    assert (status, [line.split()[0] for line in shown.splitlines()[1:3]]) == (0, ["runs", "waits"])
    assert shown.splitlines()[3:] == ["2 pods: 1 has a share of 2048 MiB, 1 waiting"]


def test_a_node_that_was_requested_is_shown_with_its_age(ask: Any) -> None:
    when = moments.at(time.time() - 3_700)
    message = f"{FULL}; a node of pool a100 was asked for"
    pods = {PODS: collection(admitted("waits", "gpufraction.io/gpu-memory", "2Gi", waits=f"{message} {when}"))}
    assert f"{message} 61 min ago\n" in ask(SEEN | pods, "explain", "waits")[1]
    assert f"{message} 61 min ago\n" in ask(SEEN | pods, "waiting")[1]
    [row] = json.loads(ask(SEEN | pods, "waiting", "-o", "json")[1])["items"]
    assert row["reason"] == f"{message} {when}", "a program reads the time itself"


@pytest.mark.parametrize("arguments", [("nodes",), ("advise",), ("waiting", "-A")], ids=" ".join)
def test_what_needs_more_says_what_does_not(arguments: tuple[str, ...], ask: Any) -> None:
    status, shown, errors = ask(SEEN, *arguments)
    assert (status, shown, errors.splitlines()[1:]) == (
        1,
        "",
        ["waiting, pods and explain need only the right to list the pods of your namespace"],
    )


ABSENT = {
    "nobody": "not found; -n names another namespace",
    "web": "it requests no GPU share",
    "done": "it has finished (Succeeded) and no longer holds a share",
    "missed": "1 pod requests a GPU share (Aliyun gpushare) and has none, since namespace default was not enabled when "
    "the pod came: missed\nLabel the namespace, then recreate the pod:\n"
    "    kubectl label namespace default gpufraction.io/inject=enabled    # needs the right to edit namespaces\n"
    "    kubectl -n default replace --force -f FILE    # the manifest of missed",
}


@pytest.mark.parametrize(("name", "why"), ABSENT.items(), ids=ABSENT.keys())
def test_a_pod_that_cannot_be_explained_gets_the_reason(name: str, why: str, ask: Any) -> None:
    assert ask(WHOLE, "explain", name) == (1, "", f"pod {name!r} in namespace 'default': {why}\n")


def test_flags_may_stand_before_the_command(ask: Any) -> None:
    there = {"/api/v1/namespaces/elsewhere": (200, {"metadata": {"name": "elsewhere"}})}
    elsewhere = there | {"/api/v1/namespaces/elsewhere/pods": collection()}
    want = "No pod waits for a GPU share in namespace elsewhere; -A looks in all.\n"
    for arguments in (("-n", "elsewhere", "waiting"), ("waiting", "-n", "elsewhere")):
        assert ask(SEEN | elsewhere, *arguments) == (0, want, "")


def card(index: int, free: int, state: str = "Healthy") -> JSON:
    amounts = {"elasticgpu.io/gpu-memory": "15109", "elasticgpu.io/gpu-core": "100"}
    left = {"elasticgpu.io/gpu-memory": str(free), "elasticgpu.io/gpu-core": "70"}
    return {
        "spec": {"nodeName": "n1", "index": index, "uuid": f"GPU-{index}", "model": "Tesla T4", "memory": 16 << 30},
        "status": {"state": state, "capacity": amounts, "allocatable": left},
    }


def test_who_may_see_cards_alone_sees_what_is_free_and_nobodys_pods(ask: Any) -> None:
    cards = {"/apis/elasticgpu.io/v1alpha1/gpus": collection(card(1, 0, "Cordoned"), card(0, 5109), {"spec": {}})}
    status, shown, errors = ask(SEEN | cards, "nodes")
    assert (status, errors) == (0, "")
    assert [line.split() for line in shown.splitlines()[1:3]] == [
        ["n1", "0", "Tesla", "T4", "-", "#######...", "5109", "15109", "Healthy"],
        ["n1", "1", "Tesla", "T4", "-", "..........", "0", "15109", "Cordoned"],
    ]
    assert shown.splitlines()[3:] == [
        "1 node, 2 GPUs, 1 healthy: ####...... 10000 of 30218 MiB, 33 %",
        "From gpus.elasticgpu.io; to see which pods have shares, you need the right to list nodes, GPUNodes and all "
        "pods.",
    ]
    rows, whole = (json.loads(ask(given, "nodes", "-o", "json")[1])["items"] for given in (SEEN | cards, WHOLE))
    assert rows[0].keys() == whole[0].keys(), "programs find the same fields"


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "pod/web%2Flog"), ("explain", "web?x"), ("explain", "web", "-n", "a/../kube-system"),
        ("pods", "-n", ".."), ("waiting", "-n", "a/b"), ("cordon", "n1/status", "0"), ("inspect", "a%2fb"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_that_would_be_another_path_is_refused_in_words(ask: Any, words: tuple[str, ...]) -> None:
    given = SEEN | {"asked": (0, [])}
    status, out, err = ask(given, *words)
    assert (status, "expected a name" in out + err) == (1, True), out + err
    assert [each for each in given["asked"][1] if "%" in each or ".." in each or "/a/" in each] == []
