"""What other pods and volumes mean for a pod, for users with any rights: the full answer, a part of it, or its gaps."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from contract import pods as podfields
from contract.options import pool_options
from contract.reasons.nodes import Code, ReasonCount
from contract.scheduling import clusterfilters
from contract.scheduling.clusterfilters.objects import Cluster, PodClaim, PodRules, read_rules
from contract.scheduling.needs import PodNeeds
from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.advice import hosts
from kubectl_gpufraction.advice.rehearsal import Rehearsal, RehearsedPlacement
from kubectl_gpufraction.cluster import neighbours
from kubectl_gpufraction.cluster.neighbours import NeighbourReader, PendingPod, Surroundings, Unevaluated
from kubectl_gpufraction.cluster.room import RoomRequest
from kubectl_gpufraction.commands import dryrun
from tests.builders import pod
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_tenants import NO, collection

JSON = dict[str, Any]
HOST = "kubernetes.io/hostname"
FULL = "0 of 2 GPU nodes fit"


def on_host(name: str) -> JSON:
    made = node(name, {"pods": "110"})
    made["metadata"]["labels"] = {HOST: name}
    return made


def apart(made: JSON, app: str, of: str = "") -> JSON:
    """The pod with a label, and with anti-affinity to pods with another label."""
    made["metadata"]["labels"] = {"app": app}
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": of}}, "namespaceSelector": {}}
    if of:
        made["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return made


def mounting(made: JSON, claim: str) -> JSON:
    made["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return made


def other(name: str, app: str, on: str, of: str = "") -> JSON:
    made = apart(pod(name).on(on).json(), app, of)
    made["metadata"]["namespace"] = "others"
    return made


WAITS = apart(admitted("waits", "gpufraction.io/gpu-memory", "2Gi", waits=FULL), "web", "db")
DISK = mounting(apart(admitted("disk", "gpufraction.io/gpu-memory", "2Gi", waits=FULL), "disk"), "data")
LOST = mounting(apart(admitted("lost", "gpufraction.io/gpu-memory", "2Gi", waits=FULL), "lost"), "none")
BOUND = {"metadata": {"name": "data", "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "y"}}}
BOUND["spec"] = {"volumeName": "v"}
ON_N2 = {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n2"]}]}
VOLUME = {"metadata": {"name": "v"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [ON_N2]}}}}
PODS = [WAITS, DISK, LOST, other("db-0", "db", "n1"), other("shy", "shy", "n2", "disk"), other("x", "x", "n2")]
STORAGE = "/apis/storage.k8s.io/v1"
WHOLE: dict[str, tuple[int, Any]] = {
    "/api/v1/nodes": collection(on_host("n1"), on_host("n2")),
    "/api/v1/pods": collection(*PODS),
    "/api/v1/namespaces/default/pods": collection(WAITS, DISK, LOST),
    "/apis/gpufraction.io/v1alpha1/gpunodes": collection(gpunode("n1", 15109), gpunode("n2", 15109)),
    "/api/v1/namespaces": collection({"metadata": {"name": "default"}}, {"metadata": {"name": "others"}}),
    "/api/v1/persistentvolumeclaims": collection(BOUND),
    "/api/v1/namespaces/default/persistentvolumeclaims": collection(BOUND),
    "/api/v1/persistentvolumes": collection(VOLUME),
    **{f"{STORAGE}/{kind}": collection() for kind in ("storageclasses", "csinodes", "csidrivers", "volumeattachments")},
}
OPTIONS = "/api/v1/namespaces/gpufraction-system/configmaps/gpufraction-options"
UNREAD_OPTIONS = "you may not read ConfigMap gpufraction-system/gpufraction-options"
HARD = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def profiles(**arguments: Any) -> tuple[int, JSON]:
    """The options with these arguments in the default profile."""
    return 200, {"data": {"options.yaml": json.dumps({"schedulerProfiles": [arguments]})}}


def selecting(name: str, selector: JSON) -> JSON:
    """A Service or a controller."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": selector}}


ADDED = profiles(addedAffinity={REQUIRED: {"nodeSelectorTerms": [ON_N2]}})
SPREAD = profiles(defaultConstraints=[HARD])
SERVICES = "/api/v1/namespaces/default/services"
SELECTING = {
    SERVICES: collection(selecting("web", {"app": "db"}), selecting("own", {"app": "web"})),
    "/api/v1/namespaces/default/replicationcontrollers": collection(),
    "/apis/apps/v1/namespaces/default/replicasets": collection(),
    "/apis/apps/v1/namespaces/default/statefulsets": collection(selecting("web", {"matchLabels": {"app": "web"}})),
}
OWNED = apart(admitted("owned", "gpufraction.io/gpu-memory", "2Gi", waits=FULL), "web")
OWNED["metadata"]["ownerReferences"] = [
    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": True}
]
SIBLING = {"/api/v1/pods": collection(WAITS, OWNED, apart(pod("web-0").on("n2").json(), "web"))}
ON_N1_ALREADY = apart(pod("soon").json(), "db") | {"status": {"nominatedNodeName": "n1"}}
NO_VOLUMES = {"/api/v1/persistentvolumes": NO, f"{STORAGE}/csinodes": NO, "/api/v1/persistentvolumeclaims": NO}
TENANT = {
    path: answer if path.startswith("/api/v1/namespaces/default/") else NO
    for path, answer in (WHOLE | {f"{STORAGE}/csistoragecapacities": NO, OPTIONS: NO}).items()
}
ALL = "nodes, gpunodes, pods of all namespaces"
OF_CLASSES = "persistentvolumes, storageclasses"
CASES: dict[str, tuple[dict[str, tuple[int, Any]], str, list[str]]] = {
    "its own anti-affinity": (
        WHOLE,
        "waits",
        [
            "Other pods and volumes keep it off 1 of 2 GPU nodes now: n1 because of anti-affinity to another pod",
            "By anti-affinity it is kept apart from: others/db-0 on n1",
        ],
    ),
    "a volume, and a pod that excludes it": (
        WHOLE,
        "disk",
        [
            "Other pods and volumes keep it off 2 of 2 GPU nodes now: n1 because of a volume that the node cannot "
            "reach; n2 because of anti-affinity to another pod",
            "By anti-affinity it is kept apart from: others/shy on n2",
        ],
    ),
    "a claim that does not exist": (
        WHOLE,
        "lost",
        [
            "Other pods and volumes keep it off 2 of 2 GPU nodes now: n1, n2 because of a PersistentVolumeClaim that "
            "does not exist",
            "It names a PersistentVolumeClaim that does not exist: none",
        ],
    ),
    "who may not read volumes": (
        WHOLE | NO_VOLUMES,
        "disk",
        [
            "Other pods and volumes keep it off 1 of 2 GPU nodes now: n2 because of anti-affinity to another pod",
            "By anti-affinity it is kept apart from: others/shy on n2",
            "Not evaluated: VolumeBinding (you may not list persistentvolumes, csinodes); VolumeZone (you may not list "
            "persistentvolumes); NodeVolumeLimits (you may not list persistentvolumeclaims of all namespaces, "
            "persistentvolumes, csinodes)",
        ],
    ),
    "affinity that the profile adds": (
        WHOLE | {OPTIONS: ADDED, "/api/v1/pods": collection(WAITS)},
        "waits",
        [
            "Other pods and volumes keep it off 1 of 2 GPU nodes now: n1 not matching the node affinity that the pod's "
            "scheduler profile adds"
        ],
    ),
    "default constraints of the profile": (
        WHOLE | SELECTING | SIBLING | {OPTIONS: SPREAD},
        "waits",
        [
            "Other pods and volumes keep it off 1 of 2 GPU nodes now: n2 because of a topology spread constraint",
        ],
    ),
    "default constraints that count by a controller": (
        WHOLE | SELECTING | SIBLING | {OPTIONS: SPREAD, SERVICES: collection()},
        "owned",
        [
            "Other pods and volumes keep it off 1 of 2 GPU nodes now: n2 because of a topology spread constraint",
        ],
    ),
    "who may not read Services": (
        WHOLE | SELECTING | SIBLING | {OPTIONS: SPREAD, SERVICES: NO},
        "waits",
        ["Not evaluated: PodTopologySpread (you may not list services)"],
    ),
    "options that cannot be read": (
        WHOLE | {OPTIONS: profiles(schedulerName=5), "/api/v1/pods": collection(WAITS)},
        "waits",
        [
            "Not evaluated: AddedAffinity, PodTopologySpread (ConfigMap gpufraction-system/gpufraction-options: "
            "schedulerProfiles[0].schedulerName: found 5; give the name by which pods choose the profile)"
        ],
    ),
    "a pod that kube-scheduler nominated": (
        WHOLE | {"/api/v1/pods": collection(WAITS, ON_N1_ALREADY)},
        "waits",
        [
            "Other pods and volumes keep it off 1 of 2 GPU nodes now: n1 because of anti-affinity to another pod",
            "By anti-affinity it is kept apart from: default/soon on n1",
        ],
    ),
    "a tenant, and rules between pods": (
        TENANT,
        "waits",
        [
            f"Not evaluated: AddedAffinity (you may not list nodes, gpunodes; {UNREAD_OPTIONS}); PodTopologySpread "
            f"(you may not list {ALL}; {UNREAD_OPTIONS}); InterPodAffinity (you may not list {ALL}, namespaces)"
        ],
    ),
    "a tenant, and a claim": (
        TENANT,
        "lost",
        [
            "It names a PersistentVolumeClaim that does not exist: none",
            f"Not evaluated: AddedAffinity (you may not list nodes, gpunodes; {UNREAD_OPTIONS}); "
            f"VolumeRestrictions (you may not list {ALL}); VolumeBinding (you may not list nodes, "
            f"gpunodes, {OF_CLASSES}, csinodes, csidrivers, csistoragecapacities); VolumeZone (you may not list nodes, "
            f"gpunodes, {OF_CLASSES}); NodeVolumeLimits (you may not list {ALL}, persistentvolumeclaims of all "
            f"namespaces, {OF_CLASSES}, csinodes, volumeattachments); PodTopologySpread (you may not list {ALL}; "
            f"{UNREAD_OPTIONS}); InterPodAffinity (you may not list {ALL}, "
            "namespaces)",
        ],
    ),
}


def call(given: dict[str, tuple[int, Any]], directory: Path, *arguments: str) -> str:
    out = io.StringIO()
    with answering(given) as port:
        flags = ("--kubeconfig", str(kubeconfig(directory, port)))
        assert main([*arguments, *flags], out=out, err=out, environment={}) == 0
    return out.getvalue()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_explain_says_for(case: tuple[dict[str, tuple[int, Any]], str, list[str]], tmp_path: Path) -> None:
    given, name, want = case
    lines = call(dict(given), tmp_path, "explain", name).splitlines()
    starts = ("Other pods", "By anti-affinity", "It names", "Not evaluated")
    assert [line for line in lines if line.startswith(starts)] == want


def test_a_program_reads_which_filter_refuses_which_node(tmp_path: Path) -> None:
    (row,) = json.loads(call(dict(WHOLE | NO_VOLUMES), tmp_path, "explain", "disk", "-o", "json"))["items"]
    assert row["refusedBy"] == [{"node": "n2", "filter": "InterPodAffinity", "code": "PodAntiAffinity"}]
    assert [each["filter"] for each in row["notEvaluated"]] == ["VolumeBinding", "VolumeZone", "NodeVolumeLimits"]


def test_nothing_about_volumes_is_read_for_a_pod_without_claims(tmp_path: Path) -> None:
    given = dict(WHOLE)
    call(given, tmp_path, "explain", "waits")
    assert [path for path in given["asked"][1] if "volume" in path or "storage" in path] == []


def test_every_filter_is_evaluated_or_named() -> None:
    pending = PendingPod(read_rules(LOST), PodNeeds())
    unread = dict.fromkeys((neighbours.NODES,), neighbours.FORBIDDEN)
    named = {each.filter for each in Surroundings(NeighbourReader(), unread=unread).unevaluated(pending)}
    concerned = {neighbours.name_of(f) for f in clusterfilters.FILTERS if f(pending.rules, pending.needs, _empty())}
    assert named >= concerned


def test_a_pod_with_claims_of_other_drivers_is_told_that_nobody_looked_at_them() -> None:
    pending = PendingPod(PodRules(claims=(PodClaim("c"),)), PodNeeds())
    found = Surroundings(NeighbourReader()).unevaluated(pending)
    assert found == (Unevaluated("DynamicResources", "this command does not evaluate it"),)


def _empty() -> Any:
    return Cluster()


def test_a_kind_with_too_many_objects_is_named_with_its_bound() -> None:
    unread = {neighbours.VOLUMES: "there are more than 100000 persistentvolumes"}
    pending = PendingPod(read_rules(LOST), PodNeeds())
    found = Surroundings(NeighbourReader(), unread=unread).unevaluated(pending)
    assert Unevaluated("VolumeZone", "there are more than 100000 persistentvolumes") in found


@pytest.mark.parametrize("readable", [True, False])
def test_a_dry_run_names_constraints_that_count_by_a_controller_to_come(readable: bool) -> None:
    pending = dryrun.replica_of(WAITS, PodNeeds())
    unread = {} if readable else {neighbours.OPTIONS: UNREAD_OPTIONS}
    known = pool_options(json.loads(SPREAD[1]["data"]["options.yaml"])).profiles
    found = Surroundings(NeighbourReader(), unread=unread, profiles=known if readable else None).unevaluated(pending)
    to_come = "default constraints count by the selector of the pod's controller, which does not exist yet"
    unknown = tuple(Unevaluated(name, UNREAD_OPTIONS) for name in ("AddedAffinity", "PodTopologySpread"))
    assert found == ((Unevaluated("PodTopologySpread", to_come),) if readable else unknown)


def test_a_pod_that_is_resized_takes_what_it_has_until_then() -> None:
    resized = {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]}
    other_pod = pod("shrinks").container("c").needs(cpu="1").on("n1").json() | {"status": resized}
    holder = admitted("holds", "gpufraction.io/gpu-memory", "2Gi", on="n1")
    main = {"name": "main", "resources": {"requests": {"cpu": "2"}}}
    holder["status"] = {"phase": "Running", "containerStatuses": [main]}
    soon = pod("soon").container("c").needs(cpu="4").json() | {"status": {"nominatedNodeName": "n1"}}
    (host,) = hosts.advice_input([gpunode("n1", 15109)], [on_host("n1")], [other_pod, holder, soon], ()).hosts
    (held,) = host.holders
    assert (host.state.requested.cpu, host.without(()).requested.cpu, held.wanted.needs.compute.cpu) == (7000, 9000, 0)


def test_replicas_are_rehearsed_apart_from_each_other_and_from_others() -> None:
    web = apart(admitted("web", "gpufraction.io/gpu-memory", "2Gi", waits=FULL), "db", "db")
    request = podfields.admitted(web)
    assert request is not None
    reader = NeighbourReader()
    reader.see_nodes([on_host(name) for name in ("n1", "n2", "n3")])
    reader.pod(other("db-0", "db", "n1"))
    states = hosts.advice_input([gpunode(n, 15109) for n in reader.nodes], map(on_host, reader.nodes), [], ())
    rehearsal = Rehearsal(states.hosts, Surroundings(reader))
    wanted, pending = RoomRequest(request, PodNeeds()), dryrun.replica_of(web, PodNeeds())
    placed = [rehearsal.place(wanted, pending) for _ in range(3)]
    assert placed == [
        RehearsedPlacement("n2", (0,)),
        RehearsedPlacement("n3", (0,)),
        (ReasonCount(Code.POD_ANTI_AFFINITY, 3),),
    ]
