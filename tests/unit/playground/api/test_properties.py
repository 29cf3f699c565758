"""What must hold for any input: followers end in the state of the store, and canonical quantities keep their value."""

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.encoding.quantity import parse
from playground.api.api import Api
from playground.api.kinds.quantities import canonical
from playground.api.verbs.patches import merge
from tests.examples import examples
from tests.unit.playground.api.manifests import MERGE, ok

MAPS = "/api/v1/namespaces/default/configmaps"
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "patch", "delete", "compact"]), st.sampled_from("abc"), st.sampled_from("xy")),
    max_size=25,
)


def act(api: Api, action: str, name: str, label: str) -> None:
    match action:
        case "create":
            api.call("POST", MAPS, body={"metadata": {"name": name, "labels": {"is": label}}})
        case "patch":
            body = {"metadata": {"labels": {"is": label}}}
            api.call("PATCH", f"{MAPS}/{name}", body=body, content_type=MERGE)
        case "delete":
            api.call("DELETE", f"{MAPS}/{name}")


def state(api: Api, selector: str) -> dict[str, Any]:
    listed = ok(api.call("GET", MAPS, query={"labelSelector": selector}))
    return {item["metadata"]["name"]: item["metadata"] for item in listed["items"]}


@settings(max_examples=examples(40), deadline=None)
@given(before=STEPS, after=STEPS)
def test_a_list_and_the_watch_after_it_make_the_final_state(
    before: list[tuple[str, str, str]], after: list[tuple[str, str, str]]
) -> None:
    api = Api()
    selector = "is=x"
    for step in before:
        act(api, *step)
    held = state(api, selector)
    version = ok(api.call("GET", MAPS))["metadata"]["resourceVersion"]
    watch = api.watch(MAPS, query={"labelSelector": selector, "resourceVersion": version})
    for step in after:
        act(api, *step)
    watch.close()
    seen = [int(version)]
    for event in watch:
        metadata = event["object"]["metadata"]
        seen.append(int(metadata["resourceVersion"]))
        if event["type"] == "DELETED":
            del held[metadata["name"]]
        else:
            assert (metadata["name"] in held) is (event["type"] == "MODIFIED")
            held[metadata["name"]] = metadata
    assert held == state(api, selector)
    assert seen == sorted(set(seen))


AMOUNTS = st.one_of(
    st.integers(-(10**15), 10**15).map(str),
    st.tuples(st.integers(0, 10**6), st.sampled_from(["m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"])).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    ),
    st.tuples(st.integers(0, 999), st.integers(0, 999), st.sampled_from(["", "Ki", "Gi"])).map(
        lambda parts: f"{parts[0]}.{parts[1]}{parts[2]}"
    ),
)


@given(AMOUNTS)
def test_a_canonical_quantity_has_the_same_value_up_to_a_nano(text: str) -> None:
    assert 0 <= parse(canonical(text)) - parse(text) < Fraction(1, 10**9)
    assert canonical(canonical(text)) == canonical(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


@given(current=JSON_VALUES, patch=st.dictionaries(st.text(max_size=2), JSON_VALUES, max_size=3))
def test_a_merge_patch_applied_twice_changes_nothing_more(current: Any, patch: dict[str, Any]) -> None:
    once = merge(current, patch)
    assert merge(once, patch) == once
