"""
What kubelet tells dcgm-exporter and other monitors about its pods' devices: the API PodResources (v1).

It is read with the playground's few lines of protobuf, so that the agent's own code is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playground.programs.kubeletplugin import call, one_text, values

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_SERVICE = "v1.PodResourcesLister"
_PODS = 1
_POD_NAME, _POD_NAMESPACE, _CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _PLUGIN_DEVICES, _CLAIMS = 1, 2, 5
_CLAIM_NAME, _CLAIM_NAMESPACE, _CLAIM_DEVICES = 2, 3, 4
_CDI_DEVICES, _DRIVER, _POOL, _DEVICE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """
    A device of a ResourceClaim of which a container uses a part. Kubelet does not say whether the container uses this
    device. `cdi`: names by which the runtime adds devices, for this one and for those listed before it.
    """

    claim_namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """`claims`: devices from ResourceClaims. `plugins`: resources of the device plugins that gave it devices."""

    claims: tuple[ClaimDevice, ...] = ()
    plugins: tuple[str, ...] = ()


def pod_resources(socket: Path) -> dict[tuple[str, str, str], ContainerDevices]:
    """What kubelet's socket lists, by namespace, pod and container. Raises `PluginError`."""
    found = {}
    for pod in values(call(socket, _SERVICE, "List", b""), _PODS):
        namespace, name = one_text(pod, _POD_NAMESPACE), one_text(pod, _POD_NAME)
        for container in values(pod, _CONTAINERS):
            plugins = tuple(one_text(device, 1) for device in values(container, _PLUGIN_DEVICES))
            devices = ContainerDevices(tuple(_claim_devices(container)), plugins)
            found[namespace, name, one_text(container, _CONTAINER_NAME)] = devices
    return found


def _claim_devices(container: bytes) -> Iterator[ClaimDevice]:
    for claim in values(container, _CLAIMS):
        for device in values(claim, _CLAIM_DEVICES):
            yield ClaimDevice(
                claim_namespace=one_text(claim, _CLAIM_NAMESPACE),
                claim=one_text(claim, _CLAIM_NAME),
                driver=one_text(device, _DRIVER),
                pool=one_text(device, _POOL),
                device=one_text(device, _DEVICE),
                cdi=tuple(one_text(each, 1) for each in values(device, _CDI_DEVICES)),
            )
