"""The installation as written: it parses, Kubernetes accepts it, and its names and webhooks are as designed."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml

from contract import names
from contract.dialects.conditions import match_conditions
from playground.api.rules.schemas import prune, validate
from tests.unit.manifests.install import CONFIGURATION, containers, wrong
from tests.unit.manifests.kube import JSON, ROOT, SAMPLES, built, documents, files, of, one, sources, texts

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
    assert excluded["values"] == [
        "kube-system",
        "kube-node-lease",
        "kube-public",
        names.NAMESPACE,
        names.NODES_NAMESPACE,
    ]
    assert set(excluded["values"]) == names.UNSERVED_NAMESPACES
    elsewhere = [i["kind"] for i in sources() if i["metadata"].get("namespace", names.NAMESPACE) != names.NAMESPACE]
    assert elsewhere == ["ResourceQuota"], "of the namespace for agents, which is empty by default"


# -- the webhook configuration ------------------------------------------------------------------------------------


def test_conditions_are_those_of_the_dialects() -> None:
    [hook] = one(sources(), "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
    assert hook["matchConditions"] == match_conditions(), "write these into manifests/base/webhook.yaml:\n" + yaml.dump(
        match_conditions()
    )


def test_the_webhook_is_called_as_the_design_says() -> None:
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
