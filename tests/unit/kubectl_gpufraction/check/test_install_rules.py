"""The findings about an installation, by cases: its objects, image, Pods, certificates, leader and rights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract import names
from kubectl_gpufraction.check import install
from kubectl_gpufraction.check.facts import Authorities, ClusterFacts, DryRun, ProgramRight
from kubectl_gpufraction.check.findings import FAIL, OK, WARN, Finding, Unseen
from tests.unit.manifests.kube import below, of, one, sources

JSON = dict[str, Any]
DAY = 86400.0
NOW = 1_767_600_000.0  # 2026-01-05T08:00:00Z
APPLY = "kubectl apply -k YOUR_KUSTOMIZATION"
IMAGE = "registry.example.com/gpufraction:0.1.0"
ADDED = f"kustomize edit set image gpufraction=REGISTRY/gpufraction:0.1.0 && {APPLY}"


def shipped(kind: str, name: str, *, image: str = IMAGE, ready: int | None = None, **spec: Any) -> JSON:
    """A workload of the manifests, with a status."""
    made: JSON = one(sources(), kind, name)
    template = made["spec"]["template"]["spec"]
    containers = [each | {"image": image} for each in template["containers"]]
    template = template | {"containers": containers} | spec
    wanted = made["spec"].get("replicas", 1)
    status = {"readyReplicas": wanted if ready is None else ready}
    return made | {"spec": made["spec"] | {"template": made["spec"]["template"] | {"spec": template}}, "status": status}


def flagged(program: str, *flags: str, **environment: str) -> JSON:
    """A Deployment of one program with flags and variables."""
    env = [{"name": name, "value": value} for name, value in environment.items()]
    container = {"command": ["python", "-m", program, "run"], "args": list(flags), "env": env, "image": IMAGE}
    return {
        "metadata": {"name": "gpufraction"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": 1},
    }


ADMISSION, KEEPER = shipped("Deployment", "gpufraction"), shipped("Deployment", "gpufraction-certs")
AGENT = shipped("DaemonSet", "gpufraction-nodeagent")
LEASE = {"spec": {"holderIdentity": "replica-0_a1", "renewTime": "2026-01-05T07:59:55Z", "leaseDurationSeconds": 15}}
WELL = ClusterFacts(
    now=NOW,
    version=(1, 36),
    namespaces=(one(sources(), "Namespace", names.NAMESPACE),),
    gpunodes=(),
    webhook={},
    policies=frozenset(install.POLICIES),
    deployments=(ADMISSION, KEEPER),
    daemonsets=(AGENT,),
    lease=LEASE,
    authorities=Authorities((NOW + 100 * DAY,)),
    granted={},
    dry_run=None,
)


def found(check: str, **known: Any) -> list[tuple[str, str, str]]:
    findings = install.findings(replace(WELL, **known))
    return [(each.level, each.found, each.cure) for each in findings if each.check == check]


def test_before_the_installation_there_is_one_line() -> None:
    nothing = ClusterFacts(now=NOW, version=(1, 36))
    assert list(install.findings(nothing)) == [Finding(OK, "installation", "gpufraction is not installed yet", APPLY)]


def test_the_policies_are_those_of_the_manifests() -> None:
    policies = of(sources(), "ValidatingAdmissionPolicy")
    refusing = [each["metadata"]["name"] for each in policies if each["spec"]["failurePolicy"] == "Fail"]
    assert sorted(refusing) == sorted(install.POLICIES)


def test_every_component_that_is_named_exists() -> None:
    every = flagged("allocator", *(f"--{name}=true" for name in ("preemption", "claims", "fits-enabled")))
    agent = flagged("nodeagent", "--pods=true", "--startup-taint=true", "--evict-overuse=5m")
    rights = install.program_rights(replace(WELL, deployments=(every,), daemonsets=(agent,)))
    named = {right.component for right in rights if right.component}
    assert named == {"allocator-eviction", "claims", "kueue-check", "node-access", "startup-taint"}
    assert named <= set(below("components"))


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({}, (OK, "webhook configuration, GPUNodes, Deployment and DaemonSet exist", "")),
        ({"webhook": None}, (FAIL, "the MutatingWebhookConfiguration zz-gpufraction-webhook: missing", APPLY)),
        ({"gpunodes": None}, (FAIL, "the CustomResourceDefinition gpunodes.gpufraction.io: missing", APPLY)),
        ({"daemonsets": ()}, (FAIL, "the DaemonSet gpufraction-nodeagent: missing", APPLY)),
        (
            {"daemonsets": (), "dry_run": DryRun("a", refused='admission webhook "pods.gpufraction.io" denied it')},
            (
                WARN,
                "the DaemonSet gpufraction-nodeagent: missing, but the webhook answers; it runs elsewhere, as in the "
                "playground",
                "",
            ),
        ),
        ({"webhook": Unseen("you may not")}, ("UNKNOWN", "unknown: you may not", "")),
    ],
)
def test_objects(known: JSON, wanted: tuple[str, str, str]) -> None:
    assert found("installation", **known) == [wanted]


PLACEHOLDER = "names no registry, so only nodes onto which it was loaded have it"


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({}, (OK, f"{IMAGE} everywhere", "")),
        (
            {"deployments": (shipped("Deployment", "gpufraction", image="gpufraction:0.1.0", ready=0),)},
            (FAIL, f"gpufraction:0.1.0 of deployment/gpufraction {PLACEHOLDER}", ADDED),
        ),
        (
            {"deployments": (shipped("Deployment", "gpufraction", image="gpufraction:0.1.0"),)},
            (WARN, f"gpufraction:0.1.0 of deployment/gpufraction {PLACEHOLDER}", ADDED),
        ),
        (
            {"daemonsets": (shipped("DaemonSet", "gpufraction-nodeagent", image="r.io/gpufraction:0.2.0"),)},
            (
                WARN,
                "the programs run from different images: r.io/gpufraction:0.2.0 of daemonset/gpufraction-nodeagent; "
                f"{IMAGE} of deployment/gpufraction, deployment/gpufraction-certs",
                ADDED,
            ),
        ),
        ({"deployments": (), "daemonsets": Unseen("why")}, ("UNKNOWN", "unknown: why", "")),
    ],
)
def test_images(known: JSON, wanted: tuple[str, str, str]) -> None:
    assert found("image", **known) == [wanted]


@pytest.mark.parametrize(
    ("image", "level"),
    [
        ("docker.io/projecthami/hami:v2.10.0@sha256:" + "a" * 64, OK),
        ("r.io:5000/hami@sha256:" + "a" * 64, OK),
        ("docker.io/projecthami/hami:v2.10.0", WARN),
        ("r.io:5000/hami", WARN),
        (IMAGE, None),
        (IMAGE.partition(":")[0] + ":0.0.9", None),
    ],
)
def test_images_of_others(image: str, level: str | None) -> None:
    agent = shipped("DaemonSet", "gpufraction-nodeagent")
    agent["spec"]["template"]["spec"]["initContainers"] = [{"name": "preload", "image": image}]
    message = found("other-images", daemonsets=(agent,))
    by_digest = f"{image} of daemonset/gpufraction-nodeagent is named by digest"
    by_tag = (
        f"{image} of daemonset/gpufraction-nodeagent is named by tag: anyone who may write the tag chooses what runs"
    )
    cure = f"name it with its digest under images of your kustomization && {APPLY}"
    assert message == {OK: [(OK, by_digest, "")], WARN: [(WARN, by_tag, cure)], None: []}[level]


def seeing_the_host(**spec: Any) -> JSON:
    return {"daemonsets": (shipped("DaemonSet", "gpufraction-nodeagent", **spec),)}


PRIVILEGED = f"kubectl label namespace {names.NAMESPACE} pod-security.kubernetes.io/enforce=privileged --overwrite"
REFUSES = f"namespace {names.NAMESPACE} enforces restricted, which refuses daemonset/gpufraction-nodeagent"


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({}, (OK, f"namespace {names.NAMESPACE}: restricted, which gpufraction's pods meet", "")),
        (seeing_the_host(hostPID=True), (FAIL, f"{REFUSES} (hostPID)", PRIVILEGED)),
        (seeing_the_host(volumes=[{"hostPath": {"path": "/"}}]), (FAIL, f"{REFUSES} (hostPath)", PRIVILEGED)),
        (
            {**seeing_the_host(hostNetwork=True), "namespaces": ()},
            (OK, f"namespace {names.NAMESPACE}: no level of its own, which gpufraction's pods meet", ""),
        ),
    ],
)
def test_pod_security_of_our_own_namespace(known: JSON, wanted: tuple[str, str, str]) -> None:
    assert found("own-pod-security", **known) == [wanted]


def test_missing_policies() -> None:
    without = frozenset(install.POLICIES) - {"gpufraction-node"}
    assert found("policies", policies=without) == [(FAIL, "missing, or without their binding: gpufraction-node", APPLY)]


PULLS = {
    "metadata": {"namespace": names.NAMESPACE, "labels": ADMISSION["spec"]["selector"]["matchLabels"]},
    "status": {"containerStatuses": [{"name": "webhook", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
}
DESCRIBE = f"kubectl -n {names.NAMESPACE} describe pods"


@pytest.mark.parametrize(
    ("ready", "wanted"),
    [
        (2, (OK, "2 of 2 replicas of the Deployment gpufraction Ready", "")),
        (1, (WARN, "1 of 2 replicas of the Deployment gpufraction Ready (webhook ImagePullBackOff)", DESCRIBE)),
        (0, (FAIL, "0 of 2 replicas of the Deployment gpufraction Ready (webhook ImagePullBackOff)", DESCRIBE)),
    ],
)
def test_pods_that_are_not_ready(ready: int, wanted: tuple[str, str, str]) -> None:
    known = {"deployments": (shipped("Deployment", "gpufraction", ready=ready),), "pods": (PULLS,)}
    assert found("webhook", **known) == [wanted]


def test_the_keeper_of_certificates_may_be_away_for_a_while() -> None:
    away = shipped("Deployment", "gpufraction-certs", ready=0)
    message = "0 of 1 replicas of the Deployment gpufraction-certs Ready"
    assert found("keeper-of-certificates", deployments=(ADMISSION, away)) == [(WARN, message, DESCRIBE)]
    assert found("keeper-of-certificates", deployments=(ADMISSION,)) == []


LOGS = f"kubectl -n {names.NAMESPACE} logs deployment/gpufraction-certs"


@pytest.mark.parametrize(
    ("authorities", "wanted"),
    [
        (Authorities((NOW - DAY, NOW + 10 * DAY)), (OK, "the authority of the webhook is valid for 10 days", "")),
        (Authorities((NOW + 1.5 * DAY,)), (WARN, "the authority of the webhook expires in 1 day", LOGS)),
        (Authorities((NOW - DAY,)), (FAIL, "the authority of the webhook has expired", LOGS)),
        (
            Authorities(),
            (
                FAIL,
                "zz-gpufraction-webhook names no authority (caBundle), so the API server trusts no webhook",
                LOGS,
            ),
        ),
        (
            Authorities(unreadable="no start line"),
            (FAIL, "the caBundle of zz-gpufraction-webhook cannot be read: no start line", LOGS),
        ),
    ],
)
def test_authorities(authorities: Authorities, wanted: tuple[str, str, str]) -> None:
    assert found("certificates", authorities=authorities) == [wanted]


ALLOCATORS = f"kubectl -n {names.NAMESPACE} logs -l app.kubernetes.io/component=admission -c allocator --tail=50"


@pytest.mark.parametrize(
    ("lease", "wanted"),
    [
        (LEASE, (OK, "replica-0 leads", "")),
        (None, (FAIL, "no allocator leads: pods wait", ALLOCATORS)),
        ({"spec": {"holderIdentity": ""}}, (FAIL, "no allocator leads: pods wait", ALLOCATORS)),
        (
            {"spec": LEASE["spec"] | {"renewTime": "2026-01-05T07:59:00Z"}},
            (FAIL, "no allocator leads: replica-0 last renewed its Lease 60 s ago", ALLOCATORS),
        ),
        (
            {"spec": {"holderIdentity": "a"}},
            (FAIL, "the Lease gpufraction-allocator has no time of renewal", ALLOCATORS),
        ),
    ],
)
def test_leaders(lease: JSON | None, wanted: tuple[str, str, str]) -> None:
    assert found("leader", lease=lease) == [wanted]


def test_a_clock_that_may_be_wrong_gets_the_benefit_of_the_doubt() -> None:
    old = {"spec": LEASE["spec"] | {"renewTime": "2026-01-05T07:59:00Z"}}
    assert found("leader", lease=old, clock_doubt=60.0) == [(OK, "replica-0 leads", "")]


def test_certificates_of_another_program_are_looked_for_there() -> None:
    [(_, _, cure)] = found("certificates", authorities=Authorities(), deployments=(ADMISSION,))
    assert cure == f"kubectl -n {names.NAMESPACE} describe secret gpufraction-webhook-certs"


@pytest.mark.parametrize(
    ("program", "flags", "environment", "wanted"),
    [
        ("allocator", ("--repair=report", "--unbound=keep", "--claims=false"), {}, set()),
        ("allocator", ("--repair=evict",), {}, {("repair", "create pods/eviction")}),
        ("allocator", (), {"GPUFRACTION_UNBOUND": "delete"}, {("unbound", "create pods/eviction")}),
        (
            "allocator",
            ("--unhealthy-lists=true",),
            {},
            {("unhealthy-lists", "list configmaps in kube-system")},
        ),
        (
            "allocator",
            ("--provisioning-enabled=true", "--provisioning-placeholders"),
            {},
            {
                ("provisioning-enabled", "patch configmaps gpufraction-pools in gpufraction-system"),
                ("provisioning-placeholders", "create pods in gpufraction-system"),
            },
        ),
        (
            "allocator",
            ("--idle-evict",),
            {},
            {("idle-evict", "create pods/eviction"), ("idle-evict", "list pods")},
        ),
        ("nodeagent", ("--evict-unhealthy=0",), {}, set()),
        ("nodeagent", ("--evict-unhealthy=5m",), {}, {("evict-unhealthy", "create pods/eviction")}),
        ("nodeagent", (), {"GPUFRACTION_STARTUP_TAINT": "true"}, {("startup-taint", "patch nodes")}),
        ("webhook", ("--pods=true",), {}, set()),
    ],
)
def test_rights_that_settings_need(
    program: str, flags: tuple[str, ...], environment: dict[str, str], wanted: set[tuple[str, str]]
) -> None:
    rights = install.program_rights(replace(WELL, deployments=(flagged(program, *flags, **environment),)))
    assert {(right.setting, str(right.access)) for right in rights if right.setting} == wanted


def test_rights_that_are_missing() -> None:
    rights = install.program_rights(replace(WELL, deployments=(flagged("allocator", "--preemption=true"),)))
    denied: dict[ProgramRight, bool] = {
        right: right.setting != "preemption" and right.account != "gpufraction-nodeagent" for right in rights
    }
    assert found("program-rights", granted=denied) == [
        (
            FAIL,
            "gpufraction-allocator may not create pods/eviction, which its setting preemption needs",
            f"kustomize edit add component manifests/components/allocator-eviction && {APPLY}",
        ),
        (
            FAIL,
            "gpufraction-nodeagent may not create tokenreviews, nor create subjectaccessreviews, "
            "nor patch gpunodes/status, nor patch nodes/status",
            APPLY,
        ),
    ]
    everything = dict.fromkeys(rights, True)
    message = f"the service accounts may do what their settings need ({len(rights)} checked)"
    assert found("program-rights", granted=everything) == [(OK, message, "")]


def test_metrics_that_are_open_to_everybody_are_warned_of() -> None:
    def warned(*flags: str) -> list[tuple[str, str]]:
        facts = replace(WELL, deployments=(flagged("allocator", *flags),))
        return [(each.level, each.found) for each in install.findings(facts) if each.check == "metrics-access"]

    assert warned("--metrics-access=token") == []
    message = "everyone who reaches the port can read the metrics of allocator, which name pods"
    assert warned("--metrics-access=open") == [(WARN, message)]
