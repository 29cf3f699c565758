"""
The families of names and values that a tenant or a stranger can put into a pod by the thousand, to make its review
costly. Each family fills a pod up to any number of bytes; tests and the benchmark of their cost use the same ones.

Pure: the same family and number of bytes give the same pod.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from contract.model import MOST_SHARING

JSON = dict[str, Any]
_OURS, _HAMI, _ALIYUN = "gpufraction.io/", "nvidia.com/", "aliyun.com/"
_SHARE = {f"{_OURS}gpu-memory": "1Gi"}
_WHOLE = {f"{_HAMI}gpu": "1"}
_REQUEST = f"{_OURS}request"

Family = Callable[[int], JSON]
"""The pod with this many items."""


def _pod(limits: JSON | None = None, *, metadata: JSON | None = None, main: JSON | None = None, **spec: Any) -> JSON:
    """A pod of one container, by default with a share."""
    container = {"name": "main", "image": "x", "resources": {"limits": _SHARE if limits is None else limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "large", "namespace": "default", **(metadata or {})},
        "spec": {"containers": [{**container, **(main or {})}], **spec},
    }


def _named(form: str, limits: JSON | None = None, *, what: str = "annotations") -> Family:
    """Annotations or labels with names of that form."""
    return lambda number: _pod(limits, metadata={what: {form % at: "x" for at in range(number)}})


def _resources(form: str, base: JSON, *, kind: str = "limits", amount: str = "1") -> Family:
    """Resources of one container with names of that form."""
    return lambda number: _pod(
        main={"resources": {"limits": base, kind: {**base, **{form % at: amount for at in range(number)}}}}
    )


def _text(make: Callable[[str], JSON], word: str) -> Family:
    """One text of this many words."""
    return lambda number: make(word * number)


def _listed(key: str, item: Callable[[int], Any], limits: JSON | None = None) -> Family:
    """A list of the pod's spec."""

    def made(number: int) -> JSON:
        spec: JSON = {key: [item(at) for at in range(number)]}
        return _pod(limits, **spec)

    return made


def _inside(key: str, item: Callable[[int], Any], limits: JSON | None = None) -> Family:
    """A list of the container."""
    return lambda number: _pod(limits, main={key: [item(at) for at in range(number)]})


def _containers(item: Callable[[int], JSON], *, kind: str = "containers") -> Family:
    def made(number: int) -> JSON:
        pod = _pod()
        pod["spec"][kind] = [*pod["spec"].get(kind, []), *(item(at) for at in range(number))]
        return pod

    return made


def _required(term: Callable[[int], JSON]) -> Family:
    """Terms of required node affinity."""
    return lambda number: _pod(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [term(at) for at in range(number)]
                }
            }
        }
    )


def _expressions(number: int) -> JSON:
    each = [{"key": f"k{at}", "operator": "In", "values": [f"v{at}"]} for at in range(number)]
    return _required(lambda _: {"matchExpressions": each})(1)


def _values(number: int) -> JSON:
    each = {"key": "k", "operator": "In", "values": [f"v{at}" for at in range(number)]}
    return _required(lambda _: {"matchExpressions": [each]})(1)


def _fields(number: int) -> JSON:
    each = [{"key": "metadata.name", "operator": "In", "values": [f"n{at}"]} for at in range(number)]
    return _required(lambda _: {"matchFields": each})(1)


def _asking_again(number: int) -> JSON:
    """A pod that was admitted before, with this many containers in its request."""
    parts = [{"name": f"c{at}", "count": 1, "memory": 1 << 30} for at in range(number)]
    text = json.dumps({"v": 1, "dialect": "native", "containers": parts})
    pod = _pod(metadata={"annotations": {_REQUEST: text}})
    pod["spec"]["containers"] = [
        {"name": f"c{at}", "resources": {"limits": {f"{_OURS}gpu-memory": "1Gi"}}} for at in range(number)
    ]
    return pod


def grown(number: int) -> JSON:
    """A pod that was admitted before with many containers with requests, and has so many more without."""
    pod = _asking_again(MOST_SHARING)
    pod["spec"]["containers"] += [{"name": f"x{at}"} for at in range(number)]
    return pod


def _carrying(number: int) -> JSON:
    """A pod that was admitted before, with an allocation of so many containers, which are not there."""
    request = {"v": 1, "dialect": "native", "containers": [{"name": "main", "count": 1, "memory": 1 << 30}]}
    share = {"uuid": "GPU-a", "index": 0, "memory": 1 << 30, "cores": 0, "of": 1 << 34}
    carried = [{"name": f"c{at}", "gpus": [share]} for at in range(number)]
    allocation = {"v": 1, "id": "a", "node": "n", "containers": carried}
    annotations = {_REQUEST: json.dumps(request), f"{_OURS}allocation": json.dumps(allocation)}
    return _pod(metadata={"annotations": annotations})


def _ranged(number: int) -> JSON:
    parts = "; ".join(f"{_OURS}gpu-memory, cpu request for container c{at}" for at in range(number))
    return _pod(metadata={"annotations": {"kubernetes.io/limit-ranger": f"LimitRanger plugin set: {parts}"}})


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        # Names that resemble ours and the older systems'.
        "annotations like ours": _named(f"{_OURS}g%05dqqqq"),
        "annotations near ours": _named(f"{_OURS}gpu-modle%d"),
        "annotations near HAMi's": _named(f"{_HAMI}use-gputyp%05d"),
        "annotations, no share": _named(f"{_HAMI}use-gputyp%05d", {}),
        "annotations of others": _named("example.com/note-%d"),
        "labels near Aliyun's": _named(f"{_ALIYUN}gpu-coun%05d", what="labels"),
        "labels of others": _named("app-%d", what="labels"),
        "limits like ours": _resources(f"{_OURS}g%05dqqqq", _SHARE),
        "limits near HAMi's": _resources(f"{_HAMI}g%05dmem", _WHOLE),
        "limits, no share": _resources(f"{_HAMI}g%05dmem", {}),
        "limits near others'": _resources(f"{_HAMI}gpuxy%05d-mem", {}),
        "requests near Aliyun's": _resources(f"{_ALIYUN}g%05dmem", _SHARE, kind="requests"),
        "limits of others": _resources("example.com/r%d", _SHARE),
        "long names of limits": _resources(f"{_HAMI}gpu%d" + "mem" * 30, {}),
        # Parts of a pod.
        "containers": _containers(lambda at: {"name": f"c{at}"}),
        "containers with a share": _containers(lambda at: {"name": f"c{at}", "resources": {"limits": _SHARE}}),
        "containers near a share": _containers(
            lambda at: {"name": f"c{at}", "resources": {"limits": {f"{_HAMI}gp{at}umem": "1"}}}
        ),
        "init containers": _containers(lambda at: {"name": f"c{at}"}, kind="initContainers"),
        "ephemeral containers": _containers(lambda at: {"name": f"c{at}"}, kind="ephemeralContainers"),
        "env": _inside("env", lambda at: {"name": f"V{at}", "value": "x"}),
        "env, no share": _inside("env", lambda at: {"name": f"V{at}", "value": "x"}, {}),
        "env of ours": _inside("env", lambda at: {"name": "CUDA_MPS_X", "value": str(at)}),
        "env of one limiter": _inside("env", lambda at: {"name": "LD_PRELOAD", "value": f"/{at}/libvgpu.so:/a"}),
        "ports": _inside("ports", lambda at: {"hostPort": at % 60000 + 1, "containerPort": at % 60000 + 1}),
        "mounts": _inside("volumeMounts", lambda at: {"name": f"v{at}", "mountPath": f"/m{at}"}),
        "volumes": _listed("volumes", lambda at: {"name": f"v{at}", "emptyDir": {}}),
        "claimed volumes": _listed("volumes", lambda at: {"name": f"v{at}", "persistentVolumeClaim": {}}),
        "tolerations": _listed("tolerations", lambda at: {"key": f"k{at}", "operator": "Exists"}),
        "node selector": lambda number: _pod(nodeSelector={f"k{at}": "v" for at in range(number)}),
        "affinity terms": _required(lambda at: {"matchExpressions": [{"key": f"k{at}", "operator": "Exists"}]}),
        "affinity expressions": _expressions,
        "affinity values": _values,
        "affinity fields": _fields,
        "preferred affinity": lambda number: _pod(
            affinity={
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {"matchExpressions": [{"key": f"k{at}", "operator": "Exists"}]}}
                        for at in range(number)
                    ]
                }
            }
        ),
        "affinity to pods": lambda number: _pod(
            affinity={
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {f"k{at}": "v"}}}
                        for at in range(number)
                    ]
                }
            }
        ),
        "spread constraints": _listed(
            "topologySpreadConstraints", lambda at: {"maxSkew": 1, "topologyKey": f"k{at}", "whenUnsatisfiable": "x"}
        ),
        "gates": _listed("schedulingGates", lambda at: {"name": f"g.example/{at}"}),
        "claims": _listed("resourceClaims", lambda at: {"name": f"c{at}", "resourceClaimName": f"c{at}"}),
        "owners": lambda number: _pod(
            metadata={
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": f"o{at}", "uid": f"u{at}"} for at in range(number)
                ]
            }
        ),
        "finalizers": lambda number: _pod(metadata={"finalizers": [f"example.com/f{at}" for at in range(number)]}),
        "overhead": lambda number: _pod(overhead={f"r{at}": "1" for at in range(number)}),
        "conditions": lambda number: {**_pod(), "status": {"conditions": [{"type": f"t{at}"} for at in range(number)]}},
        # Texts that are read.
        "a LimitRange's note": _ranged,
        "a request annotation": _asking_again,
        "an allocation annotation": _carrying,
        "models": _text(lambda text: _pod(metadata={"annotations": {f"{_OURS}gpu-models": text}}), "T4,"),
        "protected": _text(lambda text: _pod(metadata={"annotations": {f"{_OURS}protected": text}}), "a,"),
        "a topology": _text(
            lambda text: _pod(metadata={"annotations": {"kueue.x-k8s.io/podset-required-topology": text}}), '"a",'
        ),
        "a preload": _text(
            lambda text: _pod(main={"env": [{"name": "LD_PRELOAD", "value": f"libvgpu.so:{text}"}]}), "/a:"
        ),
        "an amount": _text(lambda text: _pod({f"{_OURS}gpu-memory": text}), "1"),
        "a container's name": _text(lambda text: _pod(main={"name": text}), "a"),
        "a long annotation": _text(lambda text: _pod(metadata={"annotations": {"example.com/a": text}}), "a"),
        "a long name of ours": _text(lambda text: _pod(metadata={"annotations": {_OURS + text: "x"}}), "g"),
        "wide letters": _text(lambda text: _pod(metadata={"annotations": {"example.com/a": text}}), "\U0001f600"),
        # Parts that no program reads.
        "unknown objects": _listed("filling", lambda at: {"a": {}}),
        "unknown lists": _listed("filling", lambda at: []),
        "unknown words": _listed("filling", lambda at: f"w{at}"),
        "unknown numbers": _listed("filling", lambda at: at + 0.1),
    }
)
"""By their names in tables."""


def filled(family: str, size: int) -> JSON:
    """The family's pod of at most `size` bytes as JSON, and nearly as many."""
    make = FAMILIES[family]
    few = 64
    empty, some = len(json.dumps(make(0))), len(json.dumps(make(few)))
    number = max((size - empty) * few // max(some - empty, 1), 0)
    while number and len(json.dumps(pod := make(number))) > size:
        number -= max(number // 50, 1)
    return pod if number else make(0)


def review(pod: JSON, *, uid: str = "review", dry_run: bool = True) -> bytes:
    """The AdmissionReview of the pod's creation, as bytes."""
    asked = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "dryRun": dry_run,
        "object": pod,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()
