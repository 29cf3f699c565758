"""No name changes a path or a selector into another one, from any author and through any builder."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeBadName, KubeError, KubeForbidden, KubeInvalid
from tests.wires import Script

ROOT = Path(__file__).resolve().parents[4]
OTHER = (
    "", ".", "..", "/", "a/b", "a/../b", "../secrets/x", "a%2Fb", "a%2fb", "%2e%2e", "%", "a?b", "a?watch=true",
    "a#b", "a\\b", "a b", " a", "a\n", "a\r\nHost: x", "a\0", "a;b", "a,b", "a=b", "a&b", "-a", ".a", "ä", "a\u2215b",
    "\ud800", "a" * 254,
)  # fmt: skip
NAMED = {
    **{name: each for name, each in vars(paths).items() if isinstance(each, paths.NamespacedResource)},
    **{name: each for name, each in vars(paths).items() if isinstance(each, paths.ClusterResource)},
}
BUILDERS: dict[str, Callable[[str], str]] = {
    "group": lambda text: paths.path(f"{text}/v1", "pods"),
    "version": lambda text: paths.path(f"apps/{text}", "pods"),
    "resource": lambda text: paths.path("v1", text, "ns", "name"),
    "namespace": lambda text: paths.path("v1", "pods", text, "name"),
    "name": lambda text: paths.path("v1", "pods", "ns", text),
    "subresource": lambda text: paths.path("v1", "pods", "ns", "name", text),
    "field": lambda text: paths.fields({"metadata.name": text}),
} | {f"{key} name": (lambda text, each=each: each(*_names(each, text))) for key, each in NAMED.items()}
CALLS: dict[str, Callable[[Kube, str], object]] = {
    "get": lambda kube, path: kube.get(path),
    "text": lambda kube, path: kube.text(path),
    "list": lambda kube, path: kube.list(path),
    "pages": lambda kube, path: list(kube.pages(path)),
    "create": lambda kube, path: kube.create(path, {}),
    "replace": lambda kube, path: kube.replace(path, {}),
    "delete": lambda kube, path: kube.delete(path),
    "patch_json": lambda kube, path: kube.patch_json(path, []),
    "patch_merge": lambda kube, path: kube.patch_merge(path, {}),
    "patch_strategic": lambda kube, path: kube.patch_strategic(path, {}),
    "watch": lambda kube, path: list(kube.watch(path, resource_version="1", timeout_seconds=1)),
}
WORDS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(OTHER),
    st.lists(st.sampled_from(["a", "pods", "/", ".", "..", "%2F", "%2e", "?", "#", "\\", ":", "-", "\n"])).map("".join),
)


def _names(each: object, text: str) -> tuple[str, ...]:
    return ("ns", text) if isinstance(each, paths.NamespacedResource) else (text,)


@pytest.mark.parametrize("text", OTHER)
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_a_name_that_would_be_read_as_another_is_refused(builder: Callable[[str], str], text: str) -> None:
    with pytest.raises(KubeInvalid, match=r"expected a name of at most 253 letters") as refused:
        builder(text)
    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()


@given(st.sampled_from(sorted(BUILDERS)), WORDS)
def test_whatever_is_accepted_is_exactly_one_part_of_the_path(key: str, text: str) -> None:
    try:
        made = BUILDERS[key](text)
    except KubeBadName:
        return
    if key == "field":
        assert made == f"metadata.name={text}"
        assert not set(text) & set(",=!\\ ")
        return
    split = urlsplit(f"https://host{made}")
    assert (split.path, split.query, split.fragment, unquote(made)) == (made, "", "", made)
    plain = BUILDERS[key]("x")
    assert made.split("/") == [text if part == "x" else part for part in plain.split("/")]


@given(st.sampled_from(sorted(CALLS)), WORDS, WORDS)
def test_no_call_sends_a_path_that_the_server_would_read_otherwise(key: str, namespace: str, name: str) -> None:
    script = Script(KubeForbidden("no"), holds=True)
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    with pytest.raises(KubeError) as failed:
        CALLS[key](Kube(script), path)
    read_as = urlsplit(f"https://host{path}".replace("\\", "/"))
    whole = (read_as.path, unquote(path)) == (path, path) and path.isprintable() and path.isascii()
    if not whole or {"", ".", ".."} & set(path.removesuffix("/").split("/")[1:]):
        assert (type(failed.value), script.sent) == (KubeBadName, [])


def _literals(file: Path) -> list[str]:
    """The strings of a module that a path could begin with, without docstrings."""
    text = file.read_text(encoding="utf-8")
    if not re.search(r"""["']/api""", text):  # most modules need not be parsed
        return []
    tree = ast.parse(text)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
        if re.match(r"/apis?(/|$)", node.value)
    ]


def test_every_path_of_the_api_is_built_in_one_place() -> None:
    programs = ("contract", "runtime", "webhook", "allocator", "nodeagent", "kubectl_gpufraction", "shadow")
    found = {
        str(file.relative_to(ROOT)): literals
        for program in programs
        for file in sorted((ROOT / program).rglob("*.py"))
        if (literals := _literals(file))
    }
    assert found == {
        # A group's own document, which has a fixed name; which groups are served, and their documents by names from the
        # API server; what Prometheus serves, after a path that is built; and the paths of the page's own server.
        "allocator/features/kueue/informers.py": ["/apis/"],
        "kubectl_gpufraction/check/traps/reading.py": ["/apis", "/apis/"],
        "kubectl_gpufraction/ui/command.py": ["/api/v1/query_range", "/api/v1/"],
        "kubectl_gpufraction/ui/server.py": [
            "/api/gpus",
            "/api/queue",
            "/api/pods",
            "/api/namespaces",
            "/api/pod",
            "/api/pod",
            "/api/use",
            "/api/use",
        ],
    }
