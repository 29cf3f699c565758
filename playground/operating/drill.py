"""
A fire drill: breaks a part of a running playground, as parts break in production, and repairs it again.

Each fault has the symptoms that a cluster would show in kubectl, in `kubectl gpufraction check` and in logs.
`docs/fire-drill.md` leads from these symptoms to the cure.
"""

from __future__ import annotations

import contextlib
import datetime
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from contract.encoding import moments
from contract.nodes.inventories import inventory_from_object
from playground.cluster import Cluster
from playground.machinery.objects import resources
from playground.programs import installing
from playground.shapes import DEMO, describe
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound

JSON = dict[str, Any]
_NODE = "t4"
_DESCRIBED = next(node for node in DEMO if node.spec.name == _NODE)
_AGENT = f"nodeagent-{_NODE}"
_CARD = "0"
_CLOSED = f'gpufraction_agent_silent{{node="{_NODE}"}} 1.0'
_SILENT_SECONDS = 1200.0
"""The age of a stopped agent's last report: longer than any program waits before it treats an agent as silent."""
_SECONDS = 30.0
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """Two functions: one breaks a part, and returns when the fault is visible; the other repairs the part."""

    break_: Callable[[Cluster], None]
    mend: Callable[[Cluster], None]


class Drill:
    """The faults of a playground."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.broken: list[str] = []

    def break_(self, what: str, report: Report) -> int:
        """Break a part. Returns the exit status. Raises what the parts raise."""
        if what not in FAULTS:
            report(f"{_found(what)}; it is one of {', '.join(FAULTS)}: make playground-break WHAT={next(iter(FAULTS))}")
            return 2
        if what in self.broken:
            report(f"{what} is broken already; to mend it: make playground-mend WHAT={what}")
            return 1
        self.broken.append(what)
        FAULTS[what].break_(self._cluster)
        report(f"Broken: {what}. What would you check first? docs/fire-drill.md leads to the cure.")
        report(f"To undo it: make playground-mend WHAT={what}")
        return 0

    def mend(self, what: str, report: Report) -> int:
        """Repair a part, or all parts without a name. Returns the exit status. Raises what the parts raise."""
        if what and what not in FAULTS:
            report(f"{_found(what)}; it is one of {', '.join(FAULTS)}")
            return 2
        chosen = [each for each in self.broken if what in ("", each)]
        for each in chosen:
            FAULTS[each].mend(self._cluster)
            self.broken.remove(each)
            report(f"Repaired: {each}.")
        if not self.broken:
            self._cluster.await_up()
        if not chosen:
            report(f"{what or 'nothing'} is {'not ' if what else ''}broken")
        return 0


def _found(what: str) -> str:
    return f"WHAT is {what!r}" if what else "WHAT is missing"


# -- a card -------------------------------------------------------------------------------------------------------


def _card_breaks(cluster: Cluster) -> None:
    reason = "the driver reported XID 79: the GPU has fallen off the bus"
    describe(_DESCRIBED, cluster.directory, {_CARD: {"healthy": False, "reason": reason}})
    wait_for(lambda: not _is_healthy(cluster), "the agent does not report the card", _SECONDS)


def _card_is_mended(cluster: Cluster) -> None:
    describe(_DESCRIBED, cluster.directory)
    wait_for(lambda: _is_healthy(cluster), "the agent does not report the card as healthy", _SECONDS)


def _is_healthy(cluster: Cluster) -> bool:
    return all(gpu.healthy for gpu in inventory_from_object(cluster.kube.get(paths.gpunodes(_NODE))).gpus)


# -- programs -----------------------------------------------------------------------------------------------------


def _agent_ends(cluster: Cluster) -> None:
    _end(cluster, _AGENT)
    agent = Kube.connect(kubeconfig=cluster.programs[_AGENT].environment["KUBECONFIG"], user_agent="playground")
    then = moments.stamp(time.time() - _SILENT_SECONDS)
    agent.patch_merge(paths.gpunodes(_NODE, "status"), {"status": {"observedAt": then}})
    wait_for(lambda: _is_closed(cluster), "the leader does not call the agent silent", 2 * _SECONDS)


def _is_closed(cluster: Cluster) -> bool:
    """Whether the leader has stopped placing pods on the node because its agent has been silent for a while."""
    return any(_CLOSED in cluster.metrics(replica.number) for replica in cluster.replicas)


def _agent_is_mended(cluster: Cluster) -> None:
    _start(cluster, _AGENT)
    path = paths.gpunodes(_NODE)

    def reports() -> bool:
        seen = moments.seconds(cluster.kube.get(path)["status"]["observedAt"])
        return seen is not None and time.time() - seen < _SILENT_SECONDS / 2

    wait_for(reports, "the agent does not report", _SECONDS)
    wait_for(lambda: not _is_closed(cluster), "the leader still calls the agent silent", _SECONDS)


def _leader_loses_its_rights(cluster: Cluster) -> None:
    """No allocator has the right to write the Lease, as if an administrator had removed a role that looked unused."""
    for document in _rights_of_the_leader():
        with contextlib.suppress(KubeNotFound):
            cluster.kube.delete(installing.path_of(document, named=True))
    wait_for(lambda: not _is_led(cluster), "an allocator still leads", _SECONDS)


def _leader_is_mended(cluster: Cluster) -> None:
    for document in _rights_of_the_leader():
        installing.apply(cluster.kube, document)
    wait_for(lambda: _is_led(cluster), "no allocator leads", _SECONDS)


def _rights_of_the_leader() -> Iterator[JSON]:
    rights = installing.documents(installing.BASE / "allocator.rbac.yaml")
    return (document for document in rights if document["kind"] == "RoleBinding")


def _is_led(cluster: Cluster) -> bool:
    return any(cluster.leads(replica.number) for replica in cluster.replicas)


def _webhook_ends(cluster: Cluster) -> None:
    """No replica of the webhook is ready, so its Service has no endpoints."""
    _end(cluster, *_webhooks(cluster))
    for path, _ in _endpoints(cluster):
        cluster.kube.patch_merge(path, {"subsets": None})


def _webhook_is_mended(cluster: Cluster) -> None:
    _start(cluster, *_webhooks(cluster))
    wait_for(lambda: all(map(cluster.webhook_answers, _numbers(cluster))), "no webhook answers", _SECONDS)
    for path, endpoints in _endpoints(cluster):
        cluster.kube.patch_merge(path, {"subsets": endpoints["subsets"]})


def _webhooks(cluster: Cluster) -> list[str]:
    return [replica.name("webhook") for replica in cluster.replicas]


def _numbers(cluster: Cluster) -> list[int]:
    return [replica.number for replica in cluster.replicas]


def _endpoints(cluster: Cluster) -> Iterator[tuple[str, JSON]]:
    """The endpoints of the webhook's Service, and their path; none if the API server calls the webhook by URL."""
    for document in cluster.reached(installing.webhook_configuration())[1]:
        yield installing.path_of(document, named=True), document


def _end(cluster: Cluster, *programs: str) -> None:
    for name in programs:
        cluster.programs[name].terminate()
    for name in programs:
        cluster.programs[name].wait()


def _start(cluster: Cluster, *programs: str) -> None:
    for name in programs:
        if not cluster.programs[name].alive():
            cluster.programs[name].start()


# -- the certificate ----------------------------------------------------------------------------------------------


def _certificate_expires(cluster: Cluster) -> None:
    """The webhooks serve a certificate like their own, which expired an hour ago."""
    folder = cluster.directory / "certs"
    key = serialization.load_pem_private_key((cluster.directory / "authority" / "ca.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    path = (folder / "tls.crt").resolve()
    path.write_bytes(_expired(x509.load_pem_x509_certificate(path.read_bytes()), key))
    _served_anew(cluster)


def _expired(old: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
    end = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), x509.random_serial_number(), end - datetime.timedelta(days=1), end
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, SHA256()).public_bytes(serialization.Encoding.PEM)


def _certificate_is_mended(cluster: Cluster) -> None:
    cluster.programs["certs"].run()
    _served_anew(cluster)


def _served_anew(cluster: Cluster) -> None:
    """Wait until the running webhooks serve what is in the file, and have the API server connect again."""
    wanted = (cluster.directory / "certs" / "tls.crt").read_text().strip()

    def served() -> bool:
        running = [each for each in cluster.replicas if cluster.programs[each.name("webhook")].alive()]
        return all(ssl.get_server_certificate(("127.0.0.1", each.webhook_port)).strip() == wanted for each in running)

    wait_for(served, "the webhooks do not serve the new certificate", _SECONDS)
    cluster.ask_only(None)


# -- a node -------------------------------------------------------------------------------------------------------


def _node_fails(cluster: Cluster) -> None:
    """The machine is down: its kubelet and our agent are silent."""
    _end(cluster, _AGENT)
    cluster.control_plane.fail_node(_NODE)
    wait_for(lambda: not _is_ready(cluster), "the node is still ready", _SECONDS)


def _node_is_mended(cluster: Cluster) -> None:
    cluster.control_plane.restart_node(_NODE)
    wait_for(lambda: _is_ready(cluster), "the node is not ready", _SECONDS)
    _start(cluster, _AGENT)


def _is_ready(cluster: Cluster) -> bool:
    return resources.is_ready(cluster.kube.get(paths.path("v1", "nodes", name=_NODE)))


FAULTS: Mapping[str, Fault] = {
    "card": Fault(_card_breaks, _card_is_mended),
    "agent": Fault(_agent_ends, _agent_is_mended),
    "leader": Fault(_leader_loses_its_rights, _leader_is_mended),
    "webhook": Fault(_webhook_ends, _webhook_is_mended),
    "certificate": Fault(_certificate_expires, _certificate_is_mended),
    "node": Fault(_node_fails, _node_is_mended),
}
