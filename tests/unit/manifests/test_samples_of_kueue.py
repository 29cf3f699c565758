"""The samples for Kueue: the configuration equals the command's output, and each other sample states its result."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from contract.dialects import DIALECTS
from contract.options import DEFAULTS
from kubectl_gpufraction.commands import kueueconfig
from tests.cluster.queueing import samples
from tests.unit.manifests.install import wrong
from tests.unit.manifests.kube import ROOT, documents


def test_the_configuration_is_what_the_command_prints() -> None:
    text = samples.CONFIGURATION.read_text(encoding="utf-8")
    assert text.endswith(f"\n{kueueconfig.document(DEFAULTS)}")
    head = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    assert yaml.safe_load(text) == {**head, **yaml.safe_load(kueueconfig.document(DEFAULTS))}


@pytest.mark.parametrize("sample", samples.WORKLOADS, ids=lambda path: path.stem)
def test_a_sample_states_its_result_and_is_valid_kubernetes(sample: Path) -> None:
    assert samples.stated(sample).charged
    assert wrong(documents(sample)) == {}


@pytest.mark.parametrize("sample", samples.WORKLOADS, ids=lambda path: path.stem)
def test_a_sample_names_the_queue_of_the_folder(sample: Path) -> None:
    queues = {each["metadata"]["name"] for each in documents(samples.QUEUES) if each["kind"] == "LocalQueue"}
    named = {each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for each in documents(sample)}
    assert named <= queues


def test_every_dialect_that_kueue_can_count_has_a_job() -> None:
    jobs = [each for sample in samples.WORKLOADS for each in documents(sample) if each["kind"] == "Job"]
    limits = [set(job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]) for job in jobs]
    countable = [dialect for dialect in DIALECTS if dialect.charges(DEFAULTS)]
    uncounted = [
        dialect.name
        for dialect in countable
        if not any({charge.resource for charge in dialect.charges(DEFAULTS)} & requested for requested in limits)
    ]
    assert uncounted == []


def test_the_page_links_to_every_sample() -> None:
    page = (ROOT / "docs" / "kueue.md").read_text(encoding="utf-8")
    names = {path.name for path in samples.FOLDER.glob("*.yaml")}
    assert {name for name in names if f"(../samples/kueue/{name})" not in page} == set()
