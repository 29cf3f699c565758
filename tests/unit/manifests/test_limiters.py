"""The components with limiters for containers: settings, folders and rights fit together."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from contract import names
from nodeagent.isolation import preload
from nodeagent.mps.exchange import PIPE_IN_CONTAINER, ROOT
from nodeagent.settings import settings_type
from runtime.settings import effective, load
from tests.unit.manifests.kube import JSON, documents, one, with_components
from tests.unit.manifests.kube import ROOT as REPOSITORY
from webhook.admission import containers as volumes

COMPONENTS = REPOSITORY / "manifests/components"


def template(items: list[JSON], name: str) -> JSON:
    found: JSON = one(items, "DaemonSet", name)["spec"]["template"]["spec"]
    return found


def limiters_of(items: list[JSON]) -> JSON:
    env = {
        entry["name"]: entry.get("value", "n1")
        for entry in template(items, "gpufraction-nodeagent")["containers"][0]["env"]
    }
    ours = {name: value for name, value in env.items() if name.startswith("GPUFRACTION_")}
    return dict(effective(load(settings_type(), file=None, env=ours, argv=[]))["limiters"])


@pytest.fixture(scope="module")
def items() -> list[JSON]:
    return with_components("node-access", "mps", "preload", "nvidia-runtimeclass")


def test_the_agent_has_its_folders_under_the_paths_that_its_settings_name(items: list[JSON]) -> None:
    limiters = limiters_of(items)
    pod = template(items, "gpufraction-nodeagent")
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    folders = [limiters[name] for name in ("mps", "preload", "cdi")]
    assert [paths[mounts[path]["name"]] for path in folders] == folders
    assert folders[:2] == [ROOT, volumes.PRELOAD_ON_HOST]
    assert [bool(mounts[path].get("readOnly")) for path in folders] == [False, True, False]


def test_the_webhook_and_the_agent_mean_the_same_folders() -> None:
    given = volumes.with_volumes(
        {"spec": {"containers": [{"name": "main"}]}}, {"main"}, volumes.Volumes(True, frozenset(("mps", "preload")))
    )
    inside = {mount["mountPath"] for mount in given["spec"]["containers"][0]["volumeMounts"]}
    assert {PIPE_IN_CONTAINER, "/dev/shm", preload.LIBRARY_IN_CONTAINER, preload.PRELOAD_IN_CONTAINER} < inside
    assert volumes.MPS_ON_HOST == ROOT


def test_the_daemons_outlive_upgrades_and_run_only_where_they_are_wanted(items: list[JSON]) -> None:
    whole = one(items, "DaemonSet", "gpufraction-mps")["spec"]
    pod = template(items, "gpufraction-mps")
    [container] = pod["containers"]
    assert whole["updateStrategy"] == {"type": "OnDelete"}
    assert pod["nodeSelector"][names.MPS_NODE] == "enabled"
    assert (pod["hostPID"], container["securityContext"]["privileged"]) == (True, True)
    assert pod["automountServiceAccountToken"] is False, "it needs nothing of the API server"
    assert one(items, "ServiceAccount", pod["serviceAccountName"])["automountServiceAccountToken"] is False
    assert not any(subject["name"] == "gpufraction-mps" for item in items for subject in item.get("subjects", ()))
    assert "limits" not in container["resources"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {ROOT, "/dev/shm"}
    assert [template(items, name)["runtimeClassName"] for name in ("gpufraction-mps", "gpufraction-nodeagent")] == [
        "nvidia",
        "nvidia",
    ]
    agent = template(items, "gpufraction-nodeagent")["containers"][0]["image"]
    assert {agent} == {c["image"] for c in (*pod["containers"], *pod["initContainers"])}


def test_the_webhook_gives_the_cache_where_the_library_is(items: list[JSON]) -> None:
    [webhook] = [
        c
        for c in one(items, "Deployment", "gpufraction")["spec"]["template"]["spec"]["containers"]
        if c["name"] == "webhook"
    ]
    assert "--limiter-cache=true" in webhook["args"]


def init_script() -> str:
    [patch] = documents(COMPONENTS / "preload/agent.yaml")
    [init] = patch["spec"]["template"]["spec"]["initContainers"]
    assert init["command"][:2] == ["/bin/sh", "-ec"]
    return str(init["command"][2])


def copied(image: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = (
        init_script().replace("/k8s-vgpu/lib/nvidia", str(image)).replace("/var/lib/gpufraction/preload", str(folder))
    )
    return subprocess.run(["/bin/sh", "-ec", script], capture_output=True, text=True, timeout=60)


def test_what_the_init_container_copies_is_what_the_agent_takes(tmp_path: Path) -> None:
    image, folder = tmp_path / "image", tmp_path / "folder"
    image.mkdir()
    folder.mkdir()
    assert copied(image, folder).returncode != 0, "an image without the library is no success"
    library = preload.Library(folder, machine="x86_64")
    for version in (b"one", b"two"):
        content = b"\x7fELF\x02" + bytes(13) + (62).to_bytes(2, "little") + version
        (image / "libvgpu.so.v2.10.0").write_bytes(content)
        for _ in range(2):
            done = copied(image, folder)
            assert (done.returncode, done.stderr) == (0, "")
        name = f"libvgpu.so.{hashlib.sha256(content).hexdigest()[:12]}"
        found = library.look()
        assert (library.trouble, found) == ("", preload.Preloaded(folder / name, folder / "ld.so.preload"))
        assert (folder / "libvgpu.so").read_bytes() == content
    assert len(list(folder.glob("libvgpu.so.*"))) == 2, "the old one may be in use"
    (folder / name).write_bytes(b"cut off")
    assert copied(image, folder).returncode == 0
    assert library.look() is not None, "a file that is broken is copied again"
