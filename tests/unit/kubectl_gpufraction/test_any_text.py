"""Whatever text the cluster's objects contain, every command and the page answer with text that is safe to show."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from contract.encoding.plain import LINE, plain_values
from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.output.forms import FORMS
from kubectl_gpufraction.output.terminal import CLEAR, GREEN, Terminal
from kubectl_gpufraction.ui import pages
from kubectl_gpufraction.ui.pages import Picture, Selection
from kubectl_gpufraction.ui.server import VIEWS
from tests.examples import examples
from tests.odd import ESCAPE, TEXT, VALUES, is_fit, odd_pods, places, put
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, by_claim, gpunode, node, share_of_claim, theirs
from tests.unit.kubectl_gpufraction.test_manners import CALLS, CLUSTER, DEFAULT, GPUNODES, MANIFEST, RUNS, WAITS
from tests.unit.kubectl_gpufraction.test_tenants import collection

JSON = dict[str, Any]
KEPT = [("metadata", "uid"), ("metadata", "name"), ("metadata", "namespace")]
HONEST = [
    admitted("honest", "gpufraction.io/gpu-memory", "2Gi", on="n1"),
    admitted("patient", "gpufraction.io/gpu-memory", "20Gi", waits="0 of 1 GPU nodes fit: 1 short of memory"),
]
SPLIT = {"scheduler.framework.gpushare.allocation": '{"main":{"0":4}}'}
ATTACKERS = [
    *(put(pod, ("metadata", "name"), f"odd-{pod['metadata']['name']}") for pod in (RUNS, WAITS)),
    by_claim("odd-claimed", "team"),
    by_claim("odd-waiting", "team"),
    theirs("odd-theirs", 4, "n1", **SPLIT),
]
ODD_NODE = gpunode("odd", 15109, 24564)
CLAIM = share_of_claim("team", "n1")


def odd_objects(whole: JSON) -> st.SearchStrategy[JSON]:
    """An object with an odd value in one field of its status or its spec."""
    inside = [path for path in places(whole) if path[0] != "metadata"]
    return st.builds(put, st.just(whole), st.sampled_from(inside), VALUES)


def cluster(pod: JSON, gpunode_: JSON, claim: JSON) -> dict[str, tuple[int, Any]]:
    listed = [*HONEST, pod]
    return CLUSTER | {
        "/api/v1/pods": collection(*listed),
        DEFAULT: collection(*listed),
        f"{DEFAULT}/{pod['metadata']['name']}": (200, pod),
        f"{DEFAULT}/honest": (200, HONEST[0]),
        "/api/v1/nodes": collection(node("n1"), node("odd")),
        GPUNODES: collection(gpunode("n1", 15109), gpunode_),
        "/apis/elasticgpu.io/v1alpha1/elasticgpus": collection(claim),
        f"POST {DEFAULT}": (201, RUNS),
    }


SHOWING = [*((name, *words) for name, words in CALLS.items() if name not in ("cordon", "uncordon", "completion"))]
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Finding a smaller example takes minutes, and it is worth less than that."""
SHOWING += [(name, "-A") for name in ("pods", "waiting", "idle")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("odd")
    (made / "manifest.yaml").write_text(json.dumps(MANIFEST))
    return made


def printed(directory: Path, port: int, *words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    filled = [str(directory / "manifest.yaml") if word == "MANIFEST" else word for word in words]
    status = main([*filled, "--kubeconfig", str(kubeconfig(directory, port))], out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue()


@given(
    pod=odd_pods(ATTACKERS, kept=KEPT, typed=True),
    gpunode_=odd_objects(ODD_NODE),
    claim=odd_objects(CLAIM),
    form=st.sampled_from(FORMS),
)
@settings(max_examples=examples(5), deadline=None, phases=NO_SHRINK, suppress_health_check=list(HealthCheck))
def test_every_command_answers_whatever_one_pod_one_node_and_one_claim_say(
    directory: Path, pod: JSON, gpunode_: JSON, claim: JSON, form: str
) -> None:
    given_ = cluster(pod, gpunode_, claim)
    with answering(given_) as port:
        for words in [*SHOWING, ("explain", "honest"), ("explain", pod["metadata"]["name"])]:
            status, out, err = printed(directory, port, *words, "-o", form)
            mine = words[0] == "explain" and words[1] != "honest"
            assert "a bug in kubectl" not in err, (words, err)
            assert status == 0 or words[0] in ("check", "pools") or mine, (words, err)
            assert [line for line in (out + err).splitlines() if not is_fit(line, 3 * LINE)] == [], words
            if form in ("json", "yaml") and out:
                found = json.loads(out) if form == "json" else yaml.safe_load(out)
                assert plain_values(found) == found
            if words[:2] in (("pods", "-A"), ("explain", "honest")):
                assert "honest" in out, words


@given(
    pod=odd_pods(ATTACKERS, kept=KEPT, typed=True),
    gpunode_=odd_objects(ODD_NODE),
    claim=odd_objects(CLAIM),
    event=st.dictionaries(st.sampled_from(["reason", "message", "type", "lastTimestamp", "count", "series"]), VALUES),
)
@settings(max_examples=examples(40), deadline=None, phases=NO_SHRINK)
def test_every_view_of_the_page_is_made_whatever_they_say(pod: JSON, gpunode_: JSON, claim: JSON, event: JSON) -> None:
    nodes = [node("n1"), node("odd")]
    state = ClusterView.of([gpunode("n1", 15109), gpunode_], nodes, [*HONEST, pod], [claim])
    picture = Picture(state, datetime(2026, 1, 5, 10, tzinfo=UTC), "default")
    views = [view(picture, Selection()) for view in VIEWS.values()]
    documents = [picture.head(), *views, *(pages.story(picture, each, pod, [event, {}]) for each in state.pods)]
    for document in documents:
        text = json.dumps(plain_values(document))
        assert text.isprintable()
        assert json.loads(text) == plain_values(json.loads(text))
    assert {"honest", "patient"} <= {row["name"] for row in picture.pods(Selection())["rows"]}


@given(TEXT, TEXT)
def test_a_terminal_gets_no_character_that_it_would_obey(first: str, second: str) -> None:
    stream = io.StringIO()
    Terminal(stream).write(f"{GREEN}{first}\n{second}{CLEAR}")
    Terminal(stream).say(f"{first}\n{second}")
    found = stream.getvalue()
    for ours in (GREEN, CLEAR):
        found = found.replace(ours, "")
    assert found.replace("\n", "").replace("\t", "").isprintable()


def test_a_stream_of_few_characters_gets_question_marks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Terminal(stream).write("größer…\n")
    assert raw.getvalue() == b"gr??er?\n"


def test_what_an_api_server_refuses_with_is_shown_without_its_escape_sequences(directory: Path) -> None:
    refused = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": f"no {ESCAPE}"}
    with answering({"/api/v1/nodes": (403, refused), DEFAULT: (403, refused)}) as port:
        status, out, err = printed(directory, port, "pods")
    assert (status, out) == (1, "")
    assert "no \N{REPLACEMENT CHARACTER}[2J" in err
    assert err.replace("\n", "").isprintable()


def test_only_one_module_writes_to_a_terminal() -> None:
    """A `print` or `write` elsewhere would let an object's text through. The page's server writes to sockets."""
    root = Path(pages.__file__).parent.parent
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(r"\bprint\(|std(out|err)\.write", file.read_text())
    }
    assert found == set()
