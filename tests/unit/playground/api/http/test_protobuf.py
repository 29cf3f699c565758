"""Request bodies in protobuf, as kubectl sends them for a few commands."""

import pytest

from playground.api.api import ApiError
from playground.api.http.protobuf import decode


def field(number: int, content: bytes | int) -> bytes:
    """One field of a message; only lengths and numbers below 128."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


def envelope(kind: str, raw: bytes) -> bytes:
    about = field(1, b"v1") + field(2, kind.encode())
    return b"k8s\x00" + field(1, about) + field(2, raw) + field(3, b"") + field(4, b"")


def test_a_message_becomes_the_object_it_means() -> None:
    labels = field(11, field(1, b"app") + field(2, b"web"))
    metadata = field(1, field(1, b"m") + field(7, 0) + field(8, b"") + labels)
    data = field(2, field(1, b"key") + field(2, b"value"))
    binary = field(3, field(1, b"raw") + field(2, b"\x00\xff"))
    assert decode(envelope("ConfigMap", metadata + data + binary + field(4, 1))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", "labels": {"app": "web"}},
        "data": {"key": "value"},
        "binaryData": {"raw": "AP8="},
        "immutable": True,
    }


def test_a_deployment_has_its_template() -> None:
    """What `kubectl create deployment web --image=nginx` sends, and amounts as `kubectl create quota` sends them."""
    labels = field(1, b"app") + field(2, b"web")
    limits = field(8, field(1, field(1, b"cpu") + field(2, field(1, b"2"))))
    container = field(2, field(1, b"web") + field(2, b"nginx") + limits)
    template = field(3, field(1, field(11, labels)) + field(2, container))
    spec = field(1, 1) + field(2, field(1, labels)) + template + field(4, field(1, b""))
    assert decode(envelope("Deployment", field(1, field(1, b"web")) + field(2, spec)))["spec"] == {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "strategy": {},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx", "resources": {"limits": {"cpu": "2"}}}]},
        },
    }


def test_a_kind_that_is_not_read_comes_with_what_works() -> None:
    with pytest.raises(ApiError, match="reads no Ingress as protobuf: add `--dry-run=client -o yaml"):
        decode(envelope("Ingress", b""))


REFUSED = {
    "a kind that is not in the tables": (envelope("Ingress", b""), 415),
    "a field that is not in the tables": (envelope("ServiceAccount", field(4, 1)), 415),
    "no envelope": (b"{}", 400),
    "a field longer than the message": (b"k8s\x00\x0a\x7f", 400),
    "a number that does not end": (b"k8s\x00" + b"\xff" * 12, 400),
    "text that is no text": (envelope("ConfigMap", field(1, field(1, b"\xff"))), 400),
}


@pytest.mark.parametrize(("content", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_understood_is_refused(content: bytes, code: int) -> None:
    with pytest.raises(ApiError) as refused:
        decode(content)
    assert refused.value.code == code
