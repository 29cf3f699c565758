"""
The command lines of a real control plane, and the files to which they refer.

The flags only make it small, fast and private to this machine: loopback addresses, no fsync, client rates for a test.
Everything else, including admission plugins, is Kubernetes' default.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from playground.api.http.certificates import Authority
from playground.api.kinds.values import User
from playground.programs.probes import free_port
from playground.programs.process import Program

ENVIRONMENT = "KUBEBUILDER_ASSETS"
NEEDED = ("etcd", "kube-apiserver")
CONTROLLERS = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KUBELETS = "kubemark"
_TOKENS_OF_NODES_OFF = 30
_QPS = ("--kube-api-qps=500", "--kube-api-burst=1000")
_UNSERVED = ("--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false")


class NoAssets(Exception):
    """The folder lacks a program that is needed; the message says which."""


@dataclass(frozen=True, slots=True)
class Assets:
    """The folder that KUBEBUILDER_ASSETS names, as Kubernetes' own envtest has it. Raises `NoAssets`."""

    folder: Path

    def __post_init__(self) -> None:
        missing = [name for name in NEEDED if not self.has(name)]
        if missing:
            raise NoAssets(f"{self.folder} has no {' and no '.join(missing)}")

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def program(self, name: str, flags: Sequence[str], directory: Path) -> Program:
        path = str(self.folder / name)
        return Program(name, flags, log=directory / f"{name}.log", environment={}, command=(path,))

    def minor(self) -> int:
        """The minor version of this Kubernetes 1, as kube-apiserver prints it; 0 if it prints none."""
        return _minor(self.folder / "kube-apiserver")


@functools.cache
def _minor(program: Path) -> int:
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError:
        return 0  # starting it gives a better message
    found = re.match(r"Kubernetes v1\.([0-9]{1,4})\.", output)
    return int(found[1]) if found else 0


def assets_of(environment: Mapping[str, str]) -> Assets | str:
    """The folder that KUBEBUILDER_ASSETS names, or one line that says why there is none."""
    folder = environment.get(ENVIRONMENT, "")
    if not folder:
        return f"{ENVIRONMENT} is not set; it names a folder with etcd and kube-apiserver"
    try:
        return Assets(Path(folder))
    except NoAssets as error:
        return f"{ENVIRONMENT}: {error}"


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of the loopback address that are free at the time of the call."""

    api: int
    etcd: int
    peer: int

    @classmethod
    def free(cls) -> Ports:
        return cls(free_port(), free_port(), free_port())


class Files:
    """Certificates and keys, in a directory of our own."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self._directory = directory
        self._authority = authority

    def __getitem__(self, name: str) -> str:
        return str(self._directory / name)

    def write(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default.svc"]
        to_kubelets = User("kube-apiserver-kubelet-client", ("system:masters",))
        self._pair("apiserver", self._authority.server(names))
        self._pair("to-kubelets", self._authority.client(to_kubelets))
        self._put("ca.crt", self._authority.pem)
        key = ec.generate_private_key(ec.SECP256R1())
        self._put(
            "accounts.key",
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        public = key.public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self._put("accounts.pub", public.public_bytes(serialization.Encoding.PEM, form))

    def client(self, user: User) -> tuple[Path, Path]:
        """A client certificate of the user, and its key."""
        name = f"client-{user.name.replace(':', '-')}"
        self._pair(name, self._authority.client(user))
        return Path(self[f"{name}.crt"]), Path(self[f"{name}.key"])

    def _pair(self, name: str, pair: tuple[bytes, bytes]) -> None:
        self._put(f"{name}.crt", pair[0])
        self._put(f"{name}.key", pair[1])

    def _put(self, name: str, content: bytes) -> None:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)


def etcd_flags(ports: Ports, data: Path) -> Iterator[str]:
    """Without fsync: a test's cluster does not survive a power cut."""
    clients, peers = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.peer}"
    yield from (f"--data-dir={data}", "--unsafe-no-fsync", "--name=default", f"--initial-cluster=default={peers}")
    yield from (f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}")
    yield from (f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}")


def apiserver_flags(ports: Ports, files: Files) -> Iterator[str]:
    """Authorization by Node and RBAC, service accounts with tokens that are bound to a node, kubelets on loopback."""
    yield from (f"--etcd-servers=http://127.0.0.1:{ports.etcd}", f"--secure-port={ports.api}")
    yield from ("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none")
    yield from ("--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true")
    yield from ("--authorization-mode=Node,RBAC", f"--client-ca-file={files['ca.crt']}")
    yield from (f"--tls-cert-file={files['apiserver.crt']}", f"--tls-private-key-file={files['apiserver.key']}")
    yield from ("--service-account-issuer=https://kubernetes.default.svc", "--profiling=false")
    yield from (f"--service-account-key-file={files['accounts.pub']}",)
    yield from (f"--service-account-signing-key-file={files['accounts.key']}",)
    yield from ("--kubelet-preferred-address-types=ExternalIP", f"--kubelet-certificate-authority={files['ca.crt']}")
    yield from (f"--kubelet-client-certificate={files['to-kubelets.crt']}",)
    yield from (f"--kubelet-client-key={files['to-kubelets.key']}",)


def gates(minor: int) -> Iterator[str]:
    """Turns on the tested features of node-bound tokens, which are off by default in this version only."""
    if minor == _TOKENS_OF_NODES_OFF:
        yield "--feature-gates=ServiceAccountTokenNodeBinding=true"


def plugins(verb: str, names: Sequence[str]) -> Iterator[str]:
    """`verb`: `enable` or `disable`."""
    if names:
        yield f"--{verb}-admission-plugins={','.join(names)}"


def auditing(directory: Path, log: Path) -> Iterator[str]:
    """Logs each write after its response: the user, the request, and admission's annotations, without the object."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
    }
    path = directory / "audit-policy.json"
    path.write_text(json.dumps(policy))
    yield from (f"--audit-policy-file={path}", f"--audit-log-path={log}", "--audit-log-mode=blocking")


def identifying(directory: Path, certificate: bytes, key: bytes) -> Iterator[str]:
    """Has the API server present a client certificate to webhooks: an admission configuration names a kubeconfig."""
    for name, content in (("to-webhooks.crt", certificate), ("to-webhooks.key", key)):
        (directory / name).touch(mode=0o600)
        (directory / name).write_bytes(content)
    shown = {"client-certificate": str(directory / "to-webhooks.crt"), "client-key": str(directory / "to-webhooks.key")}
    kubeconfig = directory / "to-webhooks.kubeconfig"
    # In a cluster the name is that of the webhook's Service, GPUFRACTION.NAMESPACE.svc; here it is called by an URL.
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": shown}]}))
    plugin = {
        "name": "MutatingAdmissionWebhook",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(kubeconfig),
        },
    }
    admission = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
    file = directory / "admission.json"
    file.write_text(json.dumps(admission))
    yield f"--admission-control-config-file={file}"


def controllers_flags(files: Files, kubeconfig: Path, *, judging: bool) -> Iterator[str]:
    """All controllers. `judging`: also those that watch heartbeats, as the kubelets' stand-in does otherwise."""
    yield from (f"--kubeconfig={kubeconfig}", *_UNSERVED, *_QPS, "--use-service-account-credentials=true")
    yield from (f"--service-account-private-key-file={files['accounts.key']}", f"--root-ca-file={files['ca.crt']}")
    yield "--controllers=*" + ("" if judging else ",-node-lifecycle-controller,-taint-eviction-controller")


def scheduler_flags(kubeconfig: Path) -> Iterator[str]:
    """The default scheduler, as it is."""
    yield from (f"--kubeconfig={kubeconfig}", *_UNSERVED, *_QPS)
