"""Installing, changing and uninstalling on a real API server: no refusal, no warning, and running pods untouched."""

from __future__ import annotations

import base64
import datetime
import functools
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from contract import names
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.unit.manifests import foreign
from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, below, built, with_components
from tests.unit.manifests.realcluster import MASTER, REAL, RealCluster, running
from webhook.certificates import configuration
from webhook.certificates.authority import renewed

pytestmark = [pytest.mark.realcluster, REAL]

HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-gpufraction-webhook"
PODS = "/api/v1/namespaces/team-a/pods"
STRATEGIC = "application/strategic-merge-patch+json"
OVERLAYS = below("overlays")
SECRET = paths.secrets(names.NAMESPACE, "gpufraction-webhook-certs")
WRITTEN = {"tls.crt": "eA==", "tls.key": "eQ==", "ca.crt": "eg=="}
PAGE = ROOT / "docs" / "operations.md"


class Installed:
    """A cluster with the base, and kubectl for it."""

    def __init__(self, cluster: RealCluster, config: Path) -> None:
        self.cluster, self.config = cluster, config

    def kubectl(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", str(self.config), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)

    def apply(self, folder: str) -> None:
        """Apply a kustomization. A refusal or a warning fails the test."""
        done = self.kubectl("apply", "-k", str(MANIFESTS / folder))
        assert (done.returncode, done.stderr) == (0, "")

    def hook(self) -> JSON:
        return self.cluster.must("GET", HOOK)

    def create(self, name: str, *, dry_run: bool = True, **spec: JSON | list[JSON] | str) -> tuple[int, str]:
        """Create a pod as an administrator. Returns the code and the message."""
        annotations = spec.pop("annotations", {})
        container = {"name": "main", "image": "x", "resources": spec.pop("resources", {})}
        pod = {"metadata": {"name": name, "annotations": annotations}, "spec": {"containers": [container], **spec}}
        answer = self.cluster.call(MASTER, "POST", PODS + ("?dryRun=All" if dry_run else ""), pod)
        return answer.code, answer.message


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    built()  # skips without kubectl
    with running() as cluster:
        found = Installed(cluster, cluster.kubeconfig)
        text = yaml.safe_dump_all(foreign.definitions())
        assert found.kubectl("apply", "-f", "-", given=text).returncode == 0
        # The namespace and the definitions come first and are not served at once.
        wait_for(
            lambda: found.kubectl("apply", "-k", str(MANIFESTS / "base")).returncode == 0, "the base is not applied"
        )
        wait = ("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        assert found.kubectl(*wait).returncode == 0
        label = {str(names.INJECT_LABEL): names.INJECT_ENABLED}
        cluster.must("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a", "labels": label}})
        yield found


def asks(memory: str = "1Gi") -> JSON:
    return {"limits": {str(names.GPU_MEMORY): memory}}


@pytest.mark.parametrize("folder", ["base", *(f"overlays/{name}" for name in OVERLAYS)])
def test_after_an_apply_without_a_warning_a_diff_shows_nothing(folder: str, installed: Installed) -> None:
    installed.apply(folder)
    written_by_the_keeper(installed)
    done = installed.kubectl("diff", "-k", str(MANIFESTS / folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


GOES_WITH = {name: ("node-access",) for name in ("mps", "preload", "delivery-dra")}
"""Components that build on others, according to their own text."""


@pytest.mark.parametrize("name", below("components"))
def test_every_component_is_taken_without_a_warning(name: str, installed: Installed) -> None:
    wanted = with_components(*GOES_WITH.get(name, ()), name)
    done = installed.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(wanted))
    assert (done.returncode, done.stderr) == (0, "")
    done = installed.kubectl("diff", "-f", "-", given=yaml.safe_dump_all(wanted))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_former_webhook_ends_with_its_component_and_stays_without(installed: Installed) -> None:
    former = {
        "name": "pods.gpufraction.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"service": {"name": "gpufraction-webhook", "namespace": str(names.NAMESPACE)}},
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    given = json.dumps({**kind, "metadata": {"name": "gpufraction-webhook"}, "webhooks": [former]})
    path = HOOK.replace("zz-", "")
    for components, left in (((), ["pods.gpufraction.io"]), (("former-webhook",), [])):
        assert installed.kubectl("apply", "-f", "-", given=given).returncode == 0
        # That version's keeper has written its authority.
        trusted = {"webhooks": [{"name": former["name"], "clientConfig": {"caBundle": "eA=="}}]}
        put = installed.cluster.call(MASTER, "PATCH", path, trusted, form=STRATEGIC)
        assert put.code == 200, put
        done = installed.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(with_components(*components)))
        assert (done.returncode, done.stderr) == (0, "")
        assert [hook["name"] for hook in installed.cluster.must("GET", path).get("webhooks") or []] == left
    assert installed.kubectl("delete", "mutatingwebhookconfiguration", "gpufraction-webhook").returncode == 0


@functools.cache
def authority() -> bytes:
    """One authority for all tests, because the keeper still trusts the previous one."""
    return renewed(None, datetime.datetime.now(datetime.UTC), ["n"]).ca


def written_by_the_keeper(installed: Installed) -> None:
    """Write an authority and a certificate, as the keeper of certificates does."""
    kube = Kube.connect(kubeconfig=str(installed.config))
    configuration.trust(kube, "zz-gpufraction-webhook", authority(), now=datetime.datetime.now(datetime.UTC))
    kube.patch_merge(SECRET, {"data": WRITTEN})


def test_an_upgrade_keeps_the_authority_and_the_certificate_that_were_put_in(installed: Installed) -> None:
    installed.apply("base")
    written_by_the_keeper(installed)
    kube = Kube.connect(kubeconfig=str(installed.config))
    for folder in ("base", "overlays/aks", "base"):
        installed.apply(folder)
        assert kube.get(SECRET)["data"] == WRITTEN
        bundles = [hook["clientConfig"]["caBundle"] for hook in installed.hook()["webhooks"]]
        assert [base64.b64decode(bundle) for bundle in bundles] == [authority()] * len(bundles)


MEETS: dict[str, tuple[Callable[[Installed], tuple[int, str]], bool]] = {
    "a pod that asks for nothing": (lambda i: i.create("p"), False),
    "a pod that asks": (lambda i: i.create("p", resources=asks()), True),
    "a pod of an earlier pass": (lambda i: i.create("p", annotations={str(names.REQUEST): "{}"}), True),
    "a restored pod behind the gate": (lambda i: i.create("p", schedulingGates=[{"name": str(names.GATE)}]), True),
    "a pod behind another's gate": (lambda i: i.create("p", schedulingGates=[{"name": "example.com/x"}]), False),
}


@pytest.mark.parametrize(("create", "meets"), MEETS.values(), ids=MEETS.keys())
def test_who_meets_the_webhook(
    create: Callable[[Installed], tuple[int, str]], meets: bool, installed: Installed
) -> None:
    """Nothing serves the webhook here, so a pod that reaches it is refused with its name."""
    installed.apply("base")
    called = 'failed calling webhook "pods.gpufraction.io"'
    wait_for(lambda: called in installed.create("probe", resources=asks())[1], "the configuration is not in force")
    code, message = create(installed)
    assert (code, called in message) == ((500, True) if meets else (201, False))


def test_with_hidden_gpus_every_pod_meets_the_webhook_once(installed: Installed) -> None:
    assert installed.create("running", dry_run=False) == (201, "")
    given = yaml.safe_dump_all(with_components("hide-gpus"))
    assert installed.kubectl("apply", "-f", "-", given=given).returncode == 0
    wait_for(lambda: installed.create("probe")[0] == 500, "the configuration is not in force")
    assert 'failed calling webhook "others.gpufraction.io"' in installed.create("p")[1]
    assert 'failed calling webhook "pods.gpufraction.io"' in installed.create("p", resources=asks())[1]
    debug = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x", "terminationMessagePolicy": "File"}]}}
    put = installed.cluster.call(MASTER, "PATCH", f"{PODS}/running/ephemeralcontainers", debug, form=STRATEGIC)
    assert 'failed calling webhook "debuggers.gpufraction.io"' in put.message
    installed.apply("base")
    wait_for(lambda: installed.create("probe")[0] == 201, "the entry is still there")


def test_uninstalling_leaves_running_pods_as_they_are(installed: Installed) -> None:
    """The commands and their order are those of docs/operations.md."""
    installed.apply("base")
    assert installed.kubectl("delete", "mutatingwebhookconfiguration", "zz-gpufraction-webhook").returncode == 0
    wait_for(lambda: installed.create("probe", resources=asks())[0] != 500, "the webhook is still called")
    # An earlier test applied every component, and the strict profile requires quotas.
    strict = ("validatingadmissionpolicybinding", "gpufraction-quota", "--ignore-not-found")
    assert installed.kubectl("delete", *strict).returncode == 0
    taken = {str(names.REQUEST): "{}", str(names.ALLOCATION): "{}"}
    wait_for(
        lambda: installed.create("probe", annotations=taken, resources=asks())[0] == 201, "a quota is still asked for"
    )
    made = {
        "placed": installed.create("placed", dry_run=False, annotations=taken, resources=asks()),
        "waiting": installed.create(
            "waiting",
            dry_run=False,
            annotations={str(names.REQUEST): "{}"},
            resources=asks(),
            schedulingGates=[{"name": str(names.GATE)}],
        ),
    }
    assert made == {name: (201, "") for name in made}
    claim_and_share(installed)
    before = versions(installed)
    release = ("-n", "team-a", "patch", "pod", "waiting", "--type=json")
    ungate = json.dumps([{"op": "remove", "path": "/spec/schedulingGates/0"}])
    assert "only the allocator may" in installed.kubectl(*release, "-p", ungate).stderr
    done = installed.kubectl("delete", "-k", str(MANIFESTS / "base"), "--ignore-not-found", "--wait=false")
    assert (done.returncode, done.stderr) == (0, "")
    assert versions(installed) == before
    wait_for(lambda: installed.kubectl(*release, "-p", ungate).returncode == 0, "the policies are still there")
    finalizers_are_taken_off(installed)


def marks() -> list[str]:
    """The commands of the page that remove our marks from a node."""
    page = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(kubectl patch node .*?)```$", page, re.MULTILINE | re.DOTALL)
    return str(block).splitlines()


def test_the_page_takes_our_marks_off_a_node(installed: Installed) -> None:
    labels = {str(names.OWNERSHIP): "dedicated", "kubernetes.io/os": "linux"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worn", "labels": labels}}
    capacity = {str(names.GPU_MEMORY): "16Gi", str(names.GPU_CORES): "100", "cpu": "8"}
    made = installed.cluster.must("POST", "/api/v1/nodes", node)
    installed.cluster.must("PUT", "/api/v1/nodes/worn/status", {**made, "status": {"capacity": capacity}})
    for line in marks():
        done = installed.kubectl(*shlex.split(line.replace("NODE", "worn"))[1:])
        assert (done.returncode, done.stderr) == (0, ""), line
    after = installed.cluster.must("GET", "/api/v1/nodes/worn")
    assert after["status"]["capacity"] == {"cpu": "8"}
    assert after["metadata"]["labels"] == {"kubernetes.io/os": "linux"}


ELASTIC = "/apis/elasticgpu.io/v1alpha1"


def claim_and_share(installed: Installed) -> None:
    """A bound claim, as the allocator leaves it."""
    about = {"apiVersion": "elasticgpu.io/v1alpha1", "spec": {}}
    claim = {"kind": "ElasticGPUClaim", "metadata": {"name": "c", "finalizers": [str(names.CLAIM_FINALIZER)]}}
    share = {"kind": "ElasticGPU", "metadata": {"name": "s", "finalizers": [str(names.SHARE_FINALIZER)]}}
    installed.cluster.must("POST", f"{ELASTIC}/namespaces/team-a/elasticgpuclaims", {**about, **claim})
    installed.cluster.must("POST", f"{ELASTIC}/elasticgpus", {**about, **share})


def is_deleted(installed: Installed, path: str) -> bool:
    return installed.cluster.call(MASTER, "GET", path).code == 404


def finalizers_are_taken_off(installed: Installed) -> None:
    """
    Nothing else removes them once the allocator is gone, and the definitions of the remaining objects are not deleted.
    """
    off = ("--type", "merge", "-p", '{"metadata":{"finalizers":null}}')
    assert installed.kubectl("patch", *off, "elasticgpu.elasticgpu.io/s").returncode == 0
    assert installed.kubectl("-n", "team-a", "patch", "egpuc", "c", *off).returncode == 0
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind in ("elasticgpuclaims", "elasticgpus"):
        wait_for(
            functools.partial(is_deleted, installed, f"{definitions}/{kind}.elasticgpu.io"), f"{kind} are still there"
        )


def versions(installed: Installed) -> dict[str, str]:
    items = installed.cluster.must("GET", PODS)["items"]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}
