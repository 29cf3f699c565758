"""The API over HTTPS: authentication, connections, forms of an answer, watches on the wire."""

import contextlib
import http.client
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from playground.api.api import ADMIN, User
from playground.api.http.server import HttpsServer
from tests.unit.playground.api.manifests import EVERY_POD, PODS, ok, pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def connect(server: HttpsServer, context: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
    context = context or ssl.create_default_context(cadata=server.authority.pem.decode())
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)


def send(
    server: HttpsServer,
    method: str,
    path: str,
    *,
    body: Any = None,
    user: User | None = ADMIN,
    connection: http.client.HTTPSConnection | None = None,
    **headers: str,
) -> tuple[int, Any, http.client.HTTPMessage]:
    named = {"Content-Type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
    if user is not None:
        named["Authorization"] = f"Bearer {server.token(user)}"
    with contextlib.closing(connect(server)) as own:
        used = connection or own
        used.request(method, path, json.dumps(body) if body is not None else None, named)
        answer = used.getresponse()
        content = answer.read()
    is_json = answer.headers["Content-Type"].startswith("application/json")
    return answer.status, json.loads(content) if is_json else content.decode(), answer.headers


def test_the_wire_carries_what_the_api_says(server: HttpsServer) -> None:
    code, made, _ = send(server, "POST", PODS, body=pod())
    assert (code, made) == (201, ok(server.api.call("GET", f"{PODS}/web")))
    assert send(server, "GET", "/readyz")[:2] == (200, "ok")
    code, refused, _ = send(server, "POST", PODS, body=pod())
    assert (code, refused["reason"]) == (409, "AlreadyExists")


def test_a_connection_serves_many_requests(server: HttpsServer) -> None:
    with contextlib.closing(connect(server)) as connection:
        for _ in range(3):
            code, _, headers = send(server, "GET", EVERY_POD, connection=connection)
            assert (code, headers.get("Connection")) == (200, None)


def test_tokens_name_users(server: HttpsServer) -> None:
    robot = User("system:serviceaccount:default:robot", (), {"k": ("v",)})
    assert server.token(robot) == server.token(User(robot.name, (), {"k": ("v",)}))
    code, _, _ = send(server, "GET", EVERY_POD, user=robot)
    assert code == 403
    assert send(server, "GET", EVERY_POD, user=None)[0] == 403
    assert send(server, "GET", EVERY_POD, user=None, Authorization="Bearer nonsense")[0] == 401


def test_a_client_certificate_names_a_user(server: HttpsServer, tmp_path: Path) -> None:
    path = tmp_path / "client.pem"
    path.write_bytes(b"".join(server.client_certificate(User("jane", ("system:masters",)))))
    context = ssl.create_default_context(cadata=server.authority.pem.decode())
    context.load_cert_chain(path)
    with contextlib.closing(connect(server, context)) as connection:
        review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        code, body, _ = send(server, "POST", review, body={}, user=None, connection=connection)
    assert (code, body["status"]["userInfo"]["username"]) == (201, "jane")


def test_a_kubeconfig_has_all_a_client_needs(server: HttpsServer) -> None:
    config = yaml.safe_load(server.kubeconfig(User("jane")))
    (cluster,), (user,) = config["clusters"], config["users"]
    assert cluster["cluster"]["server"] == f"https://127.0.0.1:{server.port}"
    assert server.user_of(user["user"]["token"]) == User("jane")


def test_a_list_as_a_table(server: HttpsServer) -> None:
    send(server, "POST", PODS, body=pod())
    _, table, _ = send(server, "GET", PODS, Accept=TABLE)
    assert [column["name"] for column in table["columnDefinitions"] if not column["priority"]] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    (row,) = table["rows"]
    assert (row["cells"][:4], row["object"]["kind"]) == (["web", "0/1", "Pending", "0"], "PartialObjectMetadata")


def test_discovery_in_both_forms(server: HttpsServer) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    _, grouped, headers = send(server, "GET", "/apis", Accept=accept)
    assert (grouped["kind"], "as=APIGroupDiscoveryList" in headers["Content-Type"]) == ("APIGroupDiscoveryList", True)
    _, plain, _ = send(server, "GET", "/apis")
    assert [entry["metadata"]["name"] for entry in grouped["items"]] == [group["name"] for group in plain["groups"]]


def test_a_watch_streams_lines(server: HttpsServer) -> None:
    with contextlib.closing(connect(server)) as connection:
        headers = {"Authorization": f"Bearer {server.token(ADMIN)}"}
        connection.request("GET", f"{EVERY_POD}?watch=1", headers=headers)
        answer = connection.getresponse()
        ok(server.api.call("POST", PODS, body=pod()))
        event = json.loads(answer.readline())
        assert (answer.status, event["type"], event["object"]["metadata"]["name"]) == (200, "ADDED", "web")


def test_a_watch_ends_when_its_time_is_over(server: HttpsServer) -> None:
    with contextlib.closing(connect(server)) as connection:
        headers = {"Authorization": f"Bearer {server.token(ADMIN)}"}
        connection.request("GET", f"{EVERY_POD}?watch=1&timeoutSeconds=0.1", headers=headers)
        assert connection.getresponse().read() == b""


def test_stopping_ends_watches(server: HttpsServer) -> None:
    with contextlib.closing(connect(server)) as connection:
        headers = {"Authorization": f"Bearer {server.token(ADMIN)}"}
        connection.request("GET", f"{EVERY_POD}?watch=1", headers=headers)
        answer = connection.getresponse()
        server.stop()
        with contextlib.suppress(http.client.IncompleteRead, OSError):  # the cut may be inside a TLS record
            assert answer.read() == b""


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]"])
def test_a_body_that_is_no_object_is_400(server: HttpsServer, body: bytes) -> None:
    with contextlib.closing(connect(server)) as connection:
        headers = {"Authorization": f"Bearer {server.token(ADMIN)}", "Content-Type": "application/json"}
        connection.request("POST", PODS, body, headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (400, "BadRequest")


def test_a_body_beyond_the_limit_is_413(server: HttpsServer) -> None:
    with contextlib.closing(connect(server)) as connection:
        headers = {"Authorization": f"Bearer {server.token(ADMIN)}", "Content-Length": str(1 << 30)}
        connection.putrequest("POST", PODS)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_warnings_are_headers(server: HttpsServer) -> None:
    _, _, headers = send(server, "POST", PODS, body=pod(typo=1))
    assert headers["Warning"] == '299 - "unknown field \\"spec.typo\\""'
