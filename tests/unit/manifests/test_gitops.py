"""The samples for Argo CD and Flux: after a sync by server-side apply nothing differs, whatever our keeper writes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from contract.components import agents_namespace
from playground.waiting import wait_for
from runtime.kubernetes.client import Kube
from tests.unit.manifests import foreign
from tests.unit.manifests.kube import ROOT, parsed, with_components
from tests.unit.manifests.realcluster import REAL, running
from tests.unit.manifests.test_installing_for_real import HOOK, Installed, written_by_the_keeper
from webhook.certificates import configuration

JSON = dict[str, Any]
GITOPS = ROOT / "samples" / "gitops"
ARGO, FLUX = "argocd-controller", "kustomize-controller"
RENAMED = ("example.com/renamed-gpu-memory",)
[APPLICATION] = yaml.safe_load_all((GITOPS / "argocd" / "application.yaml").read_text())
REPOSITORY, KUSTOMIZATION = yaml.safe_load_all((GITOPS / "flux" / "kustomization.yaml").read_text())


def waves() -> dict[str, list[int]]:
    """The sync waves of the sample's objects, by kind; 0 without one, as in Argo CD."""
    found: dict[str, list[int]] = {}
    for item in parsed(GITOPS / "argocd"):
        notes = item["metadata"].get("annotations") or {}
        found.setdefault(item["kind"], []).append(int(notes.get("argocd.argoproj.io/sync-wave", 0)))
    return found


def test_kinds_come_before_policies_they_before_programs_and_the_webhook_last() -> None:
    found = {kind: set(numbers) for kind, numbers in waves().items()}
    first, second, third = ("Namespace", "CustomResourceDefinition"), "ValidatingAdmissionPolicy", "Deployment"
    assert [found[kind] for kind in first] == [{-3}, {-3}]
    assert (found[second], found[f"{second}Binding"], found[third], found["DaemonSet"]) == ({-2}, {-1}, {0}, {0})
    assert found["MutatingWebhookConfiguration"] == {1}


def test_what_is_ignored_are_objects_of_ours() -> None:
    ours = {(item["kind"], item["metadata"]["name"]) for item in with_components("monitoring", "node-provisioning")}
    ignored = {(each["kind"], each["name"]) for each in APPLICATION["spec"]["ignoreDifferences"]}
    assert ignored <= ours
    [patch] = KUSTOMIZATION["spec"]["patches"]
    assert (patch["target"]["kind"], patch["target"]["name"]) in ours
    assert not APPLICATION["spec"]["syncPolicy"]["automated"]["prune"]
    assert not KUSTOMIZATION["spec"]["prune"]


def test_the_exemptions_name_the_agents_namespace_and_no_other() -> None:
    nodes = agents_namespace(("node-access",))
    classic, validating = yaml.safe_load_all((GITOPS / "exemptions" / "kyverno.yaml").read_text())
    [gatekeeper] = yaml.safe_load_all((GITOPS / "exemptions" / "gatekeeper.yaml").read_text())
    [resources] = [each["resources"] for each in classic["spec"]["match"]["any"]]
    [condition] = validating["spec"]["matchConditions"]
    assert resources["namespaces"] == [nodes]
    assert condition["expression"] == f"object.metadata.namespace == '{nodes}'"
    assert [each["excludedNamespaces"] for each in gatekeeper["spec"]["match"]] == [[nodes]]
    policies = [each["policyName"] for each in classic["spec"]["exceptions"]]
    assert [each["name"] for each in validating["spec"]["policyRefs"]] == policies
    items = [item["metadata"] for item in with_components("node-access", "mps") if item["kind"] == "DaemonSet"]
    assert {item["namespace"] for item in items} == {nodes}
    patterns = [pattern.removesuffix("*") for pattern in resources["names"]]
    assert all(any(item["name"].startswith(pattern) for pattern in patterns) for item in items), items


# -- on a real API server -----------------------------------------------------------------------------------------

real = [pytest.mark.realcluster, REAL]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Installed]:
    parsed(GITOPS / "argocd")  # skips without kubectl
    with running() as found:
        made = Installed(found, found.kubeconfig)
        definitions = yaml.safe_dump_all(foreign.definitions())
        assert made.kubectl("apply", "-f", "-", given=definitions).returncode == 0
        yield made


def given(manager: str) -> list[JSON]:
    """What the tool applies."""
    return parsed(GITOPS / "argocd") if manager == ARGO else with_components("monitoring", "node-provisioning")


def sync(cluster: Installed, items: list[JSON], manager: str) -> None:
    """Server-side apply, as both tools do. The namespace and the kinds are not served at once."""
    text = yaml.safe_dump_all(items)
    words = ("apply", "--server-side", "--force-conflicts", f"--field-manager={manager}", "-f", "-")
    wait_for(
        lambda: cluster.kubectl(*words, given=text).returncode == 0, lambda: cluster.kubectl(*words, given=text).stderr
    )


def difference(cluster: Installed, items: list[JSON], manager: str) -> str:
    """What a dry run of the next sync would change; empty means no drift."""
    words = ("diff", "--server-side", "--force-conflicts", f"--field-manager={manager}", "-f", "-")
    done = cluster.kubectl(*words, given=yaml.safe_dump_all(items))
    assert done.returncode in (0, 1), done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if re.match(r"[+-](?![+-])", line))


def extended(cluster: Installed) -> None:
    """The keeper adds a resource that the options rename."""
    kube = Kube.connect(kubeconfig=str(cluster.config))
    operations = configuration.naming(kube.get(HOOK), RENAMED)
    assert operations
    kube.patch_json(HOOK, operations)


def ignoring(cluster: Installed, items: list[JSON]) -> list[JSON]:
    """What Argo CD applies with RespectIgnoreDifferences: the existing value at each ignored path."""
    paths = {each["name"]: each.get("jqPathExpressions", []) for each in APPLICATION["spec"]["ignoreDifferences"]}
    made = copy.deepcopy(items)
    for item in made:
        if item["kind"] == "MutatingWebhookConfiguration":
            live = cluster.hook()
            for path in paths[item["metadata"]["name"]]:
                _take(item, live, re.findall(r"\w+", path))
    return made


def _take(item: Any, live: Any, path: list[str]) -> None:
    if isinstance(item, list):
        for one, other in zip(item, live, strict=True):
            _take(one, other, path)
    elif len(path) == 1:
        if path[0] in live:
            item[path[0]] = live[path[0]]
    else:
        _take(item[path[0]], live[path[0]], path[1:])


@pytest.mark.parametrize("manager", [pytest.param(each, marks=real) for each in (ARGO, FLUX)])
def test_after_a_sync_nothing_differs_though_others_write(cluster: Installed, manager: str) -> None:
    items = given(manager)
    sync(cluster, items, manager)
    assert difference(cluster, items, manager) == ""
    written_by_the_keeper(cluster)
    assert difference(cluster, items, manager) == ""
    bundle = [hook["clientConfig"]["caBundle"] for hook in cluster.hook()["webhooks"]]
    sync(cluster, items, manager)
    assert [hook["clientConfig"]["caBundle"] for hook in cluster.hook()["webhooks"]] == bundle


@pytest.mark.parametrize("manager", [pytest.param(ARGO, marks=real)])
def test_what_the_keeper_extends_differs_unless_it_is_ignored(cluster: Installed, manager: str) -> None:
    items = given(manager)
    sync(cluster, items, manager)
    extended(cluster)
    assert RENAMED[0] in difference(cluster, items, manager)
    assert difference(cluster, ignoring(cluster, items), manager) == ""
    sync(cluster, ignoring(cluster, items), manager)
    assert RENAMED[0] in str(cluster.hook())
