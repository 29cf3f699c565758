"""The workloads' samples: valid by the schemas of their kinds, counted as stated, and each has a row on the page."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from contract import names
from contract.dialects import DIALECTS
from contract.model import PodRequest
from playground.api.rules.schemas import prune, validate
from tests.unit.manifests import workload_kinds as workloads
from tests.unit.manifests.install import wrong
from tests.unit.manifests.kube import JSON, ROOT, documents

DOCUMENTS = list(workloads.all_documents())
NAMED = [f"{path.stem}: {document['kind']}" for path, document in DOCUMENTS]
every_object = pytest.mark.parametrize("document", [document for _, document in DOCUMENTS], ids=NAMED)
every_sample = pytest.mark.parametrize("sample", workloads.FILES, ids=lambda path: path.stem)
FRACTION = f"$({names.MEMORY_FRACTION})"


@every_object
def test_an_object_is_valid_by_the_schema_of_its_kind(document: JSON) -> None:
    if not workloads.is_foreign(document):
        assert wrong([document]) == {}
        return
    schema = {"type": "object", "properties": {"spec": workloads.SCHEMAS[workloads.kind_of(document)]}}
    assert prune(schema, copy.deepcopy({"spec": document["spec"]})) == []
    assert validate(schema, {"spec": document["spec"]}) == []


@every_object
def test_the_pods_of_an_object_are_valid_kubernetes(document: JSON) -> None:
    assert wrong(list(workloads.pods_of(document))) == {}


def test_a_misspelt_field_of_anothers_kind_is_found() -> None:
    [job] = documents(workloads.FOLDER / "pytorchjob.yaml")
    job["spec"]["runPolicy"]["backofLimit"] = 2
    schema = workloads.SCHEMAS[workloads.kind_of(job)]
    assert prune(schema, job["spec"]) == ["runPolicy.backofLimit"]


@every_sample
def test_a_sample_makes_as_many_pods_with_a_share_as_it_states(sample: Path) -> None:
    pods = [pod for document in documents(sample) for pod in workloads.pods_of(document)]
    assert len(pods) == workloads.stated(sample)
    assert [pod for pod in pods if not isinstance(DIALECTS.read(pod), PodRequest)] == []


@every_sample
def test_pods_tolerate_the_taint_of_gpu_nodes_and_request_cpu(sample: Path) -> None:
    for pod in (pod for document in documents(sample) for pod in workloads.pods_of(document)):
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
        first = pod["spec"]["containers"][0]
        assert {"cpu", "memory"} <= first["resources"]["requests"].keys()
        assert "memory" in first["resources"]["limits"]


def test_programs_that_take_a_part_of_a_card_are_given_the_shares_part() -> None:
    for sample in ("vllm", "triton", "kserve", "knative"):
        [pod, *_] = [p for d in documents(workloads.FOLDER / f"{sample}.yaml") for p in workloads.pods_of(d)]
        assert any(text.endswith(f"={FRACTION}") for text in pod["spec"]["containers"][0]["args"]), sample
    for sample in ("training-job", "argo-workflow"):
        [pod, *_] = [p for d in documents(workloads.FOLDER / f"{sample}.yaml") for p in workloads.pods_of(d)]
        assert f'os.environ["{names.MEMORY_FRACTION}"]' in pod["spec"]["containers"][0]["args"][0], sample


def test_the_page_has_a_row_for_each_sample_with_its_kinds_and_pods() -> None:
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([\w-]+)\]\(\.\./samples/workloads/\1\.yaml\) \| ([^|]+) \| (\d+) \|", text, re.MULTILINE)
    found = {name: (set(kinds.split(", ")), int(pods)) for name, kinds, pods in rows}
    assert found == {
        path.stem: ({document["kind"] for document in documents(path)}, workloads.stated(path))
        for path in workloads.FILES
    }
