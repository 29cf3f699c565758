"""The findings about namespaces and the dry run, by cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract import names
from contract.options import PoolOptions, pool_options
from kubectl_gpufraction.check import tenants, trial
from kubectl_gpufraction.check.facts import ClusterFacts, DryRun
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Unseen
from tests.builders import PodBuilder, pod
from tests.unit.kubectl_gpufraction.objects import admitted

JSON = dict[str, Any]
INJECT, LABEL = "gpufraction.io/inject", "kubectl label namespace {} gpufraction.io/inject=enabled"


def namespace(name: str, inject: str = "", enforce: str = "") -> JSON:
    labels = {INJECT: inject, "pod-security.kubernetes.io/enforce": enforce}
    return {"metadata": {"name": name, "labels": {key: value for key, value in labels.items() if value}}}


def program(module: str, *args: str) -> JSON:
    container = {"command": ["python", "-m", module, "run"], "args": list(args)}
    return {"metadata": {"name": "gpufraction"}, "spec": {"template": {"spec": {"containers": [container]}}}}


SERVED = namespace("a", "enabled")
BASE = ClusterFacts(now=0.0, version=(1, 36), webhook={}, namespaces=(SERVED,))


def found(check: str, **known: Any) -> list[tuple[str, str, str]]:
    findings = tenants.findings(replace(BASE, **known))
    return [(each.level, each.found, each.cure) for each in findings if each.check == check]


@pytest.mark.parametrize(("weight", "odd"), [("1", False), ("1000", False), ("0", True), ("0.5", True), ("", True)])
def test_a_weight_that_cannot_be_read_is_found(weight: str, odd: bool) -> None:
    weighed = namespace("b", "enabled")
    weighed["metadata"]["labels"][str(names.QUEUE_WEIGHT)] = weight
    message = (
        f"namespace b: the label gpufraction.io/queue-weight={weight} counts as 1; it must be a whole number from 1 to "
        "1000"
    )
    cure = "kubectl label namespace b gpufraction.io/queue-weight=1 --overwrite"
    wanted = [(OK, "served: a, b", ""), *([(WARN, message, cure)] if odd else [])]
    assert found("namespaces", namespaces=(SERVED, weighed)) == wanted


@pytest.mark.parametrize(("after", "odd"), [("2h", False), ("0", False), ("2", True), ("soon", True), ("", True)])
def test_a_consent_that_cannot_be_read_is_found(after: str, odd: bool) -> None:
    agreed = namespace("b", "enabled")
    agreed["metadata"]["labels"][str(names.IDLE_AFTER)] = after
    message = (
        f"namespace b: the label gpufraction.io/idle-after={after} counts as no consent; it must be a duration such as "
        "90m or 2h (at most 365d), or 0 for no consent"
    )
    cure = "kubectl label namespace b gpufraction.io/idle-after=2h --overwrite"
    wanted = [(OK, "served: a, b", ""), *([(WARN, message, cure)] if odd else [])]
    assert found("namespaces", namespaces=(SERVED, agreed)) == wanted


@pytest.mark.parametrize(
    ("namespaces", "wanted"),
    [
        ((SERVED, namespace("b", "enabled"), namespace("c")), [(OK, "served: a, b", "")]),
        ((namespace("c"),), [(WARN, "no namespace is labelled yet", LABEL.format("NAMESPACE"))]),
        (
            (SERVED, namespace("kube-system", "enabled")),
            [
                (
                    WARN,
                    "kube-system: labelled, but never served",
                    "kubectl label namespace kube-system gpufraction.io/inject-",
                ),
                (OK, "served: a", ""),
            ],
        ),
        (
            (SERVED, namespace("b", "true")),
            [
                (WARN, "b (true): only the value enabled counts", f"{LABEL.format('b')} --overwrite"),
                (OK, "served: a", ""),
            ],
        ),
        (Unseen("you may not list namespaces"), [(UNKNOWN, "unknown: you may not list namespaces", "")]),
    ],
)
def test_served_namespaces(namespaces: Any, wanted: list[tuple[str, str, str]]) -> None:
    assert found("namespaces", namespaces=namespaces) == wanted


def test_pod_security_counts_where_pods_get_host_paths() -> None:
    spaces = (namespace("a", "enabled", "restricted"), namespace("b", "enabled", "privileged"))
    assert found("pod-security", namespaces=spaces) == []
    paths = (program("webhook", "--host-paths=preload"),)
    assert found("pod-security", namespaces=spaces, deployments=paths) == [
        (
            FAIL,
            "namespace a enforces restricted, which refuses the hostPath volumes that pods get for preload",
            "kubectl label namespace a pod-security.kubernetes.io/enforce=privileged --overwrite",
        )
    ]
    assert found("pod-security", namespaces=spaces[1:], deployments=paths) == [
        (OK, "no served namespace refuses the hostPath volumes that pods get for preload", "")
    ]


def asking(name: str, where: str, resource: str = "aliyun.com/gpu-mem") -> PodBuilder:
    return pod(name, where).asks(resource, 1)


NONE = [(OK, "no pod requests a share in a namespace that is not served", "")]
WHOLE = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("pods", "deployments", "wanted"),
    [
        ((), (), NONE),
        ((pod("p", "b").container("main"),), (), NONE),
        ((asking("p", "b").phase("Succeeded"),), (), NONE),
        ((asking("p", "b", WHOLE).on("n"),), (), NONE),
        (
            (asking("p", "b", WHOLE), asking("q", "b"), asking("r", "c", "nano-gpu/gpu-percent")),
            (),
            [
                (
                    WARN,
                    "namespace b: 2 pods requested a share (Aliyun gpushare, HAMi (nvidia.com/gpu)), but it is not "
                    "labelled; create them again when it is",
                    LABEL.format("b"),
                ),
                (
                    WARN,
                    "namespace c: 1 pod requested a share (nano-gpu), but it is not labelled; create them again when "
                    "it is",
                    LABEL.format("c"),
                ),
            ],
        ),
        (
            (asking("p", "a"),),
            (),
            [
                (
                    WARN,
                    "namespace a: 1 pod requested a share (Aliyun gpushare) before the namespace was labelled; their "
                    "controllers create them again",
                    "kubectl -n a delete pod p",
                )
            ],
        ),
        (
            (asking("p", "kube-system"),),
            (),
            [
                (
                    WARN,
                    "namespace kube-system: 1 pod requested a share (Aliyun gpushare), but that namespace is never "
                    "served",
                    "create them in another namespace",
                )
            ],
        ),
    ],
)
def test_pods_with_requests_that_nobody_serves(
    pods: tuple[PodBuilder, ...], deployments: tuple[JSON, ...], wanted: list[tuple[str, str, str]]
) -> None:
    assert found("unserved-pods", pods=tuple(each.json() for each in pods), deployments=deployments) == wanted


@pytest.mark.parametrize("options", [pool_options({"wholeGPUs": "vendor"}), Unseen("you may not")])
def test_whole_gpus_of_the_vendors_plugin_are_no_shares(options: PoolOptions | Unseen) -> None:
    assert found("unserved-pods", pods=(asking("p", "b", WHOLE).json(),), options=options) == NONE


def test_many_namespaces_are_counted() -> None:
    pods = tuple(asking("p", f"n{number:02}").json() for number in range(23))
    lines = found("unserved-pods", pods=pods)
    assert len(lines) == 21
    assert lines[-1] == (WARN, "3 more namespaces with such pods", "")


def failure(why: str) -> str:
    url = "https://gpufraction-webhook.gpufraction-system.svc:443/mutate?timeout=3s"
    call = f'failed calling webhook "pods.gpufraction.io": failed to call webhook: Post "{url}"'
    return f"Internal error occurred: {call}: {why}"


SEES = f"kubectl -n {names.NAMESPACE} get pods -o wide"
LOGS = f"kubectl -n {names.NAMESPACE} logs deployment/gpufraction-certs"
FIREWALL = "open TCP port {} from the API server to the pods (the page of your cloud in docs/installing.md)"
UNKNOWN_CA = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
EXPIRED = "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: ..."
SLOW = "no answer in time: a firewall, or an overloaded webhook"
CANNOT = "a pod in namespace a: the API server cannot call the webhook: "
NOT_CALLED = "a pod in namespace a requested a share, but the webhook was not called: "
NO_ENTRY = "zz-gpufraction-webhook has no webhook pods.gpufraction.io"
NO_LABEL = "the namespace lacks the label gpufraction.io/inject=enabled"
APPLY = "kubectl apply -k YOUR_KUSTOMIZATION"
RENEW = f"kubectl -n {names.NAMESPACE} patch secret gpufraction-webhook-certs --type merge -p '{{\"data\":null}}'"


@pytest.mark.parametrize(
    ("refused", "wanted"),
    [
        (
            failure("dial tcp 10.96.0.7:443: connect: connection refused"),
            (
                FAIL,
                f"{CANNOT}connection refused, so no webhook runs (it says: dial tcp 10.96.0.7:443: connect: connection "
                "refused)",
                SEES,
            ),
        ),
        (
            failure('no endpoints available for service "gpufraction-webhook"'),
            (
                FAIL,
                f'{CANNOT}no webhook is Ready (it says: no endpoints available for service "gpufraction-webhook")',
                SEES,
            ),
        ),
        (
            failure("context deadline exceeded"),
            (FAIL, f"{CANNOT}{SLOW} (it says: context deadline exceeded)", FIREWALL.format(9443)),
        ),
        (
            failure("dial tcp 10.1.1.7:9443: i/o timeout"),
            (FAIL, f"{CANNOT}{SLOW} (it says: dial tcp 10.1.1.7:9443: i/o timeout)", FIREWALL.format(9443)),
        ),
        (
            failure(UNKNOWN_CA),
            (FAIL, f"{CANNOT}it does not trust the webhook's certificate (it says: {UNKNOWN_CA})", LOGS),
        ),
        (
            failure(EXPIRED),
            (FAIL, f"{CANNOT}the webhook's certificate has expired or is not yet valid (it says: {EXPIRED})", RENEW),
        ),
        (
            failure('service "gpufraction-webhook" not found'),
            (
                FAIL,
                f"{CANNOT}the Service gpufraction-webhook does not exist (it says: service "
                '"gpufraction-webhook" not found)',
                "kubectl apply -k YOUR_KUSTOMIZATION",
            ),
        ),
        (failure("something new"), (FAIL, f"{CANNOT}{failure('something new').partition('call webhook: ')[2]}", SEES)),
        (
            "pods \"trial\" is forbidden: ValidatingAdmissionPolicy 'gpufraction-pod-create' with binding "
            "'gpufraction-pod-create' denied request: in any words",
            (FAIL, f"{NOT_CALLED}{NO_ENTRY}", APPLY),
        ),
        (
            "ValidatingAdmissionPolicy 'theirs' denied request: the webhook did not see it",
            (
                WARN,
                "a pod in namespace a is refused by something else, so the way to the webhook is unknown: "
                "ValidatingAdmissionPolicy 'theirs' denied request: the webhook did not see it",
                "",
            ),
        ),
        (
            'admission webhook "pods.gpufraction.io" denied the request: at least 2Gi',
            (
                OK,
                "a pod in namespace a: the webhook answers, but such a pod is refused there: admission webhook "
                '"pods.gpufraction.io" denied the request: at least 2Gi',
                "",
            ),
        ),
        (
            "exceeded quota: team",
            (
                OK,
                "a pod in namespace a: the webhook answers, but such a pod is refused there: exceeded quota: team",
                "",
            ),
        ),
        (
            'admission webhook "images.example.com" denied the request: no such registry',
            (
                WARN,
                "a pod in namespace a is refused by something else, so the way to the webhook is unknown: admission "
                'webhook "images.example.com" denied the request: no such registry',
                "",
            ),
        ),
    ],
)
def test_refusals_of_the_dry_run(refused: str, wanted: tuple[str, str, str]) -> None:
    each = trial.finding(replace(BASE, dry_run=DryRun("a", refused=refused)))
    assert (each.level, each.found, each.cure) == wanted


def test_the_port_of_the_firewall_is_the_webhooks() -> None:
    moved = (program("webhook", "--bind=[::]:10250"),)
    refused = DryRun("a", refused=failure("context deadline exceeded"))
    assert trial.finding(replace(BASE, deployments=moved, dry_run=refused)).cure == FIREWALL.format(10250)


PLACED = admitted("p", "gpufraction.io/gpu-memory", "1Gi", on="n1")
WAITS = admitted("p", "gpufraction.io/gpu-memory", "1Gi")
ALLOCATOR = f"kubectl -n {names.NAMESPACE} logs deployment/gpufraction -c allocator --tail=50"


@pytest.mark.parametrize(
    ("tried", "wanted"),
    [
        (DryRun("a", PLACED), (OK, "a pod in namespace a: the webhook answers; the pod would run on n1", "")),
        (
            DryRun("a", WAITS, ("waiting: 0 of 1 GPU nodes fit",)),
            (OK, "a pod in namespace a: the webhook answers; the pod would wait (0 of 1 GPU nodes fit)", ""),
        ),
        (
            DryRun("a", WAITS, ("waiting: the allocator does not answer; the pod is placed as soon as it does",)),
            (FAIL, "a pod in namespace a: the webhook answers, but its allocator does not", ALLOCATOR),
        ),
        (DryRun("a", asking("p", "a").json()), (FAIL, f"{NOT_CALLED}{NO_ENTRY}", APPLY)),
        (
            DryRun("b", asking("p", "b").json()),
            (FAIL, f"{NOT_CALLED.replace('namespace a', 'namespace b')}{NO_LABEL}", LABEL.format("b")),
        ),
        (None, (UNKNOWN, "unknown: not tried, because no namespace is labelled", LABEL.format("NAMESPACE"))),
        (Unseen("you may not create pods in a"), (UNKNOWN, "unknown: you may not create pods in a", "")),
    ],
)
def test_answers_to_the_dry_run(tried: Any, wanted: tuple[str, str, str]) -> None:
    spaces = (SERVED, namespace("b"))
    each = trial.finding(replace(BASE, namespaces=spaces, dry_run=tried))
    assert (each.level, each.found, each.cure) == wanted


def webhook(policy: str = "Fail") -> JSON:
    return {"webhooks": [{"name": "pods.gpufraction.io", "failurePolicy": policy}]}


PODS = f"kubectl -n {names.NAMESPACE} get pods -o wide"
WHY_NOT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no configuration": (
        {"webhook": None},
        "the MutatingWebhookConfiguration zz-gpufraction-webhook does not exist",
        APPLY,
    ),
    "no right to see it": (
        {"webhook": Unseen("you may not read it")},
        "you may not read it, so the reason is unknown",
        APPLY,
    ),
    "a configuration of somebody else": ({"webhook": {}}, NO_ENTRY, APPLY),
    "failures that go unnoticed": (
        {"webhook": webhook("Ignore")},
        "zz-gpufraction-webhook has failurePolicy Ignore, so a failed call goes unnoticed",
        PODS,
    ),
    "another selector": (
        {"webhook": webhook()},
        "zz-gpufraction-webhook selects other namespaces or pods than the manifests do",
        APPLY,
    ),
    "no right to see namespaces": (
        {"webhook": webhook(), "namespaces": Unseen("no")},
        "whether the namespace is enabled is unknown",
        LABEL.format("a"),
    ),
    "no label": ({"namespaces": (namespace("a"),)}, NO_LABEL, LABEL.format("a")),
    "another value of the label": (
        {"namespaces": (namespace("a", "true"),)},
        "the namespace has the label gpufraction.io/inject=true, and only the value enabled counts",
        f"{LABEL.format('a')} --overwrite",
    ),
}


@pytest.mark.parametrize(("known", "why", "cure"), WHY_NOT.values(), ids=WHY_NOT.keys())
def test_why_the_webhook_was_not_called(known: dict[str, Any], why: str, cure: str) -> None:
    each = trial.finding(replace(BASE, dry_run=DryRun("a", asking("p", "a").json()), **known))
    assert (each.level, each.found, each.cure) == (FAIL, f"{NOT_CALLED}{why}", cure)


def test_a_namespace_that_is_never_served_says_so() -> None:
    each = trial.finding(replace(BASE, dry_run=DryRun("kube-system", asking("p", "kube-system").json())))
    assert each.found.endswith("the webhook was not called: that namespace is never served")


def test_where_it_is_tried() -> None:
    spaces = (namespace("z", "enabled"), namespace("b"), namespace("c", "enabled"))
    assert trial.namespace(replace(BASE, namespaces=spaces)) == "c"
    assert trial.namespace(replace(BASE, namespaces=spaces), "b") == "b"
    assert trial.namespace(replace(BASE, namespaces=())) == ""
    assert trial.namespace(replace(BASE, namespaces=Unseen("why"))) == ""
