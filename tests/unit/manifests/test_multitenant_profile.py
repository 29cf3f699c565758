"""The strict profile as kustomize builds it: what is closed, and that no cloud's overlay leaves a part out."""

from __future__ import annotations

import pytest
import yaml

from contract import components, names
from kubectl_gpufraction.check import visibility
from tests.unit.manifests.kube import JSON, MANIFESTS, below, built, of, one, with_components

SCRAPERS = [{"namespaceSelector": {"matchLabels": {str(names.METRICS_LABEL): names.METRICS_SCRAPER}}}]
CLOUDS = [name for name in below("overlays") if name != "multitenant"]


def opened(items: list[JSON], policy: str) -> dict[str, JSON | list[JSON] | None]:
    """The clients that may connect, by port."""
    rules = one(items, "NetworkPolicy", policy)["spec"]["ingress"]
    return {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]}


def test_only_scrapers_reach_the_metrics() -> None:
    items = built("overlays/multitenant")
    assert opened(items, "gpufraction-admission") == {"https": None, "http": SCRAPERS, "health": SCRAPERS}
    assert opened(items, "gpufraction-nodeagent") == {"http": SCRAPERS}
    assert opened(built(), "gpufraction-nodeagent") == {"http": [{"namespaceSelector": {}}]}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_with_a_clouds_overlay_the_profile_is_whole(cloud: str) -> None:
    items = with_components("multitenant", resource=f"overlays/{cloud}")
    policies = {item["metadata"]["name"] for item in of(items, "ValidatingAdmissionPolicy")}
    assert {visibility.STRICT, visibility.GUARD} <= policies
    bound = {item["spec"]["policyName"] for item in of(items, "ValidatingAdmissionPolicyBinding")}
    assert {visibility.STRICT, visibility.GUARD} <= bound
    [hook] = of(items, "MutatingWebhookConfiguration")
    assert set(visibility.HIDING) < {each["name"] for each in hook["webhooks"]}
    levels = {
        item["metadata"]["name"]: item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for item in of(items, "Namespace")
    }
    assert levels == {names.NAMESPACE: "restricted", names.NODES_NAMESPACE: "privileged"}
    assert one(items, "DaemonSet", "gpufraction-nodeagent")["metadata"]["namespace"] == names.NODES_NAMESPACE
    [quota] = [item for item in of(items, "ValidatingAdmissionPolicyBinding") if "paramRef" in item["spec"]]
    assert quota["spec"]["paramRef"] == {"name": names.QUOTA, "parameterNotFoundAction": "Deny"}


def test_what_the_profile_brings_is_what_the_table_says() -> None:
    """So the playground, the chart and the check know the profile's content."""
    [listed] = [each.brings for each in components.COMPONENTS if each.name == "multitenant"]
    document = yaml.safe_load((MANIFESTS / "components/multitenant/kustomization.yaml").read_text())
    assert [f"../{name}" for name in listed] == document["components"]
