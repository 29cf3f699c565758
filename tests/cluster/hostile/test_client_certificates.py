"""
A webhook that requires the API server's certificate: a client with no certificate, or with another one, gets no answer
to a review and cannot reserve anything. Pods are created as always, and probes are answered.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from playground.api.http.certificates import Authority
from playground.api.kinds.values import User
from playground.embedded import ControlPlane
from playground.machinery.kubelet.gpuruntime import NodeGpus
from tests.builders import pod
from tests.cluster.hostile import strangers
from tests.cluster.hostile.attack import Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]

API_SERVER = "kube-apiserver-to-webhooks"
AUTHORITY = Authority()
"""The authority of the cluster, which signs certificates for others, too."""


@pytest.fixture(scope="module", params=control_planes())
def authenticated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    directory = tmp_path_factory.mktemp("authenticated")
    authority = directory / "client-ca.crt"
    authority.write_bytes(AUTHORITY.pem)
    make: Callable[[Callable[[str], NodeGpus]], ControlPlane] = request.param

    def identified(gpus_of: Callable[[str], NodeGpus]) -> ControlPlane:
        plane = make(gpus_of)
        plane.identify_to_webhooks(*AUTHORITY.client(User(API_SERVER)))
        return plane

    flags = ("--client-ca", str(authority), "--client-names", API_SERVER)
    yield from hostile_cluster(identified, directory, webhook=flags)


@pytest.fixture
def hostile(authenticated: Hostile) -> Iterator[Hostile]:
    yield from unharmed(authenticated)


def showing(hostile: Hostile, folder: Path, authority: Authority | None, name: str = API_SERVER) -> ssl.SSLContext:
    """A client with a certificate of that authority; without an authority, a client without a certificate."""
    context = strangers.trusting(hostile)
    if authority is not None:
        certificate, key = authority.client(User(name))
        file = folder / f"{name}.pem"
        file.write_bytes(certificate + key)
        context.load_cert_chain(file)
    return context


def status(port: int, context: ssl.SSLContext, body: bytes) -> int:
    """The status of the answer; 0 if the connection is ended instead."""
    with contextlib.suppress(OSError):
        return strangers.post(port, context, body)[0]
    return 0


def test_only_who_shows_the_api_servers_certificate_is_answered(hostile: Hostile, tmp_path: Path) -> None:
    """A3: before, a stranger's reviews reserved shares, and the answers contained node names, UUIDs and free memory."""
    made = pod("stranger").asks("gpufraction.io/gpu-memory", "1Gi").manifest()
    body = strangers.review(made)
    clients = {
        "the API server's": showing(hostile, tmp_path, AUTHORITY),
        "none": showing(hostile, tmp_path, None),
        "another authority's": showing(hostile, tmp_path, Authority()),
        "a kubelet's, of the same authority": showing(hostile, tmp_path, AUTHORITY, "system:node:n1"),
    }
    for replica in hostile.cluster.replicas:
        found = {name: status(replica.webhook_port, context, body) for name, context in clients.items()}
        assert found == {
            "the API server's": 200,
            "none": 0,
            "another authority's": 0,
            "a kubelet's, of the same authority": 403,
        }
    assert strangers.probes_answer(hostile) == []
    hostile.neighbour_is_served()
    assert strangers.complaints(hostile) == []


def test_a_refused_client_learns_the_reason_and_not_who_is_allowed(hostile: Hostile, tmp_path: Path) -> None:
    """A3: the message contains nothing that helps a stranger."""
    port = hostile.cluster.replicas[0].webhook_port
    answered = strangers.post(port, showing(hostile, tmp_path, AUTHORITY, "system:node:n1"), b"{}")
    assert answered[0] == 403
    message = json.loads(answered[1])["message"]
    assert message == "the client's certificate has none of the allowed names"
