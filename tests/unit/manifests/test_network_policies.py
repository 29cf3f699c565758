"""Where our programs may connect to: each has a row on the page, and a policy that allows no more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, below, built, documents, of, with_components
from tests.unit.release import helm

PAGE = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
COMPONENT = "app.kubernetes.io/component"
API_SERVER = ({443, 6443, 8443, 16443},)
NOTHING: tuple[set[int], ...] = ()
WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob", "ReplicaSet", "Pod")
PLACEHOLDER = {"gpufraction.io/pool": "any"}
EGRESS = {
    "admission": API_SERVER,
    "certs": API_SERVER,
    "nodeagent": API_SERVER,
    "holder": API_SERVER,
    "ui": API_SERVER,
    "mps": NOTHING,
}
"""The ports of each rule, by the label of the pods; no rule restricts the destination."""


def shipped() -> list[JSON]:
    """Every object of base and components, as in its file."""
    files = sorted([*(MANIFESTS / "base").glob("*.yaml"), *(MANIFESTS / "components").rglob("*.yaml")])
    return [item for path in files for item in documents(path) if "kind" in item]


def programs(items: Iterable[JSON]) -> dict[str, JSON]:
    """The pod labels of each workload, by component; a patch has no selector."""
    found = {}
    for item in items:
        if item["kind"] in WORKLOADS and "selector" in item["spec"]:
            labels = item["spec"]["template"]["metadata"]["labels"]
            found[labels[COMPONENT]] = labels
    return found


def selects(policy: JSON, labels: JSON) -> bool:
    selector = policy["spec"]["podSelector"]
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    assert all(each["operator"] == "Exists" for each in selector.get("matchExpressions", ()))
    keys = all(each["key"] in labels for each in selector.get("matchExpressions", ()))
    return keys and selector.get("matchLabels", {}).items() <= labels.items()


def egress(items: list[JSON], labels: JSON) -> tuple[set[int], ...] | None:
    """The ports of each rule for such pods, from all policies together; None if no policy restricts them."""
    policies = [
        policy
        for policy in of(items, "NetworkPolicy")
        if selects(policy, labels) and "Egress" in policy["spec"].get("policyTypes", ())
    ]
    if not policies:
        return None
    rules = [rule for policy in policies for rule in policy["spec"].get("egress", ())]
    assert all(rule["ports"] and {port["protocol"] for port in rule["ports"]} == {"TCP"} for rule in rules)
    return tuple({port["port"] for port in rule["ports"]} for rule in rules)


def rows() -> dict[str, tuple[set[int], ...]]:
    """The page's table: the ports by component."""
    part = PAGE.partition("## Where our programs may connect to")[2].partition("\n## ")[0]
    found: dict[str, tuple[set[int], ...]] = {}
    for label, what, ports in re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", part, re.MULTILINE)[1:]:
        numbers = {int(number) for number in re.findall(r"\d+", ports)}
        assert bool(numbers) == ("API server" in what), what
        component = re.match(r"`([a-z]+)`", label)
        found[component[1] if component else "placeholder"] = (numbers,) if numbers else NOTHING
    return found


def test_each_program_connects_to_what_its_row_says_and_to_nothing_else() -> None:
    items = shipped()
    found = {name: egress(items, labels) for name, labels in programs(items).items()}
    assert found == EGRESS
    assert rows() == {**EGRESS, "placeholder": egress(items, PLACEHOLDER)}
    assert egress(items, PLACEHOLDER) == NOTHING


def test_every_policy_restricts_both_directions() -> None:
    types = {item["metadata"]["name"]: item["spec"]["policyTypes"] for item in of(shipped(), "NetworkPolicy")}
    assert types == {key: ["Ingress", "Egress"] for key in types}
    assert len(types) == 8


@pytest.mark.parametrize("overlay", ["base", *(f"overlays/{name}" for name in below("overlays"))])
def test_no_overlay_has_a_program_that_nothing_restricts(overlay: str) -> None:
    items = built(overlay)
    found = {name: egress(items, labels) for name, labels in programs(items).items()}
    assert found == {name: EGRESS[name] for name in found}
    assert {"admission", "nodeagent"} <= set(found)


@pytest.mark.parametrize("component", below("components"))
def test_no_component_has_a_program_that_nothing_restricts(component: str) -> None:
    needs = [name for name in ("node-access",) if component in ("mps", "preload")]
    items = with_components(*needs, component)
    found = {name: egress(items, labels) for name, labels in programs(items).items()}
    assert found == {name: EGRESS[name] for name in found}


LABELS = st.dictionaries(
    st.sampled_from(
        ("gpufraction.io/pool", "app.kubernetes.io/name", "app.kubernetes.io/instance", "pod-template-hash")
    )
    | st.text("abc/.", min_size=1, max_size=6),
    st.sampled_from(("", "any", "gpufraction", *EGRESS)),
)


@given(LABELS, st.sampled_from([*EGRESS]))
def test_no_label_beside_a_programs_own_lets_it_connect_further(added: dict[str, str], program: str) -> None:
    items = shipped()
    assert egress(items, {**added, **programs(items)[program]}) == EGRESS[program]


@pytest.mark.helm
def test_the_chart_restricts_each_program_too(tmp_path: Path) -> None:
    chosen = {name: True for name in ("holders", "ui", "mps", "node-access", "node-provisioning", "node-placeholders")}
    items = helm.rendered(tmp_path, {**helm.AS_KUSTOMIZE, "components": chosen})
    found = {name: egress(items, labels) for name, labels in programs(items).items()}
    assert found == EGRESS
    assert egress(items, PLACEHOLDER) == NOTHING


def test_the_pages_patches_fit_the_policies() -> None:
    assert "- {op: test, path: /spec/egress/0/ports/0/port, value: 443}" in PAGE
    names = re.findall(r"name: (gpufraction-\([a-z|]+\))", PAGE)
    assert len(names) == 2
    policies = {item["metadata"]["name"]: item["spec"] for item in of(shipped(), "NetworkPolicy")}
    fitting = {name for name, spec in policies.items() if spec.get("egress", [{}])[0].get("ports", [{}])[0].get("port")}
    assert all({name for name in policies if re.fullmatch(each, name)} == fitting for each in names)
