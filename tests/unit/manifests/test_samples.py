"""The samples agree with docs/migrating.md, and the allocator's own core gives the outcomes that the page promises."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter

import pytest

from allocator.engine import reference
from allocator.features.elasticgpuclaims import objects, shares
from contract.dialects import DIALECTS
from contract.encoding import codec, quantity
from contract.model import NodeState, PodRequest, Usage
from contract.scheduling import needs
from contract.scheduling.needs import SchedulingRequest
from tests.builders import node
from tests.unit.manifests.kube import JSON, ROOT, SAMPLES, documents

Row = dict[str, str]


def rows() -> list[Row]:
    """The rows of the documentation's table of outcomes, by column."""
    lines = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8").splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| sample |"))
    written = itertools.takewhile(lambda line: line.startswith("|"), lines[head:])
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in written]
    return [dict(zip(table[0], cells, strict=True)) for cells in table[2:]]


ROWS = rows()


def file_of(row: Row) -> str:
    """The name of the sample's file."""
    found = re.fullmatch(r"\[(.+)\]\(\.\./samples/(.+)\)", row["sample"])
    assert found is not None
    assert found[2] == f"{found[1]}.yaml"
    return found[2]


def manifest(row: Row) -> JSON:
    """The object that a row is about."""
    kind, name = row["object"].split()
    [found] = [d for d in documents(SAMPLES / file_of(row)) if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(item: JSON) -> JSON:
    """The object's pod: itself, or its template's."""
    return item["spec"]["template"] if item["kind"] == "Deployment" else item


def request_of(pod: JSON) -> PodRequest:
    """What the pod requests, as admission reads it; if it names a claim, what the claim requests."""
    found = DIALECTS.read(pod)
    assert isinstance(found, PodRequest), found
    return claimed(found.claim) if found.claim else found


def claimed(name: str) -> PodRequest:
    """What a claim of the samples requests."""
    items = [d for p in SAMPLES.glob("*.yaml") for d in documents(p)]
    [claim] = [objects.claim(d) for d in items if (d["kind"], d["metadata"]["name"]) == (objects.CLAIM, name)]
    [rules] = [objects.gpu_class(d) for d in items if d["kind"] == "ElasticGPUClass"]
    found = shares.wanted(claim, rules)
    assert isinstance(found, shares.ClaimTerms), found
    return found.request


def cluster() -> dict[str, NodeState]:
    """The three GPU nodes of the documentation."""
    t4 = node("t4").gpus(2, "Tesla T4", mib=15109).labelled("gpushare", "true")
    v100 = node("v100").gpus(2, "Tesla V100-PCIE-32GB", mib=32768).labelled("gpu", "on")
    a10 = node("a10").gpus(4, "NVIDIA A10", mib=23028).tainted("nvidia.com/gpu", "present")
    a10 = a10.labelled("gpu-node", "true").labelled("nvidia.com/gpu.present", "true")
    return {made.name: made for made in (t4.state(), v100.state(), a10.state())}


def place(state: dict[str, NodeState], pod: JSON) -> reference.Decision:
    """Decide about one pod, and remove what it got from `state`."""
    request = request_of(pod)
    decision = reference.decide(state, SchedulingRequest(request, DIALECTS.others_only(needs.needs_of(pod))))
    if isinstance(decision, reference.Placement):
        state[decision.node] = taken(state[decision.node], decision, request)
    return decision


def taken(on: NodeState, decision: reference.Placement, request: PodRequest) -> NodeState:
    """The node with the decision's shares allocated; a pod counts once on each GPU."""
    usage = list(on.usage)
    for gpu in {share.uuid for container in decision.containers for share in container.shares}:
        position = next(i for i, known in enumerate(on.gpus) if known.uuid == gpu)
        shares = [s for c in decision.containers for s in c.shares if s.uuid == gpu]
        before = usage[position]
        usage[position] = Usage(
            before.memory + sum(s.memory for s in shares),
            before.cores + sum(s.cores for s in shares),
            before.sharers + 1,
            before.exclusive or any(f.exclusive for f in request.containers),
        )
    return dataclasses.replace(on, usage=tuple(usage))


by_line = pytest.mark.parametrize("row", ROWS, ids=[f"{r['object']} {file_of(r)}: {r['container']}" for r in ROWS])


def test_every_object_of_every_sample_is_in_the_documentation() -> None:
    found = {(p.name, d["kind"], d["metadata"]["name"]) for p in SAMPLES.glob("*.yaml") for d in documents(p)}
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8").replace("\n", " ")
    claims = {each for each in found if each[1].startswith("ElasticGPU")}
    assert [each for each in claims if f"{each[1]} {each[2]}" not in " ".join(text.split())] == []
    assert {(file_of(row), *row["object"].split()) for row in ROWS} == found - claims


@by_line
def test_the_manifest_asks_what_the_documentation_says(row: Row) -> None:
    pod = pod_of(manifest(row))
    [container] = [c for c in pod["spec"]["containers"] if c["name"] == row["container"]]
    limits = container.get("resources", {}).get("limits", {})
    starts = tuple(key for d in DIALECTS for key in (*d.annotations, *d.annotation_prefixes))
    annotations = pod["metadata"].get("annotations", {})
    amounts = {**limits, **{key: text for key, text in annotations.items() if key.startswith(starts)}}
    requested = [f"{key}: {value}" for key, value in amounts.items()]
    assert sorted(requested) == sorted(re.findall(r"`(.+?)`", row["asks"]))
    assert manifest(row)["spec"].get("replicas", 1) == int(row["pods"])


@by_line
def test_the_first_pod_gets_the_share_that_the_documentation_says(row: Row) -> None:
    decision = place(cluster(), pod_of(manifest(row)))
    assert isinstance(decision, reference.Placement)
    [given] = [c for c in decision.containers if c.container in (row["container"], shares.CONTAINER)]
    described = [f"{quantity.mib(share.memory)} MiB, {share.cores} %" for share in given.shares]
    assert described == [row["share of each"]] * int(row["GPUs"])
    assert len({share.uuid for share in given.shares}) == int(row["GPUs"])


@by_line
def test_the_pods_end_where_the_documentation_says(row: Row) -> None:
    state, pod = cluster(), pod_of(manifest(row))
    decisions = [place(state, pod) for _ in range(int(row["pods"]))]
    placed = Counter(d.node for d in decisions if isinstance(d, reference.Placement))
    waiting = Counter(lacking(d) for d in decisions if isinstance(d, reference.Unschedulable))
    described = [f"{count} on {name}" for name, count in placed.items()]
    described += [f"{count} waiting for {what}" for what, count in waiting.items()]
    assert ", ".join(described) == row["outcome"]


def lacking(decision: reference.Unschedulable) -> str:
    """What is missing on the node that the pod passed most checks on."""
    return max(found.code for found in decision.reasons).name.lower()


def test_what_a_sample_asks_survives_being_written_on_the_pod() -> None:
    for row in ROWS:
        request = request_of(pod_of(manifest(row)))
        assert codec.request_from_text(codec.request_to_text(request)) == request


def test_samples_do_not_overwrite_each_other_except_the_edited_one() -> None:
    names = Counter((d["kind"], d["metadata"]["name"]) for p in SAMPLES.glob("*.yaml") for d in documents(p))
    assert {name for name, count in names.items() if count > 1} == {("Deployment", "vgpu-test")}
