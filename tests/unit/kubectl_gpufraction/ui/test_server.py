"""Which clients get an answer from the page's server, and what the page shows while the API server is unreachable."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.ui import server as served
from kubectl_gpufraction.ui.reading import PictureReader
from playground.waiting import wait_for
from runtime.kubernetes.client import KubeUnavailable
from tests.builders import pod
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_tenants import NO, SEEN, WHOLE, collection

JSON = dict[str, Any]
STATIC = Path(served.__file__).parent / "static"


@dataclass
class Page:
    """The page, as a browser reaches it."""

    port: int
    base: str
    output: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    def view(self, path: str) -> JSON:
        answer, body = self.ask(f"{self.base}{path}")
        assert answer.status == 200, body
        found: JSON = json.loads(body)
        return found


@contextmanager
def page(given: dict[str, tuple[int, Any]], directory: Path, *flags: str) -> Iterator[Page]:
    """The command as a user starts it, on a thread, for an API server with these answers."""
    out, stop, ended = io.StringIO(), threading.Event(), list[int]()
    with answering(given) as port:
        arguments = ["ui", "--kubeconfig", str(kubeconfig(directory, port)), *flags]
        thread = threading.Thread(target=lambda: ended.append(main(arguments, out=out, environment={}, stop=stop)))
        thread.start()
        try:
            wait_for(lambda: "\n" in out.getvalue(), lambda: f"the command said {out.getvalue()!r}", timeout=20)
            found = re.match(r"http://[^:]+:(\d+)(/\S*/)?", out.getvalue())
            assert found is not None
            yield Page(int(found[1]), (found[2] or "/").rstrip("/"), out.getvalue())
        finally:
            stop.set()
            thread.join(20)
    assert ended == [0]


def test_the_page_is_served_under_a_random_token_and_nowhere_else(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        assert re.fullmatch(r"/[\w-]{32}", shown.base)
        assert shown.ask(f"{shown.base}/")[0].status == 200
        for path in ("/", "/api/gpus", "/wrong/api/gpus", f"{shown.base[:-1]}/api/gpus"):
            assert shown.ask(path)[0].status == 404, path


def test_every_file_comes_with_headers_that_keep_others_out(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        for path, (_, kind) in served.FILES.items():
            answer, body = shown.ask(f"{shown.base}{path}")
            assert (answer.status, answer.getheader("Content-Type")) == (200, kind)
            assert body
            assert (answer.getheader("Content-Security-Policy") or "").startswith("default-src 'self'")
            assert (answer.getheader("X-Content-Type-Options"), answer.getheader("Cache-Control")) == (
                "nosniff",
                "no-store",
            )
            assert answer.getheader("Access-Control-Allow-Origin") is None


def test_a_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """DNS rebinding: a page of evil.example lets its name resolve to 127.0.0.1."""
    with page(WHOLE, tmp_path) as shown:
        for host, status in (
            ("evil.example", 421),
            (f"evil.example:{shown.port}", 421),
            (f"localhost:{shown.port}", 200),
        ):
            assert shown.ask(f"{shown.base}/api/gpus", Host=host)[0].status == status, host


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("10.1.2.3:9405", True),
        ("LOCALHOST:1", True),
        ("gpufraction-ui", True),
        ("", False),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
    ],
)
def test_a_host_is_an_address_or_a_known_name(host: str, right: bool) -> None:
    assert served.named_rightly(host, {"localhost", "gpufraction-ui"}) is right


def test_another_page_gets_no_answer(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            assert shown.ask(f"{shown.base}/api/gpus", Sec_Fetch_Site=site)[0].status == status, site


def test_a_view_that_the_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        answer, body = shown.ask(f"{shown.base}/api/queue")
        again, empty = shown.ask(f"{shown.base}/api/queue", If_None_Match=answer.getheader("ETag") or "")
        assert (answer.status, again.status, empty) == (200, 304, b"")
        assert json.loads(body)["view"]["rows"][0]["name"] == "waits"


def test_a_tenant_sees_the_pods_of_his_namespace(tmp_path: Path) -> None:
    with page(SEEN, tmp_path) as shown:
        found = shown.view("/api/pods")
        assert (found["head"]["whole"], found["head"]["namespace"]) == (False, "default")
        assert [row["name"] for row in found["view"]["rows"]] == ["runs", "waits"]
        assert shown.view("/api/queue")["view"]["rows"][0]["place"] is None
        assert shown.view("/api/gpus")["view"]["rows"] == []


def test_the_page_names_the_cluster_and_what_the_user_may_not_read(tmp_path: Path) -> None:
    hidden = {
        "/apis/coordination.k8s.io/v1/namespaces/gpufraction-system/leases/gpufraction-allocator": NO,
        "/apis/apps/v1/namespaces/gpufraction-system/deployments": NO,
    }
    with page(SEEN | hidden, tmp_path) as shown:
        head = shown.view("/api/pods")["head"]
    assert (head["cluster"], head["unlisted"]) == ("here", ["nodes", "gpunodes", "pods of all namespaces"])
    assert head["unseen"] == [
        "whether an allocator leads: you may not get leases in gpufraction-system",
        "whether the webhook is ready: you may not list deployments in gpufraction-system",
    ]
    with page(WHOLE, tmp_path, "--cluster-name", "prod-eu", "--dashboard", "https://grafana.example/d/x") as shown:
        head = shown.view("/api/gpus")["head"]
    assert (head["cluster"], head["dashboard"], head["unlisted"]) == ("prod-eu", "https://grafana.example/d/x", [])


def test_the_pool_of_a_node_is_that_of_the_administrators_options(tmp_path: Path) -> None:
    labelled = node("n1")
    labelled["metadata"]["labels"] = {"pool": "n", "agentpool": "cloud"}
    options = "pools: [{name: notebooks, nodeSelector: {matchLabels: {pool: n}}}]"
    where = "/api/v1/namespaces/gpufraction-system/configmaps/gpufraction-options"
    answers = [(404, {}), NO, (200, {"data": {"options.yaml": "7"}}), (200, {"data": {"options.yaml": options}})]
    for answer, want in zip(answers, ("cloud", "cloud", "cloud", "notebooks"), strict=True):
        given: dict[str, tuple[int, Any]] = {where: answer}
        with page(WHOLE | {"/api/v1/nodes": collection(labelled)} | given, tmp_path) as shown:
            assert shown.view("/api/gpus")["view"]["rows"][0]["pool"] == want


def test_pods_that_ask_in_vain_are_named_with_the_cure(tmp_path: Path) -> None:
    vain = pod("missed").container("main", resources={"limits": {"aliyun.com/gpu-mem": "5"}}).json()
    given = {"/api/v1/pods": collection(vain), "/api/v1/namespaces/default": (200, {"metadata": {"name": "default"}})}
    with page(WHOLE | given, tmp_path, "-n", "elsewhere") as shown:
        lines = shown.view("/api/pods")["head"]["unserved"]
    assert "since namespace default is not enabled: missed" in lines[0]
    assert lines[1] == "Label the namespace, then recreate the pod:"


PROXY = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"


def test_actual_use_comes_from_prometheus_with_the_users_rights(tmp_path: Path) -> None:
    answer = {"data": {"result": [{"metric": {"node": "n1", "gpu": "GPU-n1-0"}, "values": [[0, "1"]]}]}}
    given = WHOLE | {"asked": (0, []), f"{PROXY}/api/v1/query_range": (200, answer)}
    with page(given, tmp_path, "--prometheus", "monitoring/prometheus:9090") as shown:
        assert shown.view("/api/gpus")["head"]["measured"] is True
        assert shown.view("/api/use?count=25") == {"gpus": {}, "why": ""}  # the figure is older than an hour
        assert shown.view("/api/use?count=25") == {"gpus": {}, "why": ""}
    asked = [parse_qs(each.partition("?")[2])["query"][0] for each in given["asked"][1] if each.startswith(PROXY)]
    assert [each.partition("{")[0].rpartition("(")[2] for each in asked] == [
        "gpufraction_gpu_memory_used_bytes",
        "gpufraction_gpu_utilization_ratio",
    ]


def test_without_the_right_to_ask_prometheus_the_page_names_it(tmp_path: Path) -> None:
    with page(
        WHOLE | {f"{PROXY}/api/v1/query_range": NO}, tmp_path, "--prometheus", "monitoring/prometheus:9090"
    ) as it:
        assert it.view("/api/use") == {
            "gpus": {},
            "why": "you may not get namespaces/monitoring/services/prometheus:9090/proxy",
        }


def test_without_a_flag_nothing_is_known_of_actual_use(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        assert shown.view("/api/gpus")["head"]["measured"] is False
        assert shown.ask(f"{shown.base}/api/use")[0].status == 404


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--prometheus", "prometheus:9090", "expected NAMESPACE/SERVICE:PORT"),
        ("--prometheus", "monitoring/prometheus", "expected NAMESPACE/SERVICE:PORT"),
        ("--prometheus", "monitoring/../secrets:1", "expected NAMESPACE/SERVICE:PORT"),
        ("--dashboard", "javascript:alert(1)", "expected an address that begins with https:// or http://"),
        ("--dashboard", "https:", "expected an address that begins with https:// or http://"),
    ],
)
def test_an_address_of_another_form_is_refused(
    flag: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", flag, value], environment={}) == 2
    assert expected in capsys.readouterr().err


def test_a_sort_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        answer, body = shown.ask(f"{shown.base}/api/queue?sort=secret")
        want = {"error": "sort: expected one of place, name, since, priority, or one of them after a -"}
        assert (answer.status, json.loads(body)) == (400, want)


def test_a_story_needs_the_right_to_get_the_pod_and_says_what_it_cannot_show(tmp_path: Path) -> None:
    waits = admitted("waits", "gpufraction.io/gpu-memory", "2Gi", waits="no room")
    forbidden = (403, {"kind": "Status", "code": 403, "message": "no"})
    given = WHOLE | {
        "/api/v1/namespaces/default/pods/waits": (200, waits),
        "/api/v1/namespaces/default/events": forbidden,
    }
    with page(given, tmp_path) as shown:
        received = shown.ask(f"{shown.base}/api/pod?namespace=default&name=waits")
        assert received[0].status == 200
        assert json.loads(received[1])["unseen"] == "no right to list Events in this namespace"


NAMED_OTHERWISE = (
    "name=..", "name=waits/../../secrets/x", "name=waits%2Flog", "name=waits%252Flog", "name=waits%3Fx",
    "name=waits%23", "name=", "name=waits%00", "name=waits%0A", "name=waits,involvedObject.kind=Secret",
    "name=%5Cx", "name=waits%20",
)  # fmt: skip


def test_a_name_that_would_be_another_path_is_refused_and_nothing_read(tmp_path: Path) -> None:
    given = WHOLE | {"asked": (0, [])}
    with page(given, tmp_path) as shown:
        shown.view("/api/pods")
        for query in ("", *(f"namespace=default&{each}" for each in NAMED_OTHERWISE), "namespace=a/b&name=waits"):
            answer, body = shown.ask(f"{shown.base}/api/pod?{query}")
            assert (answer.status, json.loads(body)) == (
                400, {"error": "namespace, name: expected the names of a namespace and of a pod"},
            ), query  # fmt: skip
    assert [each for each in given["asked"][1] if "/namespaces/default/" in each] == []


def test_of_a_pod_without_a_share_nothing_is_read_or_shown(tmp_path: Path) -> None:
    plain, again = (
        {"metadata": {"namespace": "default", "name": name, "uid": name}, "spec": {"containers": []}}
        for name in ("web", "again")
    )
    done = admitted("done", "gpufraction.io/gpu-memory", "2Gi", on="n1") | {"status": {"phase": "Succeeded"}}
    given = WHOLE | {
        "asked": (0, []),
        "/api/v1/pods": collection(plain, done, admitted("again", "gpufraction.io/gpu-memory", "2Gi", on="n1")),
        "/api/v1/namespaces/default/pods/web": (200, plain),
        "/api/v1/namespaces/default/pods/done": (200, done),
        # Meanwhile the name belongs to a pod without a share.
        "/api/v1/namespaces/default/pods/again": (200, again),
        "/api/v1/namespaces/default/events": collection({"reason": "Secret"}),
    }
    with page(given, tmp_path) as shown:
        received = {}
        for name in ("web", "done", "absent", "again"):
            answer, body = shown.ask(f"{shown.base}/api/pod?namespace=default&name={name}")
            received[name] = answer.status, json.loads(body)["error"].replace(name, "NAME")
    assert set(received.values()) == {(404, "no pod default/NAME has a share or waits for one (any more)")}
    reads = [each.partition("?")[0] for each in given["asked"][1]]
    assert [each for each in reads if "/namespaces/default/" in each] == ["/api/v1/namespaces/default/pods/again"]


@pytest.mark.parametrize(("each_page", "reads", "shown_events"), [(50, 4, 50), (1, 8, 8)])
def test_events_are_read_to_a_bound_and_only_those_of_this_very_pod(
    tmp_path: Path, each_page: int, reads: int, shown_events: int
) -> None:
    waits = admitted("waits", "gpufraction.io/gpu-memory", "2Gi", waits="no room")
    event = {"reason": "Loud", "message": "x" * 10_000}
    endless = {"metadata": {"resourceVersion": "1", "continue": "more"}, "items": [event] * each_page}
    given = WHOLE | {
        "asked": (0, []),
        "/api/v1/namespaces/default/pods/waits": (200, waits),
        "/api/v1/namespaces/default/events": (200, endless),
    }
    with page(given, tmp_path) as shown:
        received = shown.view("/api/pod?namespace=default&name=waits")
    assert (received["unseen"], len(received["events"])) == ("this pod has more Events than are read", shown_events)
    assert {len(each["message"]) for each in received["events"]} == {1024}
    called = [parse_qs(each.partition("?")[2]) for each in given["asked"][1] if "/events?" in each]
    selector = f"involvedObject.kind=Pod,involvedObject.name=waits,involvedObject.uid={waits['metadata']['uid']}"
    assert {(query["fieldSelector"][0], query["limit"][0]) for query in called} == {(selector, "50")}
    assert len(called) == reads


def test_a_team_s_server_has_no_token_and_knows_its_own_names(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path, "--listen", "127.0.0.1:0", "--host", "gpufraction-ui") as shown:
        assert (shown.base, shown.output) == ("", f"http://127.0.0.1:{shown.port}/\n")
        assert shown.ask("/healthz", Host="10.0.0.1")[0].status == 200
        assert shown.ask("/api/gpus", Host="gpufraction-ui:9405")[0].status == 200
        assert shown.ask("/api/gpus", Host="evil.example")[0].status == 421


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with page(WHOLE, tmp_path) as shown:
        err = io.StringIO()
        arguments = ["ui", "--port", str(shown.port), "--kubeconfig", str(tmp_path / "kubeconfig")]
        assert main(arguments, err=err, environment={}) == 1
        assert err.getvalue() == f"127.0.0.1:{shown.port}: Address already in use; --port chooses another port\n"


# -- reading --------------------------------------------------------------------------------------------------------


def view() -> ClusterView:
    return ClusterView.of([gpunode("n1", 15109)], [node("n1")], [])


def test_many_tabs_cost_one_read() -> None:
    reads = []

    def read() -> ClusterView:
        reads.append(1)
        return view()

    reader = PictureReader(read, "default", least_rest=60)
    try:
        pictures = {id(reader.current().picture) for _ in range(50)}
        assert (len(pictures), len(reads)) == (1, 1)
    finally:
        reader.close()


def test_nobody_looks_nothing_is_read() -> None:
    reads = []
    reader = PictureReader(lambda: reads.append(1) or view(), "default", least_rest=0.01)  # type: ignore[func-returns-value]
    try:
        time.sleep(0.1)
        assert reads == []
    finally:
        reader.close()


def test_the_last_view_stays_while_the_api_is_unreachable_and_says_why() -> None:
    closed = threading.Event()

    def read() -> ClusterView:
        if closed.is_set():
            raise KubeUnavailable("no answer from the API server")
        return view()

    reader = PictureReader(read, "default", least_rest=0.01)
    try:
        first = reader.current()
        assert (first.picture is not None, first.why) == (True, "")
        closed.set()
        wait_for(lambda: bool(reader.current().why), "the failure is not seen", timeout=10)
        late = reader.current()
        assert late.picture is not None
        assert late.why == "no answer from the API server"
        closed.clear()
        wait_for(lambda: not reader.current().why, "the API server's return is not seen", timeout=10)
    finally:
        reader.close()


def test_without_a_first_picture_the_answer_says_why(tmp_path: Path) -> None:
    with page({"/api/v1/nodes": collection()}, tmp_path) as shown:
        answer, body = shown.ask(f"{shown.base}/api/gpus")
        assert (answer.status, "error" in json.loads(body)) == (503, True)


# -- the files ------------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """What a page loads, and what its policy forbids: inline scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [
            str(given[key]) for key in ("src", "href") if key in given and not str(given[key]).startswith("#")
        ]
        self.inline += [key for key in given if key == "style" or key.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def test_the_page_loads_its_own_files_and_nothing_else() -> None:
    links = Links()
    links.feed((STATIC / "index.html").read_text())
    assert (sorted(links.loads), links.inline) == (["app.js", "icon.svg", "style.css"], [])
    assert {f"/{name}" for name in links.loads} < set(served.FILES)
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), file.name


def test_nothing_that_comes_from_the_cluster_becomes_html() -> None:
    script = (STATIC / "app.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
