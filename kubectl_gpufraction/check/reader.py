"""
Reads the cluster for the check, with the user's own rights and nothing else: requests out, facts in.

An object that the user may not read, or that the API server cannot return, becomes an `Unseen`. It creates reviews of
rights and one dry run, none of which is stored. It reads no Secret.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from contract import kinds, names
from contract.components import AGENT, Access
from contract.encoding import moments
from contract.options import BadOption, PoolOptions
from kubectl_gpufraction.check import cluster, install, trial
from kubectl_gpufraction.check.facts import (
    CONFIGURATION,
    Authorities,
    ClusterFacts,
    DryRun,
    Objects,
    ProgramRight,
    agents_namespace,
    name_of,
)
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.check.requests import absent, listed, tried
from kubectl_gpufraction.check.traps import reading
from kubectl_gpufraction.cluster import options
from kubectl_gpufraction.cluster.leadership import DOUBT
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]
_LEASE = paths.leases(names.NAMESPACE, names.LEASE)
_ADMISSION, _AUTHORIZATION = "admissionregistration.k8s.io/v1", "authorization.k8s.io/v1"
_BINDINGS = paths.ClusterResource(_ADMISSION, "validatingadmissionpolicybindings")


def read(kube: Kube, listening: WarningTransport, now: float, wished: str = "") -> ClusterFacts:
    """
    The cluster now. `now`: seconds since the epoch. `wished`: the namespace of the dry run, if the user named one.

    Raises `KubeError` if the API server does not even return its version.
    """
    webhook = tried(f"read the MutatingWebhookConfiguration {CONFIGURATION}", lambda: _webhook(kube))
    facts = ClusterFacts(
        now=now,
        version=kube.version(),
        rights=tried("ask for your own rights", lambda: _own_rights(kube)),
        nodes=listed(kube, paths.nodes(), "nodes"),
        namespaces=listed(kube, paths.namespaces(), "namespaces"),
        pods=listed(kube, paths.pods(), "pods of all namespaces"),
        runtime_classes=_names(listed(kube, paths.runtimeclasses(), "runtimeclasses")),
        gpunodes=tried("list gpunodes", lambda: _gpunodes(kube)),
        webhook=webhook,
        policies=_policies(kube),
        deployments=listed(kube, paths.deployments(names.NAMESPACE), f"deployments in {names.NAMESPACE}"),
        daemonsets=_in_ours(kube, paths.daemonsets, "daemonsets"),
        configmaps=_in_ours(kube, paths.configmaps, "configmaps"),
        lease=tried(f"read leases in {names.NAMESPACE}", lambda: absent(kube, _LEASE)),
        options=tried(f"read configmaps in {names.NAMESPACE}", lambda: _options(kube)),
        authorities=_authorities(webhook) if isinstance(webhook, dict) else Authorities(),
        programs=reading.read(kube),
    )
    rights = install.program_rights(facts)
    agents = agents_namespace(facts)
    granted = tried("ask for the rights of others (subjectaccessreviews)", lambda: _granted(kube, rights, agents))
    where = trial.namespace(facts, wished)
    answer = tried(f"create pods in {where}", lambda: _dry_run(kube, listening, where)) if where else None
    found = replace(facts, granted=granted, dry_run=answer)
    made = _server_time(answer)
    return replace(found, clock_doubt=DOUBT) if made is None else replace(found, now=made)


def running(kube: Kube, now: float) -> ClusterFacts:
    """
    The part of `read` that shows whether allocator and webhook work: three requests, for callers that look every few
    seconds.
    """
    return ClusterFacts(
        now=now,
        version=(0, 0),
        webhook=tried(f"get the MutatingWebhookConfiguration {CONFIGURATION}", lambda: _webhook(kube)),
        deployments=listed(kube, paths.deployments(names.NAMESPACE), f"deployments in {names.NAMESPACE}"),
        lease=tried(f"get leases in {names.NAMESPACE}", lambda: absent(kube, _LEASE)),
        clock_doubt=DOUBT,
    )


def _server_time(answer: DryRun | Unseen | None) -> float | None:
    """The API server's clock, as it stamped the pod of the dry run: the user's own may be wrong."""
    if not isinstance(answer, DryRun) or answer.pod is None:
        return None
    return moments.created(answer.pod) or None


def _in_ours(kube: Kube, collection: paths.NamespacedResource, what: str) -> Objects | Unseen:
    """The objects of both our namespaces; `Unseen` where one of them may not be looked at."""
    found: Objects = ()
    for namespace in (names.NAMESPACE, names.NODES_NAMESPACE):
        part = listed(kube, collection(namespace), f"{what} in {namespace}")
        if isinstance(part, Unseen):
            return part
        found += part
    return found


def _names(items: Objects | Unseen) -> frozenset[str] | Unseen:
    return items if isinstance(items, Unseen) else frozenset(map(name_of, items))


def _options(kube: Kube) -> PoolOptions | Unseen:
    try:
        return options.options_of(absent(kube, paths.configmaps(names.NAMESPACE, names.OPTIONS)))
    except BadOption as error:
        return Unseen(f"{options.WHERE}: {error}")


def _webhook(kube: Kube) -> JSON | None:
    return absent(kube, paths.mutatingwebhookconfigurations(CONFIGURATION))


def _gpunodes(kube: Kube) -> Objects | None:
    try:
        return tuple(kube.list(paths.gpunodes(), of=kinds.SHOWN).items)
    except KubeNotFound:
        return None


def _policies(kube: Kube) -> frozenset[str] | Unseen:
    """The admission policies with a binding."""
    found = listed(kube, paths.validatingadmissionpolicies(), "validatingadmissionpolicies")
    bindings = listed(kube, _BINDINGS(), "validatingadmissionpolicybindings")
    if isinstance(found, Unseen):
        return found
    if isinstance(bindings, Unseen):
        return bindings
    bound = {str((each.get("spec") or {}).get("policyName")) for each in bindings}
    return frozenset(map(name_of, found)) & bound


def _authorities(webhook: JSON) -> Authorities:
    """The ends of the authorities' certificates in the first entry's caBundle; OpenSSL reads them."""
    entries: list[JSON] = webhook.get("webhooks") or [{}]
    config = entries[0].get("clientConfig") or {}
    if not config.get("caBundle"):
        return Authorities()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=base64.b64decode(config["caBundle"], validate=True).decode("ascii"))
    except (ssl.SSLError, binascii.Error, ValueError) as error:
        return Authorities(unreadable=str(error))
    ends = [each.get("notAfter") for each in context.get_ca_certs()]
    return Authorities(tuple(ssl.cert_time_to_seconds(end) for end in ends if isinstance(end, str)))


def _own_rights(kube: Kube) -> dict[Access, bool]:
    path = paths.path(_AUTHORIZATION, "selfsubjectaccessreviews")
    return {each: _review(kube, path, {}, each) for each in (*cluster.INSTALLING, cluster.GRANTING)}


def _granted(kube: Kube, rights: Iterable[ProgramRight], agents: str) -> dict[ProgramRight, bool]:
    path = paths.path(_AUTHORIZATION, "subjectaccessreviews")
    return {each: _review(kube, path, _account(each.account, agents), each.access) for each in rights}


def _account(name: str, agents: str) -> JSON:
    namespace = agents if name == AGENT else names.NAMESPACE
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups}


def _review(kube: Kube, path: str, who: JSON, access: Access) -> bool:
    resource, _, subresource = access.resource.partition("/")
    about = {
        "verb": access.verb,
        "group": access.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": access.namespace,
        "name": access.name,
    }
    kind = "SelfSubjectAccessReview" if not who else "SubjectAccessReview"
    body = {
        "apiVersion": _AUTHORIZATION,
        "kind": kind,
        "spec": {**who, "resourceAttributes": {key: value for key, value in about.items() if value}},
    }
    return bool((kube.create(path, body).get("status") or {}).get("allowed"))


def _dry_run(kube: Kube, listening: WarningTransport, where: str) -> DryRun:
    """Raises `KubeForbidden` if the user lacks the right; any other refusal is the answer."""
    try:
        pod = kube.create(paths.pods(where), trial.pod(where), {"dryRun": "All"})
    except KubeError as error:
        # RBAC's refusal has the same status as a policy's or a quota's.
        if not error.status or "cannot create resource" in str(error):
            raise
        text = str(error).partition(f": {error.status} ")[2].partition(": ")[2]
        return DryRun(where, refused=text or str(error))
    return DryRun(where, pod, listening.warnings)
