"""What each overlay and component changes in the base: built, valid, and exactly the difference that it is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import nodeagent.settings
import webhook.settings
from contract import components, names
from contract.dialects.conditions import match_conditions, other_conditions
from contract.metrics import METRICS
from contract.options import PoolOptions, VgpuOptions, pool_options
from contract.reslicing import STATE_LABEL, UNDER_WAY
from runtime.settings import load
from tests.unit.manifests import foreign
from tests.unit.manifests.install import CONFIGURATION, wrong
from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, below, built, one, with_components
from webhook.certificates.store import CERTIFICATE, KEY

OVERLAYS, COMPONENTS = below("overlays"), below("components")
CERTS = {
    ("Deployment", "gpufraction-certs"),
    ("ServiceAccount", "gpufraction-certs"),
    ("Secret", "gpufraction-webhook-certs"),
    ("ClusterRole", "gpufraction-certs"),
    ("ClusterRoleBinding", "gpufraction-certs"),
    ("Role", "gpufraction-certs"),
    ("RoleBinding", "gpufraction-certs"),
    ("NetworkPolicy", "gpufraction-certs"),
}

CLAIMS = {("ClusterRole", "gpufraction-allocator-claims"), ("ClusterRoleBinding", "gpufraction-allocator-claims")}


def identities(items: list[JSON]) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["name"]) for item in items}


def changed(items: list[JSON]) -> set[tuple[str, str]]:
    """The objects of the base that still exist and differ."""
    base = {(item["kind"], item["metadata"]["name"]): item for item in built()}
    return {key for item in items if base.get(key := (item["kind"], item["metadata"]["name"]), item) != item}


def template(items: list[JSON], kind: str, name: str) -> JSON:
    found: JSON = one(items, kind, name)["spec"]["template"]["spec"]
    return found


def webhook_container(items: list[JSON]) -> JSON:
    [found] = [c for c in template(items, "Deployment", "gpufraction")["containers"] if c["name"] == "webhook"]
    return dict(found)


def serve_settings(items: list[JSON]) -> webhook.settings.ServeSettings:
    return load(webhook.settings.ServeSettings, file=None, env={}, argv=webhook_container(items)["args"])


# -- all of them --------------------------------------------------------------------------------------------------


def test_every_place_that_is_promised_has_its_overlay() -> None:
    promised = {"oke", "openshift", "eks", "gke", "aks", "superedge", "cert-manager", "hami-compat", "multitenant"}
    assert set(OVERLAYS) == promised


def valid(items: list[JSON]) -> dict[str, str]:
    """What is wrong with the objects, both ours and foreign ones."""
    others = [item for item in items if (item["apiVersion"], item["kind"]) in foreign.SPECS]
    found = {f"{item['kind']} {item['metadata']['name']}": foreign.problem(item) for item in others}
    texts = {name: text for name, text in found.items() if text is not None}
    return wrong([item for item in items if item not in others]) | texts


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_valid_kubernetes(name: str) -> None:
    assert valid(built(f"overlays/{name}")) == {}


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_on_the_base_is_valid_kubernetes(name: str) -> None:
    assert valid(with_components(name)) == {}


def test_a_misspelt_field_of_a_foreign_kind_is_found() -> None:
    items = built("overlays/cert-manager")
    certificate = one(items, "Certificate", "gpufraction-webhook")
    spelt = {**certificate, "spec": {**certificate["spec"], "dnsName": []}}
    assert foreign.problem(spelt) == "spec: lacks [], does not know ['dnsName']"


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_of_ours_are_registered_ones(name: str) -> None:
    used = set(re.findall(rf"{re.escape(names.GROUP)}/[A-Za-z0-9._-]+", str(built(f"overlays/{name}"))))
    assert used <= {str(key) for key in names.REGISTRY} | {names.GPUNODE_GROUP_VERSION} | in_base()


def in_base() -> set[str]:
    return set(re.findall(rf"{re.escape(names.GROUP)}/[A-Za-z0-9._-]+", str(built())))


SECTIONS = ["Install", "What it changes, and why", "Firewall", "Nodes", "How a GPU gets into a container", "Not tested"]


CLOUDS = sorted(path.stem for path in (ROOT / "docs" / "clouds").glob("[a-z]*.md"))


def page_of(name: str) -> Path:
    """The page of an overlay: its cloud's page, or its README if it is for any cloud."""
    return ROOT / "docs" / "clouds" / f"{name}.md" if name in CLOUDS else MANIFESTS / "overlays" / name / "README.md"


ONE_LINE = {"superedge"}
"""Overlays that no release of their system can run: they have one line in the table of clouds."""


def test_an_overlay_without_a_page_has_its_line_in_the_table_of_clouds() -> None:
    table = (ROOT / "docs" / "clouds" / "README.md").read_text(encoding="utf-8")
    assert [name for name in ONE_LINE if f"(../../manifests/overlays/{name}/kustomization.yaml)" not in table] == []


@pytest.mark.parametrize("name", sorted({*OVERLAYS} - ONE_LINE))
def test_every_overlay_says_what_an_administrator_has_to_know(name: str) -> None:
    page = page_of(name)
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert f"kubectl apply -k manifests/overlays/{name}" in text
    assert "samples/check.yaml" in text
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if not link.startswith("http")]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_of_a_cloud_has_its_overlay() -> None:
    assert set(CLOUDS) <= set(OVERLAYS)


# -- one by one ---------------------------------------------------------------------------------------------------

MOVED = {
    ("ClusterRoleBinding", "gpufraction-nodeagent"),
    ("ConfigMap", "gpufraction-nodeagent-settings"),
    ("NetworkPolicy", "gpufraction-nodeagent"),
    ("ServiceAccount", "gpufraction-nodeagent"),
}
"""What changes with the agent's namespace, in addition to its DaemonSet."""
ONLY: dict[str, set[tuple[str, str]]] = {
    "oke": {("DaemonSet", "gpufraction-nodeagent"), ("Deployment", "gpufraction")},
    "eks": set(),
    "gke": {
        ("DaemonSet", "gpufraction-nodeagent"),
        ("Deployment", "gpufraction"),
        ("Namespace", "gpufraction-nodes"),
        *MOVED,
    },
    "aks": {("MutatingWebhookConfiguration", CONFIGURATION)},
    "superedge": {("Deployment", "gpufraction"), ("Deployment", "gpufraction-certs")},
    "hami-compat": {
        ("ConfigMap", "gpufraction-options"),
        ("DaemonSet", "gpufraction-nodeagent"),
        ("Deployment", "gpufraction"),
    },
    "cert-manager": {("MutatingWebhookConfiguration", CONFIGURATION), ("Deployment", "gpufraction")},
    "openshift": {
        ("DaemonSet", "gpufraction-nodeagent"),
        ("Deployment", "gpufraction"),
        ("MutatingWebhookConfiguration", CONFIGURATION),
        ("Namespace", "gpufraction-nodes"),
        ("Namespace", "gpufraction-system"),
        ("Service", "gpufraction-webhook"),
    },
    "multitenant": {
        ("DaemonSet", "gpufraction-nodeagent"),
        ("Deployment", "gpufraction"),
        ("MutatingWebhookConfiguration", CONFIGURATION),
        ("Namespace", "gpufraction-nodes"),
        ("NetworkPolicy", "gpufraction-admission"),
        *MOVED,
    },
}
PROFILE = {
    *((kind, "gpufraction-allocator-eviction") for kind in ("ClusterRole", "ClusterRoleBinding")),
    ("ClusterRoleBinding", "gpufraction-nodeagent-pods-node-access"),
    *(
        (f"ValidatingAdmissionPolicy{kind}", f"gpufraction-{name}")
        for name in ("guard-gpus", "isolation", "quota")
        for kind in ("", "Binding")
    ),
    ("ValidatingAdmissionPolicy", "gpufraction-quota-bounds"),
    ("ValidatingAdmissionPolicyBinding", "gpufraction-create-resourcequota-gpufraction"),
}
"""What the overlay multitenant adds."""


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_changes_what_it_is_for_and_nothing_else(name: str) -> None:
    items = built(f"overlays/{name}")
    removed = CERTS if name in ("cert-manager", "openshift") else set()
    new = {("Issuer", "gpufraction-selfsigned"), ("Issuer", "gpufraction-ca")} if name == "cert-manager" else set()
    new |= {("Certificate", "gpufraction-ca"), ("Certificate", "gpufraction-webhook")} if new else set()
    new |= {"oke": CLAIMS, "multitenant": PROFILE}.get(name, set())
    assert changed(items) == ONLY[name]
    assert identities(items) == identities(built()) - removed | new


AGENTS_NODES: dict[str, Any] = {
    "oke": {"kubernetes.io/os": "linux", "gpu-node": "true"},
    "hami-compat": {"kubernetes.io/os": "linux", "gpu": "on"},
    "gke": {"kubernetes.io/os": "linux"},
}


@pytest.mark.parametrize("name", AGENTS_NODES)
def test_where_the_agent_runs(name: str) -> None:
    assert (
        template(built(f"overlays/{name}"), "DaemonSet", "gpufraction-nodeagent")["nodeSelector"]
        == (AGENTS_NODES[name])
    )


def test_the_agent_goes_away_while_nvidias_operator_works_on_the_cards() -> None:
    """
    Its driver manager sets that value on a Node that had `true`, and its MIG manager sets the other. Every term must
    contain both values, because one matching term is enough.
    """
    spec = template(built(), "DaemonSet", "gpufraction-nodeagent")
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    paused = {"key": "nvidia.com/gpu.deploy.client", "operator": "NotIn", "values": ["paused-for-driver-upgrade"]}
    sliced = {"key": STATE_LABEL, "operator": "NotIn", "values": [*UNDER_WAY]}
    assert [term["matchExpressions"][1:] for term in terms] == [[paused, sliced]] * len(terms)


def test_on_gke_the_agent_goes_by_googles_label_and_finds_googles_driver() -> None:
    spec = template(built("overlays/gke"), "DaemonSet", "gpufraction-nodeagent")
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "cloud.google.com/gke-accelerator", "operator": "Exists"}]}]
    [agent] = spec["containers"]
    given = load(nodeagent.settings.settings_type(), file=None, env={"GPUFRACTION_NODE": "n"}, argv=agent["args"])
    [place] = [m["mountPath"] for m in agent["volumeMounts"] if m["name"] == "driver"]
    assert given.nvml_library.startswith(place)
    assert serve_settings(built("overlays/gke")).bind == "[::]:10250"


def test_the_webhook_and_the_allocator_stay_restricted_everywhere() -> None:
    """Only the agent has needs that differ from place to place; see each README."""
    for name in OVERLAYS:
        spec = template(built(f"overlays/{name}"), "Deployment", "gpufraction")
        before = template(built(), "Deployment", "gpufraction")
        ours = before["securityContext"] | ({"runAsUser": None, "runAsGroup": None} if name == "openshift" else {})
        assert spec["securityContext"] == {key: value for key, value in ours.items() if value is not None}
        assert [c["securityContext"] for c in spec["containers"]] == [
            c["securityContext"] for c in before["containers"]
        ]
        assert not spec.get("hostNetwork")


def test_on_superedge_what_the_api_server_must_reach_is_in_the_cloud() -> None:
    affinity = template(built("overlays/superedge"), "Deployment", "gpufraction")["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {(e["key"], e["operator"]) for e in term["matchExpressions"]} == {
        ("superedge.io/edge-node", "DoesNotExist"),
        ("superedge.io/node-edge", "DoesNotExist"),
    }


def test_hamis_defaults_are_options_and_flags() -> None:
    import allocator.app

    items = built("overlays/hami-compat")
    [options] = [item["data"]["options.yaml"] for item in items if item["metadata"]["name"] == names.OPTIONS]
    assert pool_options(yaml.safe_load(options)) == PoolOptions(VgpuOptions(10, 1.0, 0, 0, False, "none"))
    spec = template(items, "Deployment", "gpufraction")
    [container] = [c for c in spec["containers"] if c["name"] == "allocator"]
    given = load(allocator.app.settings_type(), file=None, env={}, argv=container["args"])
    assert (given.placement.node_policy, given.placement.gpu_policy) == ("binpack", "spread")


# -- other authorities' certificates ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cert-manager", "openshift"])
def test_certificates_of_others_are_served_from_their_secret(name: str) -> None:
    items = built(f"overlays/{name}")
    spec = template(items, "Deployment", "gpufraction")
    assert spec.get("initContainers", []) == []
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes.keys() == {"certs", "socket", "options", "allocator-token"}
    assert volumes["certs"]["secret"]["secretName"] == "gpufraction-webhook-tls"
    assert {item["key"] for item in volumes["certs"]["secret"]["items"]} == {CERTIFICATE, KEY}
    [mount] = [m for m in webhook_container(items)["volumeMounts"] if m["name"] == "certs"]
    assert str(serve_settings(items).certificates) == mount["mountPath"]
    assert identities(items) & CERTS == set()


def test_on_openshift_users_are_its_own_to_assign() -> None:
    items = built("overlays/openshift")
    for kind, name in (("Deployment", "gpufraction"), ("DaemonSet", "gpufraction-nodeagent")):
        assert "runAsUser" not in str(template(items, kind, name))
        assert "runAsGroup" not in str(template(items, kind, name))


def test_on_openshift_its_authority_fills_the_secret_and_the_configuration() -> None:
    items = built("overlays/openshift")
    service = one(items, "Service", "gpufraction-webhook")["metadata"]["annotations"]
    hook = one(items, "MutatingWebhookConfiguration", CONFIGURATION)["metadata"]["annotations"]
    assert service == {"service.beta.openshift.io/serving-cert-secret-name": "gpufraction-webhook-tls"}
    assert hook == {"service.beta.openshift.io/inject-cabundle": "true"}


def test_cert_manager_issues_for_the_service_and_injects_its_authority() -> None:
    items = built("overlays/cert-manager")
    certificate = one(items, "Certificate", "gpufraction-webhook")
    ca = one(items, "Certificate", "gpufraction-ca")
    [hook] = one(items, "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    client = hook["clientConfig"]["service"]
    assert f"{client['name']}.{client['namespace']}.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["secretName"] == "gpufraction-webhook-tls"
    issuer = one(items, "Issuer", certificate["spec"]["issuerRef"]["name"])
    assert issuer["spec"] == {"ca": {"secretName": ca["spec"]["secretName"]}}
    assert one(items, "Issuer", ca["spec"]["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
    annotations = one(items, "MutatingWebhookConfiguration", CONFIGURATION)["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"{names.NAMESPACE}/gpufraction-webhook"}


# -- components ---------------------------------------------------------------------------------------------------


def test_hiding_gpus_sends_the_other_pods_too_and_switches_the_webhook() -> None:
    items = with_components("hide-gpus")
    hooks = {hook["name"]: hook for hook in one(items, "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]}
    ours, others = hooks["pods.gpufraction.io"], hooks["others.gpufraction.io"]
    about = ("clientConfig", "rules", "namespaceSelector", "matchPolicy", "timeoutSeconds", "reinvocationPolicy")
    assert {key: others[key] for key in about} == {key: ours[key] for key in about}
    assert ours["matchConditions"] == match_conditions()
    assert others["matchConditions"] == other_conditions(), (
        "write these into manifests/components/hide-gpus/webhook.yaml"
    )
    assert (serve_settings(items).hide_gpus, serve_settings(built()).hide_gpus) == (True, False)
    assert others["sideEffects"] == "None"
    debuggers = hooks["debuggers.gpufraction.io"]
    [rule] = debuggers["rules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["pods/ephemeralcontainers"])
    assert {key: debuggers[key] for key in about if key != "rules"} == {
        key: ours[key] for key in about if key != "rules"
    }


def test_with_a_runtime_class_the_agent_and_pods_with_a_share_have_it() -> None:
    items = with_components("nvidia-runtimeclass")
    agent = template(items, "DaemonSet", "gpufraction-nodeagent")
    assert agent["runtimeClassName"] == serve_settings(items).runtime_class == "nvidia"


def test_in_the_hosts_network_replicas_keep_apart() -> None:
    spec = one(with_components("host-network"), "Deployment", "gpufraction")["spec"]
    pod = spec["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_another_port_is_the_same_in_flag_and_pod() -> None:
    items = with_components("port-10250")
    [port, health] = webhook_container(items)["ports"]
    assert serve_settings(items).bind == f"[::]:{port['containerPort']}"
    assert port == {"name": "https", "containerPort": 10250}
    assert health == {"name": "health", "containerPort": 9444}


def test_probes_of_the_webhook_have_a_port_that_no_stranger_can_keep_busy() -> None:
    """
    Reviews may come from anywhere, whatever their port is; see `webhook.serving.health`.
    """
    for items in (built(), with_components("port-10250"), with_components("host-network")):
        container = webhook_container(items)
        probes = {kind: container[kind]["httpGet"] for kind in ("readinessProbe", "livenessProbe")}
        assert probes == {
            "readinessProbe": {"path": "/readyz", "port": "health"},
            "livenessProbe": {"path": "/healthz", "port": "health"},
        }
        policy = one(items, "NetworkPolicy", "gpufraction-admission")
        reviews, metrics = policy["spec"]["ingress"]
        assert reviews == {"ports": [{"port": "https"}]}
        assert metrics == {"from": [{"namespaceSelector": {}}], "ports": [{"port": "http"}, {"port": "health"}]}


def test_with_a_clients_certificate_the_authority_lies_where_the_flag_says() -> None:
    items = with_components("client-certificate", "port-10250")
    settings = serve_settings(items)
    assert settings.client_names == ("gpufraction-api-server",)
    mounts = {mount["name"]: mount["mountPath"] for mount in webhook_container(items)["volumeMounts"]}
    [volume] = [v for v in template(items, "Deployment", "gpufraction")["volumes"] if v["name"] == "client-ca"]
    assert str(settings.client_ca) == f"{mounts['client-ca']}/ca.crt"
    assert volume["configMap"] == {"name": "gpufraction-client-ca"}


def test_cert_manager_goes_with_a_clouds_component() -> None:
    items = with_components("cert-manager", "port-10250", "hide-gpus")
    assert valid(items) == {}
    assert serve_settings(items).bind == "[::]:10250"


@pytest.mark.parametrize("each", components.COMPONENTS, ids=lambda each: each.name)
def test_a_component_sets_what_the_table_says_and_nothing_else(each: components.Component) -> None:
    before, after = (arguments(items) for items in (built(), with_components(each.name)))
    added = {program: set(after[program]) - set(given) for program, given in before.items()}
    inside = {*each.brings, *(other for other in each.needs if other == "external-certificates")}
    brought = [each, *map(components.component, inside)]
    probed = {
        program: {f"--{name}={value}" for it in brought for name, value in both(it, program).items()}
        for program in before
    }
    assert added == probed


def both(each: components.Component, program: str) -> dict[str, str]:
    """What the component sets for the program, in a pod."""
    return {**each.settings.get(program, {}), **each.pod_settings.get(program, {})}


def arguments(items: list[JSON]) -> dict[str, list[str]]:
    """The flags of each program, by its container. Settings from the environment are given as flags, too."""
    specs = [template(items, "Deployment", "gpufraction"), template(items, "DaemonSet", "gpufraction-nodeagent")]
    found = {container["name"]: list(container["args"]) for spec in specs for container in spec["containers"]}
    for container in (container for spec in specs for container in spec["containers"]):
        for each in container.get("env", ()):
            if each["name"].startswith("GPUFRACTION_") and "value" in each:
                flag = each["name"].removeprefix("GPUFRACTION_").lower().replace("_", "-")
                found[container["name"]].append(f"--{flag}={each['value']}")
    return found


def alerts() -> list[JSON]:
    [group] = one(with_components("monitoring"), "PrometheusRule", "gpufraction")["spec"]["groups"]
    return list(group["rules"])


def test_alerts_look_at_metrics_and_labels_that_there_are() -> None:
    known = {spec.name: spec for spec in METRICS}
    for rule in alerts():
        expression = re.sub(r"\w+:[\w:]+", "", rule["expr"])  # recorded series have tests of their own
        used = {name.removesuffix("_bucket") for name in re.findall(r"gpufraction_\w+", expression)}
        assert used <= known.keys(), rule["alert"]
        joined = [
            label for labels in re.findall(r"(?:by|on) \(([^)]+)\)", rule["expr"]) for label in labels.split(", ")
        ]
        assert used or expression != rule["expr"], rule["alert"]
        for spec in (known[name] for name in used):
            assert set(joined) - {"le", "cluster"} <= set(spec.labels), rule["alert"]
            for label, values in re.findall(r'(\w+)=~?"([^"]+)"', rule["expr"]):
                assert label in spec.labels, rule["alert"]
                assert [value for value in values.split("|") if value not in spec.help] == [], rule["alert"]


def test_what_is_scraped_has_those_ports() -> None:
    items = with_components("monitoring")
    ports = [e["port"] for e in one(items, "PodMonitor", "gpufraction")["spec"]["podMetricsEndpoints"]]
    specs = [template(items, "Deployment", "gpufraction"), template(items, "DaemonSet", "gpufraction-nodeagent")]
    assert {port["name"] for spec in specs for c in spec["containers"] for port in c["ports"]} == {*ports, "https"}


def test_docs_name_every_overlay_and_component() -> None:
    text = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    assert [name for name in OVERLAYS if f"manifests/overlays/{name}" not in text] == []
    assert [name for name in COMPONENTS if f"components/{name}" not in text] == []
