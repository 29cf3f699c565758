"""The volumes of pods with a share, for the limiters that keep them within it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from contract.metrics import metrics_of
from runtime.metrics import Metrics
from runtime.settings import SettingsError, load
from tests.unit.webhook.builders import container, patched, pod, review
from webhook.admission.admit import Configuration
from webhook.admission.containers import NO_VOLUMES, Volumes, with_volumes
from webhook.serving.application import create_app
from webhook.serving.asking import UNREACHABLE, Allocator, NoAnswer
from webhook.serving.health import Health
from webhook.settings import ServeSettings

JSON = dict[str, Any]
KEEPS_NO_NODE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
ALL = Volumes(cache=True, host_paths=frozenset(("mps", "preload")))


def made(**spec: Any) -> JSON:
    return {"spec": {"containers": [{"name": "main"}, {"name": "side"}], **spec}}


CACHE = {"name": "gpufraction-cache", "emptyDir": {"sizeLimit": "64Mi"}}
CACHED = {
    "name": "main",
    "volumeMounts": [{"name": "gpufraction-cache", "mountPath": "/var/lib/gpufraction"}],
    "env": [{"name": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/var/lib/gpufraction/main.cache"}],
}
SOCKETS = [
    {"name": "gpufraction-mps", "mountPath": "/tmp/nvidia-mps", "subPathExpr": "$(NVIDIA_VISIBLE_DEVICES)/pipe"},
    {"name": "gpufraction-shm", "mountPath": "/dev/shm"},
]
LIBRARY = [
    {"name": "gpufraction-library", "mountPath": "/usr/local/vgpu/libvgpu.so", "readOnly": True},
    {"name": "gpufraction-preload", "mountPath": "/etc/ld.so.preload", "readOnly": True},
]


def host_path(name: str, path: str, kind: str) -> JSON:
    return {"name": f"gpufraction-{name}", "hostPath": {"path": path, "type": kind}}


SHARING: dict[str, tuple[Volumes, JSON, list[JSON]]] = {
    "a folder for the shared region": (Volumes(cache=True), CACHED, [CACHE]),
    "the sockets of MPS": (
        Volumes(host_paths=frozenset(("mps",))),
        {"name": "main", "volumeMounts": SOCKETS},
        [
            host_path("mps", "/run/gpufraction/mps", "DirectoryOrCreate"),
            host_path("shm", "/run/gpufraction/mps/shm", "DirectoryOrCreate"),
        ],
    ),
    "the library, which must be there": (
        Volumes(host_paths=frozenset(("preload",))),
        {"name": "main", "volumeMounts": LIBRARY, "env": [{"name": "LIBCUDA_LOG_LEVEL", "value": "0"}]},
        [
            host_path("library", "/var/lib/gpufraction/preload/libvgpu.so", "File"),
            host_path("preload", "/var/lib/gpufraction/preload/ld.so.preload", "File"),
        ],
    ),
}


@pytest.mark.parametrize(("what", "main", "volumes"), SHARING.values(), ids=SHARING.keys())
def test_a_container_with_a_share_gets_it_and_no_other_does(what: Volumes, main: JSON, volumes: list[JSON]) -> None:
    before = made()
    untouched = copy.deepcopy(before)
    after = with_volumes(before, {"main"}, what)
    assert after["spec"] == {"containers": [main, {"name": "side"}], "volumes": volumes}
    assert after["metadata"] == {"annotations": {KEEPS_NO_NODE: ",".join(each["name"] for each in volumes)}}
    assert before == untouched


def test_init_containers_with_a_share_get_it_too() -> None:
    found = with_volumes(made(initContainers=[{"name": "warm"}]), {"warm"}, Volumes(cache=True))["spec"]
    assert found["initContainers"][0]["volumeMounts"] == CACHED["volumeMounts"]
    assert found["containers"] == made()["spec"]["containers"]


def test_what_a_tenant_writes_under_our_names_and_paths_is_replaced() -> None:
    own = {"name": "data", "emptyDir": {}}
    evil = {"name": "gpufraction-cache", "hostPath": {"path": "/"}}
    mounts = [{"name": "data", "mountPath": "/dev/shm"}, {"name": "data", "mountPath": "/data"}]
    env = [{"name": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/mine"}, {"name": "A", "value": "b"}]
    before = made(containers=[{"name": "main", "volumeMounts": mounts, "env": env}], volumes=[evil, own])
    found = with_volumes(before, {"main"}, ALL)["spec"]
    [main] = found["containers"]
    assert main["volumeMounts"] == [mounts[1], *CACHED["volumeMounts"], *SOCKETS, *LIBRARY]
    assert main["env"] == [*CACHED["env"], {"name": "LIBCUDA_LOG_LEVEL", "value": "0"}, env[1]]
    assert found["volumes"][:2] == [own, CACHE]


def test_a_second_pass_changes_nothing_whatever_came_behind_it() -> None:
    once = with_volumes(made(), {"main"}, ALL)
    assert with_volumes(once, {"main"}, ALL) == once
    once["spec"]["volumes"].append({"name": "injected", "emptyDir": {}})
    once["spec"]["containers"][0]["volumeMounts"].append({"name": "injected", "mountPath": "/injected"})
    assert with_volumes(once, {"main"}, ALL) == once


def test_volumes_that_the_author_let_go_stay_named() -> None:
    before = {**made(), "metadata": {"annotations": {KEEPS_NO_NODE: "data,gpufraction-cache", "team": "a"}}}
    after = with_volumes(before, {"main"}, Volumes(cache=True, host_paths=frozenset(("mps",))))
    named = "data,gpufraction-cache,gpufraction-mps,gpufraction-shm"
    assert after["metadata"]["annotations"] == {KEEPS_NO_NODE: named, "team": "a"}


def test_where_nothing_is_set_nothing_is_touched() -> None:
    before = made()
    assert with_volumes(before, {"main"}, NO_VOLUMES) is before


@pytest.mark.parametrize("share", [True, False])
def test_by_admission(share: bool) -> None:
    asks = pod(container(gpufraction_io__gpu_memory="1Gi") if share else container())
    app = create_app(
        lambda: Configuration(volumes=ALL),
        Allocator(lambda question, within: NoAnswer(UNREACHABLE)),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    client = app.test_client()
    response = json.loads(client.post("/mutate", data=json.dumps(review(asks))).data)["response"]
    after = patched(asks, response) if "patch" in response else asks
    assert len(after["spec"].get("volumes") or []) == (5 if share else 0)
    again = json.loads(client.post("/mutate", data=json.dumps(review(after))).data)["response"]
    assert "patch" not in again or patched(after, again) == after


def test_settings() -> None:
    found = load(ServeSettings, file=None, env={}, argv=["--limiter-cache=true", "--host-paths=mps,preload"])
    assert found.configuration().volumes == ALL
    with pytest.raises(SettingsError, match="host_paths has 'all'; give mps, preload or both"):
        load(ServeSettings, file=None, env={}, argv=["--host-paths=all"])
