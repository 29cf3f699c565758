"""The components build on the base, and change what they say."""

from __future__ import annotations

from typing import Any

from kubectl_gpufraction.__main__ import parser
from tests.unit.manifests.kube import with_components

JSON = dict[str, Any]


def built(*components: str) -> dict[tuple[str, str], JSON]:
    """The objects of the base with these components, by kind and name."""
    return {(item["kind"], item["metadata"]["name"]): item for item in with_components(*components)}


NAMESPACES = ("gpufraction-system", "gpufraction-nodes")
OF_THE_AGENT = (
    ("ServiceAccount", "gpufraction-nodeagent"),
    ("ConfigMap", "gpufraction-nodeagent-settings"),
    ("NetworkPolicy", "gpufraction-nodeagent"),
    ("DaemonSet", "gpufraction-nodeagent"),
)


def test_the_agent_gets_its_view_of_the_node_and_nothing_to_write_there() -> None:
    found = built("node-access")
    pod = found["DaemonSet", "gpufraction-nodeagent"]["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    enforced = "pod-security.kubernetes.io/enforce"
    levels = {name: found["Namespace", name]["metadata"]["labels"][enforced] for name in NAMESPACES}
    assert levels == {"gpufraction-system": "restricted", "gpufraction-nodes": "privileged"}
    assert [found[key]["metadata"]["namespace"] for key in OF_THE_AGENT] == ["gpufraction-nodes"] * len(OF_THE_AGENT)
    subjects = {
        (item["metadata"]["name"], subject["namespace"])
        for (kind, _), item in found.items()
        if kind in ("ClusterRoleBinding", "RoleBinding")
        for subject in item["subjects"]
        if subject["name"] == "gpufraction-nodeagent"
    }
    bindings = ("", "-options", "-pods-node-access")
    assert subjects == {(f"gpufraction-nodeagent{name}", "gpufraction-nodes") for name in bindings}
    mounts = {mount["name"]: mount for mount in agent["volumeMounts"]}
    assert (pod["hostPID"], mounts["host"]["readOnly"], "token" in mounts) == (True, True, True)
    assert {"name": "GPUFRACTION_HOST_ROOT", "value": "/host"} in agent["env"]
    assert {"name": "GPUFRACTION_PODS", "value": "true"} in agent["env"]
    assert {"name": "GPUFRACTION_OPTIONS_BY_API", "value": "true"} in agent["env"], "it cannot mount the document there"
    roles = [item for (kind, _), item in found.items() if kind in ("ClusterRole", "Role")]
    agents = [role for role in roles if "nodeagent" in role["metadata"]["name"]]
    granted = {resource for role in agents for rule in role["rules"] for resource in rule["resources"]}
    assert "pods/eviction" not in granted, "the allocator evicts"


def test_the_allocator_gets_the_right_to_evict_and_no_other() -> None:
    found = built("allocator-eviction")
    (rule,) = found["ClusterRole", "gpufraction-allocator-eviction"]["rules"]
    (subject,) = found["ClusterRoleBinding", "gpufraction-allocator-eviction"]["subjects"]
    assert rule == {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    assert (subject["name"], subject["namespace"]) == ("gpufraction-allocator", "gpufraction-system")


def test_agents_and_holders_start_on_nodes_that_still_start() -> None:
    found = built("startup-taint", "holders")
    pods = [found["DaemonSet", f"gpufraction-{name}"]["spec"]["template"]["spec"] for name in ("nodeagent", "holder")]
    assert [pod["tolerations"] for pod in pods] == [[{"operator": "Exists"}], [{"operator": "Exists"}]]
    assert {"name": "GPUFRACTION_STARTUP_TAINT", "value": "true"} in pods[0]["containers"][0]["env"]
    (rule,) = found["ClusterRole", "gpufraction-nodeagent-startup-taint"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}


def test_delivery_by_claims_switches_all_three_programs_and_their_rights() -> None:
    found = built("node-access", "delivery-dra", "preload")
    webhook, allocator = found["Deployment", "gpufraction"]["spec"]["template"]["spec"]["containers"][:2]
    assert ("--dra=true" in webhook["args"], "--dra=true" in allocator["args"]) == (True, True)
    (agent,) = found["DaemonSet", "gpufraction-nodeagent"]["spec"]["template"]["spec"]["containers"]
    mounts = [each["mountPath"] for each in agent["volumeMounts"]]
    assert {"/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"} < set(mounts)
    assert len(mounts) == len(set(mounts)), "two components name one folder"
    (read,) = found["ClusterRole", "gpufraction-nodeagent-dra"]["rules"]
    assert (read["resources"], read["verbs"]) == (["resourceclaims"], ["get"])
    rules = found["ClusterRole", "gpufraction-allocator-dra"]["rules"]
    assert {resource: rule["verbs"] for rule in rules for resource in rule["resources"]} == {
        "resourceclaims": ["get", "list", "create", "delete"],
        "resourceclaims/status": ["patch"],
        "resourceclaims/binding": ["patch"],
    }


def test_holders_outlive_upgrades_and_stand_only_where_they_are_wanted() -> None:
    found = built("holders")
    base = found["DaemonSet", "gpufraction-nodeagent"]["spec"]["template"]["spec"]["containers"][0]["image"]
    spec = found["DaemonSet", "gpufraction-holder"]["spec"]
    pod = spec["template"]["spec"]
    (holder,) = pod["containers"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert pod["nodeSelector"] == {"gpufraction.io/ownership": "held"}
    assert spec["template"]["metadata"]["labels"]["gpufraction.io/holder"] == "true"
    assert (holder["resources"]["limits"]["nvidia.com/gpu"], holder["image"]) == (1, base)


def test_the_page_for_a_team_takes_its_flags_and_lets_no_pod_in() -> None:
    found = built("ui")
    pod = found["Deployment", "gpufraction-ui"]["spec"]["template"]["spec"]
    (page,) = pod["containers"]
    (port,) = page["ports"]
    assert page["command"] == ["python", "-m", "kubectl_gpufraction", "ui"]
    given = parser().parse_args(["ui", *page["args"]])
    assert given.listen == ("::", port["containerPort"])
    assert {"gpufraction-ui", "gpufraction-ui.gpufraction-system.svc"} < set(given.host)
    assert page["securityContext"]["readOnlyRootFilesystem"]
    service = found["Service", "gpufraction-ui"]["spec"]
    assert (service["type"], service["selector"].items() <= pod_labels(found).items()) == ("ClusterIP", True)
    policy = found["NetworkPolicy", "gpufraction-ui"]["spec"]
    assert (policy["policyTypes"], policy.get("ingress")) == (["Ingress", "Egress"], None)
    assert "Ingress" not in {kind for kind, _ in found}


def pod_labels(found: dict[tuple[str, str], JSON]) -> JSON:
    """The labels of the page's pod."""
    labels: JSON = found["Deployment", "gpufraction-ui"]["spec"]["template"]["metadata"]["labels"]
    return labels
