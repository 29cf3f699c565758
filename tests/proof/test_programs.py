"""One entry in a table adds a feature, a dialect, a filter or a mechanism, and the programs run with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from allocator.app import settings_type
from allocator.features.base import Feature
from contract import names
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.transport import HttpRequest, connect_transport
from runtime.settings import SettingsError, describe, load
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.proof import damp, feathers
from tests.proof.allocator import REGISTRY
from tests.proof.greeting import FEATURE
from tests.proof.webhook import DEPRECATED

JSON = dict[str, Any]
POLICY = "gpufraction-allocator-pods"
MODULES = {program: f"tests.proof.{program}" for program in ("webhook", "allocator", "nodeagent")}


def test_the_settings_of_a_feature_are_a_group_of_the_allocators() -> None:
    given = load(settings_type(REGISTRY.features), file=None, env={}, argv=["--greeting-every=2s"])
    assert FEATURE.chosen(given).every == 2.0
    assert "`greeting.every`" in describe(settings_type(REGISTRY.features))
    with pytest.raises(SettingsError, match=r"flag --greeting-every: unknown"):
        load(settings_type(), file=None, env={}, argv=["--greeting-every=2s"])


@pytest.mark.parametrize(
    ("feature", "name"),
    [(replace(FEATURE, name="queue"), "queue"), (replace(FEATURE, name="other"), "greeting.every")],
    ids=["a group of the core", "a setting of another feature"],
)
def test_a_feature_with_a_name_that_is_taken_is_refused(feature: Feature[Any, Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"two settings have the same name: .*{name}"):
        settings_type((FEATURE, feature))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A damp node of one card, on which all programs run with the invented additions."""
    nodes = [gpu_node("n1", "1 x Tesla T4 15109MiB", labels={damp.DAMP: "very"})]
    settings = {"allocator": ("--greeting-every=200ms",), "nodeagent": ("--glass-color=green",)}
    directory = tmp_path_factory.mktemp("proof")
    with Cluster(nodes=nodes, directory=directory, settings=settings, modules=MODULES) as up:
        install(up)
        yield up


def install(cluster: Cluster) -> None:
    """
    What the dialect changes in the manifests: which pods the API server sends, as the program prints it, and which
    annotations the allocator may write.
    """
    command = [sys.executable, "-m", MODULES["webhook"], "conditions"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    conditions = {each["name"]: each["matchConditions"] for each in yaml.safe_load(printed)["webhooks"]}
    path = paths.mutatingwebhookconfigurations(names.CONFIGURATION)
    webhooks = cluster.kube.get(path)["webhooks"]
    wanted = [{**each, "matchConditions": conditions.get(each["name"], each["matchConditions"])} for each in webhooks]
    cluster.kube.patch_merge(path, {"webhooks": wanted})
    path = paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", name=POLICY)
    policy = json.dumps(cluster.kube.get(path)["spec"])
    allowed = policy.replace("'^(gpufraction[.]io/(fence$", "'^(feather[.]example/|gpufraction[.]io/(fence$")
    assert policy != allowed
    cluster.kube.patch_merge(path, {"spec": json.loads(allowed)})


def created(cluster: Cluster, made: PodBuilder) -> JSON:
    manifest = made.manifest()
    return cluster.kube.create(paths.pods("default"), manifest)


def now(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def allocated(cluster: Cluster, name: str) -> JSON:
    """The condition about the pod's share; empty before it exists."""
    conditions = now(cluster, name).get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == names.ALLOCATED_CONDITION), {})


def has_share(cluster: Cluster, name: str) -> bool:
    """Whether it has one. This reads the annotation, because a pod that never waited has no condition."""
    return names.ALLOCATION in now(cluster, name)["metadata"].get("annotations", {})


@pytest.mark.timeout(120)
def test_a_feature_explains_carries_out_effects_and_is_measured(cluster: Cluster) -> None:
    created(cluster, pod("greet-me").selects(there="none").asks(feathers.FEATHERS, 1))
    wait_for(lambda: "greeted with hello" in str(allocated(cluster, "greet-me")), "the pod is not greeted")
    assert allocated(cluster, "greet-me")["reason"] == "Greeted"
    wait_for(lambda: invariants.figures(cluster).get("gpufraction_greetings_total", 0) > 1, "nothing is counted")


def test_a_pod_that_asks_in_a_dialect_is_placed_and_told_in_it(cluster: Cluster) -> None:
    made = created(cluster, pod("light").asks(feathers.FEATHERS, 2))
    container = made["spec"]["containers"][0]
    assert feathers.FEATHERS not in container["resources"]["limits"]
    assert {"name": "FEATHERS", "value": "2"} in container["env"]
    wait_for(lambda: feathers.CARD in now(cluster, "light")["metadata"]["annotations"], "the card is not written")
    wait_for(lambda: feathers.FLIES in now(cluster, "light")["metadata"]["annotations"], "it does not fly")
    wait_for(lambda: 'dialect="feathers"' in cluster.metrics(), "no card hours in its name")
    assert 'dialect="feathers"' in cluster.metrics(of="webhook")


def test_a_deprecated_name_is_warned_of_and_counted(cluster: Cluster) -> None:
    made = pod("plumed").annotated(feathers.PLUMES, "3").asks(feathers.FEATHERS, 1).manifest()
    body = json.dumps(made).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    transport = connect_transport(kubeconfig=str(cluster.kubeconfig), context=None, user_agent="proof")
    answer = transport.request(HttpRequest("POST", paths.pods("default"), {}, headers, body, 20.0))
    answer.read()
    assert (answer.status, DEPRECATED.warning in answer.headers.get("warning", "")) == (201, True)
    line = f'gpufraction_deprecated_names_total{{name="{feathers.PLUMES}"}} 1.0'
    wait_for(lambda: line in cluster.metrics(of="webhook"), "it is not counted")


def test_a_pod_that_asks_for_too_much_waits_in_the_dialects_words(cluster: Cluster) -> None:
    created(cluster, pod("in-the-way").asks(feathers.FEATHERS, 1))
    wait_for(lambda: has_share(cluster, "in-the-way"), "the card is not used")
    created(cluster, pod("heavy").asks(feathers.FEATHERS, 14))
    wait_for(lambda: "not a feather more" in str(allocated(cluster, "heavy")), "the words are not the dialect's")


def test_a_filter_keeps_a_pod_off_a_node_until_its_cure_comes(cluster: Cluster) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {damp.DRY: "yes"}}}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    created(cluster, pod("paper").labelled(damp.DRY, "yes").spec(affinity=alone).asks(feathers.FEATHERS, 1))
    wait_for(lambda: allocated(cluster, "paper").get("reason") == "TooDamp", lambda: str(allocated(cluster, "paper")))
    assert "1 too damp" in allocated(cluster, "paper")["message"]
    cluster.kube.patch_merge(paths.nodes("n1"), {"metadata": {"labels": {damp.DAMP: None}}})
    wait_for(lambda: allocated(cluster, "paper").get("status") == "True", lambda: str(allocated(cluster, "paper")))


def test_a_mechanism_gives_a_node_the_level_that_a_pod_requires(cluster: Cluster) -> None:
    node = cluster.kube.get(paths.gpunodes("n1"))["status"]
    assert node["isolation"][0] == "preload"
    assert {each["type"]: each["message"] for each in node["conditions"]}["Glass"] == "each pod is behind green glass"
    created(cluster, pod("safe").annotated(names.ISOLATION, "preload").asks(feathers.FEATHERS, 1))
    wait_for(lambda: has_share(cluster, "safe"), lambda: str(allocated(cluster, "safe")))


def test_all_programs_run_on(cluster: Cluster) -> None:
    assert [name for name, program in cluster.programs.items() if name != "certs" and not program.alive()] == []
    assert invariants.faults(cluster) == {}
