"""
Rules about the installation: what is there, whether it runs, and whether it may do what it must.

Pure: facts in, findings out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from contract import components, names
from contract.components import Access
from kubectl_gpufraction.check import trial
from kubectl_gpufraction.check.facts import (
    ADMISSION,
    AGENT,
    CERTS,
    CONFIGURATION,
    ClusterFacts,
    ProgramRight,
    installed,
    labels_of,
    left_behind,
    name_of,
    named,
    namespace_of,
    settings,
    workloads,
)
from kubectl_gpufraction.check.findings import FAIL, OK, UNKNOWN, WARN, Finding, Unseen, number, unknown
from kubectl_gpufraction.check.tenants import ENFORCE
from kubectl_gpufraction.cluster.leadership import leader
from kubectl_gpufraction.cluster.programs import PROGRAMS, pod_spec
from kubectl_gpufraction.output.wording import few

JSON = dict[str, Any]
APPLY = "kubectl apply -k YOUR_KUSTOMIZATION"
POLICIES = (
    "gpufraction-allocator-claims",
    "gpufraction-allocator-kueue",
    "gpufraction-allocator-pods",
    "gpufraction-certs",
    "gpufraction-elasticgpu",
    "gpufraction-events",
    "gpufraction-evictions",
    "gpufraction-gpunode",
    "gpufraction-node",
    "gpufraction-pod-binding",
    "gpufraction-pod-create",
    "gpufraction-pod-update",
    "gpufraction-share-claims",
    "gpufraction-share-claims-kept",
)
"""The admission policies of manifests/policies that refuse something. Those that warn and note may be left out."""
_SOON = 7 * 86400.0
_HOST = ("hostNetwork", "hostPID", "hostIPC")

_BASE = (
    ProgramRight(components.ALLOCATOR, Access("list", "", "pods")),
    ProgramRight(components.ALLOCATOR, Access("patch", "", "pods")),
    ProgramRight(components.ALLOCATOR, Access("list", "", "nodes")),
    ProgramRight(components.ALLOCATOR, Access("list", names.GROUP, "gpunodes")),
    ProgramRight(components.ALLOCATOR, Access("update", "coordination.k8s.io", "leases", names.NAMESPACE, names.LEASE)),
    *(
        ProgramRight(account, Access("create", group, resource))
        for account in (components.ALLOCATOR, components.AGENT)
        for group, resource in (
            ("authentication.k8s.io", "tokenreviews"),
            ("authorization.k8s.io", "subjectaccessreviews"),
        )
    ),
    ProgramRight(components.AGENT, Access("patch", names.GROUP, "gpunodes/status")),
    ProgramRight(components.AGENT, Access("patch", "", "nodes/status")),
)
_OFF = frozenset(("", "false", "0", "0s", "0m", "report", "keep", "release"))
"""Values with which such a setting needs nothing."""
_KEEPER = ProgramRight(
    components.CERTS,
    Access("patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", CONFIGURATION),
)


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """The findings about the installation: one line if there is none yet."""
    state = installed(facts)
    if state is False:
        yield Finding(OK, "installation", "gpufraction is not installed yet", APPLY)
        return
    yield _installation(facts)
    yield _image(facts)
    yield from _others_images(facts)
    yield from _own_pod_security(facts)
    yield from _left_behind(facts)
    yield _policies(facts)
    yield from programs(facts)
    if facts.webhook is not None:
        yield _certificates(facts)
    yield _leader(facts)
    yield from _open_metrics(facts)
    yield from _program_rights(facts)
    yield trial.finding(facts)


def _installation(facts: ClusterFacts) -> Finding:
    check, missing, workless = "installation", list[str](), list[str]()
    if facts.webhook is None:
        missing.append(f"the MutatingWebhookConfiguration {CONFIGURATION}")
    if facts.gpunodes is None:
        missing.append("the CustomResourceDefinition gpunodes.gpufraction.io")
    if isinstance(facts.deployments, tuple) and named(facts.deployments, ADMISSION) is None:
        workless.append(f"the Deployment {ADMISSION}")
    if isinstance(facts.daemonsets, tuple) and named(facts.daemonsets, AGENT) is None:
        workless.append(f"the DaemonSet {AGENT}")
    if missing or (workless and not trial.answered(facts)):
        return Finding(FAIL, check, f"{' and '.join((*missing, *workless))}: missing", APPLY)
    if workless:
        found = f"{' and '.join(workless)}: missing, but the webhook answers; it runs elsewhere, as in the playground"
        return Finding(WARN, check, found)
    hidden = unknown(check, facts.webhook, facts.gpunodes, facts.deployments, facts.daemonsets)
    return hidden or Finding(OK, check, "webhook configuration, GPUNodes, Deployment and DaemonSet exist")


def _image(facts: ClusterFacts) -> Finding:
    check = "image"
    hidden = unknown(check, facts.deployments, facts.daemonsets)
    images, behind = dict[str, list[str]](), False
    for kind, workload in workloads(facts):
        for container in pod_spec(workload).get("containers") or []:
            if list(container.get("command") or [])[2:3] and container["command"][2] in PROGRAMS:
                images.setdefault(str(container.get("image", "")), []).append(f"{kind}/{name_of(workload)}")
        behind = behind or (kind == "deployment" and not _is_ready(workload))
    if hidden is not None and not images:
        return hidden
    local = [image for image in sorted(images) if "/" not in image]
    cure = f"kustomize edit set image gpufraction=REGISTRY/gpufraction:0.1.0 && {APPLY}"
    if local:
        level = FAIL if behind else WARN
        found = f"{local[0]} of {few(sorted(set(images[local[0]])))} names no registry"
        return Finding(level, check, f"{found}, so only nodes onto which it was loaded have it", cure)
    if len(images) > 1:
        found = "; ".join(f"{image} of {few(sorted(set(of)))}" for image, of in sorted(images.items()))
        return Finding(WARN, check, f"the programs run from different images: {found}", cure)
    return Finding(OK, check, f"{next(iter(images))} everywhere" if images else "no workload to check")


def _others_images(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether images that are not ours, such as the one that the component preload copies from, are named by digest."""
    check, ours, others = "other-images", set[str](), dict[str, list[str]]()
    for kind, workload in workloads(facts):
        spec = pod_spec(workload)
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
            image, command = str(container.get("image", "")), list(container.get("command") or [])
            if command[:2] == ["python", "-m"]:
                ours.add(_repository(image))
            others.setdefault(image, []).append(f"{kind}/{name_of(workload)}")
    foreign = {image: of for image, of in others.items() if ours and _repository(image) not in ours}
    for image, of in sorted(foreign.items()):
        if "@sha256:" in image:
            yield Finding(OK, check, f"{image} of {few(sorted(set(of)))} is named by digest")
        else:
            found = f"{image} of {few(sorted(set(of)))} is named by tag: anyone who may write the tag chooses what runs"
            cure = f"name it with its digest under images of your kustomization && {APPLY}"
            yield Finding(WARN, check, found, cure)


def _repository(image: str) -> str:
    """An image's name without digest and tag."""
    name = image.partition("@")[0]
    return name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]


def _own_pod_security(facts: ClusterFacts) -> Iterator[Finding]:
    check = "own-pod-security"
    if isinstance(facts.namespaces, Unseen):
        yield Finding(UNKNOWN, check, f"unknown: {facts.namespaces.why}")
        return
    for namespace in (names.NAMESPACE, names.NODES_NAMESPACE):
        there = [(kind, each) for kind, each in workloads(facts) if namespace_of(each) == namespace]
        if not there and namespace != names.NAMESPACE:
            continue
        level = labels_of(named(facts.namespaces, namespace) or {}).get(ENFORCE, "")
        wanting = [f"{kind}/{name_of(each)} ({', '.join(needs)})" for kind, each in there if (needs := _beyond(each))]
        if wanting and level in ("baseline", "restricted"):
            found = f"namespace {namespace} enforces {level}, which refuses {few(wanting)}"
            yield Finding(FAIL, check, found, f"kubectl label namespace {namespace} {ENFORCE}=privileged --overwrite")
        else:
            yield Finding(
                OK, check, f"namespace {namespace}: {level or 'no level of its own'}, which gpufraction's pods meet"
            )


def _left_behind(facts: ClusterFacts) -> Iterator[Finding]:
    """A DaemonSet that an upgrade moved into the other namespace, and that is still in the old one."""
    for name in left_behind(facts):
        found = (
            f"the DaemonSet {name} runs in {names.NODES_NAMESPACE}, and the one of an earlier version still in "
            f"{names.NAMESPACE}: both work on the same files of a node"
        )
        yield Finding(FAIL, "left-behind", found, f"kubectl -n {names.NAMESPACE} delete daemonset {name}")


def _beyond(workload: JSON) -> list[str]:
    """The parts of a workload's pods that the Baseline level of Pod Security refuses."""
    spec = pod_spec(workload)
    found = [word for word in _HOST if spec.get(word)]
    if any("hostPath" in volume for volume in spec.get("volumes") or []):
        found.append("hostPath")
    if any((each.get("securityContext") or {}).get("privileged") for each in spec.get("containers") or []):
        found.append("privileged")
    return found


def _policies(facts: ClusterFacts) -> Finding:
    check, found = "policies", facts.policies
    if isinstance(found, Unseen):
        return Finding(UNKNOWN, check, f"unknown: {found.why}")
    missing = [name for name in POLICIES if name not in found]
    if missing:
        return Finding(FAIL, check, f"missing, or without their binding: {few(missing)}", APPLY)
    return Finding(OK, check, f"all {len(POLICIES)} admission policies exist")


def _ready(workload: JSON) -> tuple[int, int]:
    """How many replicas are Ready, and how many should be."""
    status, spec = workload.get("status") or {}, workload.get("spec") or {}
    return int(status.get("readyReplicas") or 0), int(spec.get("replicas", 1))


def programs(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the replicas of our Deployments are Ready; nothing about one that is not there."""
    for check, name in (("webhook", ADMISSION), ("keeper-of-certificates", CERTS)):
        workload = named(facts.deployments, name)
        if isinstance(facts.deployments, Unseen):
            yield Finding(UNKNOWN, check, f"unknown: {facts.deployments.why}")
        elif workload is not None:
            ready, wanted = _ready(workload)
            found = f"{ready} of {wanted} replicas of the Deployment {name} Ready"
            if _is_ready(workload):
                yield Finding(OK, check, found)
                continue
            why = _why_not_ready(facts, workload)
            level = FAIL if ready == 0 and name == ADMISSION else WARN
            describe = f"kubectl -n {names.NAMESPACE} describe pods"
            yield Finding(level, check, f"{found}{why}", describe)


def _is_ready(workload: JSON) -> bool:
    ready, wanted = _ready(workload)
    return ready >= max(wanted, 1)


def _why_not_ready(facts: ClusterFacts, workload: JSON) -> str:
    """The reasons for which containers of the workload's pods wait."""
    if not isinstance(facts.pods, tuple):
        return ""
    wanted = ((workload.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    reasons = list[str]()
    for pod in facts.pods:
        if (pod.get("metadata") or {}).get("namespace") != names.NAMESPACE or not wanted.items() <= labels_of(
            pod
        ).items():
            continue
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            waiting = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                reasons.append(f"{status.get('name')} {waiting['reason']}")
        for each in (pod.get("status") or {}).get("conditions") or []:
            if each.get("type") == "PodScheduled" and each.get("status") == "False":
                reasons.append(str(each.get("message") or each.get("reason")))
    distinct = list(dict.fromkeys(reasons))
    return f" ({few(distinct)})" if distinct else ""


def _certificates(facts: ClusterFacts) -> Finding:
    check, ends = "certificates", facts.authorities.ends
    if isinstance(facts.webhook, Unseen):
        return Finding(UNKNOWN, check, f"unknown: {facts.webhook.why}")
    logs = trial.certificate_cure(facts)
    if facts.authorities.unreadable:
        found = f"the caBundle of {CONFIGURATION} cannot be read: {facts.authorities.unreadable}"
        return Finding(FAIL, check, found, logs)
    if not ends:
        found = f"{CONFIGURATION} names no authority (caBundle), so the API server trusts no webhook"
        return Finding(FAIL, check, found, logs)
    days = int((max(ends) - facts.now) // 86400)
    if max(ends) <= facts.now:
        return Finding(FAIL, check, "the authority of the webhook has expired", logs)
    if max(ends) - facts.now < _SOON:
        return Finding(WARN, check, f"the authority of the webhook expires in {number(days, 'day')}", logs)
    return Finding(OK, check, f"the authority of the webhook is valid for {number(days, 'day')}")


def _leader(facts: ClusterFacts) -> Finding:
    check, lease = "leader", facts.lease
    if isinstance(lease, Unseen):
        return Finding(UNKNOWN, check, f"unknown: {lease.why}")
    logs = f"kubectl -n {names.NAMESPACE} logs -l app.kubernetes.io/component=admission -c allocator --tail=50"
    holder, why = leader(lease, facts.now, facts.clock_doubt)
    return Finding(OK, check, f"{holder} leads") if holder else Finding(FAIL, check, why, logs)


def program_rights(facts: ClusterFacts) -> tuple[ProgramRight, ...]:
    """The rights that our service accounts need with the settings that are in force."""
    allocator, agent = settings(facts, "allocator"), settings(facts, "nodeagent")
    needed = list(_BASE)
    if named(facts.deployments, CERTS) is not None:
        needed.append(_KEEPER)
    for component, grant in ((each, grant) for each in components.COMPONENTS for grant in each.grants):
        # Agents must know which pods are idle, and the allocator evicts for what agents report.
        found = {**agent, **allocator} if grant.account == components.ALLOCATOR else {**allocator, **agent}
        needed += (
            ProgramRight(grant.account, grant.access, component.name, setting)
            for setting in grant.settings
            if found.get(setting, "").lower() not in _OFF
        )
    return tuple(needed)


def _open_metrics(facts: ClusterFacts) -> Iterator[Finding]:
    """A warning if a setting opens the metrics to everyone."""
    opened = [name for name in PROGRAMS if settings(facts, name).get("metrics-access", "").lower() == "open"]
    if opened:
        found = f"everyone who reaches the port can read the metrics of {' and '.join(opened)}, which name pods"
        cure = (
            "remove the setting metrics_access, and bind the ClusterRole gpufraction-metrics-reader to your Prometheus"
        )
        yield Finding(WARN, "metrics-access", found, cure)


def _program_rights(facts: ClusterFacts) -> Iterator[Finding]:
    check, granted = "program-rights", facts.granted
    if isinstance(granted, Unseen):
        yield Finding(UNKNOWN, check, f"unknown: {granted.why}")
        return
    missing = defaultdict[tuple[str, str, str], list[str]](list)
    for right, allowed in granted.items():
        if not allowed:
            missing[right.account, right.component, right.setting].append(str(right.access))
    for (account, component, setting), what in sorted(missing.items()):
        found = f"{account} may not {', nor '.join(what)}"
        if component:
            cure = f"kustomize edit add component manifests/components/{component} && {APPLY}"
            yield Finding(FAIL, check, f"{found}, which its setting {setting} needs", cure)
        else:
            yield Finding(FAIL, check, found, APPLY)
    if not missing:
        yield Finding(OK, check, f"the service accounts may do what their settings need ({len(granted)} checked)")
