"""
The pods of the benchmark: full ones, as an API server hands them to a webhook, in every dialect; and reviews of them.

Pure: the same number gives the same pod. One in twenty requests more than is free anywhere, because a full cluster
must answer that too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

JSON = dict[str, Any]
_NATIVE, _ALIYUN, _HAMI, _NANO = "gpufraction.io/", "aliyun.com/", "nvidia.com/", "nano-gpu/"
_TOKENS = "kube-api-access"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
POOLS = ("training", "inference", "notebooks")
_IMAGE = "nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04"
_LARGE_EVERY = 20


def limits(number: int) -> dict[str, str]:
    """The request of the pod of this number."""
    if number % _LARGE_EVERY == _LARGE_EVERY - 1:
        return {f"{_NATIVE}gpu-memory": "80Gi"}
    size = 1 + number % 3
    return (
        {f"{_NATIVE}gpu-memory": f"{512 * size}Mi", f"{_NATIVE}gpu-cores": str(size)},
        {f"{_ALIYUN}gpu-mem": str(size)},
        {f"{_HAMI}gpu": "1", f"{_HAMI}gpumem": str(700 * size), f"{_HAMI}gpucores": "1"},
        {f"{_NANO}gpu-percent": str(2 * size)},
    )[number % 4]


def pod(number: int, *, namespace: str, name: str = "", wanted: Mapping[str, str]) -> JSON:
    """A pod of a Deployment as the API server leaves it; `wanted` are the GPU resources that it requests."""
    metadata: JSON = {
        "generateName": "trainer-7d9f8b6c5-",
        "namespace": namespace,
        "labels": {"app": "trainer", "pod-template-hash": "7d9f8b6c5"},
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
    }
    if name:
        metadata["name"] = name
    selector = {"nodeSelector": {"pool": POOLS[number % len(POOLS)]}} if number % 2 else {}
    waits = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [_container(wanted)],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {
                    "name": _TOKENS,
                    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}], "defaultMode": 420},
                },
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": TAINT["key"], "operator": "Exists", "effect": TAINT["effect"]},
                *({"key": f"node.kubernetes.io/{state}", **waits} for state in ("not-ready", "unreachable")),
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
            **selector,
        },
    }


def _container(wanted: Mapping[str, str]) -> JSON:
    requests = {"cpu": "250m", "memory": "512Mi"}
    return {
        "name": "main",
        "image": _IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{number}", "value": "x" * 20} for number in range(12)],
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
        "resources": {"limits": {**requests, **wanted}, "requests": {**requests, **wanted}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": _TOKENS, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


def reviews(count: int, *, namespace: str) -> Iterator[bytes]:
    """That many AdmissionReviews of pods being created, as bytes."""
    for number in range(count):
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, str(number))),
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": namespace,
                "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
                "object": pod(number, namespace=namespace, wanted=limits(number)),
                "oldObject": None,
                "dryRun": False,
                "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            },
        }
        yield json.dumps(review).encode()
