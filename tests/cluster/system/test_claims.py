"""Claims on a whole cluster: what users do, and what they see of it on the API server."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from contract import names, pods
from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from runtime.kubernetes.transport import HttpRequest, connect_transport
from tests.builders import PodBuilder, pod

pytestmark = pytest.mark.system
JSON = dict[str, Any]
PROVISIONER = "gpushare.provisioner.elasticgpu.io"


def claims(name: str | None = None) -> str:
    return paths.path(scenarios.ELASTIC, "elasticgpuclaims", "default", name)


def make(cluster: Cluster, name: str, *, memory: int = 2, cores: int = 10, of: str = "") -> None:
    amounts = {f"{PROVISIONER}/gpu-memory": memory, f"{PROVISIONER}/gpu-core": cores}
    spec = {"resources": {"requests": amounts}, **({"elasticGPUClassName": of} if of else {})}
    document = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPUClaim", "metadata": {"name": name}, "spec": spec}
    cluster.kube.create(claims(), document)


def make_class(cluster: Cluster, name: str, **about: str) -> None:
    document = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPUClass", "metadata": {"name": name}}
    path = paths.path(scenarios.ELASTIC, "elasticgpuclasses")
    cluster.kube.create(path, {**document, "provisioner": PROVISIONER, **about})


def user_of(name: str, claim: str) -> PodBuilder:
    return pod(name).container("main").annotated("egpuc.elasticgpu.io/any", claim).tolerates("nvidia.com/gpu")


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods("default"), each.manifest())


def named(cluster: Cluster) -> dict[str, JSON]:
    return {claim["metadata"]["name"]: claim for claim in scenarios.all_claims(cluster.kube)}


def phase(cluster: Cluster, name: str) -> str:
    claim = named(cluster).get(name)
    return "gone" if claim is None else str((claim.get("status") or {}).get("phase", ""))


def becomes(cluster: Cluster, name: str, wanted: str) -> None:
    wait_for(lambda: phase(cluster, name) == wanted, lambda: f"{name} is {phase(cluster, name)}, not {wanted}")


def found(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def message(cluster: Cluster, name: str, reason: str) -> str:
    """Wait until the pod's condition has this reason. Returns the message."""
    wait_for(
        lambda: scenarios.condition(found(cluster, name)).get("reason") == reason,
        lambda: f"{name} is told {scenarios.condition(found(cluster, name))}",
    )
    return str(scenarios.condition(found(cluster, name))["message"])


def test_a_pod_that_names_a_missing_claim_waits_for_it_and_starts(cluster: Cluster) -> None:
    create(cluster, user_of("p", "mine"))
    assert "ElasticGPUClaim mine is not in the namespace" in message(cluster, "p", "ClaimMissing")

    def messages() -> list[str]:
        events = cluster.kube.list(paths.events("default")).items
        return [each["message"] for each in events if each["involvedObject"]["name"] == "p"]

    wait_for(lambda: any("ElasticGPUClaim mine" in text for text in messages()), lambda: f"{messages()}")
    assert pods.gates(found(cluster, "p")) == (names.GATE,)
    make(cluster, "mine")
    scenarios.settled(cluster.kube, 1, running=1)
    becomes(cluster, "mine", "Bound")


def test_pods_of_one_claim_share_it_and_it_stays_until_the_last_ends(cluster: Cluster) -> None:
    make(cluster, "mine", memory=10, cores=60)
    create(cluster, user_of("p", "mine"), user_of("q", "mine"))
    shares = [scenarios.held(each) for each in scenarios.settled(cluster.kube, 2, running=2)]
    assert shares[0] == shares[1]
    cluster.kube.delete(claims("mine"))
    cluster.kube.delete(paths.pods("default", "p"))
    scenarios.settled(cluster.kube, 1, running=1)
    assert phase(cluster, "mine") == "Bound"
    assert "deletionTimestamp" in named(cluster)["mine"]["metadata"]
    cluster.kube.delete(paths.pods("default", "q"))
    becomes(cluster, "mine", "gone")


def test_a_claim_that_waits_for_its_first_pod_is_bound_where_that_can_go(cluster: Cluster) -> None:
    make_class(cluster, "picky", egpuBindingMode="WaitForFirstConsumer")
    make(cluster, "mine", of="picky")
    wait_for(
        lambda: (named(cluster)["mine"].get("status") or {}).get("reason") == "WaitForFirstConsumer",
        lambda: f"it says {named(cluster)['mine'].get('status')}",
    )
    create(cluster, user_of("p", "mine").spec(nodeSelector={"gpu": "on"}))
    assert scenarios.settled(cluster.kube, 1, running=1)[0]["spec"]["nodeName"] == "v100"


@pytest.mark.long
def test_a_claim_whose_share_a_policy_refuses_has_the_policys_words(cluster: Cluster) -> None:
    refusal = "no shares for mine, says somebody else"
    path = paths.validatingadmissionpolicies()
    bindings = path.replace("policies", "policybindings")
    rule = {
        "apiGroups": ["elasticgpu.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["elasticgpus"],
    }
    validation = {"expression": "object.spec.claimRef.name != 'mine'", "message": refusal, "reason": "Forbidden"}
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    cluster.kube.create(path, {"metadata": {"name": "example-shares"}, "spec": spec})
    bound = {"policyName": "example-shares", "validationActions": ["Deny"]}
    cluster.kube.create(bindings, {"metadata": {"name": "example-shares"}, "spec": bound})

    def events() -> list[str]:
        listed = cluster.kube.list(paths.events("default")).items
        return [each["message"] for each in listed if each["reason"] == "ClaimWriteRefused"]

    def refuses() -> bool:
        """Whether the policy is in effect. The test request is not carried out."""
        probe = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPU", "metadata": {"name": "probe"}}
        claim = {"claimRef": {"namespace": "default", "name": "mine"}}
        try:
            shares = paths.path(scenarios.ELASTIC, "elasticgpus")
            cluster.kube.create(shares, {**probe, "spec": claim}, {"dryRun": "All"})
        except KubeError as error:
            return refusal in str(error)
        return False

    try:
        wait_for(refuses, "the policy does not count yet")
        make(cluster, "mine")
        create(cluster, user_of("p", "mine"))
        assert refusal in message(cluster, "p", "ClaimWriteRefused")
        wait_for(lambda: len(events()) == 1, lambda: f"{events()}")
        assert refusal in events()[0]
        make(cluster, "other")
        becomes(cluster, "other", "Bound")
    finally:
        cluster.kube.delete(f"{bindings}/example-shares")
        cluster.kube.delete(f"{path}/example-shares")
    becomes(cluster, "mine", "Bound")


def test_what_claims_hold_nobody_else_is_given_until_they_are_deleted(cluster: Cluster) -> None:
    there = {"gpushare": "true"}
    for number in range(2):
        make(cluster, f"card-{number}", cores=100)
        create(cluster, user_of(f"p{number}", f"card-{number}").spec(nodeSelector=there))
    scenarios.settled(cluster.kube, 2, running=2)
    for number in range(2):
        cluster.kube.delete(paths.pods("default", f"p{number}"))
    scenarios.settled(cluster.kube, 0)
    create(cluster, pod("late").asks("aliyun.com/gpu-mem", 1).spec(nodeSelector=there))
    message(cluster, "late", "Exclusive")
    cluster.kube.delete(claims("card-0"))
    scenarios.settled(cluster.kube, 1, running=1)


@pytest.mark.long
def test_a_leader_that_is_killed_while_claims_are_bound_leaves_nothing_undone(cluster: Cluster) -> None:
    make_class(cluster, "now")
    allocator = cluster.programs["allocator"]
    for number in range(6):
        make(cluster, f"c{number}", memory=1, cores=1, of="now")
    create(cluster, *(user_of(f"p{number}", f"c{number}") for number in range(6)))
    allocator.kill()
    allocator.start()
    scenarios.settled(cluster.kube, 6, running=6)
    for number in range(6):
        becomes(cluster, f"c{number}", "Bound")


def test_kubectl_shows_claims_by_short_name_and_the_plugin_counts_them_once(cluster: Cluster) -> None:
    make(cluster, "mine", memory=2)
    create(cluster, user_of("p", "mine"), user_of("q", "mine"))
    made = scenarios.settled(cluster.kube, 2, running=2)
    [uuid] = scenarios.held(made[0])
    out = io.StringIO()
    arguments = ["nodes", "-o", "json", "--kubeconfig", str(cluster.kubeconfig)]
    assert main(arguments, out=out, err=out, environment={}) == 0
    assert f'"{uuid}"' in out.getvalue()
    assert out.getvalue().count("claim/default/mine") == 1


def printed(cluster: Cluster, plural: str) -> list[JSON]:
    """The rows that `kubectl get` prints, by the names of their columns."""
    transport = connect_transport(kubeconfig=str(cluster.kubeconfig), context=None, user_agent="tests")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    request = HttpRequest("GET", paths.path(scenarios.ELASTIC, plural), {}, accept, None, 10.0)
    table = json.loads(transport.request(request).read())
    columns = [column["name"] for column in table.get("columnDefinitions") or ()]
    return [dict(zip(columns, row["cells"], strict=True)) for row in table.get("rows") or ()]


def test_the_amounts_are_in_the_columns(cluster: Cluster) -> None:
    make(cluster, "mine", memory=3, cores=20)
    becomes(cluster, "mine", "Bound")
    wanted = {
        "elasticgpuclaims": {"Memory": "3", "Core": "20"},
        "elasticgpus": {"Memory": "3Gi", "Core": "20"},
    }
    for plural, amounts in wanted.items():
        [cells] = printed(cluster, plural)
        assert {name: str(cells[name]) for name in amounts} == amounts

    def of_t4() -> list[str]:
        return sorted(str(row["Of-GiB"]) for row in printed(cluster, "gpus") if row["Node"] == "t4")

    wait_for(lambda: of_t4() == ["14", "14"], lambda: f"{printed(cluster, 'gpus')}", 60.0)
