"""Shadow mode as shipped: valid, read-only, closed to all clients, and with settings that its program has."""

from __future__ import annotations

from runtime.settings import load
from shadow.settings import RecorderSettings
from tests.unit.manifests.install import wrong
from tests.unit.manifests.kube import JSON, built, of, one, sources

NAME = "gpufraction-shadow"


def shipped() -> list[JSON]:
    return sources("shadow")


def test_it_is_valid_kubernetes() -> None:
    assert wrong(built("shadow")) == {}


def test_nothing_of_it_is_outside_its_own_namespace() -> None:
    scoped = (
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    )
    spaces = {each["metadata"].get("namespace") for each in shipped() if each["kind"] not in scoped}
    assert spaces == {NAME}


def test_its_account_lists_and_watches_and_has_no_other_right() -> None:
    assert of(shipped(), "Role") == of(shipped(), "RoleBinding") == []
    assert one(shipped(), "ClusterRole", NAME)["rules"] == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["gpufraction.io"], "resources": ["gpunodes"], "verbs": ["list", "watch"]},
    ]
    binding = one(shipped(), "ClusterRoleBinding", NAME)
    assert (binding["roleRef"]["name"], binding["subjects"]) == (
        NAME,
        [{"kind": "ServiceAccount", "name": NAME, "namespace": NAME}],
    )


def test_policies_refuse_every_write_of_its_account() -> None:
    policy = one(shipped(), "ValidatingAdmissionPolicy", "gpufraction-shadow-writes-nothing")["spec"]
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    assert policy["matchConstraints"]["resourceRules"] == [everything]
    assert [each["expression"] for each in policy["validations"]] == ["false"]
    assert policy["failurePolicy"] == "Fail"
    [condition] = policy["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == 'system:serviceaccount:{NAME}:{NAME}'"
    bindings = of(shipped(), "ValidatingAdmissionPolicyBinding")
    assert [each["spec"]["validationActions"] for each in bindings] == [["Deny"], ["Deny"]]
    assert {each["spec"]["policyName"] for each in bindings} == {
        each["metadata"]["name"] for each in of(shipped(), "ValidatingAdmissionPolicy")
    }


def test_no_pod_connects_to_it() -> None:
    [policy] = of(shipped(), "NetworkPolicy")
    assert (policy["spec"]["podSelector"], policy["spec"]["policyTypes"]) == ({}, ["Ingress", "Egress"])
    assert "ingress" not in policy["spec"]
    assert of(shipped(), "Service") == []


def test_its_command_and_its_probes_are_those_of_the_program() -> None:
    pod = one(shipped(), "Deployment", NAME)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == ["python", "-m", "shadow", "record"]
    settings = load(RecorderSettings, file=None, env={}, argv=container["args"])
    mounts = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert {str(settings.directory)} == mounts, "the one folder that it can write"
    [port] = container["ports"]
    assert settings.listen.endswith(f":{port['containerPort']}")
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} == {
        "/readyz",
        "/healthz",
    }
    [claim] = of(shipped(), "PersistentVolumeClaim")
    assert settings.size < int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) << 30


def test_its_pod_is_as_restricted_as_its_namespace_asks() -> None:
    labels = one(shipped(), "Namespace", NAME)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = one(shipped(), "Deployment", NAME)["spec"]["template"]["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
