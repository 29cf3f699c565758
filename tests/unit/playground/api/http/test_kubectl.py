"""An ordinary kubectl with the embedded API. The tests themselves act as the controllers."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playground.api.api import User
from playground.api.http.server import HttpsServer
from tests.unit.playground.api.manifests import MERGE, PODS, deployment, ok, pod

pytestmark = pytest.mark.kubectl
_NEEDED = (1, 30)
_SECONDS = 30


def _found() -> str | None:
    """Why the tests cannot run; None if they can."""
    if shutil.which("kubectl") is None:
        return "kubectl 1.30 or newer is not on PATH"
    text = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, timeout=_SECONDS, check=True
    ).stdout
    about = json.loads(text)["clientVersion"]
    have = (int(about["major"]), int(re.sub(r"\D", "", about["minor"])))
    return None if have >= _NEEDED else f"kubectl on PATH is {have[0]}.{have[1]}, these tests need 1.30 or newer"


@pytest.fixture(scope="module", autouse=True)
def _kubectl() -> None:
    if (why := _found()) is not None:
        pytest.skip(why)


class Kubectl:
    def __init__(self, server: HttpsServer, home: Path) -> None:
        self.server = server
        self._home = home

    def start(self, *args: str, user: User | None = None) -> "subprocess.Popen[str]":
        config = self._home / f"config-{user.name.replace(':', '-') if user else 'admin'}"
        config.write_text(self.server.kubeconfig(user) if user else self.server.kubeconfig())
        environment = {**os.environ, "HOME": str(self._home), "KUBECONFIG": str(config)}
        command = ["kubectl", "--cache-dir", str(self._home / "cache"), *args]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def __call__(self, *args: str, given: Any = None, fails: bool = False, user: User | None = None) -> str:
        """Standard output of a command that must succeed, or standard error of one that must fail."""
        process = self.start(*args, user=user)
        out, err = process.communicate(json.dumps(given) if given is not None else None, timeout=_SECONDS)
        assert (process.returncode != 0) is fails, f"{args}: {out}{err}"
        return err if fails else out

    def api(self, method: str, path: str, **about: Any) -> Any:
        return ok(self.server.api.call(method, path, **about))


@pytest.fixture
def kubectl(server: HttpsServer, tmp_path: Path) -> Kubectl:
    return Kubectl(server, tmp_path)


def columns(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()]


RUNNING = {
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}],
    }
}


def run_pod(kubectl: Kubectl, name: str = "web") -> None:
    kubectl.api("POST", PODS, body=pod(name, nodeName="n1"))
    kubectl.api("PATCH", f"{PODS}/{name}/status", body=RUNNING, content_type=MERGE)


def test_apply_creates_then_changes_then_leaves_alone(kubectl: Kubectl) -> None:
    body = pod(labels={"app": "web"})
    assert kubectl("apply", "-f", "-", given=body) == "pod/web created\n"
    assert kubectl("apply", "-f", "-", given=body) == "pod/web unchanged\n"
    body["spec"]["containers"][0]["image"] = "example.com/app:2"
    del body["metadata"]["labels"]
    assert kubectl("apply", "-f", "-", given=body) == "pod/web configured\n"
    stored = kubectl.api("GET", f"{PODS}/web")
    assert (stored["spec"]["containers"][0]["image"], "labels" in stored["metadata"]) == ("example.com/app:2", False)


def test_apply_accepts_a_pod_with_tolerations_again(kubectl: Kubectl) -> None:
    body = pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    assert kubectl("apply", "-f", "-", given=body) == "pod/web created\n"
    assert kubectl("apply", "-f", "-", given=body) == "pod/web configured\n"


def test_get_shows_what_a_real_server_prints(kubectl: Kubectl) -> None:
    run_pod(kubectl)
    kubectl.api("POST", PODS, body=pod("gated", schedulingGates=[{"name": "example.com/g"}]))
    kubectl.api("POST", PODS, body=pod("going", nodeName="n1"))
    kubectl.api("DELETE", f"{PODS}/going")
    kubectl.api("POST", PODS, body=pod("refused", nodeName="n1"))
    refused = {"status": {"phase": "Failed", "reason": "OutOfexample.com/gpu"}}
    kubectl.api("PATCH", f"{PODS}/refused/status", body=refused, content_type=MERGE)
    rows = {row[0]: row for row in columns(kubectl("get", "pods", "-o", "wide"))}
    assert rows["NAME"] == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "IP",
        "NODE",
        "NOMINATED NODE",
        "READINESS GATES",
    ]
    assert (rows["web"][1:4], rows["web"][5:7]) == (["1/1", "Running", "0"], ["10.0.0.1", "n1"])
    assert {name: rows[name][2] for name in ("gated", "going", "refused")} == {
        "gated": "SchedulingGated",
        "going": "Terminating",
        "refused": "OutOfexample.com/gpu",
    }
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.spec.nodeName}") == "n1"
    assert "kind: Pod" in kubectl("get", "pod", "web", "-o", "yaml")
    assert kubectl("get", "pods", "-o", "name", "--field-selector", "spec.nodeName=") == "pod/gated\n"


def test_get_watch_follows_changes(kubectl: Kubectl) -> None:
    kubectl.api("POST", PODS, body=pod())
    process = kubectl.start("get", "pods", "-w")
    assert process.stdout is not None
    try:
        assert process.stdout.readline().split()[:3] == ["NAME", "READY", "STATUS"]
        assert process.stdout.readline().split()[:3] == ["web", "0/1", "Pending"]
        kubectl.api("PATCH", f"{PODS}/web/status", body=RUNNING, content_type=MERGE)
        assert process.stdout.readline().split()[:3] == ["web", "1/1", "Running"]
    finally:
        process.kill()
        process.communicate()


def test_describe_shows_a_pod_with_its_events(kubectl: Kubectl) -> None:
    run_pod(kubectl)
    uid = kubectl.api("GET", f"{PODS}/web")["metadata"]["uid"]
    about = {"kind": "Pod", "namespace": "default", "name": "web", "uid": uid}
    event = {"metadata": {"name": "web.1"}, "involvedObject": about, "reason": "Placed", "message": "on gpu 0"}
    kubectl.api("POST", "/api/v1/namespaces/default/events", body={**event, "type": "Normal"})
    described = kubectl("describe", "pod", "web")
    assert re.search(r"Placed.*on gpu 0", described)
    assert "on gpu 0" in kubectl("events")
    assert "pod/web" in kubectl("get", "events")


def test_describe_node_adds_up_what_is_requested(kubectl: Kubectl) -> None:
    status = {"capacity": {"cpu": "8", "memory": "16Gi", "pods": "110", "example.com/gpu-memory": "16Gi"}}
    kubectl.api("POST", "/api/v1/nodes", body={"metadata": {"name": "n1"}, "status": status})
    kubectl.api("POST", PODS, body=pod(nodeName="n1", resources={"limits": {"example.com/gpu-memory": "4Gi"}}))
    described = kubectl("describe", "node", "n1")
    assert re.search(r"example\.com/gpu-memory:\s+16Gi", described)
    assert re.search(r"example\.com/gpu-memory\s+4Gi\s+4Gi", described)


def test_labels_annotations_scale_and_three_kinds_of_patch(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=deployment())
    kubectl("label", "deployment", "web", "tier=front")
    kubectl("annotate", "deployment", "web", "note=hello")
    kubectl("scale", "deployment", "web", "--replicas=4")
    kubectl("patch", "deployment", "web", "--type=merge", "-p", '{"spec":{"minReadySeconds":1}}')
    kubectl("patch", "deployment", "web", "--type=json", "-p", '[{"op":"add","path":"/spec/paused","value":true}]')
    container = '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"i"}]}}}}'
    kubectl("patch", "deployment", "web", "--type=strategic", "-p", container)
    stored = kubectl.api("GET", "/apis/apps/v1/namespaces/default/deployments/web")
    spec = stored["spec"]
    assert (stored["metadata"]["labels"], stored["metadata"]["annotations"]["note"]) == ({"tier": "front"}, "hello")
    assert (spec["replicas"], spec["minReadySeconds"], spec["paused"]) == (4, 1, True)
    assert [c["name"] for c in spec["template"]["spec"]["containers"]] == ["side", "main"]


def becomes_ready(kubectl: Kubectl) -> None:
    kubectl.api("PATCH", f"{PODS}/web/status", body=RUNNING, content_type=MERGE)


WAITS: dict[str, tuple[list[str], Callable[[Kubectl], Any]]] = {
    "a condition": (["--for=condition=Ready"], becomes_ready),
    "a field": (["--for=jsonpath={.status.phase}=Running"], becomes_ready),
    "a deletion": (["--for=delete"], lambda k: k.api("DELETE", f"{PODS}/web")),
}


@pytest.mark.parametrize(("condition", "happens"), WAITS.values(), ids=WAITS.keys())
def test_wait_ends_when_it_happens(kubectl: Kubectl, condition: list[str], happens: Callable[[Kubectl], Any]) -> None:
    kubectl.api("POST", PODS, body=pod())
    process = kubectl.start("wait", "pod/web", "--timeout=20s", *condition)
    happens(kubectl)
    _, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err


def test_delete_waits_until_the_pod_is_removed(kubectl: Kubectl) -> None:
    kubectl.api("POST", PODS, body=pod())
    assert kubectl("delete", "pod", "web") == 'pod "web" deleted\n'
    assert kubectl("get", "pods") == ""


def test_a_server_side_dry_run_stores_nothing(kubectl: Kubectl) -> None:
    assert kubectl("create", "-f", "-", "--dry-run=server", given=pod()) == "pod/web created (server dry run)\n"
    assert 'pods "web" not found' in kubectl("get", "pod", "web", fails=True)


def test_a_refusal_is_shown_in_the_servers_words(kubectl: Kubectl) -> None:
    body = pod(nodeName="n1", schedulingGates=[{"name": "example.com/g"}])
    shown = kubectl("create", "-f", "-", given=body, fails=True)
    assert "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared" in shown


def test_logs(kubectl: Kubectl) -> None:
    kubectl.server.api.log_provider = lambda *_: "hello\n"
    run_pod(kubectl)
    assert kubectl("logs", "web") == "hello\n"


def test_can_i(kubectl: Kubectl) -> None:
    robot = User("system:serviceaccount:default:robot")
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    process = kubectl.start("auth", "can-i", "create", "pods", user=robot)
    assert process.communicate(timeout=_SECONDS)[0] == "no\n"
    assert "cannot list resource" in kubectl("get", "pods", user=robot, fails=True)


def test_api_resources_and_a_custom_kind(kubectl: Kubectl) -> None:
    assert re.search(r"^deployments\s+deploy\s+apps/v1\s+true\s+Deployment", kubectl("api-resources"), re.MULTILINE)
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "additionalPrinterColumns": [column]}
    names = {"plural": "things", "kind": "Thing", "shortNames": ["th"]}
    spec = {"group": "example.com", "scope": "Cluster", "names": names}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {**spec, "versions": [{**version, "schema": {"openAPIV3Schema": schema}}]},
    }
    kubectl("apply", "-f", "-", given=definition)
    kubectl("wait", "--for=condition=Established", "crd/things.example.com", "--timeout=20s")
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 3}}
    assert kubectl("apply", "-f", "-", given=thing) == "thing.example.com/t created\n"
    assert columns(kubectl("get", "th")) == [["NAME", "SIZE"], ["t", "3"]]
    thing["spec"] = {"size": 4}
    assert kubectl("apply", "-f", "-", given=thing) == "thing.example.com/t configured\n"


def test_all_shows_workloads(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=deployment())
    assert "deployment.apps/web" in kubectl("get", "all")


def test_a_namespace_is_created_and_deleted(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "team")
    kubectl("-n", "team", "create", "configmap", "m", "--from-literal=a=b")
    kubectl("delete", "namespace", "team")
    assert 'namespaces "team" not found' in kubectl("get", "namespace", "team", fails=True)
