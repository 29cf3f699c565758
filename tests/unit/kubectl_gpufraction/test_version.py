"""
`kubectl gpufraction version`: its own version whatever the cluster does, and one line that says why there is no more.
"""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_gpufraction.__main__ import main
from tests.unit.kubectl_gpufraction.answering import Serve, answering, kubeconfig
from tests.wires import status_body

OURS = metadata.version("gpufraction")
REFUSED = "the cluster cannot be reached: GET /version: cannot connect: Connection refused\n"
JSON = dict[str, Any]
DEPLOYMENTS = "/apis/apps/v1/namespaces/gpufraction-system/deployments"
DAEMONSETS = "/apis/apps/v1/namespaces/gpufraction-system/daemonsets"
GPUNODES = "/apis/gpufraction.io/v1alpha1/gpunodes"


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start an API server with this answer. Returns its port."""
    with ExitStack() as stack:
        yield lambda given: stack.enter_context(answering(given))


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port in use on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def version(tmp_path: Path) -> Ask:
    """Run the command with a kubeconfig for that port. Returns status, standard output and errors."""

    def ask(port: int, *flags: str) -> tuple[int, str, str]:
        return called("--kubeconfig", str(kubeconfig(tmp_path, port)), *flags)

    return ask


def called(*flags: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = main(["version", *flags], out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue()


def table(kubernetes: str, *programs: tuple[str, str, str, str]) -> str:
    rows = [("plugin", OURS, "-", "-"), ("kubernetes", kubernetes, "-", "-"), *programs]
    lines = [("COMPONENT", "VERSION", "READY", "IMAGE"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "".join("   ".join([*map(str.ljust, line, widths), line[3]]) + "\n" for line in lines)


def test_where_nobody_listens_it_says_its_own_version_and_why_that_is_all(version: Ask, nobody: int) -> None:
    assert version(nobody) == (1, table("-"), REFUSED)


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_forms_for_programs_hold_nothing_but_the_versions(
    version: Ask, nobody: int, form: str, read: Callable[[str], Any]
) -> None:
    status, out, err = version(nobody, "-o", form)
    assert (status, err) == (1, REFUSED)
    assert read(out) == {"items": [{"plugin": OURS, "kubernetes": None, "nodes": None, "programs": []}]}


def test_without_a_kubeconfig_it_says_so(tmp_path: Path) -> None:
    status, out, err = called("--kubeconfig", str(tmp_path / "none"))
    assert (status, out) == (1, table("-"))
    assert err.startswith(f"the cluster cannot be reached: kubeconfig {tmp_path / 'none'}: ")
    assert err.count("\n") == 1


def listing(*items: JSON) -> tuple[int, JSON]:
    return 200, {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def workload(kind: str, status: JSON, *containers: tuple[str, str]) -> JSON:
    made = [{"command": ["python", "-m", module, "run"], "image": image} for module, image in containers]
    return {
        "metadata": {"name": kind},
        "spec": {"replicas": 2, "template": {"spec": {"containers": made}}},
        "status": status,
    }


IMAGE = "registry.example.com/gpufraction"
CLUSTER: dict[str, tuple[int, JSON]] = {
    "/version": (200, {"major": "1", "minor": "36+"}),
    GPUNODES: listing({"metadata": {"name": "a"}}),
    DEPLOYMENTS: listing(
        workload("gpufraction", {"readyReplicas": 1}, ("webhook", f"{IMAGE}:{OURS}"), ("allocator", f"{IMAGE}:{OURS}")),
        workload("other", {}, ("backup", "backup:1")),
    ),
    DAEMONSETS: listing(
        workload(
            "gpufraction-nodeagent", {"numberReady": 3, "desiredNumberScheduled": 4}, ("nodeagent", f"{IMAGE}:{OURS}")
        )
    ),
}
INSTALLED = (
    ("webhook", OURS, "1/2", f"{IMAGE}:{OURS}"),
    ("allocator", OURS, "1/2", f"{IMAGE}:{OURS}"),
    ("nodeagent", OURS, "3/4", f"{IMAGE}:{OURS}"),
)


def test_what_is_installed_is_shown_with_its_images(version: Ask, serve: Serve) -> None:
    port = serve(CLUSTER)
    assert version(port) == (0, f"{table('1.36', *INSTALLED)}1 node reported GPUs\n", "")
    [found] = json.loads(version(port, "-o", "json")[1])["items"]
    programs = [
        {"component": name, "version": number, "ready": ready, "image": image}
        for name, number, ready, image in INSTALLED
    ]
    assert found == {"plugin": OURS, "kubernetes": "1.36", "nodes": 1, "programs": programs}


DAEMONSET = CLUSTER[DAEMONSETS][1]["items"][0]
NOTES: dict[str, tuple[dict[str, tuple[int, JSON]], tuple[tuple[str, str, str, str], ...], str]] = {
    "another version": (
        {DAEMONSETS: listing(workload("agent", DAEMONSET["status"], ("nodeagent", f"{IMAGE}:v9.8.7")))},
        (*INSTALLED[:2], ("nodeagent", "9.8.7", "3/4", f"{IMAGE}:v9.8.7")),
        f"The plugin is {OURS} and the cluster runs 9.8.7: use the plugin of the cluster's version.",
    ),
    "an image by digest alone": (
        {DAEMONSETS: listing(workload("agent", DAEMONSET["status"], ("nodeagent", f"{IMAGE}@sha256:ab")))},
        (*INSTALLED[:2], ("nodeagent", "-", "3/4", f"{IMAGE}@sha256:ab")),
        "",
    ),
    "no right to see it": (
        {DEPLOYMENTS: (403, status_body(403, "Forbidden", "no"))},
        (),
        "what is installed is unknown: you may not list deployments and daemonsets in gpufraction-system",
    ),
    "nothing there": (
        {DEPLOYMENTS: listing(), DAEMONSETS: listing()},
        (),
        "no program of gpufraction runs in gpufraction-system",
    ),
}


@pytest.mark.parametrize(("given", "programs", "note"), NOTES.values(), ids=NOTES.keys())
def test_what_versions_are_followed_by(
    version: Ask, serve: Serve, given: dict[str, tuple[int, JSON]], programs: tuple[Any, ...], note: str
) -> None:
    ends = f"1 node reported GPUs\n{note}\n" if note else "1 node reported GPUs\n"
    assert version(serve(CLUSTER | given)) == (0, f"{table('1.36', *programs)}{ends}", "")


def test_a_cluster_without_gpufraction_is_shown_as_far_as_it_answers(version: Ask, serve: Serve) -> None:
    port = serve({"/version": (200, {"major": "1", "minor": "36"})})
    message = "this cluster has no GPUNodes: gpufraction is not installed there\n"
    shown = f"{table('1.36')}no program of gpufraction runs in gpufraction-system\n"
    assert version(port) == (1, shown, message)


def test_a_server_that_refuses_is_not_called_out_of_reach(version: Ask, serve: Serve) -> None:
    status, out, err = version(serve({"/version": (401, status_body(401, "Unauthorized", "who are you"))}))
    assert (status, out) == (1, table("-"))
    assert err == "the cluster does not report its version: GET /version: 401 Unauthorized: who are you\n"
