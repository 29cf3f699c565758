"""
The Helm chart has the same objects as the kustomizations, to the last field: real Helm compared with real kustomize.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.components import COMPONENTS as TABLE
from contract.components import component, with_brought
from contract.options import pool_options
from tests.unit.manifests import kube
from tests.unit.release import helm

pytestmark = pytest.mark.helm
JSON = dict[str, Any]
COMPONENTS, OVERLAYS = kube.below("components"), kube.below("overlays")


def needed(*components: str) -> list[str]:
    """
    These components and those that they need, in the chart's order, without those that kustomize includes by itself.
    """
    found = {*components, *(other for name in components for other in component(name).needs)}
    return sorted(found - ({"external-certificates"} if "cert-manager" in components else set()))


def agree(tmp_path: Path, components: Sequence[str]) -> None:
    chart = helm.rendered(tmp_path, {**helm.AS_KUSTOMIZE, "components": {name: True for name in components}})
    assert helm.by_name(chart) == helm.by_name(kube.with_components(*components))


def test_the_base(tmp_path: Path) -> None:
    assert helm.by_name(helm.rendered(tmp_path, helm.AS_KUSTOMIZE)) == helm.by_name(kube.built())


@pytest.mark.parametrize("name", COMPONENTS)
def test_each_component(tmp_path: Path, name: str) -> None:
    agree(tmp_path, needed(name))


@pytest.mark.parametrize("name", OVERLAYS)
def test_each_overlay(tmp_path: Path, name: str) -> None:
    chart = helm.rendered(tmp_path, {**helm.AS_KUSTOMIZE, "overlay": name})
    assert helm.by_name(chart) == helm.by_name(kube.built(f"overlays/{name}"))


def everything(*without: str) -> list[str]:
    """All components except these, and except the profile, which includes some of the others."""
    return [name for name in COMPONENTS if name not in (*without, "multitenant")]


@pytest.mark.parametrize(
    "components",
    [
        everything("host-network", "external-certificates"),
        everything("port-10250", "cert-manager"),
        needed(*everything("host-network")[::2]),
        needed(*everything("host-network")[1::2]),
        needed("preload", "startup-taint", "holders"),
        needed("mps", "nvidia-runtimeclass"),
        ["multitenant", "startup-taint", "ui"],
    ],
    ids=["all", "all-by-the-host's-network", "every-second", "the-others", "three", "two", "the-profile"],
)
def test_components_together(tmp_path: Path, components: list[str]) -> None:
    agree(tmp_path, components)


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "cert-manager"])
def test_each_overlay_with_components(tmp_path: Path, name: str) -> None:
    # Kustomize adds an overlay's components first. So its arguments may have another order than the chart's, and it
    # cannot keep the order of two components that need one: mps comes before nvidia-runtimeclass.
    refused = {each.name for each in TABLE if name in each.excluded_by}
    [own] = kube.documents(kube.MANIFESTS / "overlays" / name / "kustomization.yaml")
    have = set(with_brought(Path(path).name for path in own.get("components", ())))
    late = {"mps"} if "nvidia-runtimeclass" in have else set()
    components = sorted({*everything("host-network", "external-certificates", *refused)} - have - late)
    chart = helm.rendered(
        tmp_path, {**helm.AS_KUSTOMIZE, "overlay": name, "components": {other: True for other in components}}
    )
    built = kube.with_components(*components, resource=f"overlays/{name}")
    assert helm.by_name(sorted_arguments(chart)) == helm.by_name(sorted_arguments(built))


def sorted_arguments(items: list[JSON]) -> list[JSON]:
    for item in items:
        pod = item.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            container["args"] = sorted(container.get("args", ()))
            container["env"] = sorted(container.get("env", ()), key=lambda each: each["name"])
            container["volumeMounts"] = sorted(container.get("volumeMounts", ()), key=lambda each: each["mountPath"])
        pod["volumes"] = sorted(pod.get("volumes", ()), key=lambda each: each["name"])
    return items


def test_by_default_the_namespace_is_helms_and_definitions_are_kept(tmp_path: Path) -> None:
    default, whole = helm.by_name(helm.rendered(tmp_path)), helm.by_name(helm.rendered(tmp_path, helm.AS_KUSTOMIZE))
    assert whole.keys() - default.keys() == {("Namespace", "", "gpufraction-system")}
    changed = {name: item for name, item in default.items() if item != whole[name]}
    assert {kind for kind, _, _ in changed} == {"CustomResourceDefinition"}
    for name, item in changed.items():
        assert item["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert item == whole[name]


def test_without_definitions(tmp_path: Path) -> None:
    found = helm.rendered(tmp_path, {"crds": {"install": False}})
    assert kube.of(found, "CustomResourceDefinition") == []


def settings_of(program: str, **given: str) -> JSON:
    """A patch of the program's ConfigMap."""
    metadata = {"name": f"gpufraction-{program}-settings", "namespace": "gpufraction-system"}
    data = {f"GPUFRACTION_{name}": value for name, value in given.items()}
    return {"patch": yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})}


def pod_metadata(item: JSON) -> JSON:
    """The metadata of the pods that an object creates."""
    return dict(item.get("spec", {}).get("template", {}).get("metadata", {}))


DIGEST = "sha256:" + "a" * 64
VALUES: dict[str, tuple[JSON, JSON]] = {
    "image": (
        {"image": {"name": "r.example:5000/a/gpufraction", "tag": "1.2.3"}},
        {"images": [{"name": "gpufraction", "newName": "r.example:5000/a/gpufraction", "newTag": "1.2.3"}]},
    ),
    "digest": (
        {"image": {"name": "r.example/gpufraction", "tag": "", "digest": DIGEST}},
        {"images": [{"name": "gpufraction", "newName": "r.example/gpufraction", "digest": DIGEST}]},
    ),
    "another-projects-image": (
        {
            "images": {"hami": {"name": "r.example/hami", "tag": "", "digest": DIGEST}},
            "components": {"preload": True, "node-access": True},
        },
        {
            "images": [{"name": "docker.io/projecthami/hami", "newName": "r.example/hami", "digest": DIGEST}],
            "components": ["node-access", "preload"],
        },
    ),
    "replicas": ({"replicas": 3}, {"replicas": [{"name": "gpufraction", "count": 3}]}),
    "pull-secrets": (
        {"image": {"pullSecrets": [{"name": "registry"}]}},
        {
            "patches": [
                {
                    "target": {"kind": "Deployment|DaemonSet"},
                    "patch": json.dumps(
                        [{"op": "add", "path": "/spec/template/spec/imagePullSecrets", "value": [{"name": "registry"}]}]
                    ),
                }
            ]
        },
    ),
    "resources": (
        {"resources": {"webhook": {"limits": {"memory": "512Mi"}}}},
        {
            "patches": [
                {
                    "target": {"kind": "Deployment", "name": "gpufraction"},
                    "patch": json.dumps(
                        [
                            {
                                "op": "replace",
                                "path": "/spec/template/spec/containers/0/resources/limits/memory",
                                "value": "512Mi",
                            }
                        ]
                    ),
                }
            ]
        },
    ),
    "settings": (
        {
            "settings": {
                "webhook": {"runtime_class": "nvidia", "host_paths": ["mps", "preload"]},
                "allocator": {
                    "queue": {"order": "fair", "memory": 67108864, "memory_total": "384Mi"},
                    "claims": True,
                    "starvation_timeout": "0s",
                },
                "nodeagent": {"limiters": {"host_paths": True}, "xid_ignore": ["13", "31"]},
            }
        },
        {
            "patches": [
                settings_of("webhook", RUNTIME_CLASS="nvidia", HOST_PATHS="mps,preload"),
                settings_of(
                    "allocator",
                    QUEUE_ORDER="fair",
                    QUEUE_MEMORY="67108864",
                    QUEUE_MEMORY_TOTAL="384Mi",
                    CLAIMS="true",
                    STARVATION_TIMEOUT="0s",
                ),
                settings_of("nodeagent", LIMITERS_HOST_PATHS="true", XID_IGNORE="13,31"),
            ]
        },
    ),
    "arguments": (
        {
            "args": {
                "allocator": ["--preemption=true", "--delivery=env-class-cdi:nvidia=k8s.device-plugin.nvidia.com/gpu"]
            }
        },
        {
            "patches": [
                {
                    "target": {"kind": "Deployment", "name": "gpufraction"},
                    "patch": json.dumps(
                        [
                            {"op": "add", "path": "/spec/template/spec/containers/1/args/-", "value": value}
                            for value in (
                                "--preemption=true",
                                "--delivery=env-class-cdi:nvidia=k8s.device-plugin.nvidia.com/gpu",
                            )
                        ]
                    ),
                }
            ]
        },
    ),
    "where-agents-run": (
        {
            "nodeSelector": {"nodeagent": {"pool": "gpu", "on": "true", "kubernetes.io/os": "other"}},
            "tolerations": {"admission": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}]},
        },
        {
            "patches": [
                {
                    "target": {"kind": "DaemonSet", "name": "gpufraction-nodeagent"},
                    "patch": json.dumps(
                        [
                            {"op": "add", "path": "/spec/template/spec/nodeSelector/pool", "value": "gpu"},
                            {"op": "add", "path": "/spec/template/spec/nodeSelector/on", "value": "true"},
                            {
                                "op": "replace",
                                "path": "/spec/template/spec/nodeSelector/kubernetes.io~1os",
                                "value": "other",
                            },
                        ]
                    ),
                },
                {
                    "target": {"kind": "Deployment", "name": "gpufraction"},
                    "patch": json.dumps(
                        [
                            {
                                "op": "add",
                                "path": "/spec/template/spec/tolerations/-",
                                "value": {"key": "system", "operator": "Exists", "effect": "NoSchedule"},
                            }
                        ]
                    ),
                },
            ]
        },
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_do_what_a_patch_does(tmp_path: Path, name: str) -> None:
    values, kustomization = VALUES[name]
    chart = helm.rendered(tmp_path, {**helm.AS_KUSTOMIZE, **values})
    components = kustomization.pop("components", [])
    assert helm.by_name(without_checksums(chart)) == helm.by_name(kube.with_components(*components, **kustomization))


def without_checksums(items: list[JSON]) -> list[JSON]:
    """Without the annotations that make pods restart, which no kustomization has."""
    for item in items:
        metadata = item.get("spec", {}).get("template", {}).get("metadata", {})
        if metadata.get("annotations", {}).pop("checksum/settings", None) and not metadata["annotations"]:
            del metadata["annotations"]
    return items


def test_new_settings_start_the_pods_of_their_program_again(tmp_path: Path) -> None:
    def checksums(settings: JSON) -> dict[str, str]:
        found = helm.rendered(tmp_path, {"settings": settings})
        metadata = {name: pod_metadata(item) for (_, _, name), item in helm.by_name(found).items()}
        sums = {name: each.get("annotations", {}).get("checksum/settings") for name, each in metadata.items()}
        return {name: each for name, each in sums.items() if each}

    one, other = checksums({"webhook": {"dra": True}}), checksums({"allocator": {"dra": True}})
    assert (list(one), list(other), one != other) == (["gpufraction"], ["gpufraction"], True)
    assert list(checksums({"nodeagent": {"interval": "5s"}})) == ["gpufraction-nodeagent"]
    assert checksums({}) == {}


@pytest.mark.parametrize("overlay", ["", "hami-compat"])
def test_options_are_the_document(tmp_path: Path, overlay: str) -> None:
    options: JSON = {
        "deviceSplitCount": 10,
        "deviceMemoryScaling": 1.5,
        "pools": [{"name": "a", "nodeSelector": {"matchLabels": {"on": "true"}}, "node": {"max": 3}, "spare": 1}],
    }
    found = helm.rendered(tmp_path, {"options": options, "overlay": overlay})
    document = yaml.safe_load(kube.one(found, "ConfigMap", "gpufraction-options")["data"]["options.yaml"])
    assert document == options
    assert pool_options(document).pools[0].name == "a"


# -- what is refused -------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[JSON, str]] = {
    "a-field-that-there-is-not": ({"replica": 3}, "replica"),
    "a-word-as-a-number": ({"replicas": "three"}, "/replicas"),
    "an-unknown-component": ({"components": {"mpss": True}}, "mpss"),
    "a-component-that-is-not-true-or-false": ({"components": {"mps": "yes"}}, "/components/mps"),
    "an-unknown-overlay": ({"overlay": "gks"}, "/overlay"),
    "an-option-out-of-bounds": ({"options": {"deviceSplitCount": 2000}}, "/options/deviceSplitCount"),
    "an-option-in-a-pool": (
        {"options": {"pools": [{"name": "a", "nodeSelector": {"matchLabels": {"a": "b"}}, "migStrategy": "some"}]}},
        "/options/pools/0/migStrategy",
    ),
    "a-misspelt-option": ({"options": {"devicesplitcount": 10}}, "devicesplitcount"),
    "a-digest": ({"image": {"digest": "abc"}}, "/image/digest"),
    "pull-secrets-as-words": ({"image": {"pullSecrets": ["registry"]}}, "/image/pullSecrets/0"),
    "a-setting-with-a-wrong-word": ({"settings": {"allocator": {"queue": {"order": "size"}}}}, "/queue/order"),
    "a-setting-out-of-bounds": ({"settings": {"allocator": {"queue": {"memory": 1}}}}, "/allocator/queue/memory"),
    "a-setting-that-is-no-duration": ({"settings": {"nodeagent": {"interval": "5"}}}, "/nodeagent/interval"),
    "an-unknown-setting": ({"settings": {"webhook": {"runtimeclass": "nvidia"}}}, "runtimeclass"),
    "a-setting-that-the-manifests-give": ({"settings": {"webhook": {"socket": "/a"}}}, "socket"),
    "a-setting-without-dashes": ({"args": {"allocator": ["preemption=true"]}}, "/args/allocator/0"),
    "resources": ({"resources": {"webhook": {"limit": {"memory": "1Gi"}}}}, "/resources/webhook"),
    "a-toleration": ({"tolerations": {"nodeagent": [{"keys": "a"}]}}, "/tolerations/nodeagent/0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    values, field = WRONG[name]
    message = helm.refusal(tmp_path, values)
    assert "values.schema.json" in message or "schema" in message
    # Helm 3 wrote a field with dots until 3.18.
    assert field in message or field.removeprefix("/").replace("/", ".") in message


TOGETHER = [
    *(
        (f"components.{each.name} needs components.{other}: true", "", [each.name], {other: False})
        for each in TABLE
        for other in each.needs
    ),
    *(
        (f"components.{each.name} and components.{other} cannot be combined", "", [each.name, other], {})
        for each in TABLE
        for other in each.excludes
    ),
    *(
        (f"overlay: {overlay} and components.{each.name} cannot be combined", overlay, [each.name], {})
        for each in TABLE
        for overlay in each.excluded_by
    ),
    ("components.host-network and components.port-10250 cannot be combined", "gke", ["host-network"], {}),
]


@pytest.mark.parametrize(("message", "overlay", "on", "off"), TOGETHER, ids=[case[0][:60] for case in TOGETHER])
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, message: str, overlay: str, on: list[str], off: dict[str, bool]
) -> None:
    components = {**{name: True for name in on}, **off}
    assert message in helm.refusal(tmp_path, {"overlay": overlay, "components": components})


def test_a_component_of_an_overlay_can_be_left_out(tmp_path: Path) -> None:
    left = helm.rendered(tmp_path, {"overlay": "openshift", "components": {"nvidia-runtimeclass": False}})
    pod = kube.one(left, "DaemonSet", "gpufraction-nodeagent")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in pod


def test_another_namespace_is_refused(tmp_path: Path) -> None:
    assert "add --namespace gpufraction-system" in helm.refusal(tmp_path, {}, "--namespace", "default")


def test_lint_finds_nothing(tmp_path: Path) -> None:
    done = helm.run(tmp_path, "lint", "--strict", str(helm.package(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    ("components", "level"),
    [((), "restricted"), (("node-access",), "restricted"), (("host-network",), "privileged")],
)
def test_the_notes_say_the_namespaces_labels(tmp_path: Path, components: tuple[str, ...], level: str) -> None:
    if helm.is_third():
        pytest.skip("Helm 3 asks a cluster before it prints notes")
    values = {"components": {name: True for name in components}}
    arguments = ("install", "gpufraction", str(helm.package(tmp_path)), "--dry-run=client")
    done = helm.run(tmp_path, *arguments, values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert f"pod-security.kubernetes.io/enforce={level}" in notes
    assert "kubectl label --overwrite namespace gpufraction-system " in notes
    assert "shares are counted and nothing limits a program to" in notes


def test_the_pages_values_are_taken_and_its_refusal_is_what_helm_says(tmp_path: Path) -> None:
    text = (kube.ROOT / "docs/helm.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    values = yaml.safe_load(block)
    found = helm.rendered(tmp_path, values)
    assert kube.one(found, "ConfigMap", "gpufraction-allocator-settings")["data"] == {
        "GPUFRACTION_PLACEMENT_NODE_POLICY": "binpack",
        "GPUFRACTION_STARVATION_TIMEOUT": "10m",
    }
    pod = kube.one(found, "Deployment", "gpufraction")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    if not helm.is_third():
        wrong = {"options": {"deviceSplitCount": 2000}, "settings": {"allocator": {"queue": {"order": "size"}}}}
        message = helm.refusal(tmp_path, wrong)
        quoted = re.findall(r"`(at '.*)`\.", text)
        assert [len(quoted), [each for each in quoted if each not in message]] == [2, []]
