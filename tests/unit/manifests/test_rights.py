"""What each account may do in the cluster, and the policies that reserve our fields to us."""

from __future__ import annotations

import re
from typing import Any

from allocator.neighbours import spreading, storage
from contract import names
from contract.dialects import DIALECTS
from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from contract.nodes import excluded as keptout
from contract.reasons.gpunodes import FORMER
from contract.scheduling import protection
from nodeagent.publishing import changes
from release.warnings import policy as warnings
from tests.unit.manifests.install import CONFIGURATION, pods
from tests.unit.manifests.kube import MANIFESTS, of, one, sources, texts

# -- rights -------------------------------------------------------------------------------------------------------


Right = tuple[str, str, tuple[str, ...]]
"""A resource, a verb, and the names that it is restricted to."""


def rights(account: str, component: str = "") -> set[Right]:
    """What an account may do, from the base or from what a component adds."""
    items = sources(f"components/{component}") if component else sources()
    bound = [
        (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in [*of(items, "ClusterRoleBinding"), *of(items, "RoleBinding")]
        if account in [subject["name"] for subject in binding["subjects"]]
    ]
    return {
        (resource, verb, tuple(rule.get("resourceNames", ())))
        for kind, name in bound
        for rule in one(items if component else sources(), kind, name)["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


REVIEWS: set[Right] = {("tokenreviews", "create", ()), ("subjectaccessreviews", "create", ())}
"""The right by which a program learns whose token a scraper sends."""


def test_metrics_are_read_by_who_is_bound_to_one_role() -> None:
    role = one(sources(), "ClusterRole", "gpufraction-metrics-reader")
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert "labels" not in role["metadata"], "nobody has it by itself"
    monitoring = sources("components/monitoring")
    [binding] = of(monitoring, "ClusterRoleBinding")
    assert (binding["roleRef"]["name"], [subject["name"] for subject in binding["subjects"]]) == (
        "gpufraction-metrics-reader",
        ["gpufraction-metrics"],
    )
    secret = one(monitoring, "Secret", "gpufraction-metrics-token")
    assert secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "gpufraction-metrics"}
    assert {"data", "stringData"} & secret.keys() == set(), "the cluster fills it in"


def test_the_allocator_reads_the_cluster_and_writes_what_it_decided() -> None:
    read = {(resource, verb, ()) for resource in ("pods", "nodes", "gpunodes") for verb in ("get", "list", "watch")}
    of_one = (("leases", verb, ("gpufraction-allocator",)) for verb in ("get", "update", "watch"))
    lease = {("leases", "create", ()), *of_one}
    write = {
        ("gpunodes", "patch", ()),
        ("pods", "patch", ()),
        ("pods/status", "patch", ()),
        ("events", "create", ()),
    }
    placing = {
        (plural, verb, ())
        for plural in ("namespaces", *storage.KINDS, *storage.DEVICE_KINDS)
        for verb in ("list", "watch")
    }  # what is needed to evaluate pods' rules about other pods and volumes
    shown = {("inferenceservices", "get", ())}  # for the uid of the object that gets an Event
    assert rights("gpufraction-allocator") == read | lease | write | REVIEWS | placing | shown


def test_claims_and_lists_of_kept_out_cards_are_rights_of_components() -> None:
    claims = {
        "elasticgpuclaims": ("get", "list", "watch", "patch"),
        "elasticgpuclaims/status": ("patch",),
        "elasticgpuclasses": ("list", "watch"),
        "elasticgpus": ("get", "list", "watch", "create", "patch", "delete"),
        "elasticgpus/status": ("patch",),
        "gpus": ("get", "list", "create", "delete"),
        "gpus/status": ("patch",),
    }
    by_claims = {(resource, verb, ()) for resource, verbs in claims.items() for verb in verbs}
    assert rights("gpufraction-allocator", "claims") == by_claims
    lists = sources("components/unhealthy-lists")
    assert rights("gpufraction-allocator", "unhealthy-lists") == {
        ("configmaps", verb, ()) for verb in ("list", "watch")
    }
    assert one(lists, "Role", "gpufraction-kept-out")["metadata"]["namespace"] == keptout.NAMESPACE


def test_what_default_spread_constraints_count_by_is_read_with_a_component() -> None:
    read = {(plural, verb, ()) for plural in spreading.KINDS for verb in ("list", "watch")}
    assert rights("gpufraction-allocator", "default-spread") == read


def test_only_its_component_grants_the_allocator_rights_on_kueues_objects() -> None:
    read = {
        (kind, verb, ()) for kind in ("workloads", "admissionchecks", "resourceflavors") for verb in ("list", "watch")
    }
    write = {(f"{kind}/status", "patch", ()) for kind in ("workloads", "admissionchecks")}
    assert rights("gpufraction-allocator", "kueue-check") == read | write


def test_the_page_reads_what_it_shows_and_writes_nothing() -> None:
    kinds = ("nodes", "pods", "events", "namespaces", "gpunodes", "elasticgpus", "deployments")
    named = {("mutatingwebhookconfigurations", names.CONFIGURATION), ("leases", names.LEASE)}
    named |= {("configmaps", str(names.OPTIONS))}
    assert rights("gpufraction-ui", "ui") == (
        {(kind, "list", ()) for kind in kinds}
        | {("pods", "get", ())}
        | {(kind, "get", (name,)) for kind, name in named}
    )
    deployments = one(sources("components/ui"), "Role", "gpufraction-ui")
    assert deployments["metadata"]["namespace"] == names.NAMESPACE, "the Deployments of others are not its business"


def test_node_requests_are_rights_of_a_component_and_the_report_is_one_object() -> None:
    ours = ("gpufraction-pools",)
    requests = {
        "provisioningrequests": ("list", "create", "delete"),
        "capacitybuffers": ("list", "create", "patch", "delete"),
        "podtemplates": ("list", "create", "patch", "delete"),
    }
    needed = {(resource, verb, ()) for resource, verbs in requests.items() for verb in verbs}
    assert rights("gpufraction-allocator", "node-provisioning") == needed | {("configmaps", "patch", ours)}
    report = one(sources("components/node-provisioning"), "ConfigMap", names.POOLS)
    assert (report["metadata"]["namespace"], report.get("data")) == (names.NAMESPACE, None), (
        "the data is the allocator's"
    )


def test_tenants_create_claims_once_granted_and_shares_never() -> None:
    role = one(sources(), "ClusterRole", "gpufraction-claims")
    assert "labels" not in role["metadata"], "nobody has it by itself"
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"elasticgpuclaims"}
    view = one(sources(), "ClusterRole", "gpufraction-view")
    seen = {resource for rule in view["rules"] for resource in rule["resources"]}
    assert seen == {"gpunodes", "elasticgpuclaims", "elasticgpuclasses", "gpus"}, "an ElasticGPU names a tenant"


def test_who_may_see_free_gpus_sees_no_tenants() -> None:
    role = one(sources(), "ClusterRole", "gpufraction-free-gpus")
    assert "labels" not in role["metadata"], "nobody has it by itself"
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"gpunodes", "gpus"}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_the_node_agent_writes_gpunodes_and_the_status_of_nodes() -> None:
    read = {(resource, verb, ()) for resource in ("nodes", "gpunodes") for verb in ("get", "list", "watch")}
    write = {("gpunodes", "create", ()), ("gpunodes", "patch", ())}
    status = {("gpunodes/status", "patch", ()), ("nodes/status", "patch", ())}
    around = {("runtimeclasses", "list", ()), ("events", "create", ())}
    options = {("configmaps", verb, (str(names.OPTIONS),)) for verb in ("list", "watch")}
    assert rights("gpufraction-nodeagent") == read | write | status | around | REVIEWS | options
    [binding] = [
        each for each in of(sources(), "RoleBinding") if each["metadata"]["name"].endswith("nodeagent-options")
    ]
    assert [each["namespace"] for each in binding["subjects"]] == [names.NODES_NAMESPACE], "others mount the document"


def test_the_node_agent_patches_nodes_with_the_component_for_startup_taints() -> None:
    assert rights("gpufraction-nodeagent", "startup-taint") == {("nodes", "patch", ())}
    expressions = "\n".join(texts(one(sources(), "ValidatingAdmissionPolicy", "gpufraction-node")))
    assert f"t.key != '{names.STARTUP_TAINT}'" in expressions


def test_the_node_agent_reads_pods_with_the_components_that_need_it() -> None:
    role = one(sources(), "ClusterRole", "gpufraction-nodeagent-pods")
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [(["pods"], ["list", "watch"])]
    components = {path.parent.name for path in (MANIFESTS / "components").glob("*/kustomization.yaml")}
    bound = {
        name
        for name in components
        for binding in of(sources(f"components/{name}"), "ClusterRoleBinding")
        if binding["roleRef"]["name"] == "gpufraction-nodeagent-pods"
    }
    assert bound == {"holders", "node-access"}


def test_no_component_lets_an_agent_write_about_pods_or_evict_them() -> None:
    components = sorted(path.parent.name for path in (MANIFESTS / "components").glob("*/kustomization.yaml"))
    held = {(component, *right[:2]) for component in components for right in _bound("gpufraction-nodeagent", component)}
    about_pods = {right for right in held if right[1].partition("/")[0] == "pods"}
    assert about_pods == {(name, "pods", verb) for name in ("holders", "node-access") for verb in ("list", "watch")}
    evicting = {
        binding["metadata"]["name"]
        for component in components
        for binding in of(sources(f"components/{component}"), "ClusterRoleBinding")
        if "eviction" in binding["roleRef"]["name"]
    }
    assert evicting == {"gpufraction-allocator-eviction"}


def _bound(account: str, component: str) -> set[Right]:
    """Like `rights`, if a component binds a role of the base."""
    items = sources(f"components/{component}")
    return {
        (resource, verb, tuple(rule.get("resourceNames", ())))
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in of(items, kind)
        if account in [subject["name"] for subject in binding["subjects"]]
        for role in of([*items, *sources()], binding["roleRef"]["kind"])
        if role["metadata"]["name"] == binding["roleRef"]["name"]
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_node_agents_events_have_the_reasons_that_the_policy_lets_through() -> None:
    expressions = "\n".join(texts(one(sources(), "ValidatingAdmissionPolicy", "gpufraction-events")))
    [listed] = re.findall(r"object.reason in \[(.+?)\]", expressions)
    assert set(re.findall(r"'(.+?)'", listed)) == changes.REASONS | FORMER.keys()


def test_the_keeper_of_certificates_touches_one_configuration_and_one_secret() -> None:
    only = ("zz-gpufraction-webhook",)
    resource = "mutatingwebhookconfigurations"
    secret = ("gpufraction-webhook-certs",)
    trusted = {(resource, verb, only) for verb in ("get", "patch")}
    assert rights("gpufraction-certs") == trusted | {("secrets", verb, secret) for verb in ("get", "patch")}


def test_no_right_is_a_wildcard_and_one_secret_alone_is_read_by_its_keeper() -> None:
    rules = [rule for kind in ("Role", "ClusterRole") for item in of(sources(), kind) for rule in item["rules"]]
    expressions: list[Any] = [text for rule in rules for text in texts(rule)]
    assert "*" not in expressions
    [secret] = [rule for rule in rules if any(text.startswith("secrets") for text in texts(rule))]
    assert secret in one(sources(), "Role", "gpufraction-certs")["rules"]
    assert (secret["resources"], secret["resourceNames"]) == (["secrets"], ["gpufraction-webhook-certs"])


def test_pods_run_as_the_accounts_that_have_rights() -> None:
    known = {item["metadata"]["name"] for item in of(sources(), "ServiceAccount")}
    assert {spec["serviceAccountName"] for spec in pods()} == known


# -- policies -----------------------------------------------------------------------------------------------------


def test_policies_keep_exactly_the_reserved_annotations() -> None:
    patterns = {
        found
        for policy in of(sources(), "ValidatingAdmissionPolicy")
        if policy["metadata"]["name"] != warnings.NAME
        for text in texts(policy)
        for found in re.findall(r"matches\(\s*'(.+?)'\)", text)
    }
    # The shortest: annotations by which a pod names devices to its runtime. The longest: what the allocator writes.
    devices, pattern, _ = sorted(patterns, key=len)
    named = [names.nri_annotation("main"), *(f"{prefix}a" for prefix in names.DEVICE_ANNOTATION_PREFIXES)]
    assert [name for name in named if not re.search(devices, name)] == []
    reserved = [*names.RESERVED_ANNOTATIONS, *(names.per_container(p, "main") for p in names.CONTAINER_PREFIXES)]
    free = [k for k in names.REGISTRY if k.on == "Pod annotation" and k not in names.RESERVED_ANNOTATIONS]
    assert [name for name in reserved if not re.search(pattern, name)] == []
    assert [name for name in [*free, f"x{names.REQUEST}", f"{names.REQUEST}x"] if re.search(pattern, name)] == []
    others = [*reserved, *free, "example.com/cdi.k8s.io/a", "acdi.k8s.io/a", "nvidia.cdi.k8s.iox/a"]
    assert [name for name in others if re.search(devices, name)] == []


def test_the_allocator_may_write_only_annotations_and_labels_of_placements() -> None:
    policy = one(sources(), "ValidatingAdmissionPolicy", "gpufraction-allocator-pods")
    expressions = "\n".join(texts(policy))
    [pattern] = re.findall(r"matches\(\s*'(.+?)'\)", expressions)
    [listed] = re.findall(r"variables.labels.all\(l, l in \[(.+?)\]", expressions)
    share = ContainerAllocation("main", (GpuShare("GPU-1", 0, 1 << 30, 10, 1 << 34, nri=True),))
    allocation = Allocation("a", "n1", (share,))
    written = {
        str(names.FENCE),
        str(names.ALLOCATION),
        str(names.WITHDRAWN),
        str(names.GANG_PLAN),
        *codec.container_annotations(allocation),
        *protection.added({}),
    }
    labels: set[str] = set()
    for dialect in DIALECTS:
        request = PodRequest(dialect.name, (FractionRequest("main", memory=1 << 30),))
        rendering = DIALECTS.render({"spec": {"containers": [{"name": "main"}]}}, request, allocation, 1)
        started = dialect.started(rendering.annotations)
        written |= rendering.annotations.keys() | started.keys()
        labels |= rendering.labels.keys()
    assert {name for name in written if not re.search(pattern, name)} == set()
    assert set(re.findall(r"'(.+?)'", listed)) == labels
    others = [
        k for k in names.REGISTRY if "annotation" in k.on and k not in names.CONTAINER_PREFIXES and k not in written
    ]
    strange = [
        *others,
        "example.com/a",
        "nvidia.cdi.k8s.io/a",
        "cdi.k8s.io/a",
        f"x{names.ALLOCATION}",
        f"{names.FENCE}x",
        *(f"{key}x" for key in protection.AGAINST_SCALE_DOWN),
    ]
    assert [name for name in strange if re.search(pattern, name)] == []


def test_policies_name_our_accounts_gate_and_resources() -> None:
    policies = of(sources(), "ValidatingAdmissionPolicy")
    expressions = "\n".join(text for policy in policies for text in texts(policy))
    accounts = set(re.findall(r"system:serviceaccount:([a-z-]+:[a-z-]+)", expressions))
    ours = {f"{names.NAMESPACE}:gpufraction-{name}" for name in ("allocator", "nodeagent", "certs")}
    ours.add(f"{names.NODES_NAMESPACE}:gpufraction-nodeagent")
    # Kubernetes' own controllers, which remove reservations and finalizers from claims.
    kubernetes = ("generic-garbage-collector", "resource-claim-controller", "namespace-controller")
    assert accounts - {f"{names.NAMESPACE}:"} == {*ours, *(f"kube-system:{name}" for name in kubernetes)}
    assert f"g.name == '{names.GATE}'" in expressions
    assert f"['{names.GPU_MEMORY}', '{names.GPU_CORES}', '{names.GPU_MEMORY_LIMIT}']" in expressions
    assert f"namespaceObject.metadata.labels['{names.INJECT_LABEL}'] == '{names.INJECT_ENABLED}'" in expressions


def test_policies_and_webhook_serve_the_same_namespaces() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    [excluded] = hook["namespaceSelector"]["matchExpressions"]
    create = one(sources(), "ValidatingAdmissionPolicy", "gpufraction-pod-create")
    [served] = [v["expression"] for v in create["spec"]["variables"] if v["name"] == "served"]
    assert re.findall(r"'([a-z-]+)'(?=[,\]])", served.partition(" in ")[2]) == excluded["values"]


def test_every_policy_denies_and_fails_closed_or_only_warns_or_notes() -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of(sources(), "ValidatingAdmissionPolicy")}
    bindings = {item["metadata"]["name"]: item["spec"] for item in of(sources(), "ValidatingAdmissionPolicyBinding")}
    harmless = {warnings.NAME: ["Warn"], "gpufraction-audit": ["Audit"]}
    actions = {name: harmless.get(name, ["Deny"]) for name in policies}
    assert "validations" not in policies["gpufraction-audit"]
    assert bindings == {name: {"policyName": name, "validationActions": actions[name]} for name in policies}
    fails = {name: "Ignore" if name in harmless else "Fail" for name in policies}
    assert {name: spec["failurePolicy"] for name, spec in policies.items()} == fails
