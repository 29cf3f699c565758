"""Pods that request a share where none is given: what `pods`, `waiting` and `explain` say, with the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.cluster.state import trimmed
from kubectl_gpufraction.cluster.unserved import UnservedPod, asks_in_vain, cure, unserved_pod
from tests.builders import pod
from tests.unit.kubectl_gpufraction.objects import admitted
from tests.unit.kubectl_gpufraction.test_manners import DEFAULT, called
from tests.unit.kubectl_gpufraction.test_tenants import collection, plain

JSON = dict[str, Any]
ALIYUN = {"aliyun.com/gpu-mem": "5"}
BARE, QUIET = plain("bare", ALIYUN), plain("quiet", {"cpu": "1"})
OWNED = plain("owned", ALIYUN)
OWNED["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]
WHOLE = plain("whole", {"nvidia.com/gpu": "1"})
LABEL = "    kubectl label namespace default gpufraction.io/inject=enabled    # needs the right to edit namespaces"
DELETE = "    kubectl -n default delete pod owned    # its controller creates it again"
REPLACE = "    kubectl -n default replace --force -f FILE    # the manifest of bare"
ASKS = {
    "an older system's request": (BARE, True),
    "no request": (QUIET, False),
    "one that was admitted": (admitted("runs", "gpufraction.io/gpu-memory", "2Gi", on="n1"), False),
    "one that has finished": (pod("done").asks("aliyun.com/gpu-mem", 5).phase("Succeeded").json(), False),
    "a whole GPU of the vendor's plugin": (WHOLE, False),
}


@pytest.mark.parametrize(("made", "want"), ASKS.values(), ids=ASKS.keys())
def test_which_pods_ask_in_vain(made: JSON, want: bool) -> None:
    assert (asks_in_vain(made), unserved_pod(trimmed(made)) is not None) == (want, want)


def unserved(name: str, *, controlled: bool = False, namespace: str = "team") -> UnservedPod:
    return UnservedPod(namespace, name, ("Aliyun gpushare",), controlled)


MANY = [unserved(f"p{number:02}", controlled=True) for number in range(22)]
HEAD = "1 pod requests a GPU share (Aliyun gpushare) and has none, since "
CURES: dict[str, tuple[list[UnservedPod], bool | None, list[str]]] = {
    "not enabled": (
        [unserved("a"), unserved("b", controlled=True)],
        False,
        [
            "2 pods request a GPU share (Aliyun gpushare) and have none, since namespace team is not enabled: a, b",
            "Label the namespace, then recreate the pods:",
            "    kubectl label namespace team gpufraction.io/inject=enabled    # needs the right to edit namespaces",
            "    kubectl -n team delete pod b    # its controller creates it again",
            "    kubectl -n team replace --force -f FILE    # the manifest of a",
        ],
    ),
    "enabled too late": (
        [unserved("a")],
        True,
        [
            f"{HEAD}the pod came before namespace team was enabled, or while the webhook was not configured: a",
            "Recreate the pod:",
            "    kubectl -n team replace --force -f FILE    # the manifest of a",
        ],
    ),
    "not to be seen": (
        [unserved("a")],
        None,
        [
            f"{HEAD}namespace team was not enabled when the pod came: a",
            "Label the namespace, then recreate the pod:",
            "    kubectl label namespace team gpufraction.io/inject=enabled    # needs the right to edit namespaces",
            "    kubectl -n team replace --force -f FILE    # the manifest of a",
        ],
    ),
    "a namespace that is never served": (
        [unserved("a", namespace="kube-system")],
        False,
        [f"{HEAD}namespace kube-system is never served: create it in another namespace: a"],
    ),
    "many pods": (
        MANY,
        True,
        [
            "22 pods request a GPU share (Aliyun gpushare) and have none, since the pods came before namespace team "
            "was enabled, or while the webhook was not configured: p00, p01, p02, p03, p04 and 17 more",
            "Recreate the pods:",
            f"    kubectl -n team delete pod {' '.join(pod.name for pod in MANY[:20])}    "
            "# their controllers create them again",
        ],
    ),
}


@pytest.mark.parametrize(("found", "served", "lines"), CURES.values(), ids=CURES.keys())
def test_what_to_do_about_them(found: list[UnservedPod], served: bool | None, lines: list[str]) -> None:
    assert cure(found[0].namespace, found, served=served) == lines


def there(*pods: JSON, label: str | None = None) -> dict[str, tuple[int, Any]]:
    labels = {} if label is None else {str(names.INJECT_LABEL): label}
    space = {"metadata": {"name": "default", "labels": labels}}
    listed = collection(*pods)
    return {"/api/v1/namespaces/default": (200, space), "/api/v1/pods": listed, DEFAULT: listed} | {
        f"{DEFAULT}/{pod['metadata']['name']}": (200, pod) for pod in pods
    }


BOTH = "2 pods request a GPU share (Aliyun gpushare) and have none, since namespace default is not enabled: bare, owned"
THEN = ["Label the namespace, then recreate the pods:", LABEL, DELETE, REPLACE]


def test_instead_of_nothing_pods_shows_the_cure(tmp_path: Path) -> None:
    given = there(BARE, OWNED, QUIET)
    assert called(tmp_path, "pods", given=given)[1].splitlines() == [BOTH, *THEN]
    nothing = "No pod waits for a GPU share in namespace default; -A looks in all."
    assert called(tmp_path, "waiting", given=given)[1].splitlines() == [nothing, BOTH, *THEN]


def test_below_a_table_the_cure_follows_the_totals(tmp_path: Path) -> None:
    given = there(admitted("runs", "gpufraction.io/gpu-memory", "2Gi", on="n1"), BARE, OWNED)
    assert called(tmp_path, "pods", "-A", given=given)[1].splitlines()[2:] == [
        "1 pod: 1 has a share of 2048 MiB, 0 waiting",
        BOTH,
        *THEN,
    ]
    assert BOTH not in called(tmp_path, "pods", "runs", given=given)[1], "of named pods nothing else is said"


def test_a_pod_and_a_workload_are_explained_so(tmp_path: Path) -> None:
    one = "1 pod requests a GPU share (Aliyun gpushare) and has none, since "
    lines = called(tmp_path, "explain", "bare", given=there(BARE))[2].splitlines()
    assert lines == [
        f"pod 'bare' in namespace 'default': {one}namespace default is not enabled: bare",
        "Label the namespace, then recreate the pod:",
        LABEL,
        REPLACE,
    ]
    owner = {"metadata": {"name": "r", "uid": "r"}}
    sets = {"/apis/apps/v1/namespaces/default/replicasets/r": (200, owner)}
    lines = called(tmp_path, "explain", "rs/r", given=there(OWNED, label="enabled") | sets)[2].splitlines()
    assert lines == [
        f"replicaset 'r' in namespace 'default': none of its 1 pod has a share or waits: {one}the pod came before "
        "namespace default was enabled, or while the webhook was not configured: owned",
        "Recreate the pod:",
        DELETE,
    ]


def test_many_namespaces_are_not_all_printed(tmp_path: Path) -> None:
    spread = [pod("p", f"n{number}").asks("aliyun.com/gpu-mem", 5).json() for number in range(5)]
    lines = called(tmp_path, "pods", "-A", given={"/api/v1/pods": collection(*spread)})[1].splitlines()
    assert lines[-1] == "2 more namespaces have such pods; -n shows them"
    assert sum("kubectl label" in line for line in lines) == 3
