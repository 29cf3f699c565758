"""The webhook follows the administrator's document: it applies to the next pod, and a wrong document is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from contract import names
from contract.encoding import codec
from contract.encoding.protocol import RESERVE_PATH, Wait, answer_to_json, question_from_json
from contract.encoding.quantity import MIB
from contract.metrics import metrics_of
from contract.model import FractionRequest
from contract.options import pool_options
from runtime.httpserver import Reply, Request, json_reply, serve_http
from runtime.httpserver import Request as Asked
from runtime.livefile import yaml_file
from runtime.metrics import Metrics
from tests.unit.webhook.builders import JSON, container, patched, pod, review
from webhook.admission.admit import Configuration
from webhook.app import Document, make_app
from webhook.serving.application import create_app
from webhook.serving.asking import Allocator, NoAnswer
from webhook.serving.health import Health
from webhook.serving.server import Service
from webhook.settings import ServeSettings


def read(client: FlaskClient, made: JSON) -> FractionRequest:
    """The share that a pod requests, as read by the webhook. The simulated allocator lets all pods wait."""
    answer = client.post("/mutate", data=json.dumps(review(made))).get_json()["response"]
    text = patched(made, answer)["metadata"]["annotations"][names.REQUEST]
    return codec.request_from_text(text).containers[0]


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """An allocator that has no room."""

    def reserve(request: Request) -> Reply:
        containers = question_from_json(request.json()).request.containers
        return json_reply(answer_to_json(Wait("NoRoom", "full", {fraction.container: MIB for fraction in containers})))

    path = tmp_path / "allocator.sock"
    server = serve_http({("POST", RESERVE_PATH): reserve}, path, name="allocator")
    yield path
    server.close()


def refused(service: Service) -> str:
    lines = service.health["GET", "/metrics"](Asked("GET", "/metrics", "", {}, b"")).body.decode().splitlines()
    return next(line for line in lines if line.startswith("gpufraction_webhook_options_refused")).split()[1]


def test_the_next_pod_is_read_by_the_document_as_it_is_now(tmp_path: Path, socket: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("defaultCores: 7\n")
    service = make_app(ServeSettings(certificates=tmp_path, socket=socket, options=file), patience=2.0)
    client = service.app.test_client()
    by_cores = container(nvidia_com__gpu="1", nvidia_com__gpucores="10")
    by_memory = container(nvidia_com__gpumem="1000")
    assert read(client, pod(by_cores)) == FractionRequest("main", percent=100, cores=10)
    assert read(client, pod(by_memory)) == FractionRequest("main", memory=1000 * MIB, cores=7)

    def write(text: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(text)
        fresh.replace(file)

    pools = "pools: [{name: a, nodeSelector: {matchLabels: {pool: a}}, defaultMem: 500, defaultCores: 0}]\n"
    write("defaultMem: 3000\n" + pools)
    assert read(client, pod(by_cores)) == FractionRequest("main", memory=3000 * MIB, cores=10)
    assert read(client, pod(by_cores, nodeSelector={"pool": "a"})).memory == 500 * MIB
    assert read(client, pod(by_memory, nodeSelector={"pool": "a"})).cores == 0
    assert refused(service) == "0.0"

    write("defaultMem: much\n")
    assert read(client, pod(by_cores)).memory == 3000 * MIB
    assert refused(service) == "1.0"
    write("")
    assert (read(client, pod(by_cores)).percent, refused(service)) == (100, "0.0")


class Wrong:
    """A document that the webhook finds at its start, and its application."""

    def __init__(self, folder: Path, socket: Path, text: str) -> None:
        self.file = folder / "options.yaml"
        self.file.write_text(text)
        settings = ServeSettings(certificates=folder, socket=socket, options=self.file)
        self.client = make_app(settings).app.test_client()

    def warnings(self, made: JSON) -> list[str]:
        """The warnings about this pod, without those that say that it waits."""
        answer = self.client.post("/mutate", data=json.dumps(review(made))).get_json()["response"]
        assert answer["allowed"] is True
        return [text for text in answer.get("warnings") or [] if "options" in text]


def test_a_webhook_with_a_wrong_document_warns_on_every_pod_with_a_share(tmp_path: Path, socket: Path) -> None:
    found = Wrong(tmp_path, socket, "defaultMem: much\n")
    asks, plain = container(nvidia_com__gpu="1", nvidia_com__gpucores="10"), container()
    assert [len(found.warnings(pod(each))) for each in (asks, asks, plain)] == [1, 1, 0]
    assert "so defaults apply to this pod" in found.warnings(pod(asks))[0]
    assert "much" not in found.warnings(pod(asks))[0], "the document is the administrator's"
    assert read(found.client, pod(asks)) == FractionRequest("main", percent=100, cores=10)
    found.file.write_text("defaultMem: 3000 # MiB\n")
    assert (found.warnings(pod(asks)), read(found.client, pod(asks)).memory) == ([], 3000 * MIB)
    found.file.write_text("defaultMem: much again\n")
    assert (found.warnings(pod(asks)), read(found.client, pod(asks)).memory) == ([], 3000 * MIB), "the last counts"


def test_what_is_wrong_is_logged_each_minute_with_what_counts_instead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now = tmp_path / "options.yaml", [0.0]
    file.write_text("defaultMem: much\n")
    document = Document(yaml_file(file, pool_options), clock=lambda: now[0])
    cure = document.trouble()
    assert cure.startswith(f"options refused: {file}: defaultMem: ")
    assert cure.endswith("; pods are read without options")
    for now[0] in (59.0, 60.0, 61.0, 120.0):
        assert document.trouble() == cure
    logged = [record.getMessage() for record in caplog.records if record.name == "webhook.app"]
    assert logged == [cure] * 3
    file.write_text("defaultMem: 3000\n")
    assert (document.trouble(), document.warning()) == ("", "")
    file.write_text("defaultMem: much more\n")
    assert document.trouble().endswith("; pods are read with the previous options")


ANSWERS = {
    "all is well": (None, "", (200, "ok\n")),
    "a wrong document keeps nobody from being served": (None, "options refused: x", (200, "ok; options refused: x\n")),
    "what matters more": ("no certificate", "options refused: x", (503, "no certificate\n")),
}


@pytest.mark.parametrize(("reason", "trouble", "want"), ANSWERS.values(), ids=ANSWERS.keys())
def test_readiness_tells_a_wrong_document(reason: str | None, trouble: str, want: tuple[int, str]) -> None:
    app = create_app(
        Configuration,
        Allocator(lambda question, within: NoAnswer("unreachable", "")),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: reason, trouble=lambda: trouble),
    )
    answer = app.test_client().get("/readyz")
    assert (answer.status_code, answer.get_data(as_text=True)) == want
