"""
The ways of delivering GPUs to containers on a node, each as an administrator of NVIDIA's container toolkit configures
it.

The programs are NVIDIA's own. The driver is our own library in the node's files, from which they learn the cards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from playground.programs.process import Program
from playground.waiting import wait_for
from tests.cluster.realnode.assets import NodeAssets
from tests.cluster.realnode.machine import Machine, NoMachine

JSON = dict[str, Any]
DRIVER = "550.54.15"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
DESCRIPTION = "/var/run/cdi/nvidia.yaml"
PLUGIN_KIND = "k8s.device-plugin.nvidia.com/gpu"


def _delivery(mode: str, classes: Sequence[str], kind: str, *, annotation: bool = False, claim: bool = False) -> JSON:
    return {
        "byAnnotation": annotation,
        "byClaim": claim,
        "cdiKind": kind,
        "modes": [mode],
        "mounts": "",
        "oneGpuPerContainer": False,
        "partitions": False,
        "runtimeClasses": list(classes),
    }


@dataclass(frozen=True, slots=True)
class Way:
    """
    `mode`: of the toolkit's runtime; empty if it is not installed. `kind`: of the existing CDI description. `label`:
    whether the Node has the label for delivery by ResourceClaims. `agent`: flags of the agent. `pod`: fields that a pod
    with a share must set itself. `needs`: a program of the folder that not every way needs.
    """

    delivery: JSON
    mode: str = ""
    kind: str = ""
    agent: tuple[str, ...] = ()
    pod: Mapping[str, str] = field(default_factory=dict)
    plugin: bool = False
    label: bool = False
    needs: tuple[str, ...] = ()


_CLASS = {"runtimeClassName": "nvidia"}
WAYS = {
    "cdi": Way(_delivery("env-class-cdi", ["nvidia"], "nvidia.com/gpu"), "cdi", "nvidia.com/gpu", pod=_CLASS),
    # As installed: the runtime generates the cards' description itself whenever a container starts.
    "auto": Way(_delivery("env-class", ["nvidia"], ""), "auto", pod=_CLASS),
    # As in NVIDIA's GPU operator with cdi.nriPluginEnabled; the description is the device plugin's.
    "nri": Way(
        _delivery("nri-annotation", [""], PLUGIN_KIND, annotation=True),
        kind=PLUGIN_KIND,
        agent=("--delivery", f"nri:{PLUGIN_KIND}"),
        plugin=True,
        needs=("nvidia-ctk-installer",),
    ),
    # Without NVIDIA's runtime: kubelet asks the agent for the devices of the pod's ResourceClaim.
    "dra": Way(
        _delivery("dra", [""], "nvidia.com/gpu", claim=True),
        kind="nvidia.com/gpu",
        agent=("--kubelet", "/var/lib/kubelet"),
        label=True,
        needs=("kube-scheduler",),
    ),
}


def install(way: Way, assets: NodeAssets, machine: Machine) -> Program | None:
    """Make the node deliver GPUs that way. Returns the program that must run meanwhile, if there is one."""
    machine.run(["rm", "-f", TOOLKIT, DESCRIPTION])
    without = _without(machine)
    if way.mode:
        machine.write(TOOLKIT, _configuration(assets, way.mode, without))
    if way.kind:
        vendor, _, name = way.kind.partition("/")
        generate = [
            "cdi",
            "generate",
            "--mode=nvml",
            f"--vendor={vendor}",
            f"--class={name}",
            f"--output={DESCRIPTION}",
        ]
        generate += [f"--disable-hook={name}" for name in without]
        hook = f"--nvidia-cdi-hook-path={assets.program('nvidia-cdi-hook')}"
        done = machine.run([assets.program("nvidia-ctk"), *generate, hook])
        if done.returncode:
            raise NoMachine(f"nvidia-ctk describes no cards: {done.stdout}")
    return _plugin(assets, machine) if way.plugin else None


def _without(machine: Machine) -> tuple[str, ...]:
    """Hooks that the administrator of such a node must leave out: with version 1 this one fails every container."""
    unified = machine.run(["test", "-e", "/sys/fs/cgroup/cgroup.controllers"]).returncode == 0
    return () if unified else ("apply-cuda-memory-limits",)


def _configuration(assets: NodeAssets, mode: str, without: Sequence[str]) -> str:
    return f"""\
[nvidia-container-runtime]
mode = "{mode}"
runtimes = ["{assets.program("runc")}"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-disable-hooks = {json.dumps(list(without))}
[nvidia-container-runtime-hook]
path = "{assets.program("nvidia-container-runtime-hook")}"
[nvidia-ctk]
path = "{assets.program("nvidia-ctk")}"
"""


def _plugin(assets: NodeAssets, machine: Machine) -> Program:
    """The toolkit's NRI plugin, which is a part of its installer."""
    source = machine.folder / "artifacts"
    (source / "usr/bin").mkdir(parents=True, exist_ok=True)
    for program in assets.folder.glob("nvidia-*"):
        link = source / "usr/bin" / program.name
        if not link.exists():
            link.symlink_to(program.resolve())
    flags = ["--enable-nri-plugin", "--nri-namespace=gpu-operator", "--nri-socket=/var/run/nri/nri.sock"]
    flags += [f"--toolkit-source-root={source}", "--toolkit-install-dir=/opt/nri", "--ignore-errors"]
    flags += ["--pid-file=/run/nvidia/toolkit/toolkit.pid", "--driver-root=/", "--restart-mode=none"]
    plugin = machine.program("nri-plugin", [assets.program("nvidia-ctk-installer"), *flags])
    plugin.start()

    def started() -> bool:
        plugin.check()
        return "Started plugin" in plugin.tail()

    wait_for(started, lambda: f"NVIDIA's NRI plugin does not start: {plugin.tail()}")
    return plugin
