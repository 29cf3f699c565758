"""`kubectl gpufraction version`: its own version whatever the cluster does, and one line on why that is all."""

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
HEAD = "PLUGIN   KUBERNETES   GPU-NODES\n"
REFUSED = "the cluster cannot be reached: GET /version: cannot connect: Connection refused\n"
GPUNODES = "/apis/gpufraction.io/v1alpha1/gpunodes"


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts an API server that says so; its port."""
    with ExitStack() as stack:
        yield lambda given: stack.enter_context(answering(given))


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that is taken, where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def version(tmp_path: Path) -> Ask:
    """The command with a kubeconfig for that port: status, standard output and errors."""

    def ask(port: int, *flags: str) -> tuple[int, str, str]:
        return called("--kubeconfig", str(kubeconfig(tmp_path, port)), *flags)

    return ask


def called(*flags: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = main(["version", *flags], out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue()


def row(kubernetes: str, nodes: str) -> str:
    return f"{HEAD}{OURS:<6}   {kubernetes:<10}   {nodes}\n"


def test_where_nobody_listens_it_says_its_own_version_and_why_that_is_all(version: Ask, nobody: int) -> None:
    assert version(nobody) == (1, row("-", "-"), REFUSED)


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_forms_for_programs_hold_nothing_but_the_versions(
    version: Ask, nobody: int, form: str, read: Callable[[str], Any]
) -> None:
    status, out, err = version(nobody, "-o", form)
    assert (status, err) == (1, REFUSED)
    assert read(out) == {"items": [{"plugin": OURS, "kubernetes": None, "nodes": None}]}


def test_without_a_kubeconfig_it_says_so(tmp_path: Path) -> None:
    status, out, err = called("--kubeconfig", str(tmp_path / "none"))
    assert (status, out) == (1, row("-", "-"))
    assert err.startswith(f"the cluster cannot be reached: kubeconfig {tmp_path / 'none'}: ")
    assert err.count("\n") == 1


def test_a_cluster_that_answers_is_shown_with_its_gpu_nodes(version: Ask, serve: Serve) -> None:
    gpunodes = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}}]}
    port = serve({"/version": (200, {"major": "1", "minor": "36+"}), GPUNODES: (200, gpunodes)})
    assert version(port) == (0, row("1.36", "1"), "")


def test_a_cluster_without_gpufraction_is_shown_as_far_as_it_answers(version: Ask, serve: Serve) -> None:
    port = serve({"/version": (200, {"major": "1", "minor": "36"})})
    message = "this cluster has no GPUNodes: gpufraction is not installed there\n"
    assert version(port) == (1, row("1.36", "-"), message)


def test_a_server_that_refuses_is_not_called_out_of_reach(version: Ask, serve: Serve) -> None:
    status, out, err = version(serve({"/version": (401, status_body(401, "Unauthorized", "who are you"))}))
    assert (status, out) == (1, row("-", "-"))
    assert err == "the cluster does not report its version: GET /version: 401 Unauthorized: who are you\n"
