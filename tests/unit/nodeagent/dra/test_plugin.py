"""What the kubelet plugin answers, also to a repeated call, after a restart, and while the API server is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.encoding import resourceclaims
from contract.encoding.resourceclaims import PreparedDevice
from contract.model import Allocation, ContainerAllocation, GpuShare
from nodeagent.dra.plugin import ClaimPlugin, UnreadableClaim
from nodeagent.dra.wire import ClaimRef
from tests.unit.contract.encoding.test_resourceclaims import NAME, stored

REF = ClaimRef("ns", "claim-uid", NAME)


class Cluster:
    """Claims by name; `away`: whether the API server does not answer."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], Any] = {("ns", NAME): stored()}
        self.away = False
        self.reads = 0

    def read(self, namespace: str, name: str) -> Any:
        self.reads += 1
        if self.away or (namespace, name) not in self.claims:
            raise UnreadableClaim("no answer")
        return self.claims[namespace, name]


def plugin(cluster: Cluster, folder: Path) -> ClaimPlugin:
    return ClaimPlugin(cluster.read, node="node-1", checkpoint=folder / "prepared.json")


def test_the_answer_is_the_same_after_a_restart_without_the_api_server(tmp_path: Path) -> None:
    cluster = Cluster()
    first = plugin(cluster, tmp_path)
    answer = first.prepare([REF])["claim-uid"]
    assert isinstance(answer, tuple)
    assert all(isinstance(each, PreparedDevice) for each in answer)
    cluster.away = True
    assert first.prepare([REF]) == {"claim-uid": answer}
    assert plugin(cluster, tmp_path).prepare([REF]) == {"claim-uid": answer}
    assert cluster.reads == 1


def test_a_claim_that_cannot_be_read_is_an_error_of_that_claim_alone(tmp_path: Path) -> None:
    answers = plugin(Cluster(), tmp_path).prepare([REF, ClaimRef("ns", "other-uid", "other")])
    assert isinstance(answers["claim-uid"], tuple)
    assert answers["other-uid"] == "no answer"


def test_a_claim_recreated_under_its_name_gives_nothing_to_the_old_one(tmp_path: Path) -> None:
    answers = plugin(Cluster(), tmp_path).prepare([ClaimRef("ns", "earlier-uid", NAME)])
    assert "created again" in str(answers["earlier-uid"])


def test_what_is_unprepared_is_forgotten_and_may_be_unprepared_again(tmp_path: Path) -> None:
    cluster = Cluster()
    first = plugin(cluster, tmp_path)
    first.prepare([REF])
    assert first.unprepare([REF]) == {"claim-uid": ""}
    assert plugin(cluster, tmp_path).unprepare([REF, ClaimRef("ns", "never", "x")]) == {"claim-uid": "", "never": ""}
    assert plugin(cluster, tmp_path).known == {}


def test_an_answer_that_a_restart_would_forget_is_none(tmp_path: Path) -> None:
    cluster = Cluster()
    nowhere = ClaimPlugin(cluster.read, node="node-1", checkpoint=tmp_path / "missing" / "prepared.json")
    assert "checkpoint" in str(nowhere.prepare([REF])["claim-uid"])
    assert nowhere.known == {}


def test_a_broken_checkpoint_costs_one_reading_of_each_claim(tmp_path: Path) -> None:
    (tmp_path / "prepared.json").write_text('{"v": 1, "claims": {"claim-uid": 3}}')
    cluster = Cluster()
    assert isinstance(plugin(cluster, tmp_path).prepare([REF])["claim-uid"], tuple)
    assert cluster.reads == 1


def test_a_tenants_claim_is_read_again_since_the_next_pod_may_have_other_cards(tmp_path: Path) -> None:
    """If it cannot be read, the running pod keeps what it has."""
    cluster, about = Cluster(), {"name": "alone", "uid": "claim-uid"}
    reference = ClaimRef("ns", "claim-uid", "alone")

    def hold(pod_uid: str, uuid: str) -> tuple[PreparedDevice, ...]:
        share = GpuShare(uuid, 0, 1 << 30, 0, 16 << 30, "nvidia.com/gpu", dra=True)
        given = Allocation("one", "node-1", (ContainerAllocation("main", (share,)),))
        pod = {"metadata": {"name": "p", "uid": pod_uid, "resourceVersion": "17"}}
        status = resourceclaims.shared_status(pod, given, [("gpu", share)], at="2026-01-05T08:00:00Z")
        cluster.claims["ns", "alone"] = {"metadata": about, "status": status}
        return (PreparedDevice("gpu", "node-1", resourceclaims.device_name(uuid), (f"nvidia.com/gpu={uuid}",)),)

    first = plugin(cluster, tmp_path)
    one = hold("pod-1", "GPU-1")
    assert first.prepare([reference]) == {"claim-uid": one}
    two = hold("pod-2", "GPU-2")
    assert first.prepare([reference]) == {"claim-uid": two}
    cluster.away = True
    assert first.prepare([reference]) == {"claim-uid": two}
    cluster.away = False
    cluster.claims["ns", "alone"]["status"]["reservedFor"].append({"resource": "pods", "name": "q", "uid": "pod-3"})
    assert "reserved only for its own pods" in str(first.prepare([reference])["claim-uid"])
