"""Names are a promise: a rename must also be made here, on purpose."""

from __future__ import annotations

import copy
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names
from contract.dialects import DIALECTS, aliyun, claims, elastic, hami, kai, nano

PINNED = {
    "START": "gpufraction.io/start",
    "ALONE": "alone",
    "GPUS_LABEL": "gpufraction.io/gpus",
    "UNGUARDED": "unguarded",
    "QUEUE_WEIGHT": "gpufraction.io/queue-weight",
    "METRICS_LABEL": "gpufraction.io/metrics",
    "METRICS_SCRAPER": "scraper",
    "NODES_NAMESPACE": "gpufraction-nodes",
    "QUOTA": "gpufraction",
    "QUOTA_BOUNDED": "bounded",
    "QUOTA_LABEL": "gpufraction.io/quota",
    "RESOURCE_CLAIMS_LABEL": "gpufraction.io/resource-claims",
    "SHARE_CLASS": "share.gpufraction.io",
    "RESERVED_NODES": "gpufraction.io/reserved-nodes",
    "DEFRAGMENT": "gpufraction.io/defragment",
    "INJECT_LABEL": "gpufraction.io/inject",
    "DELIVERY": "gpufraction.io/delivery",
    "BY_DRA": "dra",
    "POD_CLAIM": "gpufraction",
    "CLAIM_PREFIX": "gpufraction.io-",
    "INJECT_ENABLED": "enabled",
    "FITS": "gpufraction.io/fits",
    "GATE": "gpufraction.io/allocation",
    "GPU_MEMORY": "gpufraction.io/gpu-memory",
    "GPU_CORES": "gpufraction.io/gpu-cores",
    "GPU_PERCENT": "gpufraction.io/gpu-percent",
    "GPU_COUNT": "gpufraction.io/gpu-count",
    "GPU_MEMORY_LIMIT": "gpufraction.io/gpu-memory-limit",
    "GPU_PERCENT_LIMIT": "gpufraction.io/gpu-percent-limit",
    "FENCE": "gpufraction.io/fence",
    "PIN": "gpufraction.io/pin",
    "PROTECTED": "gpufraction.io/protected",
    "RETURNED": "gpufraction.io/returned",
    "WITHDRAWN": "gpufraction.io/withdrawn",
    "GANG": "gpufraction.io/gang",
    "GANG_MINIMUM": "gpufraction.io/gang-minimum",
    "GANG_PLAN": "gpufraction.io/gang-plan",
    "REQUEST": "gpufraction.io/request",
    "ALLOCATION": "gpufraction.io/allocation",
    "PLACEMENT": "gpufraction.io/placement",
    "NODE_POLICY": "gpufraction.io/node-policy",
    "GPU_POLICY": "gpufraction.io/gpu-policy",
    "USE_MODELS": "gpufraction.io/gpu-models",
    "LEAST_MEMORY": "gpufraction.io/min-gpu-memory",
    "CORDON": "gpufraction.io/cordon",
    "BEYOND": "gpufraction.io/held-beyond",
    "REPEATED": "gpufraction.io/repeated-gpus",
    "CANARY": "gpufraction.io/canary",
    "CANARY_NAMESPACE": "gpufraction-canary",
    "CONFORMANCE": "gpufraction.io/conformance",
    "PROOF": "gpufraction.io/isolation-proof",
    "OWNERSHIP": "gpufraction.io/ownership",
    "EVICTION_REASON": "gpufraction.io/eviction-reason",
    "IDLE_AFTER": "gpufraction.io/idle-after",
    "NUMA_BIND": "gpufraction.io/numa-bind",
    "OPTIONS": "gpufraction-options",
    "OPTIONS_FILE": "options.yaml",
    "CONFIGURATION": "zz-gpufraction-webhook",
    "LEASE": "gpufraction-allocator",
    "SERVICE": "gpufraction-webhook",
    "SETTINGS": "gpufraction-{program}-settings",
    "POOLS": "gpufraction-pools",
    "MPS_NODE": "gpufraction.io/mps",
    "STARTUP_TAINT": "startup-taint.cluster-autoscaler.kubernetes.io/gpufraction",
    "HOLDER": "gpufraction.io/holder",
    "POOL": "gpufraction.io/pool",
    "NODE_REQUEST": "gpufraction.io/node-request",
    "HELD_GPUS": "gpufraction.io/held-gpus",
    "ISOLATION": "gpufraction.io/isolation",
    "AVOID_MODELS": "gpufraction.io/avoid-gpu-models",
    "USE_UUIDS": "gpufraction.io/gpu-uuids",
    "AVOID_UUIDS": "gpufraction.io/avoid-gpu-uuids",
    "DEVICES_PREFIX": "gpufraction.io/devices.",
    "MEMORY_MIB_PREFIX": "gpufraction.io/memory-mib.",
    "MEMORY_LIMIT_PREFIX": "gpufraction.io/memory-limit.",
    "MEMORY_LIMIT_MIB_PREFIX": "gpufraction.io/memory-limit-mib.",
    "CORES_LIMIT_PREFIX": "gpufraction.io/cores-limit.",
    "MPS_MEMORY_PREFIX": "gpufraction.io/mps-memory.",
    "MPS_THREADS_PREFIX": "gpufraction.io/mps-threads.",
    "MEMORY_FRACTION_PREFIX": "gpufraction.io/memory-fraction.",
    "MEMORY_FRACTION": "GPUFRACTION_MEMORY_FRACTION",
    "ALLOCATED_CONDITION": "gpufraction.io/Allocated",
    "SCHEDULABLE_CONDITION": "gpufraction.io/Schedulable",
    "CLAIM_FINALIZER": "gpufraction.io/claim-in-use",
    "SHARE_FINALIZER": "gpufraction.io/share-in-use",
    "RECLAIM": "gpufraction.io/reclaim-policy",
    "GPUNODE_KIND": "GPUNode",
    "GPUNODE_PLURAL": "gpunodes",
    "GPUNODE_GROUP_VERSION": "gpufraction.io/v1alpha1",
    "VISIBLE_DEVICES": "NVIDIA_VISIBLE_DEVICES",
    "LIMITER_LIBRARY": "libvgpu.so",
    "NO_DEVICES": "void",
    "GROUP": "gpufraction.io",
    "NAMESPACE": "gpufraction-system",
    "VERSION": "v1alpha1",
    "NEXT_VERSION": "v1beta1",
}


def test_our_names() -> None:
    found = {key: str(value) for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    assert found == PINNED


def test_every_key_is_registered_once_and_documented() -> None:
    keys = [value for value in vars(names).values() if isinstance(value, names.Key)]
    assert sorted(keys) == sorted(names.REGISTRY)
    places = [(key, key.on) for key in names.REGISTRY]
    assert len(set(places)) == len(places)
    assert [key for key in names.REGISTRY if not (key.on and key.writer and key.doc.endswith("."))] == []


def test_every_name_is_one_that_kubernetes_takes() -> None:
    prefixes = set(names.CONTAINER_PREFIXES)
    wrong = [key for key in names.REGISTRY if "/" in key and not qualified(key + "x" if key in prefixes else key)]
    assert wrong == []


def test_the_environment_of_a_share() -> None:
    assert {str(variable): str(prefix) for variable, prefix in names.ENVIRONMENT} == {
        "NVIDIA_VISIBLE_DEVICES": "gpufraction.io/devices.",
        "GPUFRACTION_MEMORY_MIB": "gpufraction.io/memory-mib.",
        "GPUFRACTION_MEMORY_LIMIT_MIB": "gpufraction.io/memory-mib.",
        "CUDA_DEVICE_MEMORY_LIMIT": "gpufraction.io/memory-limit.",
        "CUDA_DEVICE_SM_LIMIT": "gpufraction.io/cores-limit.",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "gpufraction.io/mps-memory.",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "gpufraction.io/mps-threads.",
        "GPUFRACTION_MEMORY_FRACTION": "gpufraction.io/memory-fraction.",
    }
    assert dict(names.BURST_ENVIRONMENT) == {"GPUFRACTION_MEMORY_LIMIT_MIB": "gpufraction.io/memory-limit-mib."}
    read = {prefix for _, prefix in (*names.ENVIRONMENT, *names.BURST_ENVIRONMENT)}
    assert read == set(names.CONTAINER_PREFIXES)


def test_whatever_we_set_a_tenant_may_not() -> None:
    loose = [
        variable
        for variable, _ in (*names.ENVIRONMENT, *names.BURST_ENVIRONMENT, *names.TOOLKIT_ENVIRONMENT)
        if variable not in names.RESERVED_ENVIRONMENT and not variable.startswith(names.RESERVED_ENVIRONMENT_PREFIXES)
    ]
    assert loose == []
    assert names.RESERVED_ANNOTATIONS == (names.REQUEST, names.ALLOCATION, names.WITHDRAWN, names.GANG_PLAN)


def test_the_older_systems_names_stay() -> None:
    """Those of a new dialect need not be here."""
    known = {
        "native": (
            "gpufraction.io/gpu-memory",
            "gpufraction.io/gpu-percent",
            "gpufraction.io/gpu-cores",
            "gpufraction.io/gpu-count",
            "gpufraction.io/gpu-memory-limit",
            "gpufraction.io/gpu-percent-limit",
        ),
        "aliyun": ("aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"),
        "elastic": (
            "elasticgpu.io/gpu-core",
            "elasticgpu.com/gpu-core",
            "elasticgpu.io/gpu-memory",
            "elasticgpu.com/gpu-memory",
        ),
        "claims": (),
        "kai": (),
        "hami": (
            "nvidia.com/gpu",
            "nvidia.com/gpumem",
            "nvidia.com/gpumem-percentage",
            "nvidia.com/gpucores",
            "nvidia.com/cores",
            "nvidia.com/priority",
        ),
        "nano": ("nano-gpu/gpu-percent", "elastic-gpu/gpu-percent"),
    }
    assert {each.name: each.resources for each in DIALECTS if each.name in known} == known
    assert (aliyun.IDX, aliyun.DEV, aliyun.POD, aliyun.CONTAINER, aliyun.ASSIGNED, aliyun.ASSUME_TIME) == (
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_CONTAINER",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    )
    assert aliyun.ALLOCATION == "scheduler.framework.gpushare.allocation"
    assert kai.DIALECT.annotations == ("gpu-fraction", "gpu-memory", "gpu-fraction.limit", "gpu-memory.limit")
    assert kai.DIALECT.annotation_prefixes == ("nvidia.com/container.", "kai.scheduler/container.")
    assert claims.DIALECT.annotation_prefixes == ("egpuc.elasticgpu.io/",)
    assert (claims.ASSUMED, claims.CONTAINER_PREFIX) == (elastic.ASSUMED, elastic.CONTAINER_PREFIX)
    assert (kai.DEVICES, kai.CONTAINER) == ("gpu-fraction-num-devices", "gpu-fraction-container-name")
    assert (elastic.ASSUMED, elastic.CONTAINER_PREFIX) == ("elasticgpu.io/assumed", "elasticgpu.io/container-")
    assert (nano.ASSUME, nano.CONTAINER_PREFIX) == ("nano-gpu/assume", "nano-gpu/container-")
    assert (
        hami.USE_MODELS,
        hami.AVOID_MODELS,
        hami.USE_UUIDS,
        hami.AVOID_UUIDS,
        hami.NODE_POLICY,
        hami.GPU_POLICY,
    ) == (
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "hami.io/node-scheduler-policy",
        "hami.io/gpu-scheduler-policy",
    )


def test_a_copy_of_a_key_is_text_and_registers_nothing() -> None:
    before = len(names.REGISTRY)
    copied = copy.deepcopy({names.GATE: [names.GATE]})
    assert copied == {"gpufraction.io/allocation": ["gpufraction.io/allocation"]}
    assert type(copied[names.GATE][0]) is str
    assert json.loads(json.dumps(copied)) == copied
    assert len(names.REGISTRY) == before


# -- one name per container ---------------------------------------------------------------------------------------

CONTAINER = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
LONG = st.builds(
    lambda start, end: f"{start * 63}"[:60] + end, st.sampled_from("ab"), st.text("xyz01", min_size=3, max_size=3)
)


def qualified(name: str) -> bool:
    """A qualified name as Kubernetes validates annotation keys and field paths."""
    prefix, _, part = name.partition("/")
    return (
        len(prefix) <= 253
        and re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", prefix) is not None
        and len(part) <= 63
        and re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", part) is not None
    )


@given(st.sampled_from(names.CONTAINER_PREFIXES), CONTAINER | LONG)
def test_an_annotation_for_a_container_is_a_valid_name(prefix: str, container: str) -> None:
    made = names.per_container(prefix, container)
    assert qualified(made)
    assert made.startswith(prefix)


@given(st.sampled_from(names.CONTAINER_PREFIXES), st.lists(CONTAINER | LONG, unique=True, min_size=2, max_size=20))
def test_distinct_containers_have_distinct_annotations(prefix: str, containers: list[str]) -> None:
    made = {names.per_container(prefix, container) for container in containers}
    assert len(made) == len(containers)


@given(st.sampled_from(names.CONTAINER_PREFIXES), LONG)
def test_no_container_can_take_the_annotation_of_a_long_one(prefix: str, container: str) -> None:
    taken = names.per_container(prefix, container).removeprefix(prefix)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", taken) is None or taken == container


@pytest.mark.parametrize(
    ("container", "wanted"),
    [
        ("main", "gpufraction.io/devices.main"),
        ("c" * 55, "gpufraction.io/devices." + "c" * 55),
        ("c" * 56, "gpufraction.io/devices." + "c" * 22 + "_f6c7b87acd114115d66897c8cb138c16"),
    ],
    ids=["a short name", "the longest that fits", "one more"],
)
def test_the_form_of_the_name(container: str, wanted: str) -> None:
    assert names.per_container(names.DEVICES_PREFIX, container) == wanted
