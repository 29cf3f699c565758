"""The install as written: it parses, it is what Kubernetes accepts, and it holds to what the programs really take."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import allocator.settings
import nodeagent.settings
import webhook.settings
from contract import keptout, names
from contract.conditions import match_conditions
from contract.dialects.options import VgpuOptions
from contract.pools import NOTHING_SAID, pool_options
from playground.api.schemas import prune, validate
from runtime.settings import load
from tests.manifests.kube import JSON, MANIFESTS, ROOT, SAMPLES, built, documents, files, of, one, sources, texts

VERSION = "1.30"
"""The oldest Kubernetes that we support; what is valid there stays valid."""
CONFIGURATION = "gpufraction-webhook"


def pods() -> Iterator[JSON]:
    """The pod specs of the install."""
    for item in sources():
        if item["kind"] in ("Deployment", "DaemonSet"):
            yield item["spec"]["template"]["spec"]


def containers() -> dict[str, JSON]:
    """Every container of the install, by name."""
    return {c["name"]: c for spec in pods() for c in [*spec.get("initContainers", []), *spec["containers"]]}


def command(name: str) -> tuple[str, str, list[str]]:
    """A container's program, its command and its flags."""
    python, dash, program, verb = containers()[name]["command"]
    assert (python, dash) == ("python", "-m")
    return program, verb, containers()[name]["args"]


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_says_something(path: Path) -> None:
    for found in documents(path):
        assert {"apiVersion", "kind"} <= found.keys()


def test_kustomize_builds_every_object_of_every_file_once() -> None:
    def identities(items: list[JSON]) -> list[tuple[str, str, str]]:
        return sorted((i["kind"], i["metadata"].get("namespace", ""), i["metadata"]["name"]) for i in items)

    assert identities(built()) == identities(sources())


def test_built_objects_are_valid_kubernetes() -> None:
    assert wrong(built()) == {}


def test_the_definition_does_not_describe_metadata_which_the_api_server_refuses() -> None:
    definitions = of(sources(), "CustomResourceDefinition")
    schemas = [version["schema"]["openAPIV3Schema"] for each in definitions for version in each["spec"]["versions"]]
    assert [schema["properties"]["metadata"] for schema in schemas] == [{"type": "object"}] * len(schemas)


def test_samples_are_valid_kubernetes() -> None:
    items = [item for path in sorted(SAMPLES.glob("*.yaml")) for item in documents(path)]
    builtin = [item for item in items if not item["apiVersion"].startswith("elasticgpu.io/")]
    assert wrong(builtin) == {}
    schemas = {each["spec"]["names"]["kind"]: each for each in of(sources(), "CustomResourceDefinition")}
    for item in [each for each in items if each not in builtin]:
        [version] = schemas[item["kind"]]["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        assert (prune(schema, copy.deepcopy(item)), validate(schema, item)) == ([], []), item["metadata"]["name"]


def wrong(items: list[JSON]) -> dict[str, str]:
    """What is wrong with the objects by Kubernetes' published schemas, by kind and name."""
    found = {f"{item['kind']} {item['metadata']['name']}": _wrong(json.dumps(item)) for item in items}
    return {name: said for name, said in found.items() if said}


@functools.cache
def _wrong(text: str) -> str:
    """What is wrong with one object, as JSON; most are the same in every overlay, and a look takes a while."""
    try:
        kubernetes_validate.validate(json.loads(text), VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""


# -- names --------------------------------------------------------------------------------------------------------


def test_only_registered_names_are_used() -> None:
    ours = re.compile(rf"{re.escape(names.GROUP)}/[A-Za-z0-9._-]+")
    allowed = {str(key) for key in names.REGISTRY} | {names.GPUNODE_GROUP_VERSION}
    used = {name for path in files() for item in documents(path) for text in texts(item) for name in ours.findall(text)}
    assert used - allowed == set()


def test_namespace_label_and_excluded_namespaces() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    [excluded] = hook["namespaceSelector"]["matchExpressions"]
    assert hook["namespaceSelector"]["matchLabels"] == {names.INJECT_LABEL: names.INJECT_ENABLED}
    assert excluded["values"] == ["kube-system", "kube-node-lease", "kube-public", names.NAMESPACE]
    assert set(excluded["values"]) == names.UNSERVED_NAMESPACES
    elsewhere = [i["kind"] for i in sources() if i["metadata"].get("namespace", names.NAMESPACE) != names.NAMESPACE]
    assert elsewhere == ["Role", "RoleBinding"], "the right to read the lists of kept out cards"


# -- the webhook configuration ------------------------------------------------------------------------------------


def test_conditions_are_those_of_the_dialects() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    assert hook["matchConditions"] == match_conditions(), "write these into manifests/base/webhook.yaml:\n" + yaml.dump(
        match_conditions()
    )


def test_the_webhook_is_asked_as_the_design_says() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    about = ("matchPolicy", "failurePolicy", "timeoutSeconds", "sideEffects", "reinvocationPolicy", "rules")
    assert {key: hook[key] for key in about} == {
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "timeoutSeconds": 3,
        "sideEffects": "NoneOnDryRun",
        "reinvocationPolicy": "IfNeeded",
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
    }


def test_the_webhook_is_reached_through_its_service() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    client = hook["clientConfig"]["service"]
    service = one(sources(), "Service", client["name"])
    [port] = service["spec"]["ports"]
    template = one(sources(), "Deployment", "gpufraction")["spec"]["template"]
    assert (client["namespace"], client["port"], client["path"]) == (names.NAMESPACE, port["port"], "/mutate")
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert port["targetPort"] in [p["name"] for p in containers()["webhook"]["ports"]]


# -- command lines ------------------------------------------------------------------------------------------------


def serve_settings() -> webhook.settings.ServeSettings:
    """The webhook's settings as the manifest gives them."""
    program, verb, flags = command("webhook")
    assert (program, verb) == ("webhook", "serve")
    return load(webhook.settings.ServeSettings, file=None, env={}, argv=flags)


def certs_settings() -> webhook.settings.CertsSettings:
    """The settings of the webhook's keeper of certificates as the manifest gives them."""
    program, verb, flags = command("certs")
    assert (program, verb) == ("webhook", "certs")
    return load(webhook.settings.CertsSettings, file=None, env={}, argv=flags)


def test_the_webhook_takes_its_flags_and_finds_what_the_others_give() -> None:
    serve, certs = serve_settings(), certs_settings()
    [https] = containers()["webhook"]["ports"]
    assert serve.bind == f"0.0.0.0:{https['containerPort']}"
    assert serve.certificates == certs.dir
    assert serve.socket == allocator_settings().socket
    assert (serve.options, serve.options.name) == (certs.options, names.OPTIONS_FILE)
    assert (certs.service, certs.namespace, certs.configuration) == (CONFIGURATION, names.NAMESPACE, CONFIGURATION)
    assert certs.every == 60


def test_only_the_keeper_of_certificates_reads_the_authoritys_key() -> None:
    place = str(certs_settings().places().authority)
    volumes = {name: mounts(container) for name, container in containers().items()}
    [volume] = {found[place] for found in volumes.values() if place in found}
    assert [name for name, found in volumes.items() if volume in found.values()] == ["certs"]


def mounts(container: JSON) -> dict[str, str]:
    """A container's volumes by where they are mounted."""
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def allocator_settings() -> allocator.settings.Settings:
    """The allocator's settings as the manifest gives them."""
    program, verb, flags = command("allocator")
    assert (program, verb) == ("allocator", "run")
    return load(allocator.settings.Settings, file=None, env={}, argv=flags)


def test_the_allocator_takes_its_flags() -> None:
    settings = allocator_settings()
    [http] = containers()["allocator"]["ports"]
    [create, write] = one(sources(), "Role", "gpufraction-allocator")["rules"]
    assert settings.listen == f"0.0.0.0:{http['containerPort']}"
    assert settings.election.namespace == names.NAMESPACE
    assert write["resourceNames"] == [settings.election.name]
    assert create["verbs"] == ["create"]


def test_the_node_agent_takes_its_flags() -> None:
    program, verb, flags = command("nodeagent")
    [node] = [e for e in containers()["nodeagent"]["env"] if e["name"] == "GPUFRACTION_NODE"]
    [http] = containers()["nodeagent"]["ports"]
    settings = load(nodeagent.settings.AgentSettings, file=None, env={"GPUFRACTION_NODE": "n1"}, argv=flags)
    assert (program, verb) == ("nodeagent", "run")
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert settings.listen == f"0.0.0.0:{http['containerPort']}"
    assert not settings.simulate


def test_the_shipped_options_say_nothing_and_every_name_in_them_can_be_said() -> None:
    [text] = one(sources(), "ConfigMap", names.OPTIONS)["data"].values()
    assert pool_options(yaml.safe_load(text)) == NOTHING_SAID
    said = re.sub(r"^#(?=[\w ])(?! )|^#(?=  )", "", text, flags=re.MULTILINE)
    document = yaml.safe_load(re.sub(r"^# .*$", "", said, flags=re.MULTILINE))
    options = pool_options(document)
    told = {field.name for field in fields(VgpuOptions) if getattr(options.cluster, field.name) is None}
    assert (told, [pool.name for pool in options.pools]) == (set(), ["notebooks"])


def test_files_that_a_flag_names_lie_in_a_volume_of_that_container() -> None:
    for name, container in containers().items():
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        paths = [flag.partition("=")[2] for flag in container["args"] if "=/" in flag]
        assert [path for path in paths if not any(path.startswith(mount) for mount in mounts)] == [], name


# -- pods ---------------------------------------------------------------------------------------------------------


def test_every_pod_keeps_the_restricted_standard() -> None:
    for spec in pods():
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {kind for v in spec["volumes"] for kind in v if kind != "name"} <= {
            "emptyDir",
            "projected",
            "secret",
            "configMap",
        }
    for container in containers().values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_every_container_asks_for_what_it_needs_and_no_cpu_limit_throttles_it() -> None:
    for container in containers().values():
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}


def test_each_token_reaches_one_container_only() -> None:
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    tokens = {
        name: [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == place]
        for name, container in containers().items()
    }
    assert tokens == {"certs": ["certs-token"], "webhook": [], "allocator": ["allocator-token"], "nodeagent": ["token"]}
    assert [spec["automountServiceAccountToken"] for spec in pods()] == [False, False]


def test_no_service_becomes_a_setting() -> None:
    assert [spec["enableServiceLinks"] for spec in pods()] == [False, False]


def test_a_stop_has_time_for_the_pause_and_the_webhooks_grace() -> None:
    spec = one(sources(), "Deployment", "gpufraction")["spec"]["template"]["spec"]
    pauses = {c["lifecycle"]["preStop"]["sleep"]["seconds"] for c in spec["containers"]}
    assert pauses == {5}
    assert spec["terminationGracePeriodSeconds"] >= 5 + serve_settings().grace


def test_the_image_is_set_in_one_place() -> None:
    assert {container["image"] for container in containers().values()} == {"gpufraction"}
    [image] = yaml.safe_load((MANIFESTS / "base" / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    assert image == {"name": "gpufraction", "newTag": version[1]}


def test_the_image_holds_the_programs_that_the_manifests_start() -> None:
    stages = (ROOT / "Containerfile").read_text(encoding="utf-8").split("\nFROM ")
    copied = set(re.findall(r"^COPY (\w+) \1$", stages[1], re.MULTILINE))
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {"contract", "runtime", *(command(name)[0] for name in containers())}
    texts = {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    assert copied | texts == {line[1:] for line in ignored if line[:1] == "!"}
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", stages[2], re.MULTILINE)


# -- rights -------------------------------------------------------------------------------------------------------


def rights(account: str) -> set[tuple[str, str, tuple[str, ...]]]:
    """What an account may do: (resource, verb, the names that it is restricted to)."""
    bound = [
        (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in [*of(sources(), "ClusterRoleBinding"), *of(sources(), "RoleBinding")]
        if account in [subject["name"] for subject in binding["subjects"]]
    ]
    return {
        (resource, verb, tuple(rule.get("resourceNames", ())))
        for kind, name in bound
        for rule in one(sources(), kind, name)["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_allocator_reads_the_cluster_and_writes_what_it_decided() -> None:
    read = {(resource, verb, ()) for resource in ("pods", "nodes", "gpunodes") for verb in ("get", "list", "watch")}
    lease = {("leases", "create", ()), *(("leases", verb, ("gpufraction-allocator",)) for verb in ("get", "update"))}
    write = {("pods", "patch", ()), ("pods/status", "patch", ()), ("events", "create", ()), ("events", "patch", ())}
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
    lists = {("namespaces", "list", ()), ("configmaps", "list", ()), ("configmaps", "watch", ())}
    assert rights("gpufraction-allocator") == read | lease | write | by_claims | lists
    assert one(sources(), "Role", "gpufraction-kept-out")["metadata"]["namespace"] == keptout.NAMESPACE


def test_claims_are_made_by_those_whom_an_administrator_lets_and_shares_by_nobody() -> None:
    role = one(sources(), "ClusterRole", "gpufraction-claims")
    assert "labels" not in role["metadata"], "nobody has it by itself"
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"elasticgpuclaims"}
    view = one(sources(), "ClusterRole", "gpufraction-view")
    seen = {resource for rule in view["rules"] for resource in rule["resources"]}
    assert seen == {"gpunodes", "elasticgpuclaims", "elasticgpuclasses", "gpus"}, "an ElasticGPU names a tenant"


def test_the_node_agent_writes_gpunodes_and_the_status_of_nodes() -> None:
    read = {(resource, verb, ()) for resource in ("nodes", "gpunodes") for verb in ("get", "list", "watch")}
    write = {("gpunodes", "create", ()), ("gpunodes", "patch", ())}
    status = {("gpunodes/status", "patch", ()), ("nodes/status", "patch", ())}
    around = {("pods", "list", ()), ("pods", "watch", ()), ("runtimeclasses", "list", ()), ("events", "create", ())}
    assert rights("gpufraction-nodeagent") == read | write | status | around


def test_the_keeper_of_certificates_touches_one_configuration() -> None:
    only = ("gpufraction-webhook",)
    resource = "mutatingwebhookconfigurations"
    assert rights("gpufraction-certs") == {(resource, "get", only), (resource, "patch", only)}


def test_no_right_is_a_wildcard_and_none_reads_secrets() -> None:
    rules = [rule for kind in ("Role", "ClusterRole") for item in of(sources(), kind) for rule in item["rules"]]
    said: list[Any] = [text for rule in rules for text in texts(rule)]
    assert "*" not in said
    assert not [text for text in said if text.startswith("secrets")]


def test_pods_run_as_the_accounts_that_have_rights() -> None:
    known = {item["metadata"]["name"] for item in of(sources(), "ServiceAccount")}
    [token] = of(sources(), "Secret")
    used = {spec["serviceAccountName"] for spec in pods()}
    used.add(token["metadata"]["annotations"]["kubernetes.io/service-account.name"])
    assert used == known


# -- policies -----------------------------------------------------------------------------------------------------


def test_policies_keep_exactly_the_reserved_annotations() -> None:
    patterns = {
        found
        for policy in of(sources(), "ValidatingAdmissionPolicy")
        for text in texts(policy)
        for found in re.findall(r"matches\(\s*'(.+?)'\)", text)
    }
    [pattern] = patterns
    reserved = [*names.RESERVED_ANNOTATIONS, *(names.per_container(p, "main") for p in names.CONTAINER_PREFIXES)]
    free = [k for k in names.REGISTRY if k.on == "Pod annotation" and k not in names.RESERVED_ANNOTATIONS]
    assert [name for name in reserved if not re.search(pattern, name)] == []
    assert [name for name in [*free, f"x{names.REQUEST}", f"{names.REQUEST}x"] if re.search(pattern, name)] == []


def test_policies_name_our_accounts_gate_and_resources() -> None:
    policies = of(sources(), "ValidatingAdmissionPolicy")
    said = "\n".join(text for policy in policies for text in texts(policy))
    accounts = set(re.findall(r"system:serviceaccount:([a-z-]+:[a-z-]+)", said))
    assert accounts == {f"{names.NAMESPACE}:gpufraction-allocator", f"{names.NAMESPACE}:gpufraction-nodeagent"}
    assert f"g.name == '{names.GATE}'" in said
    assert f"['{names.GPU_MEMORY}', '{names.GPU_CORES}']" in said
    assert f"namespaceObject.metadata.labels['{names.INJECT_LABEL}'] == '{names.INJECT_ENABLED}'" in said


def test_policies_and_webhook_serve_the_same_namespaces() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    [excluded] = hook["namespaceSelector"]["matchExpressions"]
    create = one(sources(), "ValidatingAdmissionPolicy", "gpufraction-pod-create")
    [served] = [v["expression"] for v in create["spec"]["variables"] if v["name"] == "served"]
    assert re.findall(r"'([a-z-]+)'(?=[,\]])", served.partition(" in ")[2]) == excluded["values"]


def test_every_policy_is_bound_to_deny_and_fails_closed() -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of(sources(), "ValidatingAdmissionPolicy")}
    bindings = {item["metadata"]["name"]: item["spec"] for item in of(sources(), "ValidatingAdmissionPolicyBinding")}
    assert bindings == {name: {"policyName": name, "validationActions": ["Deny"]} for name in policies}
    assert {spec["failurePolicy"] for spec in policies.values()} == {"Fail"}
