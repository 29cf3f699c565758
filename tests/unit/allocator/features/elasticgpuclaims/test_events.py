"""What is reported about claims: Events, once each, and counts."""

from __future__ import annotations

from typing import Any

from allocator.features.elasticgpuclaims import objects, show_counts
from runtime.kubernetes import paths
from tests.builders import node
from tests.unit.allocator.features.elasticgpuclaims.classes import bench
from tests.unit.allocator.features.elasticgpuclaims.harness import Bench
from tests.unit.allocator.server.test_looking_in import scrape


def events(on: Bench, claim: str) -> list[tuple[str, str, bool]]:
    """The Events about a claim: reason, message, whether it is a warning."""
    return [(n.code, n.reason, n.warns) for n in on.noted if (n.kind, n.key) == (objects.CLAIM, f"default/{claim}")]


def test_a_claims_events_tell_its_life_each_once_whoever_leads() -> None:
    on = bench(node("a").gpus(1, mib=16384))
    on.a_pod("big", memory="12Gi")
    on.quiet()
    on.a_claim("c", memory=8, of="missing")
    on.quiet()
    on.a_class("missing")
    on.quiet()
    on.take_over()
    on.quiet()
    on.ended("big")
    on.quiet()
    share = on.share_of("c").name
    on.a_pod("p", "c")
    on.quiet()
    on.delete(objects.CLAIMS, "c")
    on.quiet()
    found = events(on, "c")
    assert [(code, warns) for code, _, warns in found] == [
        ("ClaimRefused", True),
        ("ClaimWaiting", False),
        ("ClaimBound", False),
        ("ClaimInUse", False),
    ]
    assert found[0][1] == "ElasticGPUClass missing does not exist; create it"
    assert found[1][1].startswith("0 of 1 GPU nodes fit: 1 short of memory")
    assert found[2][1] == f"bound to ElasticGPU {share}"


def test_a_lost_claim_warns() -> None:
    on = bench()
    on.a_claim("c", of="now")
    on.quiet()
    on.delete(objects.SHARES, on.share_of("c").name)
    on.quiet()
    assert [(code, warns) for code, _, warns in events(on, "c")] == [("ClaimBound", False), ("ClaimLost", True)]


def test_claims_and_their_shares_are_counted_by_what_they_are() -> None:
    on = bench()
    for name, of in (("a", "now"), ("b", "now"), ("c", "later"), ("d", "none")):
        on.a_claim(name, of=of)
    on.a_pod("p", "c")
    on.quiet()
    on.delete("pods", "p")
    on.delete(objects.CLAIMS, "c")
    on.quiet()
    scraped = scrape(on.harness.controller, lambda metrics: show_counts(metrics, on.harness.claims.counts))
    found = {name: value for name, value in scraped.items() if "claims" in name or "elastic" in name}
    assert found == {
        'gpufraction_claims{phase="Bound",reason="Bound"}': 2,
        'gpufraction_claims{phase="Pending",reason="ClassMissing"}': 1,
        'gpufraction_elasticgpus{phase="Bound"}': 2,
        'gpufraction_elasticgpus{phase="Released"}': 1,
    }


POLICY_MESSAGE = "no shares of these, says somebody else"


def policy(plural: str) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    """Another user's policy that refuses every write of a kind: paths of policy and binding, and what is created."""
    rule = {"apiGroups": ["elasticgpu.io"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rule, "resources": [plural]}]},
        "validations": [{"expression": "false", "message": POLICY_MESSAGE, "reason": "Forbidden"}],
    }
    policies = paths.validatingadmissionpolicies()
    bindings = policies.replace("policies", "policybindings")
    bound = {"policyName": "refuses", "validationActions": ["Deny"]}
    made = [
        (policies, {"metadata": {"name": "refuses"}, "spec": spec}),
        (bindings, {"metadata": {"name": "refuses"}, "spec": bound}),
    ]
    return f"{policies}/refuses", f"{bindings}/refuses", made


def test_a_refused_share_is_reported_once_and_bound_when_it_is_allowed() -> None:
    on = bench()
    at, bound_at, made = policy(objects.SHARES)
    for path, document in made:
        on.create(path, document)
    on.a_claim("c", of="now")
    on.quiet()
    on.take_over()
    on.quiet()
    found = set(events(on, "c"))
    assert [(code, warns) for code, _, warns in found] == [("ClaimWriteRefused", True)]
    assert POLICY_MESSAGE in found.pop()[1]
    status = on.get(objects.CLAIMS, "c")["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "WriteRefused")
    assert POLICY_MESSAGE in status["message"]
    for path in (bound_at, at):
        on.api.call("DELETE", path)
    on.quiet()
    assert on.phase("c") == "Bound"
    assert events(on, "c")[-1][0] == "ClaimBound"


def test_a_refused_step_is_reported_on_the_claim() -> None:
    on = bench()
    on.a_claim("c", of="later")
    on.quiet()
    for path, document in policy(objects.CLAIMS)[2]:
        on.create(path, document)
    on.a_pod("p", "c")
    on.quiet()
    assert [(code, POLICY_MESSAGE in why) for code, why, _ in events(on, "c")][-1] == ("ClaimWriteRefused", True)
