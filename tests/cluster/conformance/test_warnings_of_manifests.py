"""What a tenant reads when applying a manifest: the policy of `release.warnings`, on both API servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from playground.waiting import wait_for
from release.warnings import names, policy
from tests.cluster.conformance.asking import JSON, MERGE, Api, Ask
from tests.cluster.conformance.conftest import Server
from tests.unit.manifests.kube import MANIFESTS, SAMPLES, documents

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_BEFORE = f"Validation failed for ValidatingAdmissionPolicy '{policy.NAME}' with binding '{policy.NAME}': "
_WARNING = re.compile(r'299 - "((?:[^"\\]|\\.)*)"')
_PATHS = {
    "Deployment": ("apps/v1", "deployments", "spec.template."),
    "StatefulSet": ("apps/v1", "statefulsets", "spec.template."),
    "DaemonSet": ("apps/v1", "daemonsets", "spec.template."),
    "ReplicaSet": ("apps/v1", "replicasets", "spec.template."),
    "Job": ("batch/v1", "jobs", "spec.template."),
    "CronJob": ("batch/v1", "cronjobs", "spec.jobTemplate.spec.template."),
    "Pod": ("v1", "pods", ""),
}


@dataclass(frozen=True)
class Made:
    """
    A manifest: limits of a container and of an init container, and annotations of the template and of the workload.
    """

    limits: JSON = field(default_factory=dict)
    init: JSON = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    kind: str = "Deployment"
    label: str = "enabled"
    """The namespace's value of `gpufraction.io/inject`; empty for no label."""
    owned: bool = False

    def body(self, name: str) -> JSON:
        containers = [{"name": "main", "image": "x", "resources": {"limits": self.limits}}]
        spec: JSON = {"containers": containers}
        if self.init:
            spec["initContainers"] = [{"name": "first", "image": "x", "resources": {"limits": self.init}}]
        metadata: JSON = {"name": name, "annotations": dict(self.own)}
        if self.owned:
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1", "controller": True}
            metadata["ownerReferences"] = [owner]
        version, _, at = _PATHS[self.kind]
        whole = {"apiVersion": version, "kind": self.kind, "metadata": metadata}
        if not at:
            return {**whole, "metadata": {**metadata, "annotations": dict(self.annotations)}, "spec": spec}
        template = {"metadata": {"labels": {"a": "b"}, "annotations": dict(self.annotations)}, "spec": spec}
        if "ob" in self.kind:
            spec["restartPolicy"] = "Never"
        if self.kind == "CronJob":
            return {**whole, "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}}
        selector = {} if self.kind == "Job" else {"selector": {"matchLabels": {"a": "b"}}}
        if self.kind == "StatefulSet":
            selector["serviceName"] = "s"  # type: ignore[assignment]
        return {**whole, "spec": {**selector, "template": template}}


def path(api: Api, kind: str) -> str:
    version, plural, _ = _PATHS[kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{api.namespace}/{plural}"


def warned(api: Api, ask: Ask) -> list[str]:
    """The warnings of a request that succeeds, without the API server's prefix."""
    answer = api.ask(ask)
    assert answer.code < 300, answer.message
    return [text.replace('\\"', '"').removeprefix(_BEFORE) for text in _WARNING.findall(answer.warnings)]


def applied(api: Api, made: Made) -> Ask:
    return Ask("POST", path(api, made.kind), made.body("new"), query={"dryRun": "All"})


@pytest.fixture(scope="module")
def warning(server: Server) -> Iterator[None]:
    """The API server with the policy in effect."""
    api = Api(server.transport(), "default")
    policies, bindings = f"{_GROUP}/validatingadmissionpolicies", f"{_GROUP}/validatingadmissionpolicybindings"
    for kind, body in zip((policies, bindings), documents(MANIFESTS / "policies" / "warnings.yaml"), strict=True):
        api.done(Ask("POST", kind, body))
    try:
        probe = Made({"gpufracton.io/gpu-memory": "8Gi"})
        wait_for(lambda: warned(api, applied(api, probe)) != [], "the policy does not warn")
        yield
    finally:
        for kind in (bindings, policies):
            api.done(Ask("DELETE", f"{kind}/{policy.NAME}"))


@pytest.fixture
def namespaces(warning: None, api: Api, server: Server) -> dict[str, Api]:
    """A namespace for each label."""
    found = {"enabled": api}
    for label in ("", "disabled"):
        other = Api(server.transport(), f"{api.namespace}-{label or 'plain'}")
        labels = {"gpufraction.io/inject": label} if label else {}
        metadata = {"name": other.namespace, "labels": labels}
        other.done(Ask("POST", "/api/v1/namespaces", {"metadata": metadata}))
        found[label] = other
    return found


def limit(resource: str, found: str, container: str = "spec.template.spec.containers[main]") -> str:
    return f"{container}.resources.limits[{resource}]: found {found}"


def unknown(resource: str, near: str, container: str = "spec.template.spec.containers[main]") -> str:
    return limit(resource, f"an unknown resource; did you mean {near}?", container)


def unlabelled(field: str) -> str:
    return (
        f"{field}: found in namespace NAMESPACE, which has no label gpufraction.io/inject; "
        "label it gpufraction.io/inject=enabled, or gpufraction.io/inject=disabled if another system serves it"
    )


def unread(resource: str) -> str:
    return limit(resource, f"an unknown resource; give one of {', '.join(names.NATIVE)}")


MISSPELT = Made({"gpufracton.io/gpu-memory": "8Gi"})
MEANT = "gpufraction.io/gpu-memory"
CASES: dict[str, tuple[Made, list[str]]] = {
    "no GPU": (Made({"cpu": "1"}, annotations={"a": "b"}, own={"a": "b"}, label=""), []),
    "a share": (Made({MEANT: "8Gi"}, annotations={"gpufraction.io/gpu-models": "H100"}), []),
    "others' resources": (
        Made({"amd.com/gpu": 1, "rdma/hca": 1, "hugepages-2Mi": "2Mi", "memory": "1Gi", "cpu": "1"}, label=""),
        [],
    ),
    "a whole card of the vendor's": (Made({"nvidia.com/gpu": 1}, label=""), []),
    "a MIG slice": (Made({"nvidia.com/mig-1g.5gb": 1}, label=""), []),
    "the domain misspelt": (MISSPELT, [unknown("gpufracton.io/gpu-memory", MEANT)]),
    "two letters swapped": (
        Made({"nvidia.com/gpumme": 8192, "nvidia.com/gpu": 1}),
        [unknown("nvidia.com/gpumme", "nvidia.com/gpumem")],
    ),
    "separators and case": (Made({"nvidia.com/gpuMem": 8192}), [unknown("nvidia.com/gpuMem", "nvidia.com/gpumem")]),
    "a longer word": (
        Made({"nano-gpu/gpu-percentage": 8}),
        [unknown("nano-gpu/gpu-percentage", "nano-gpu/gpu-percent")],
    ),
    "an init container": (
        Made({"cpu": "1"}, init={"aliyun.com/gpumem": 8}),
        [unknown("aliyun.com/gpumem", "aliyun.com/gpu-mem", "spec.template.spec.initContainers[first]")],
    ),
    "ours, near nothing": (Made({"gpufraction.io/x": 1}), [unread("gpufraction.io/x")]),
    "an annotation misspelt": (
        Made({MEANT: "8Gi"}, annotations={"gpufraction.io/gpu-model": "H100"}),
        [
            "spec.template.metadata.annotations[gpufraction.io/gpu-model]: nothing reads it; "
            "did you mean gpufraction.io/gpu-models?"
        ],
    ),
    "its domain misspelt": (
        Made({MEANT: "8Gi"}, annotations={"gpufration.io/gpu-models": "H100"}),
        [
            "spec.template.metadata.annotations[gpufration.io/gpu-models]: nothing reads it; "
            "did you mean gpufraction.io/gpu-models?"
        ],
    ),
    "an annotation of ours near nothing": (
        Made({MEANT: "8Gi"}, annotations={"gpufraction.io/x": "1"}),
        ["spec.template.metadata.annotations[gpufraction.io/x]: nothing reads it; remove it"],
    ),
    "an annotation for one container": (
        Made({MEANT: "8Gi"}, annotations={"gpufraction.io/gpu-models.main": "H100"}),
        [],
    ),
    "an amount as an annotation": (
        Made(annotations={MEANT: "8Gi"}),
        [
            f"spec.template.metadata.annotations[{MEANT}]: nothing reads it; "
            "put the amount under resources.limits of a container"
        ],
    ),
    "an annotation that alone asks, misspelt": (
        Made(annotations={"gpu-fracton": "0.5"}),
        ["spec.template.metadata.annotations[gpu-fracton]: nothing reads it; did you mean gpu-fraction?"],
    ),
    "an annotation of the workload": (
        Made({MEANT: "8Gi"}, own={"gpufraction.io/gpu-models": "H100"}),
        [
            "metadata.annotations[gpufraction.io/gpu-models]: nothing reads it here; "
            "move it to spec.template.metadata.annotations"
        ],
    ),
    "one that alone asks": (
        Made(own={"gpu-fraction": "0.5"}),
        ["metadata.annotations[gpu-fraction]: nothing reads it here; move it to spec.template.metadata.annotations"],
    ),
    "an amount as the workload's annotation": (
        Made(own={MEANT: "8Gi"}),
        [f"metadata.annotations[{MEANT}]: nothing reads it here; put the amount under resources.limits of a container"],
    ),
    "an annotation of both": (
        Made({MEANT: "8Gi"}, own={"gpu-fraction": "0.5"}, annotations={"gpu-fraction": "0.5"}),
        [],
    ),
    "no label": (
        Made({"aliyun.com/gpu-mem": 8}, label=""),
        [unlabelled("spec.template.spec.containers[main].resources.limits[aliyun.com/gpu-mem]")],
    ),
    "no label, by an annotation": (
        Made(annotations={"gpu-fraction": "0.5"}, label=""),
        [unlabelled("spec.template.metadata.annotations[gpu-fraction]")],
    ),
    "a label of another value": (Made({"aliyun.com/gpu-mem": 8}, label="disabled"), []),
    "MiB that are meant as GiB": (
        Made({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8}),
        [limit("nvidia.com/gpumem", "8 MiB, which is too little for any CUDA program to start; for 8 GiB give 8Gi")],
    ),
    "bytes": (
        Made({MEANT: "8"}),
        [limit(MEANT, "8, which is too little for any CUDA program to start; give memory with its unit, such as 8Gi")],
    ),
    "few MiB with their unit": (
        Made({"nvidia.com/gpumem": "8Mi"}),
        [
            limit(
                "nvidia.com/gpumem",
                "8Mi, which is too little for any CUDA program to start; give memory with its unit, such as 8Gi",
            )
        ],
    ),
    "MiB enough": (Made({"nvidia.com/gpumem": 256}), []),
    "no MiB, which is a default": (Made({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 0}), []),
    "a memory limit below the request": (
        Made({MEANT: "24Gi", "gpufraction.io/gpu-memory-limit": "8Gi"}),
        [
            limit(
                "gpufraction.io/gpu-memory-limit",
                f"8Gi, less than {MEANT}, which is 24Gi; give at least {MEANT}, or remove the limit",
            )
        ],
    ),
    "little that may burst": (Made({MEANT: "8Mi", "gpufraction.io/gpu-memory-limit": "8Gi"}), []),
    "an annotation of MiB": (
        Made(annotations={"gpu-memory": "8"}),
        [
            "spec.template.metadata.annotations[gpu-memory]: found 8 MiB, which is too little for any CUDA program to "
            "start; for 8 GiB give 8192"
        ],
    ),
    "an annotation of MiB enough": (Made(annotations={"gpu-memory": "256"}), []),
    "an annotation that is no number": (Made(annotations={"gpu-memory": "some"}), []),
    "an unknown annotation of the workload in our domain": (
        Made({MEANT: "8Gi"}, own={"gpufraction.io/gpu-model": "H100"}),
        [
            "metadata.annotations[gpufraction.io/gpu-model]: nothing reads it here; "
            "move it to spec.template.metadata.annotations"
        ],
    ),
    "several mistakes": (
        Made({"nvidia.com/gpumem": 8, "nvidia.com/gpucore": 30}, own={"nvidia.com/use-gputype": "A100"}, label=""),
        [
            unknown("nvidia.com/gpucore", "nvidia.com/gpucores"),
            "metadata.annotations[nvidia.com/use-gputype]: nothing reads it here; "
            "move it to spec.template.metadata.annotations",
            unlabelled("spec.template.spec.containers[main].resources.limits[nvidia.com/gpumem]"),
            limit("nvidia.com/gpumem", "8 MiB, which is too little for any CUDA program to start; for 8 GiB give 8Gi"),
        ],
    ),
    "what a controller made": (replace(MISSPELT, owned=True), []),
    **{
        f"a {kind}": (
            replace(MISSPELT, kind=kind),
            [unknown("gpufracton.io/gpu-memory", MEANT, f"{at}spec.containers[main]")],
        )
        for kind, (_, _, at) in _PATHS.items()
    },
    "a pod's own annotation": (Made({"cpu": "1"}, annotations={"gpu-fraction": "0.5"}, kind="Pod"), []),
    "a pod that the webhook warns of": (Made({"nvidia.com/gpu-mem": 8}, kind="Pod"), []),
    "a pod that it does not see": (
        Made({"aliyun.com/gpu-mem": 8}, kind="Pod", label=""),
        [unlabelled("spec.containers[main].resources.limits[aliyun.com/gpu-mem]")],
    ),
}


@pytest.mark.parametrize(("made", "want"), CASES.values(), ids=CASES.keys())
def test_a_manifest_gets_its_warnings(made: Made, want: list[str], namespaces: Mapping[str, Api]) -> None:
    api = namespaces[made.label]
    assert warned(api, applied(api, made)) == [text.replace("NAMESPACE", api.namespace) for text in want]


def test_an_update_is_judged_where_it_changes_the_manifest(namespaces: Mapping[str, Api]) -> None:
    api = namespaces["enabled"]
    where = path(api, "Deployment")
    api.done(Ask("POST", where, Made({MEANT: "8Gi"}).body("d")))

    def merged(change: JSON) -> list[str]:
        return warned(api, Ask("PATCH", f"{where}/d", change, MERGE))

    assert merged({"metadata": {"labels": {"a": "b"}}}) == []
    container = {"name": "main", "image": "x", "resources": {"limits": MISSPELT.limits}}
    found = [unknown("gpufracton.io/gpu-memory", MEANT)]
    assert merged({"spec": {"template": {"spec": {"containers": [container]}}}}) == found
    assert merged({"metadata": {"labels": {"a": "c"}}}) == []
    assert merged({"metadata": {"annotations": {"a": "b"}}}) == found
    assert merged({"spec": {"replicas": 2}}) == found


NAMES = [*names.OTHERS[::9], *(slip for known in names.RESOURCES for slip in tuple(names.one_edit(known))[7::611])]


def test_a_name_means_what_the_functions_say(namespaces: Mapping[str, Api]) -> None:
    api = namespaces["enabled"]
    found = {name: warned(api, applied(api, Made({name: 1024}))) for name in NAMES if is_name(name)}
    assert len(found) > 40
    assert {name: texts for name, texts in found.items() if texts != expected(name)} == {}


def is_name(name: str) -> bool:
    return re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*/[a-z0-9]+([-._A-Z]*[a-zA-Z0-9]+)*", name) is not None


def expected(name: str) -> list[str]:
    if name in names.RESOURCES or name in names.ORDINARY:
        return []
    if near := names.suggest(name):
        return [unknown(name, near)]
    return [unread(name)] if name.startswith(names.OURS) else []


LONGEST = ".".join(["a" * 60] * 4) + "/" + "b" * 63
HUGE: dict[str, Made] = {
    "many resources": Made({f"gpufraction.io/x{number}": 1 for number in range(2_000)}),
    "as many as are looked at": Made({f"nvidia.com/gpumemx{number}": 1 for number in range(policy.MOST_RESOURCES)}),
    "many annotations": Made({MEANT: "8Gi"}, annotations={f"gpufraction.io/x{n}": "1" for n in range(5_000)}),
    "many of the workload": Made({MEANT: "8Gi"}, own={f"gpufraction.io/x{n}": "1" for n in range(5_000)}),
    "a long annotation": Made({MEANT: "8Gi"}, annotations={"gpufraction.io/x": "y" * 200_000}),
    "long names": Made({LONGEST: 1}, annotations={LONGEST: "1"}, own={LONGEST: "1"}),
    "a long name of ours": Made({f"gpufraction.io/{'x' * 63}": 1}, annotations={f"gpufraction.io/{'x' * 63}": ""}),
    "control characters in an annotation": Made({MEANT: "8Gi"}, own={"gpu-fraction": "\r\n\u2028\x00"}),
    "amounts of every form": Made({MEANT: "1e1", "nvidia.com/gpumem": "1k", "elasticgpu.io/gpu-memory": "9E"}),
    "the largest amount": Made({MEANT: 9223372036854775807}),
    "no containers' limits": Made(),
}


@pytest.mark.parametrize("made", HUGE.values(), ids=HUGE.keys())
def test_whatever_a_manifest_has_it_is_accepted(made: Made, namespaces: Mapping[str, Api]) -> None:
    api = namespaces[""]
    for kind in ("Deployment", "CronJob"):
        found = warned(api, applied(api, replace(made, kind=kind)))
        assert [text for text in found if len(text) > 480 or not text.isprintable()] == []
        assert len(found) <= len(policy.documents()[0]["spec"]["validations"])


def test_our_own_manifests_and_samples_get_no_warning(namespaces: Mapping[str, Api]) -> None:
    api, found = namespaces["enabled"], {}
    for file in [*(MANIFESTS / "base").glob("*.yaml"), *SAMPLES.rglob("*.yaml")]:
        for document in documents(file):
            if document["kind"] in _PATHS and document["apiVersion"] == _PATHS[document["kind"]][0]:
                metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
                # The namespace has no PriorityClasses; admission refuses a pod that names one.
                spec = {key: value for key, value in document["spec"].items() if key != "priorityClassName"}
                body = {**document, "metadata": metadata, "spec": spec}
                ask = Ask("POST", path(api, document["kind"]), body, query={"dryRun": "All"})
                found[f"{file.name} {metadata.get('name')}"] = warned(api, ask)
    assert len(found) > 30
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_warning_that_comes_twice_is_sent_once(server: Server, api: Api) -> None:
    rules = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    mind = {"expression": "false", "message": "mind"}
    spec = {"matchConstraints": {"resourceRules": [rules]}, "validations": [mind, mind]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}}
    binding = {"policyName": "twice", "validationActions": ["Warn"], "matchResources": where}
    policies, bindings = f"{_GROUP}/validatingadmissionpolicies", f"{_GROUP}/validatingadmissionpolicybindings"
    made = Ask(
        "POST", f"/api/v1/namespaces/{api.namespace}/configmaps", {"metadata": {"name": "c"}}, query={"dryRun": "All"}
    )
    for kind, path_, of in (("", policies, spec), ("Binding", bindings, binding)):
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"ValidatingAdmissionPolicy{kind}"}
        api.done(Ask("POST", path_, {**head, "metadata": {"name": "twice"}, "spec": of}))
    try:
        wait_for(lambda: warned(api, made) != [], "the policy does not warn")
        said = "Validation failed for ValidatingAdmissionPolicy 'twice' with binding 'twice': mind"
        assert warned(api, made) == [said]
    finally:
        for path_ in (bindings, policies):
            api.done(Ask("DELETE", f"{path_}/twice"))
