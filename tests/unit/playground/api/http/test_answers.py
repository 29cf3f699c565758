"""Bodies as bytes, without a connection."""

import itertools
import json
from typing import Any

import pytest

from playground.api.api import ADMIN, Api, ApiError, User
from playground.api.http import answers
from playground.api.kinds.requests import Response
from tests.unit.playground.api.manifests import EVERY_POD, PODS, create_pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
GROUPED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


def asked(api: Api, method: str, path: str, *, accept: str = "", body: Any = None) -> Response:
    media = "application/json"
    return answers.answer(api, method, path, query={}, body=body, content_type=media, accept=accept, user=ADMIN)


def test_a_body_is_json_or_yaml() -> None:
    assert answers.value_of(b'{"a": 1}', "application/json; charset=utf-8", method="POST") == {"a": 1}
    assert answers.value_of(b"a: 1", "application/yaml", method="POST") == {"a": 1}
    assert answers.value_of(b"", "text/plain", method="DELETE") is None


REFUSED = {
    "a new object in another format": (b"{}", "text/plain", "POST", 415),
    "a patch in another format": (b"<a/>", "text/xml", "PATCH", 415),
    "what is no JSON": (b"{", "application/merge-patch+json", "PATCH", 400),
}


@pytest.mark.parametrize(("raw", "media", "method", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_body_that_nobody_reads_is_refused(raw: bytes, media: str, method: str, code: int) -> None:
    with pytest.raises(ApiError) as refused:
        answers.value_of(raw, media, method=method)
    assert refused.value.code == code


def test_an_answer_has_the_form_that_the_client_accepts(api: Api) -> None:
    create_pod(api)
    kinds = [asked(api, "GET", PODS, accept=accept).body["kind"] for accept in ("", TABLE, PARTIAL)]
    assert kinds == ["PodList", "Table", "PartialObjectMetadataList"]
    assert asked(api, "GET", "/apis", accept=GROUPED).body["kind"] == "APIGroupDiscoveryList"


def test_a_refusal_is_an_answer(api: Api) -> None:
    found = asked(api, "GET", f"{PODS}/none", accept=TABLE)
    assert (found.code, found.body["kind"]) == (404, "Status")


def test_an_answer_is_bytes_of_a_media_type(api: Api) -> None:
    assert answers.content_of(asked(api, "GET", "/readyz")) == (b"ok", "text/plain; charset=utf-8")
    content, media = answers.content_of(asked(api, "GET", EVERY_POD))
    assert (json.loads(content)["kind"], media) == ("PodList", "application/json")
    assert "APIGroupDiscoveryList" in answers.content_of(asked(api, "GET", "/apis", accept=GROUPED))[1]


@pytest.mark.parametrize(
    ("accept", "kinds"),
    [("", ["Pod", "Pod"]), (TABLE, ["Table", "Table"]), (PARTIAL, ["PartialObjectMetadata", "PartialObjectMetadata"])],
    ids=["whole", "table", "metadata"],
)
def test_a_watch_is_lines(api: Api, accept: str, kinds: list[str]) -> None:
    create_pod(api, name="a")
    watch, lines = answers.open_watch(api, EVERY_POD, query={"watch": "1"}, accept=accept, user=ADMIN)
    create_pod(api, name="b")
    seen = list(itertools.islice(lines, 2))
    assert all(line.endswith(b"\n") for line in seen)
    assert [json.loads(line)["object"]["kind"] for line in seen] == kinds
    watch.close()
    assert list(lines) == []


def test_a_watch_may_be_refused(api: Api) -> None:
    with pytest.raises(ApiError) as refused:
        answers.open_watch(api, EVERY_POD, query={"watch": "1"}, accept="", user=User("jane"))
    assert refused.value.code == 403
