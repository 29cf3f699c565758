"""
The samples for Argo CD and Flux with their own programs: after a sync nothing differs, whatever our keeper writes, and
a sample ignores only the fields for which that is necessary.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from playground.engines.gitops import argocd, flux, repository
from playground.engines.gitops.argocd import ArgoCD
from playground.engines.gitops.flux import Flux
from playground.engines.gitops.repository import Repository
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.cluster.engines.programs import folder_of
from tests.unit.manifests import foreign
from tests.unit.manifests.kube import ROOT, built
from tests.unit.manifests.realcluster import REAL, running
from tests.unit.manifests.test_gitops import APPLICATION, KUSTOMIZATION, RENAMED, REPOSITORY, extended
from tests.unit.manifests.test_installing_for_real import HOOK, Installed, written_by_the_keeper

JSON = dict[str, Any]
pytestmark = [pytest.mark.engines, pytest.mark.timeout(300), REAL]
ROLE = paths.path("rbac.authorization.k8s.io/v1", "clusterroles", None, "gpufraction-allocator")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """An administrator's repository with our manifests, and the samples in their folders."""
    with repository.serving(tmp_path_factory.mktemp("git") / "served") as found:
        shutil.copytree(ROOT / "manifests", found.folder / "manifests")
        shutil.copytree(ROOT / "samples" / "gitops", found.folder / "samples" / "gitops")
        found.commit("Install gpufraction")
        yield found


@pytest.fixture
def cluster() -> Iterator[Installed]:
    """An API server without gpufraction."""
    built()  # skips without kubectl
    with running() as found:
        made = Installed(found, found.kubeconfig)
        assert made.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(foreign.definitions())).returncode == 0
        yield made


@pytest.fixture
def kube(cluster: Installed) -> Kube:
    return Kube.connect(kubeconfig=str(cluster.config))


@pytest.fixture
def argo(cluster: Installed, kube: Kube, tmp_path: Path) -> Iterator[ArgoCD]:
    with argocd.running(kube, cluster.config, folder_of(argocd.assets()), tmp_path / "argocd") as found:
        yield found


@pytest.fixture
def fluxed(cluster: Installed, kube: Kube, tmp_path: Path) -> Iterator[Flux]:
    with flux.running(kube, cluster.config, folder_of(flux.assets()), tmp_path / "flux") as found:
        yield found


def roll_out(kube: Kube) -> bool:
    """Write that all programs run, as Kubernetes' controllers do once their pods are Ready."""
    for version, plural, status in (
        ("apps/v1", "deployments", _deployed),
        ("apps/v1", "daemonsets", _on_no_node),
        ("policy/v1", "poddisruptionbudgets", _allowed),
    ):
        for item in kube.list(f"/apis/{version}/{plural}").items:
            own = paths.path(version, plural, item["metadata"]["namespace"], item["metadata"]["name"])
            written = {"observedGeneration": item["metadata"]["generation"], **status(item)}
            kube.patch_merge(f"{own}/status", {"status": written})
    return True


def _deployed(deployment: JSON) -> JSON:
    names = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    conditions = [
        {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": ""},
        {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": ""},
    ]
    return {**dict.fromkeys(names, deployment["spec"]["replicas"]), "conditions": conditions}


def _on_no_node(_: JSON) -> JSON:
    return dict.fromkeys(("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"), 0)


def _allowed(_: JSON) -> JSON:
    allowed = {"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods", "message": ""}
    healthy = {"currentHealthy": 2, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 2}
    return {**healthy, "conditions": [{**allowed, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}


def expressions(cluster: Installed) -> str:
    """The expressions of the webhook's match conditions."""
    return str([hook.get("matchConditions") for hook in cluster.hook()["webhooks"]])


def authorities(cluster: Installed) -> list[str]:
    return [hook["clientConfig"].get("caBundle", "") for hook in cluster.hook()["webhooks"]]


def is_there(kube: Kube, path: str) -> bool:
    try:
        kube.get(path)
    except KubeNotFound:
        return False
    return True


def change(served: Repository, text: str) -> None:
    """A commit that adds an annotation to all objects of the base."""
    top = served.folder / "manifests" / "base" / "kustomization.yaml"
    document = yaml.safe_load(top.read_text())
    document["commonAnnotations"] = {"example.com/change": text}
    top.write_text(yaml.safe_dump(document))
    served.commit(text)


def changed(kube: Kube) -> str:
    return str((kube.get(ROLE)["metadata"].get("annotations") or {}).get("example.com/change", ""))


# -- Argo CD ----------------------------------------------------------------------------------------------------------


def application(served: Repository, **more: Any) -> JSON:
    """The sample with the repository and the folder filled in."""
    made: JSON = copy.deepcopy(APPLICATION)
    made["spec"]["source"].update(repoURL=served.url, path="samples/gitops/argocd")
    made["spec"].update(more)
    return made


def synced(argo: ArgoCD) -> bool:
    """Whether the sync has finished and nothing differs. The programs that it installed are then rolled out."""
    roll_out(argo.kube)
    status = argo.status("gpufraction")
    phase = (status.get("operationState") or {}).get("phase")
    return (phase, status.get("sync", {}).get("status")) == ("Succeeded", "Synced")


def told(argo: ArgoCD) -> str:
    status = argo.status("gpufraction")
    state = status.get("operationState") or {}
    differing = [each for each in status.get("resources") or [] if each.get("status") != "Synced"]
    found = [state.get("phase"), state.get("message"), status.get("conditions"), differing]
    return f"{found}; {argo.programs.tails()}"


def begun(argo: ArgoCD) -> str:
    """When the last sync began."""
    return str(argo.status("gpufraction")["operationState"]["startedAt"])


def test_argocd_has_the_webhook_wait_for_the_programs(argo: ArgoCD, served: Repository, kube: Kube) -> None:
    argo.apply(application(served))
    deployment = paths.path("apps/v1", "deployments", "gpufraction-system", "gpufraction")
    wait_for(lambda: is_there(kube, deployment), lambda: told(argo))
    argo.refreshed("gpufraction")
    assert not is_there(kube, HOOK)
    wait_for(lambda: synced(argo), lambda: told(argo))
    assert is_there(kube, HOOK)


def test_argocd_shows_no_difference_whatever_the_keeper_writes(
    argo: ArgoCD, served: Repository, cluster: Installed
) -> None:
    argo.apply(application(served))
    wait_for(lambda: synced(argo), lambda: told(argo))
    first = begun(argo)
    written_by_the_keeper(cluster)
    extended(cluster)
    bundle = authorities(cluster)
    assert all(bundle)
    assert argo.refreshed("gpufraction")["sync"]["status"] == "Synced", told(argo)
    assert begun(argo) == first
    change(served, "one")
    argo.refreshed("gpufraction")
    wait_for(lambda: synced(argo) and changed(argo.kube) == "one", lambda: told(argo))
    assert authorities(cluster) == bundle
    assert RENAMED[0] in expressions(cluster)


def test_argocd_takes_back_what_a_stranger_changes(argo: ArgoCD, served: Repository, kube: Kube) -> None:
    argo.apply(application(served))
    wait_for(lambda: synced(argo), lambda: told(argo))
    rules = kube.get(ROLE)["rules"]
    kube.patch_merge(ROLE, {"rules": rules[1:]})
    wait_for(lambda: kube.get(ROLE)["rules"] == rules, lambda: told(argo))


def test_argocd_writes_over_what_the_sample_does_not_have_it_ignore(
    argo: ArgoCD, served: Repository, cluster: Installed
) -> None:
    argo.apply(application(served, ignoreDifferences=[]))
    wait_for(lambda: synced(argo), lambda: told(argo))
    extended(cluster)
    assert RENAMED[0] in expressions(cluster)
    wait_for(lambda: RENAMED[0] not in expressions(cluster), lambda: told(argo))


# -- Flux -------------------------------------------------------------------------------------------------------------


def sources(served: Repository, *, patches: list[JSON] | None = None) -> tuple[JSON, JSON]:
    """The sample's objects with the repository and the folder filled in."""
    where, what = copy.deepcopy(REPOSITORY), copy.deepcopy(KUSTOMIZATION)
    where["spec"]["url"] = served.url
    what["spec"]["path"] = "./manifests/base"
    if patches is not None:
        what["spec"]["patches"] = patches
    return where, what


def ready(fluxed: Flux) -> bool:
    roll_out(fluxed.kube)
    return fluxed.condition("gpufraction").get("status") == "True"


def why(fluxed: Flux) -> str:
    return f"{fluxed.condition('gpufraction')}; {fluxed.programs.tails()}"


def again(fluxed: Flux) -> None:
    """Run one more reconciliation to its end."""
    done = fluxed.request("clusters", "gpufraction")
    wait_for(lambda: ready(fluxed) and done(), lambda: why(fluxed))


def test_flux_leaves_the_webhook_to_its_keeper(fluxed: Flux, served: Repository, cluster: Installed) -> None:
    fluxed.apply(*sources(served))
    wait_for(lambda: ready(fluxed), lambda: why(fluxed))
    written_by_the_keeper(cluster)
    extended(cluster)
    bundle = authorities(cluster)
    assert all(bundle)
    change(served, "two")
    again(fluxed)
    wait_for(lambda: changed(fluxed.kube) == "two", lambda: why(fluxed))
    assert authorities(cluster) == bundle
    assert RENAMED[0] in expressions(cluster)


def test_flux_takes_back_what_a_stranger_changes(fluxed: Flux, served: Repository, kube: Kube) -> None:
    fluxed.apply(*sources(served))
    wait_for(lambda: ready(fluxed), lambda: why(fluxed))
    rules = kube.get(ROLE)["rules"]
    kube.patch_merge(ROLE, {"rules": rules[1:]})
    again(fluxed)
    wait_for(lambda: kube.get(ROLE)["rules"] == rules, lambda: why(fluxed))


def test_flux_without_the_patch_takes_back_the_expression_alone(
    fluxed: Flux, served: Repository, cluster: Installed
) -> None:
    fluxed.apply(*sources(served, patches=[]))
    wait_for(lambda: ready(fluxed), lambda: why(fluxed))
    written_by_the_keeper(cluster)
    extended(cluster)
    bundle = authorities(cluster)
    again(fluxed)
    wait_for(lambda: RENAMED[0] not in expressions(cluster), lambda: why(fluxed))
    assert authorities(cluster) == bundle
