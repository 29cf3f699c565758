"""Clusters and pods generated from a seed, with a little of everything that kube-scheduler's filters read."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

JSON = dict[str, Any]
ZONE, RACK, HOST = "topology.kubernetes.io/zone", "rack", "kubernetes.io/hostname"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
SPACES = ("first", "second", "third")
_DRIVERS = ("disk.example.com", "file.example.com")
_IN_TREE = {
    "awsElasticBlockStore": ("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"),
    "gcePersistentDisk": ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone"),
    "azureDisk": ("kubernetes.io/azure-disk", "disk.csi.azure.com", ""),
    "cinder": ("kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"),
    "portworxVolume": ("kubernetes.io/portworx-volume", "pxd.portworx.com", ""),
}
"""Disks of cloud providers: their plugin, the CSI driver that replaces it, and that driver's label for zones."""
NIC, CARD, HUGE = "example.com/nic", "example.com/card", "hugepages-2Mi"
"""An extended resource that nodes have, one that a DeviceClass offers, and huge pages."""
RESTARTS = "RestartAllContainersOnContainerExits"
_KEYS = (ZONE, RACK, HOST)
_APPS = ("a", "b", "c")
BOUND = "pv.kubernetes.io/bind-completed"


@dataclass
class State:
    """The objects of one cluster, by the path of their collection, in the order in which they must be created."""

    nodes: list[JSON] = field(default_factory=list)
    namespaces: list[JSON] = field(default_factory=list)
    classes: list[JSON] = field(default_factory=list)
    volumes: list[JSON] = field(default_factory=list)
    claims: list[JSON] = field(default_factory=list)
    csi_nodes: list[JSON] = field(default_factory=list)
    csi_drivers: list[JSON] = field(default_factory=list)
    capacities: list[JSON] = field(default_factory=list)
    attachments: list[JSON] = field(default_factory=list)
    device_classes: list[JSON] = field(default_factory=list)
    device_claims: list[JSON] = field(default_factory=list)
    """Each with its status, which is written after the object was created."""
    pods: list[JSON] = field(default_factory=list)
    services: list[JSON] = field(default_factory=list)
    controllers: list[tuple[str, JSON]] = field(default_factory=list)
    """The kinds with their plurals."""
    statuses: dict[str, JSON] = field(default_factory=dict)
    """What is written to the status of placed pods, by name."""
    terminating: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    available: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    deleting: set[str] = field(default_factory=set)


def state(random: Random, nodes: int = 9, pods: int = 24) -> State:
    """A cluster."""
    made = State()
    for number in range(nodes):
        made.nodes.append(_node(random, f"node-{number}"))
    for name in SPACES:
        made.namespaces.append({"metadata": {"name": name, "labels": {"team": random.choice("xy")}}})
    _storage(random, made)
    _devices(random, made)
    for number in range(pods):
        pod = _pod(random, f"placed-{number}", made, placed=True)
        pod["spec"]["nodeName"] = random.choice(made.nodes)["metadata"]["name"]
        made.pods.append(pod)
        if random.random() < 0.4:
            made.statuses[pod["metadata"]["name"]] = _resize(random, pod["spec"])
        roll = random.random()
        if roll < 0.1:
            made.terminating.add(pod["metadata"]["name"])
        elif roll < 0.2:
            made.finished.add(pod["metadata"]["name"])
    return made


def probes(random: Random, made: State, number: int) -> list[JSON]:
    """Pods that request a node."""
    return [_pod(random, f"probe-{each}", made, placed=False) for each in range(number)]


def _node(random: Random, name: str) -> JSON:
    labels = {HOST: name}
    if random.random() < 0.9:
        labels[ZONE] = random.choice("abc")
    if random.random() < 0.1:
        labels[OLD_ZONE] = random.choice("abc")
    if random.random() < 0.8:
        labels[RACK] = random.choice(("r1", "r2"))
    if random.random() < 0.5:
        labels["disk"] = random.choice(("ssd", "hdd"))
    node: JSON = {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20", "ephemeral-storage": "10Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    _has(random, node)
    node["status"]["capacity"] = node["status"]["allocatable"]
    if random.random() < 0.15:
        node["spec"]["taints"] = [
            {"key": "only", "value": "some", "effect": random.choice(("NoSchedule", "PreferNoSchedule"))}
        ]
    if random.random() < 0.08:
        node["spec"]["unschedulable"] = True
    return node


def _has(random: Random, node: JSON) -> None:
    """Few pod slots, other resources, declared features, and zones of CSI drivers."""
    if random.random() < 0.1:
        node["status"]["allocatable"]["pods"] = "3"
    for name, amounts in ((NIC, ("0", "2", "4")), (CARD, ("0", "3")), (HUGE, ("0", "8Mi", "64Mi"))):
        if random.random() < 0.7:
            node["status"]["allocatable"][name] = random.choice(amounts)
    if random.random() < 0.5:
        node["status"]["declaredFeatures"] = random.choice(([RESTARTS], ["Other"], ["Other", RESTARTS]))
    labels = node["metadata"]["labels"]
    for _, _, label in _IN_TREE.values():
        if label and random.random() < 0.7:
            labels[label] = labels.get(ZONE, "a") if random.random() < 0.7 else random.choice("abc")


# -- storage ------------------------------------------------------------------------------------------------------


def _storage(random: Random, made: State) -> None:
    made.classes += [
        _class("now", _DRIVERS[0], delayed=False),
        _class("later", _DRIVERS[0], delayed=True),
        _class("here", "kubernetes.io/no-provisioner", delayed=True),
        _class("zoned", _DRIVERS[1], delayed=True, zones=random.sample("abc", random.randint(1, 2))),
        _class("scarce", "scarce.example.com", delayed=True),
        _class("old", random.choice(list(_IN_TREE.values()))[0], delayed=True),
        _class("old-file", "kubernetes.io/azure-file", delayed=True),
    ]
    made.csi_drivers.append({"metadata": {"name": "scarce.example.com"}, "spec": {"storageCapacity": True}})
    for number in range(random.randint(0, 3)):
        made.capacities.append(
            {
                "metadata": {"name": f"capacity-{number}", "namespace": random.choice(SPACES)},
                "storageClassName": random.choice(("scarce", "scarce", "later")),
                "nodeTopology": random.choice(
                    (
                        {"matchLabels": {ZONE: random.choice("abc")}},
                        {},
                        {"matchExpressions": [{"key": RACK, "operator": "Exists"}]},
                    )
                ),
                "capacity": random.choice(("4Gi", "10Gi")),
                **({"maximumVolumeSize": random.choice(("2Gi", "6Gi"))} if random.random() < 0.4 else {}),
            }
        )
    for number in range(14):
        made.volumes.append(_volume(random, f"volume-{number}", made))
    for space in SPACES:
        for number in range(8):
            _claim(random, space, f"claim-{number}", made)
    for node in made.nodes:
        if random.random() < 0.7:
            drivers = [
                {
                    "name": name,
                    "nodeID": "x",
                    "topologyKeys": [],
                    **({"allocatable": {"count": random.randint(1, 3)}} if random.random() < 0.7 else {}),
                }
                for name in (*_DRIVERS, *(driver for _, driver, _ in _IN_TREE.values()))
            ]
            metadata: JSON = {"name": node["metadata"]["name"]}
            migrated = [plugin for plugin, _, _ in _IN_TREE.values() if random.random() < 0.7]
            if random.random() < 0.8:
                metadata["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": ",".join(migrated)}
            made.csi_nodes.append({"metadata": metadata, "spec": {"drivers": drivers}})
    with_driver = [each for each in made.volumes if "csi" in each["spec"]]
    for number, volume in enumerate(random.sample(with_driver, min(4, len(with_driver)))):
        made.attachments.append(
            {
                "metadata": {"name": f"attachment-{number}"},
                "spec": {
                    "attacher": volume["spec"]["csi"]["driver"],
                    "nodeName": random.choice(made.nodes)["metadata"]["name"],
                    "source": {"persistentVolumeName": volume["metadata"]["name"]},
                },
            }
        )


def _class(name: str, provisioner: str, *, delayed: bool, zones: list[str] | None = None) -> JSON:
    made: JSON = {
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if delayed else "Immediate",
    }
    if zones is not None:
        made["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]
    return made


def _volume(random: Random, name: str, made: State) -> JSON:
    spec: JSON = {
        "capacity": {"storage": random.choice(("1Gi", "4Gi", "8Gi"))},
        "accessModes": random.choice((["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"], ["ReadWriteOncePod"])),
        "storageClassName": random.choice(("here", "here", "later", "now")),
        "persistentVolumeReclaimPolicy": "Retain",
    }
    labels: dict[str, str] = {}
    in_tree = random.random() < 0.45
    if in_tree:
        spec.update(_disk(random, name))
    elif random.random() < 0.6:
        spec["csi"] = {"driver": random.choice(_DRIVERS), "volumeHandle": random.choice((name, "shared"))}
    else:
        spec["hostPath"] = {"path": "/tmp/none"}
    roll = random.random()
    if roll < 0.4:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [_expression(random)]}]}}
    elif roll < 0.6:
        several = () if "gcePersistentDisk" in spec else ("a__b",)  # kube-scheduler reports these as an error
        labels[random.choice((ZONE, OLD_ZONE))] = random.choice(("a", "b", "c", *several))
    if in_tree and random.random() < 0.3:
        old = [{"key": OLD_ZONE, "operator": "In", "values": random.sample("abc", 2)}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": old}]}}
    if random.random() < 0.3:
        labels["kind"] = random.choice("mn")
    if random.random() < 0.75:
        made.available.add(name)
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _disk(random: Random, name: str) -> JSON:
    """A volume source on a disk of a cloud provider."""
    kind, handle = random.choice(list(_IN_TREE)), random.choice((name, "shared"))
    match kind:
        case "awsElasticBlockStore":
            return {kind: {"volumeID": random.choice((f"vol-{handle}", f"aws://zone/vol-{handle}"))}}
        case "gcePersistentDisk":
            return {kind: {"pdName": handle}}
        case "azureDisk":
            return {kind: {"diskName": handle, "diskURI": _azure_disk(handle), "kind": "Managed"}}
        case _:
            return {kind: {"volumeID": handle}}


def _azure_disk(name: str) -> str:
    return f"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/{name}"


def _expression(random: Random) -> JSON:
    return random.choice(
        (
            {"key": ZONE, "operator": "In", "values": random.sample("abc", 2)},
            {"key": HOST, "operator": "In", "values": [f"node-{random.randint(0, 8)}", f"node-{random.randint(0, 8)}"]},
            {"key": RACK, "operator": "NotIn", "values": ["r1"]},
            {"key": "disk", "operator": "Exists"},
        )
    )


def _claim(random: Random, space: str, name: str, made: State) -> None:
    metadata: JSON = {"name": name, "namespace": space}
    spec: JSON = {
        "accessModes": random.choice((["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteMany"], ["ReadWriteOncePod"])),
        "resources": {"requests": {"storage": random.choice(("1Gi", "3Gi", "5Gi"))}},
    }
    roll = random.random()
    if roll < 0.55:  # bound
        volume = random.choice(made.volumes)
        spec["volumeName"], spec["storageClassName"] = volume["metadata"]["name"], volume["spec"]["storageClassName"]
        if random.random() < 0.9:
            metadata["annotations"] = {BOUND: "yes"}
        if random.random() < 0.05:
            spec["volumeName"] = "volume-that-is-not-there"
    else:
        spec["storageClassName"] = random.choice(
            ("here", "later", "later", "zoned", "scarce", "now", "old", "old-file")
        )
        if random.random() < 0.15:
            node = random.choice(made.nodes)["metadata"]["name"]
            metadata["annotations"] = {"volume.kubernetes.io/selected-node": node}
        if random.random() < 0.15:
            spec["selector"] = {"matchLabels": {"kind": "m"}}
        if random.random() < 0.3:
            free = [v for v in made.volumes if "claimRef" not in v["spec"]]
            chosen = random.choice(free) if free else None
            if chosen is not None and chosen["spec"]["storageClassName"] == spec["storageClassName"]:
                chosen["spec"]["claimRef"] = {"namespace": space, "name": name}
    roll = random.random()
    if roll < 0.04:
        made.lost.add(f"{space}/{name}")
    elif roll < 0.08:
        made.deleting.add(f"{space}/{name}")
    made.claims.append({"metadata": metadata, "spec": spec})


# -- devices ------------------------------------------------------------------------------------------------------


def _devices(random: Random, made: State) -> None:
    made.device_classes += [
        {"metadata": {"name": "plain"}, "spec": {}},
        {"metadata": {"name": "card"}, "spec": {"extendedResourceName": CARD}},
    ]
    for space in SPACES:
        for number in range(4):
            metadata: JSON = {"name": f"devices-{number}", "namespace": space}
            device_class = "no-such-class" if random.random() < 0.1 else "plain"
            exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
            claim: JSON = {"metadata": metadata, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
            if random.random() < 0.75:
                result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": f"{space}-{number}"}
                allocation: JSON = {"devices": {"results": [result]}}
                if random.random() < 0.8:
                    allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [_expression(random)]}]}
                claim["status"] = {"allocation": allocation}
            if random.random() < 0.1:
                metadata["finalizers"] = ["example.com/keeps"]
                made.deleting.add(f"{space}/devices-{number}")
            made.device_claims.append(claim)


# -- pods ---------------------------------------------------------------------------------------------------------


def _pod(random: Random, name: str, made: State, *, placed: bool) -> JSON:
    space = random.choice(SPACES)
    labels = {"app": random.choice(_APPS)}
    if random.random() < 0.6:
        labels["version"] = random.choice("12")
    container: JSON = {"name": "main", "image": "none"}
    spec: JSON = {"containers": [container], "automountServiceAccountToken": False}
    often = 1.0 if placed or random.random() < 0.4 else 0.3
    if random.random() < often:
        _resources(random, spec)
    if random.random() < 0.2:
        container["ports"] = [_port(random)]
    if not placed and random.random() < 0.12:
        container.update(_restarting(random))
    if random.random() < 0.25 * often:
        spec["resourceClaims"] = [_claim_of_pod(random)]
    affinity = _affinity(random, placed=placed, often=often)
    if affinity:
        spec["affinity"] = affinity
    if not placed and random.random() < 0.4 * often:
        keys = random.sample(_KEYS, random.choice((1, 1, 2)))
        spec["topologySpreadConstraints"] = [_constraint(random, key) for key in keys]
    if not placed and random.random() < 0.3:
        spec["tolerations"] = [{"key": "only", "operator": "Exists"}]
    volumes = _pod_volumes(random, space, made) if random.random() < 0.5 * often else []
    if volumes:
        spec["volumes"] = volumes
    return {"metadata": {"name": name, "namespace": space, "labels": labels}, "spec": spec}


def _affinity(random: Random, *, placed: bool, often: float) -> JSON:
    affinity: JSON = {}
    if random.random() < (0.1 if placed else 0.4 * often):
        affinity["podAntiAffinity"] = _required([_term(random) for _ in range(random.choice((1, 1, 2)))])
    if not placed and random.random() < 0.4 * often:
        affinity["podAffinity"] = _required([_term(random) for _ in range(random.choice((1, 1, 2)))])
    if not placed and random.random() < 0.25 * often:
        terms = [{"matchExpressions": [_expression(random)]}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return affinity


def _restarting(random: Random) -> JSON:
    rule = {"action": random.choice(("RestartAllContainers", "Restart"))}
    rules = [{**rule, "exitCodes": {"operator": "In", "values": [1]}}]
    return {"restartPolicy": "Never", "restartPolicyRules": rules}


def _port(random: Random) -> JSON:
    port: JSON = {"containerPort": 80, "hostPort": random.choice((8080, 8081))}
    address = random.choice(("", "0.0.0.0", "::", "10.0.0.1", "10.0.0.1", "::1"))
    if address:
        port["hostIP"] = address
    if random.random() < 0.2:
        port["protocol"] = "UDP"
    return port


def _claim_of_pod(random: Random) -> JSON:
    if random.random() < 0.1:
        return {"name": "c", "resourceClaimTemplateName": "no-such-template"}
    claim = f"devices-{random.randint(0, 3)}" if random.random() < 0.95 else "no-such-claim"
    return {"name": "c", "resourceClaimName": claim}


def _resources(random: Random, spec: JSON) -> None:
    """Requests of containers, of sidecars and init containers, and of the pod itself."""
    for container in spec["containers"]:
        found = _requests(random)
        if found:
            container["resources"] = found
    beside = [_init_container(random, number, kind) for number, kind in enumerate(random.choice(_BESIDE))]
    if beside:
        spec["initContainers"] = beside
    own = _own_resources(random) if random.random() < 0.25 else {}
    if own:
        spec["resources"] = own
    if HUGE in own.get("limits", {}):
        for container in (*spec["containers"], *beside):
            for amounts in container.get("resources", {}).values():
                amounts.pop(HUGE, None)


_BESIDE: tuple[tuple[str, ...], ...] = ((), (), (), ("Always",), ("",), ("Always", ""), ("", "Always"))
"""The restart policies of init containers."""


def _init_container(random: Random, number: int, restarts: str) -> JSON:
    container: JSON = {"name": f"init-{number}", "image": "none"}
    found = _requests(random)
    if found:
        container["resources"] = found
    if restarts:
        container["restartPolicy"] = restarts
    if random.random() < 0.3:
        container["ports"] = [_port(random)]
    return container


def _own_resources(random: Random) -> JSON:
    own: JSON = {kind: {n: a for n, a in _WHOLE.items() if random.random() < 0.5} for kind in ("limits", "requests")}
    if random.random() < 0.3:
        del own[random.choice(("limits", "requests"))]
    if any(HUGE in amounts for amounts in own.values()):
        for kind in ("limits", "requests"):
            own.setdefault(kind, {})[HUGE] = _WHOLE[HUGE]
        own["requests"]["memory"] = _WHOLE["memory"]  # the API server demands it alongside huge pages
    return {kind: amounts for kind, amounts in own.items() if amounts}


_WHOLE = {"cpu": "4", "memory": "6Gi", HUGE: "8Mi"}
"""Requests of the pod itself: at least those of each of its containers."""


def _requests(random: Random) -> JSON:
    requests: JSON = {}
    limits: JSON = {}
    if random.random() < 0.5:
        requests["cpu"] = random.choice(("0", "250m", "500m", "1"))
    if random.random() < 0.3:
        requests["memory"] = random.choice(("0", "512Mi", "1Gi"))
    if random.random() < 0.1:
        limits["ephemeral-storage"] = random.choice(("1Gi", "4Gi"))
    for name, amounts in ((NIC, ("0", "1", "2")), (CARD, ("0", "1"))):
        if random.random() < 0.12:
            limits[name] = random.choice(amounts)
    if random.random() < 0.12:
        limits[HUGE] = random.choice(("2Mi", "4Mi"))
        requests.setdefault("memory", "512Mi")
    found = {"requests": requests, "limits": limits}
    return {kind: amounts for kind, amounts in found.items() if amounts}


def _resize(random: Random, spec: JSON) -> JSON:
    """What a node reports about a pod that is resized in place."""
    status: JSON = {}
    amounts = {"cpu": random.choice(("100m", "1", "3")), "memory": random.choice(("256Mi", "2Gi"))}
    for kind, containers in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
        status[kind] = [
            {
                "name": container["name"],
                "image": "none",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "resources": {
                    "requests": {"cpu": random.choice(("100m", "2")), **({} if random.random() < 0.5 else amounts)}
                },
                **({"allocatedResources": {"cpu": random.choice(("100m", "2500m"))}} if random.random() < 0.6 else {}),
            }
            for container in spec.get(containers, ())
            if random.random() < 0.8
        ]
    if random.random() < 0.3:
        reason = random.choice(("Infeasible", "Deferred"))
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    if random.random() < 0.3:
        status["resources"] = {"requests": amounts}
        status["allocatedResources"] = {"cpu": random.choice(("100m", "3"))}
    return status


def _pod_volumes(random: Random, space: str, made: State) -> list[JSON]:
    found: list[JSON] = []
    for number in range(random.choice((1, 1, 2))):
        roll = random.random()
        if roll < 0.75:
            claim = f"claim-{random.randint(0, 7)}" if random.random() < 0.95 else "no-such-claim"
            found.append({"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}})
        elif roll < 0.85:
            disk = {"pdName": random.choice("pq"), "readOnly": random.random() < 0.4}
            found.append({"name": f"v{number}", "gcePersistentDisk": disk})
        elif roll < 0.9:
            disk = _disk(random, random.choice(("volume-1", "volume-2", "own")))
            disk.pop("awsElasticBlockStore", None)
            found.append({"name": f"v{number}", **(disk or {"awsElasticBlockStore": {"volumeID": "vol-shared"}})})
        elif roll < 0.94:
            iscsi = {
                "targetPortal": "10.0.0.1",
                "iqn": "iqn.2001-04.com.example:one",
                "lun": 0,
                "readOnly": random.random() < 0.5,
            }
            found.append({"name": f"v{number}", "iscsi": iscsi})
        else:
            monitors = random.sample(("one:1", "two:2", "three:3"), 2)
            found.append(
                {"name": f"v{number}", "rbd": {"monitors": monitors, "image": "i", "readOnly": random.random() < 0.5}}
            )
    return found


def _required(terms: list[JSON]) -> JSON:
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _term(random: Random) -> JSON:
    term: JSON = {"topologyKey": random.choice(_KEYS)}
    selector = _selector(random)
    if selector is not None:
        term["labelSelector"] = selector
        if random.random() < 0.2 and not _names_version(selector):
            term[random.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
    roll = random.random()
    if roll < 0.2:
        term["namespaces"] = random.sample(SPACES, random.randint(1, 2))
    if 0.1 < roll < 0.4:
        term["namespaceSelector"] = random.choice(({}, {"matchLabels": {"team": random.choice("xy")}}))
    return term


def _selector(random: Random) -> JSON | None:
    return random.choice(
        (
            {"matchLabels": {"app": random.choice(_APPS)}},
            {"matchLabels": {"app": random.choice(_APPS)}},
            {
                "matchExpressions": [
                    {"key": "app", "operator": random.choice(("In", "NotIn")), "values": random.sample(_APPS, 2)}
                ]
            },
            {"matchExpressions": [{"key": "version", "operator": random.choice(("Exists", "DoesNotExist"))}]},
            {},
            None,
        )
    )


def _names_version(selector: JSON) -> bool:
    """Whether the API server would refuse the key in `matchLabelKeys` together with this selector."""
    return any(each["key"] == "version" for each in selector.get("matchExpressions", []))


def _constraint(random: Random, key: str) -> JSON:
    selector = _selector(random)
    constraint: JSON = {"topologyKey": key, "maxSkew": random.choice((1, 1, 2)), "whenUnsatisfiable": "DoNotSchedule"}
    if random.random() < 0.1:
        constraint["whenUnsatisfiable"] = "ScheduleAnyway"
    elif random.random() < 0.2:
        constraint["minDomains"] = random.randint(1, 4)
    if selector is not None:
        constraint["labelSelector"] = selector
        if random.random() < 0.2 and not _names_version(selector):
            constraint["matchLabelKeys"] = ["version"]
    if random.random() < 0.3:
        constraint["nodeAffinityPolicy"] = random.choice(("Honor", "Ignore"))
    if random.random() < 0.3:
        constraint["nodeTaintsPolicy"] = random.choice(("Honor", "Ignore"))
    return constraint


# -- what pods prefer ---------------------------------------------------------------------------------------------


def with_preferences(random: Random, made: State) -> None:
    """Give the pods of a cluster preferences, and add Services and controllers that select pods."""
    for pod in made.pods:
        if random.random() < 0.6:
            _prefer(random, pod["spec"].setdefault("affinity", {}))
            if random.random() < 0.4:
                pod["spec"]["affinity"].setdefault("podAffinity", {}).update(_required([_term(random)]))
    for node in made.nodes:
        if random.random() < 0.4:
            taints = node["spec"].setdefault("taints", [])
            taints += [{"key": key, "effect": "PreferNoSchedule"} for key in random.choice(("m", "n", "mn"))]
    for number, space in enumerate(SPACES):
        labels = {"app": random.choice(_APPS)}
        if random.random() < 0.8:
            spec = {"selector": labels, "ports": [{"port": 80}]}
            made.services.append({"metadata": {"name": f"service-{number}", "namespace": space}, "spec": spec})
        for plural in ("replicasets", "statefulsets", "replicationcontrollers"):
            made.controllers.append((plural, _controller(random, plural, space)))


def preferring(random: Random, made: State, number: int) -> list[JSON]:
    """Pods that prefer some nodes and can run on most."""
    return [_preferring(random, f"prefers-{each}", made) for each in range(number)]


def _preferring(random: Random, name: str, made: State) -> JSON:
    space = random.choice(SPACES)
    affinity: JSON = {}
    _prefer(random, affinity)
    if random.random() < 0.5:
        affinity["nodeAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": random.randint(1, 100), "preference": {"matchExpressions": [_expression(random)]}}
                for _ in range(random.choice((1, 2, 3)))
            ]
        }
    if random.random() < 0.2:
        terms = [{"matchExpressions": [_expression(random)]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        affinity.setdefault("nodeAffinity", {}).update(required)
    spec: JSON = {"containers": [{"name": "main", "image": "none"}], "automountServiceAccountToken": False}
    if affinity:
        spec["affinity"] = affinity
    if random.random() < 0.5:
        keys = random.sample(_KEYS, random.choice((1, 1, 2)))
        spec["topologySpreadConstraints"] = [_soft(_constraint(random, key)) for key in keys]
    if random.random() < 0.3:
        spec["tolerations"] = [{"key": random.choice("mn"), "operator": "Exists"}]
    labels = {"app": random.choice(_APPS), "version": random.choice("12")}
    metadata: JSON = {"name": name, "namespace": space, "labels": labels}
    if random.random() < 0.6:
        plural, owner = random.choice([each for each in made.controllers if each[1]["metadata"]["namespace"] == space])
        version, kind = _KINDS[plural]
        reference = {"apiVersion": version, "kind": kind, "name": owner["metadata"]["name"], "uid": "x"}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    return {"metadata": metadata, "spec": spec}


_KINDS = {
    "replicasets": ("apps/v1", "ReplicaSet"),
    "statefulsets": ("apps/v1", "StatefulSet"),
    "replicationcontrollers": ("v1", "ReplicationController"),
}


def _controller(random: Random, plural: str, space: str) -> JSON:
    labels = {"app": random.choice(_APPS), **({"version": random.choice("12")} if random.random() < 0.5 else {})}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    selector: JSON = labels if plural == "replicationcontrollers" else {"matchLabels": labels}
    spec: JSON = {"replicas": 0, "selector": selector, "template": template}
    if plural == "statefulsets":
        spec["serviceName"] = "none"
    return {"metadata": {"name": f"some-{plural}", "namespace": space}, "spec": spec}


def _prefer(random: Random, affinity: JSON) -> None:
    for kind in ("podAffinity", "podAntiAffinity"):
        if random.random() < 0.5:
            affinity.setdefault(kind, {})["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": random.randint(1, 100), "podAffinityTerm": _term(random)}
                for _ in range(random.choice((1, 1, 2)))
            ]


def _soft(constraint: JSON) -> JSON:
    kept = {key: value for key, value in constraint.items() if key != "minDomains"}
    return {**kept, "whenUnsatisfiable": "ScheduleAnyway"}
