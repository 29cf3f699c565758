"""Which delivery the agent concludes from the files of each kind of cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract.model import Delivery
from nodeagent.isolation.delivery import NONE, BadOverride, conclude, parse
from nodeagent.isolation.probing import Prober
from runtime.kubernetes.paths import runtimeclasses
from tests.unit.nodeagent.cluster import Cluster

OPERATOR = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
PACKAGE = "etc/nvidia-container-runtime/config.toml"
AUTO = '[nvidia-container-runtime]\nmode = "auto"\n'
BY_CDI = """
[nvidia-container-runtime]
mode = "cdi"
[nvidia-container-runtime.modes.cdi]
default-kind = "management.nvidia.com/gpu"
"""
DEFAULT_V2 = '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
DEFAULT_V3 = "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n"
RUNC = '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n'
SPEC = '{"kind": "k8s.device-plugin.nvidia.com/gpu", "devices": [{"name": "GPU-0"}, {"name": "all"}]}'
DEAF = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
RUN_HOOK = "run/containers/oci/hooks.d/oci-nvidia-hook.json"
HOOKED = '{"hook": {"path": "nvidia-container-runtime-hook"}}'
CRIO = "etc/crio/crio.conf.d/50-ours"
CONTAINERD = "etc/containerd/config.toml"
BY_INDEX = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0'}, {name: all}]\n"
BY_UUID = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0'}, {name: GPU-0}]\n"
MANAGEMENT = "kind: management.nvidia.com/gpu\ndevices: [{name: all}]\n"
NVIDIA = {"nvidia": "nvidia", "kata": "kata-qemu"}


@dataclass(frozen=True)
class Node:
    files: dict[str, str]
    want: Delivery | None
    classes: dict[str, str] = field(default_factory=dict)


NODES = {
    "no toolkit: nothing can be said": Node({CONTAINERD: DEFAULT_V2}, None, NVIDIA),
    "nvidia is containerd's default, as operators before 25.10 set it": Node(
        {OPERATOR: AUTO, CONTAINERD: DEFAULT_V2}, Delivery(("",))
    ),
    "the same with a class": Node({OPERATOR: AUTO, CONTAINERD: DEFAULT_V2}, Delivery(("", "nvidia")), NVIDIA),
    "the default in a drop-in of containerd 2": Node(
        {PACKAGE: AUTO, CONTAINERD: "version = 3\n", "etc/containerd/conf.d/99-nvidia.toml": DEFAULT_V3},
        Delivery(("",)),
    ),
    "AKS's name for the default": Node(
        {PACKAGE: AUTO, CONTAINERD: DEFAULT_V2.replace('"nvidia"', '"nvidia-container-runtime"')}, Delivery(("",))
    ),
    "a class only": Node({PACKAGE: AUTO, CONTAINERD: RUNC}, Delivery(("nvidia",)), NVIDIA),
    "neither a class nor the default": Node({PACKAGE: AUTO, CONTAINERD: RUNC}, NONE),
    "CRI-O by its hook": Node({PACKAGE: AUTO, HOOK: HOOKED, "etc/crio/crio.conf": ""}, Delivery(("",))),
    "CRI-O by its hook, in a folder that it is told": Node(
        {PACKAGE: AUTO, RUN_HOOK: HOOKED, CRIO: '[crio.runtime]\nhooks_dir = ["/var/run/containers/oci/hooks.d"]\n'},
        Delivery(("",)),
    ),
    "CRI-O with the hook in a folder that it does not read": Node({PACKAGE: AUTO, RUN_HOOK: HOOKED, CRIO: ""}, NONE),
    "a hook that a package left behind, where CRI-O is not": Node(
        {PACKAGE: AUTO, HOOK: HOOKED, CONTAINERD: RUNC}, Delivery(("nvidia",)), NVIDIA
    ),
    "CRI-O's default, set in one file and set back in a later one": Node(
        {
            PACKAGE: AUTO,
            "etc/crio/crio.conf": '[crio.runtime]\ndefault_runtime = "nvidia"\n',
            CRIO: '[crio.runtime]\ndefault_runtime = "crun"\n',
        },
        Delivery(("nvidia",)),
        NVIDIA,
    ),
    "CRI-O's configuration in a form that it would not take": Node(
        {PACKAGE: AUTO, HOOK: HOOKED, CRIO: "[crio.runtime]\nhooks_dir = 5\ndefault_runtime = [1]\n"}, NONE
    ),
    "CRI-O by its default": Node(
        {PACKAGE: AUTO, "etc/crio/crio.conf.d/99-nvidia.toml": '[crio.runtime]\ndefault_runtime = "nvidia"\n'},
        Delivery(("",)),
    ),
    "a class in CDI mode, as the operator sets it since 25.10": Node(
        {OPERATOR: BY_CDI, CONTAINERD: RUNC, "var/run/cdi/nvidia.json": SPEC, "var/run/cdi/m.yaml": MANAGEMENT},
        Delivery(("nvidia",), "k8s.device-plugin.nvidia.com/gpu"),
        NVIDIA,
    ),
    "the same without the operator's device plugin, which describes the cards": Node(
        {OPERATOR: BY_CDI, CONTAINERD: RUNC, "var/run/cdi/m.yaml": MANAGEMENT}, NONE, NVIDIA
    ),
    "CDI mode with devices by UUID": Node(
        {PACKAGE: BY_CDI, "etc/cdi/nvidia.yaml": BY_UUID}, Delivery(("nvidia",), "nvidia.com/gpu"), NVIDIA
    ),
    "CDI mode with devices by index only": Node({PACKAGE: BY_CDI, "etc/cdi/nvidia.yaml": BY_INDEX}, NONE, NVIDIA),
    "the variable of unprivileged containers is not heeded": Node(
        {PACKAGE: DEAF + AUTO, "etc/containerd/c.toml": DEFAULT_V2},
        NONE,
        NVIDIA,
    ),
    "the operator's configuration counts before the package's": Node(
        {OPERATOR: BY_CDI, PACKAGE: AUTO, CONTAINERD: DEFAULT_V2}, NONE
    ),
    "files that are no TOML and no CDI": Node(
        {PACKAGE: "= =", CONTAINERD: "[[", "etc/cdi/x": ": :"}, Delivery(("nvidia",)), NVIDIA
    ),
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES.keys())
def test_what_is_concluded(node: Node) -> None:
    assert conclude(node.files, node.classes) == node.want


OVERRIDES = {
    "none": NONE,
    "env-plain": Delivery(("",)),
    "env-class:nvidia": Delivery(("nvidia",)),
    "env-class-cdi:nvidia=nvidia.com/gpu": Delivery(("nvidia",), "nvidia.com/gpu"),
    "nri:nvidia.com/gpu": Delivery(("",), "nvidia.com/gpu", nri=True),
}


@pytest.mark.parametrize(("text", "want"), OVERRIDES.items())
def test_an_override_is_read(text: str, want: Delivery) -> None:
    assert parse(text) == want


@pytest.mark.parametrize("text", ["", "env", "env-class", "env-class-cdi:nvidia", "nri"])
def test_a_wrong_override_says_what_would_be_right(text: str) -> None:
    with pytest.raises(BadOverride, match="give none, env-plain, env-class:nvidia"):
        parse(text)


def test_a_runtime_under_another_name() -> None:
    files = {PACKAGE: AUTO, CONTAINERD: DEFAULT_V2.replace("nvidia", "gpu-runc")}
    classes = {"fast": "gpu-runc", **NVIDIA}
    found = [conclude(files, classes, handlers) for handlers in (("nvidia",), ("gpu-runc",), ("gpu-runc", "nvidia"))]
    assert found == [Delivery(("nvidia",)), Delivery(("", "fast")), Delivery(("", "fast", "nvidia"))]


def test_the_conclusion_follows_the_machine_and_the_cluster(tmp_path: Path) -> None:
    cluster = Cluster()
    prober = Prober(cluster.kube, root=tmp_path, every=60.0)
    assert prober.delivery(0.0) is None
    file = tmp_path / PACKAGE
    file.parent.mkdir(parents=True)
    file.write_text(AUTO)
    cluster.call("POST", runtimeclasses(), {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    assert [prober.delivery(at) for at in (59.0, 60.0)] == [None, Delivery(("nvidia",))]
    cluster.network.down = "unreachable"
    assert prober.delivery(120.0) == Delivery(("nvidia",)), "an API server that is away changes nothing"


def test_without_the_hosts_files_nothing_is_concluded_unless_it_is_set() -> None:
    cluster = Cluster()
    found = [Prober(cluster.kube, root=None, override=override).delivery(0.0) for override in (None, NONE)]
    assert (found, cluster.network.reads) == ([None, NONE], 0)
