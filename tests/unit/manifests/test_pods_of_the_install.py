"""The pods of the installation: confined, with what they need, and with the image that holds their programs."""

from __future__ import annotations

import re

import yaml

from tests.unit.manifests.install import command, containers, pods, serve_settings
from tests.unit.manifests.kube import MANIFESTS, ROOT, of, one, sources
from webhook.serving.server import gunicorn_settings


def images_user() -> dict[str, int]:
    """The user and the group that the Containerfile ends with."""
    [named] = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    return {"runAsUser": int(named[0]), "runAsGroup": int(named[1])}


def test_every_pod_keeps_the_restricted_standard() -> None:
    for spec in pods():
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            **images_user(),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {kind for v in spec["volumes"] for kind in v if kind != "name"} <= {
            "emptyDir",
            "projected",
            "secret",
            "configMap",
        }
    for container in containers().values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_every_container_asks_for_what_it_needs_and_no_cpu_limit_throttles_it() -> None:
    for container in containers().values():
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}


def test_each_token_reaches_one_container_only() -> None:
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    tokens = {
        name: [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == place]
        for name, container in containers().items()
    }
    assert tokens == {"certs": ["token"], "webhook": [], "allocator": ["allocator-token"], "nodeagent": ["token"]}
    assert [spec["automountServiceAccountToken"] for spec in pods()] == [False, False, False]


def test_every_token_is_projected_and_ends_within_the_hour() -> None:
    volumes = [volume for spec in pods() for volume in spec["volumes"] if "token" in volume["name"]]
    ends = [s["serviceAccountToken"]["expirationSeconds"] for v in volumes for s in v["projected"]["sources"][:1]]
    assert ends == [3607, 3607, 3607]
    assert [item["type"] for item in of(sources(), "Secret")] == ["Opaque"]


def test_no_service_becomes_a_setting() -> None:
    assert [spec["enableServiceLinks"] for spec in pods()] == [False, False, False]


def test_a_stop_has_time_for_the_pause_and_the_webhooks_grace() -> None:
    spec = one(sources(), "Deployment", "gpufraction")["spec"]["template"]["spec"]
    pauses = {c["lifecycle"]["preStop"]["sleep"]["seconds"] for c in spec["containers"]}
    assert pauses == {5}
    assert spec["terminationGracePeriodSeconds"] >= 5 + gunicorn_settings(serve_settings())["graceful_timeout"]


def test_the_image_is_set_in_one_place() -> None:
    assert {container["image"] for container in containers().values()} == {"gpufraction"}
    [image] = yaml.safe_load((MANIFESTS / "base" / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    assert image == {"name": "gpufraction", "newTag": version[1]}


def test_the_image_holds_the_programs_that_the_manifests_start() -> None:
    stages = (ROOT / "Containerfile").read_text(encoding="utf-8").split("\nFROM ")
    copied = set(re.findall(r"^COPY ([\w/]+) \1$", stages[1], re.MULTILINE)) - {"release/image"}
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    page = yaml.safe_load((MANIFESTS / "components" / "ui" / "deployment.yaml").read_text(encoding="utf-8"))
    [container] = page["spec"]["template"]["spec"]["containers"]
    [recorder] = [
        each
        for each in yaml.safe_load_all((MANIFESTS / "shadow" / "deployment.yaml").read_text(encoding="utf-8"))
        if each["kind"] == "Deployment"
    ]
    pages = (container, recorder["spec"]["template"]["spec"]["containers"][0])
    started = {*(each["command"][2] for each in pages), *(command(name)[0] for name in containers())}
    assert copied == {"contract", "runtime", *started}
    texts = {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "requirements.lock", "release/image"}
    assert copied | texts == {line[1:] for line in ignored if line[:1] == "!"}
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", stages[2], re.MULTILINE)
