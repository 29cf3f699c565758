"""The administrator's document as the webhook follows it: the next pod is read by it, and a wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path

from flask.testing import FlaskClient

from contract import codec, names
from contract.dialects import Options
from contract.model import FractionRequest
from contract.quantity import MIB
from tests.webhook.builders import JSON, container, patched, pod, review
from webhook.wiring import make_app


def read(client: FlaskClient, made: JSON) -> FractionRequest:
    """The share that a pod is read to ask for; nobody answers for the allocator, so the pod waits."""
    answer = client.post("/mutate", data=json.dumps(review(made))).get_json()["response"]
    text = patched(made, answer)["metadata"]["annotations"][names.REQUEST]
    return codec.request_from_text(text).containers[0]


def refused(client: FlaskClient) -> str:
    lines = client.get("/metrics").get_data(as_text=True).splitlines()
    return next(line for line in lines if line.startswith("gpufraction_webhook_options_refused")).split()[1]


def test_the_next_pod_is_read_by_the_document_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    client = make_app(
        certificates=tmp_path,
        socket=tmp_path / "allocator.sock",
        patience=0.1,
        options=Options(default_cores=7),
        hide_gpus=False,
        file=file,
    ).test_client()
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
    assert refused(client) == "0.0"

    write("defaultMem: much\n")
    assert read(client, pod(by_cores)).memory == 3000 * MIB
    assert refused(client) == "1.0"
    write("")
    assert (read(client, pod(by_cores)).percent, refused(client)) == (100, "0.0")
