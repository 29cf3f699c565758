"""
The settings of the two commands, each field with its meaning; read by `runtime.settings`.

Plain values only. What is computed from them is made where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from contract import names
from contract.isolation import WITH_VOLUMES, listed, quoted
from contract.options import MOVED_TO_OPTIONS, OPTIONS_SETTING
from runtime.scraping import ACCESS_SETTING, CERTIFICATES_SETTING
from runtime.settings import parse_address, setting
from webhook.admission.admit import Configuration
from webhook.admission.containers import Volumes
from webhook.certificates.authority import service_names
from webhook.certificates.store import Directories

_CERTIFICATES = Path("/run/gpufraction/certs")
_RENAMED = (
    "The same YAML file of options that the webhook reads. Its resource names are added to the webhook's match "
    "conditions; without them, the API server does not send such pods to the webhook. Reloaded when it changes."
)
_LATE = "a review waits 800 ms for the allocator in its own pod; after that, the pod is placed a moment later"
_SLOW = "a client has 5 s for each step; an API server needs milliseconds"


@dataclass(frozen=True)
class ServeSettings:
    """`python -m webhook serve`."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        **MOVED_TO_OPTIONS,
        "allocator_timeout": _LATE,
        "patience": _LATE,
        "threads": "a replica answers 16 reviews at the same time; add replicas for more",
        "grace": "running reviews have 20 s to finish at a stop, as the pod's grace period allows",
        "client_timeout": _SLOW,
        "silence": _SLOW,
    }
    bind: str = setting("[::]:9443", "Address and port to listen on; private GKE clusters already open 10250.")
    listen: str = setting("[::]:9444", "Address and port of /metrics, /healthz and /readyz; empty serves none.")
    metrics_access: Literal["token", "open"] = setting("token", ACCESS_SETTING)
    metrics_certificates: Path | None = setting(None, CERTIFICATES_SETTING)
    certificates: Path = setting(_CERTIFICATES, "Directory with tls.crt and tls.key; reloaded when they change.")
    socket: Path = setting(Path("/run/gpufraction/socket/allocator.sock"), "The allocator's unix socket.")
    client_ca: Path | None = setting(
        None,
        "PEM file of the authorities that must have signed the certificates of clients that send reviews; empty: "
        "anyone may send reviews. Reloaded when it changes. The API server shows a certificate if its admission "
        "configuration says so.",
    )
    client_names: tuple[str, ...] = setting(
        (),
        "Allowed names of clients: a certificate must have one of them as its common name or a DNS name. Empty: every "
        "certificate that `client_ca` signed is allowed; the cluster's own authority also signs those of all kubelets "
        "and of many people.",
    )
    hide_gpus: bool = setting(
        False,
        "Give pods that request no share NVIDIA_VISIBLE_DEVICES=void, for nodes whose default runtime is NVIDIA's. "
        "The API server must send these pods to the webhook too: manifests/components/hide-gpus does both.",
    )
    runtime_class: str = setting(
        "",
        "RuntimeClass for pods with a share that name none, for clusters whose GPU nodes inject GPUs only under a "
        "class such as `nvidia`; it must exist. Empty: none.",
    )
    least_isolation: Literal["", "driver", "mps", "preload", "watch"] = setting(
        "",
        "The weakest level of isolation for pods with a share: the annotation gpufraction.io/isolation is set to this "
        "level if it is absent or weaker, so the pod waits if no node enforces the level. "
        "manifests/components/multitenant sets `watch`. Empty: the annotation is not changed.",
    )
    toolkit_limits: bool = setting(
        False,
        "Give containers with a share NVIDIA_GPU_MEMORY_REQUEST and NVIDIA_GPU_MEMORY_LIMIT: with these, NVIDIA's "
        "container toolkit 1.20.1 and later has the driver enforce the limit where GPUs are delivered by CDI. Set it "
        "only if every GPU node has driver 615 and cgroup v2: on other nodes, the toolkit fails the container's start.",
    )
    limiter_cache: bool = setting(
        False,
        "Give containers with a share a folder for the shared region of HAMi-core, an emptyDir of their pod; "
        "manifests/components/preload sets it.",
    )
    host_paths: tuple[str, ...] = setting(
        (),
        f"Which of {listed(quoted(WITH_VOLUMES), 'and')} pods with a share get by hostPath volumes, for nodes whose "
        f"GPUs are not delivered by CDI. The pods' namespaces must allow such volumes, and all GPU nodes must have "
        f"the library or daemon: a pod does not start where it is missing.",
    )
    dra: bool = setting(
        False,
        "Give pods with a share a ResourceClaim, for nodes that deliver GPUs by Dynamic Resource Allocation "
        "(Kubernetes 1.34 and later); manifests/components/delivery-dra sets it.",
    )
    options: Path = setting(Path(), OPTIONS_SETTING)
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")

    def __post_init__(self) -> None:
        self.health_address()
        if self.client_names and self.client_ca is None:
            raise ValueError("client_names are names in certificates; give client_ca, the authority that signs them")
        strangers = [word for word in self.host_paths if word not in WITH_VOLUMES]
        if strangers:
            raise ValueError(f"host_paths has {strangers[0]!r}; give {', '.join(WITH_VOLUMES)} or both")

    def health_address(self) -> tuple[str, int] | None:
        """Host and port of the probes and the metrics; None if they are off."""
        return parse_address(self.listen, "listen", "[::]:9444") if self.listen else None

    def configuration(self) -> Configuration:
        """The configuration of admission, without the document of options."""
        return Configuration(
            hide_gpus=self.hide_gpus,
            runtime_class=self.runtime_class,
            least_isolation=self.least_isolation,
            volumes=Volumes(cache=self.limiter_cache, host_paths=frozenset(self.host_paths)),
            toolkit_limits=self.toolkit_limits,
            dra=self.dra,
        )


@dataclass(frozen=True)
class ConditionsSettings:
    """`python -m webhook conditions`."""

    REMOVED: ClassVar[Mapping[str, str]] = {"configuration": f"the manifests name {names.CONFIGURATION}"}
    options: Path = setting(Path(), _RENAMED)
    hide_gpus: bool = setting(False, "Whether the component hide-gpus is used, which has an entry of its own.")


@dataclass(frozen=True)
class CertsSettings:
    """`python -m webhook certs`."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "service": f"the manifests name the Service {names.SERVICE}; give further names of the certificate by `names`",
        "namespace": f"the policies name the namespace {names.NAMESPACE}",
    }
    dir: Path = setting(_CERTIFICATES, "Folder for tls.crt, tls.key and ca.crt.")
    authority: Path | None = setting(
        None,
        "Folder for ca.key, which only this program needs; empty: the folder `authority` next to the other one.",
    )
    secret: str = setting(
        "",
        f"Name of the Secret, in {names.NAMESPACE}, in which the certificate is kept instead of `dir`; it must exist, "
        f"and the webhook's pods mount it. Empty: none.",
    )
    names: tuple[str, ...] = setting((), "Further DNS names for the certificate.")
    configuration: str = setting("", "MutatingWebhookConfiguration that must trust the authority; empty: none.")
    options: Path = setting(Path(), _RENAMED)
    kubeconfig: str = setting("", "How to reach the API server; empty: the pod's service account, or the user's own.")
    days: int = setting(365, "Validity of the serving certificate in days.", minimum=1, maximum=3650)
    every: float = setting(
        0.0, "Interval between checks, until the program is stopped; 0s: check once.", unit="duration", minimum=0
    )
    log_format: Literal["text", "json"] = setting("text", "Format of log lines: for people or for machines.")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")

    def directories(self) -> Directories:
        """The two directories of the certificate's files."""
        return Directories(self.dir, self.authority or self.dir.parent / "authority")

    def dns_names(self) -> tuple[str, ...]:
        return (*service_names(names.SERVICE, names.NAMESPACE), *self.names)
