"""`kubectl gpufraction fleet`: several clusters in one view, whatever one of them does."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.cluster.fleet import FleetMember, Installation, drift, normalised, sentences
from kubectl_gpufraction.commands.fleet import output
from kubectl_gpufraction.output.forms import Form
from tests.unit.kubectl_gpufraction.answering import Serve, answering
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.wires import status_body

JSON = dict[str, Any]
SYSTEM = "/api/v1/namespaces/gpufraction-system/configmaps"
APPS = "/apis/apps/v1/namespaces/gpufraction-system"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
FORBIDDEN = 403, status_body(403, "Forbidden", "no")


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda given: stack.enter_context(answering(given))


def cluster(*, preemption: str = "false", options: str = "", version: str = "0.1.0", used: bool = True) -> JSON:
    """An API server with one node of one card, gpufraction installed, and a waiting pod."""
    command = ["python", "-m", "allocator", "run"]
    container = {"name": "allocator", "image": f"gpufraction:v{version}", "command": command}
    container["args"] = [f"--preemption={preemption}"]
    workload = {
        "metadata": {"name": "gpufraction"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": 2},
    }
    held = [admitted("held", "gpufraction.io/gpu-memory", "8Gi", on="n1")] if used else []
    waits = admitted("waits", "gpufraction.io/gpu-memory", "9Gi", waits="no room")
    found = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.2"},
        "/api/v1/nodes": _list([node("n1")]),
        "/apis/gpufraction.io/v1alpha1/gpunodes": _list([gpunode("n1", 16384)]),
        "/api/v1/pods": _list([*held, waits]),
        f"{APPS}/deployments": _list([workload]),
        f"{APPS}/daemonsets": _list([]),
        SYSTEM: _list([{"metadata": {"name": "gpufraction-options"}, "data": {"options.yaml": options}}]),
        BINDINGS: _list([{"metadata": {"name": "gpufraction-pod-create"}}, {"metadata": {"name": "other"}}]),
    }
    return {path: (200, document) for path, document in found.items()}


def _list(items: list[JSON]) -> JSON:
    return {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}


def called(tmp_path: Path, ports: dict[str, int], *flags: str) -> tuple[int, str, str]:
    """Run the command with a kubeconfig that has a context for each of these ports."""
    file, out, err = tmp_path / "kubeconfig", io.StringIO(), io.StringIO()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gone",
        "clusters": [{"name": n, "cluster": {"server": f"http://127.0.0.1:{p}"}} for n, p in ports.items()],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": n, "context": {"cluster": n, "user": "u"}} for n in ports],
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    words = ["fleet", "--kubeconfig", str(file), *(("--contexts", ",".join(ports)) if ports else ()), *flags]
    status = main(words, out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue()


def test_clusters_are_shown_side_by_side_with_what_differs(tmp_path: Path, serve: Serve) -> None:
    ports = {
        "east": serve(cluster()),
        "north": serve(cluster()),
        "west": serve(cluster(preemption="true", options="pools: []", version="0.2.0", used=False)),
    }
    status, out, err = called(tmp_path, ports)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "CONTEXT   NODES   GPUS   HEALTHY   USED   WAITING   VERSION   K8S    DRIFT",
        "east      1       1      1         50 %   1         0.1.0     1.36   no",
        "north     1       1      1         50 %   1         0.1.0     1.36   no",
        "west      1       1      1         0 %    1         0.2.0     1.36   2",
        "3 clusters, 3 GPUs, 33 % held, 3 pods waiting",
        "allocator preemption: true in west; false elsewhere",
        "options: west differ from the other clusters",
    ]


def test_nothing_is_written_to_any_cluster(tmp_path: Path, serve: Serve) -> None:
    given = cluster()
    assert called(tmp_path, {"east": serve(given)})[0] == 0
    assert "seen" not in given
    assert given["asked"][1]


def test_clusters_that_refuse_hang_or_are_not_there_stop_no_other(tmp_path: Path, serve: Serve) -> None:
    with socket.socket() as hangs, socket.socket() as nobody:
        for taken in (hangs, nobody):
            taken.bind(("127.0.0.1", 0))
        hangs.listen()  # it accepts the connection and never answers
        refuses = cluster() | dict.fromkeys(("/api/v1/nodes", "/api/v1/pods"), FORBIDDEN)
        ports = {"east": serve(cluster()), "hangs": hangs.getsockname()[1], "nobody": nobody.getsockname()[1]}
        ports["refuses"] = serve(refuses)
        started = time.monotonic()
        status, out, err = called(
            tmp_path, ports, "--contexts", "east,hangs,nobody,refuses,unknown", "--request-timeout=1s"
        )
        assert time.monotonic() - started < 10
    lines = out.splitlines()
    assert (status, err) == (1, "4 clusters of 5 did not answer\n")
    assert lines[1].startswith("east ")
    assert [line.split()[0] for line in lines[2:6]] == ["hangs", "nobody", "refuses", "unknown"]
    assert all(line.endswith("no answer") for line in lines[2:6])
    assert lines[6] == "1 cluster, 1 GPU, 50 % held, 1 pod waiting"


def test_who_may_not_see_the_installation_sees_the_cards(tmp_path: Path, serve: Serve) -> None:
    given = cluster() | {f"{APPS}/deployments": FORBIDDEN}
    status, out, _ = called(tmp_path, {"east": serve(given)})
    assert status == 0
    assert out.splitlines()[1].split()[-1] == "unknown"
    assert "east: you may not list what is installed in gpufraction-system" in out


def test_programs_get_every_difference(tmp_path: Path, serve: Serve) -> None:
    ports = {"east": serve(cluster()), "west": serve(cluster(options="pools: []"))}
    status, out, _ = called(tmp_path, ports, "-o", "json")
    document = json.loads(out)
    assert status == 0
    assert document["drift"] == [{"fact": "options", "most": "none", "others": {"west": "pools: []"}}]
    assert [item["usedMiB"] for item in document["items"]] == [8192, 8192]


@pytest.mark.parametrize("contexts", ["", ",", ",".join(map(str, range(101)))])
def test_contexts_are_one_to_a_hundred(tmp_path: Path, contexts: str) -> None:
    status, _, err = called(tmp_path, {}, "--contexts", contexts)
    assert status == 2
    assert "give 1 to 100 contexts" in err


def member(context: str, **facts: str) -> FleetMember:
    return FleetMember(context, installation=Installation(facts=facts))


def test_the_value_of_most_clusters_is_the_usual_one() -> None:
    [found] = drift([member("a", x="2"), member("b", x="1"), member("c", x="1"), FleetMember("d", failed="no")])
    assert (found.most, found.others) == ("1", {"a": "2"})
    assert list(sentences([found], 9)) == ["x: 2 in a; 1 elsewhere"]
    assert list(sentences([found, found], 1)) == ["x: 2 in a; 1 elsewhere", "1 more differences; -o json has all"]


def test_comments_and_empty_lines_of_options_are_no_drift() -> None:
    assert normalised("# a\npools: []  # b\n\n  # c\n") == normalised("pools: []") == "pools: []"


def test_the_table_fits_a_hundred_columns() -> None:
    wide = FleetMember(
        "arn:aws:eks:eu-central-1:123456789012:cluster/production-a",
        kubernetes="1.36",
        nodes=5000,
        cards=40000,
        healthy=40000,
        used=99,
        promised=100,
        waiting=100000,
        installation=Installation(facts={f"f{n}": "1" for n in range(999)}),
    )
    members = [wide, FleetMember("b", installation=Installation()), FleetMember("c", installation=Installation())]
    text = output(members, drift(members)).text(Form(width=100))
    assert max(map(len, text.splitlines())) <= 100


def test_threads_end_with_the_command_or_are_daemons(tmp_path: Path, serve: Serve) -> None:
    called(tmp_path, {"east": serve(cluster())})
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("fleet-"))
