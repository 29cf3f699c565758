"""Every dialect from a sentence and a manifest to the exact request, or to the exact refusal."""

from __future__ import annotations

import pytest

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from contract.encoding.quantity import GIB, MIB
from contract.model import FractionRequest, PodRequest, Wishes
from contract.options import Options
from tests.builders import PodBuilder, pod
from tests.unit.contract.dialects.aliyun import ALIYUN, aliyun
from tests.unit.contract.dialects.asking import LIMITS, Outcome, one, refused
from tests.unit.contract.dialects.elastic import ELASTIC, elastic
from tests.unit.contract.dialects.hami import HAMI, WHOLE_GPU, hami
from tests.unit.contract.dialects.kai import KAI, kai
from tests.unit.contract.dialects.nano import GIVE_CARD, NANO, nano
from tests.unit.contract.dialects.native import NATIVE

_CARD_MEMORY = "give the memory of a whole GPU with its unit, at least 1Mi, such as 40Gi"

EVERYWHERE: dict[str, tuple[PodBuilder, Outcome]] = {
    "a pod that asks for nothing": (pod("p").needs(cpu=1), None),
    "a GPU of another vendor": (pod("p").asks("amd.com/gpu", 1), None),
    "our annotations go with every dialect": (
        nano(20)
        .annotated(names.USE_MODELS, "A100")
        .annotated(names.AVOID_MODELS, "T4")
        .annotated(names.USE_UUIDS, "GPU-1")
        .annotated(names.AVOID_UUIDS, "GPU-2")
        .annotated(names.NODE_POLICY, "spread")
        .annotated(names.GPU_POLICY, "binpack"),
        PodRequest(
            "nano",
            (FractionRequest("main", percent=20, cores=20, wishes=Wishes(("A100",), ("T4",), ("GPU-1",), ("GPU-2",))),),
            node_policy="spread",
            gpu_policy="binpack",
        ),
    ),
    "our words are added to the dialect's, and our policy wins": (
        hami(gpumem=3000)
        .annotated("nvidia.com/use-gputype", "V100")
        .annotated(names.USE_MODELS, "A100")
        .annotated("hami.io/node-scheduler-policy", "spread")
        .annotated(names.NODE_POLICY, "binpack"),
        PodRequest(
            "hami",
            (FractionRequest("main", memory=3000 * MIB, wishes=Wishes(("A100", "V100"))),),
            node_policy="binpack",
        ),
    ),
    "a wish of one container is in place of the pod's": (
        pod("p")
        .annotated(names.USE_MODELS, "T4")
        .annotated(f"{names.USE_MODELS}.a", "H100,A100")
        .annotated(names.LEAST_MEMORY, "40Gi")
        .container("a")
        .asks("nano-gpu/gpu-percent", 20)
        .container("b")
        .asks("nano-gpu/gpu-percent", 20),
        PodRequest(
            "nano",
            (
                FractionRequest(
                    "a", percent=20, cores=20, wishes=Wishes(("H100", "A100"), least_memory=40 * GIB, ordered=True)
                ),
                FractionRequest("b", percent=20, cores=20, wishes=Wishes(("T4",), least_memory=40 * GIB)),
            ),
        ),
    ),
    "a card's memory without a unit": (
        nano(20).annotated(names.LEAST_MEMORY, "40"),
        Refusal("metadata.annotations[gpufraction.io/min-gpu-memory]", "'40'", _CARD_MEMORY),
    ),
    "a policy that we do not have": (
        nano(20).annotated(names.GPU_POLICY, "random"),
        Refusal("metadata.annotations[gpufraction.io/gpu-policy]", "'random'", "use binpack or spread"),
    ),
    "a way of pinning that we do not have": (
        nano(20).annotated(names.PLACEMENT, "nodename"),
        Refusal("metadata.annotations[gpufraction.io/placement]", "'nodename'", "give one of auto, nodeName, affinity"),
    ),
    "a request without a limit": (
        pod("p").container("main", resources={"requests": {"nano-gpu/gpu-percent": "20"}}),
        one("nano", percent=20, cores=20),
    ),
    "a wrong request without a limit is named as such": (
        pod("p").container("main", resources={"requests": {"nano-gpu/gpu-percent": "120"}}),
        Refusal("spec.containers[0].resources.requests[nano-gpu/gpu-percent]", "'120'", GIVE_CARD),
    ),
    "a wrong init container is named by its place": (
        pod("p").init("a").init("b").asks("nano-gpu/gpu-percent", 120).container("main"),
        Refusal("spec.initContainers[1].resources.limits[nano-gpu/gpu-percent]", "'120'", GIVE_CARD),
    ),
    "two dialects in one container": (
        nano(20).asks("nvidia.com/gpu", 1),
        refused(
            "nano-gpu/gpu-percent",
            f"nano-gpu together with HAMi (nvidia.com/gpu) ({LIMITS}[nvidia.com/gpu])",
            "use only one dialect: remove one of the two",
        ),
    ),
    "two dialects in one pod": (
        pod("p").init("a").asks("gpufraction.io/gpu-percent", 20).container("b").asks("aliyun.com/gpu-mem", 5),
        Refusal(
            f"{LIMITS}[aliyun.com/gpu-mem]",
            "Aliyun gpushare together with gpufraction.io "
            "(spec.initContainers[0].resources.limits[gpufraction.io/gpu-percent])",
            "use only one dialect: remove one of the two",
        ),
    ),
}

TABLES = {
    "native": NATIVE,
    "aliyun": ALIYUN,
    "hami": HAMI,
    "nano": NANO,
    "elastic": ELASTIC,
    "kai": KAI,
    "every dialect": EVERYWHERE,
}
CASES = {f"{name}: {says}": case for name, table in TABLES.items() for says, case in table.items()}


@pytest.mark.parametrize(("builder", "wanted"), CASES.values(), ids=CASES.keys())
def test_read(builder: PodBuilder, wanted: Outcome) -> None:
    assert DIALECTS.read(builder.json()) == wanted


@pytest.mark.parametrize(("builder", "wanted"), CASES.values(), ids=CASES.keys())
def test_the_tenants_own_manifest_reads_the_same(builder: PodBuilder, wanted: Outcome) -> None:
    assert DIALECTS.read(builder.manifest()) == wanted


MIB_UNITS = Options(aliyun_unit=MIB)
DEFAULTED = Options(default_memory=5000 * MIB, default_cores=20)
CHOSEN: dict[str, tuple[PodBuilder, Options, Outcome]] = {
    "Aliyun units in MiB": (aliyun(gpu_mem=5000), MIB_UNITS, one("aliyun", unit=MIB, memory=5000 * MIB)),
    "Aliyun units in MiB are told so": (
        aliyun(gpu_mem="5Gi"),
        MIB_UNITS,
        refused("aliyun.com/gpu-mem", "'5Gi'", "give whole MiB without a suffix, such as 5"),
    ),
    "default cores where memory is named": (hami(gpumem=3000), DEFAULTED, one("hami", memory=3000 * MIB, cores=20)),
    "default memory where cores are named": (hami(gpucores=30), DEFAULTED, one("hami", memory=5000 * MIB, cores=30)),
    "no default turns a whole GPU into a share": (hami(gpu=1), DEFAULTED, WHOLE_GPU),
    "no default in proportion where an amount was chosen": (
        elastic(gpu_core=10),
        Options(core_only_memory=GIB),
        one("elastic", memory=GIB, cores=10),
    ),
    "no default where a percentage is named": (
        hami(gpucores=30, gpumem_percentage=50),
        DEFAULTED,
        one("hami", percent=50, cores=30),
    ),
}


@pytest.mark.parametrize(("builder", "options", "wanted"), CHOSEN.values(), ids=CHOSEN.keys())
def test_what_the_administrator_chose(builder: PodBuilder, options: Options, wanted: Outcome) -> None:
    assert DIALECTS.read(builder.json(), options) == wanted


def test_a_refusal_in_one_sentence() -> None:
    assert str(DIALECTS.read(nano(120).json())) == (
        "spec.containers[0].resources.limits[nano-gpu/gpu-percent]: found '120'; "
        "give a whole number from 1 to 100, which is one whole card"
    )


def test_the_table_of_dialects() -> None:
    assert [DIALECTS.named(dialect.name) for dialect in DIALECTS] == list(DIALECTS)
    assert DIALECTS.named("from a newer version") is None
    resources = [resource for dialect in DIALECTS for resource in dialect.resources]
    assert len(set(resources)) == len(resources)
    assert [name for name in resources if not DIALECTS.ours(name)] == []
    assert not DIALECTS.ours("cpu")


def test_asked_keeps_the_order_of_the_table() -> None:
    made = nano(20).asks("aliyun.com/gpu-mem", 5).asks("gpufraction.io/gpu-count", 1).json()
    assert [dialect.name for dialect in DIALECTS.detect(made)] == ["native", "aliyun", "nano"]


WARNED: dict[str, tuple[PodBuilder, tuple[str, ...]]] = {
    "nothing to say": (elastic(gpu_core=200), ()),
    "a card and a half": (
        elastic(gpu_core=150),
        (f"{LIMITS}[elasticgpu.io/gpu-core]: 150 gives 1 whole card; the remaining 50 are ignored",),
    ),
    "memory of whole cards": (
        elastic(gpu_core=200, gpu_memory=256),
        (f"{LIMITS}[elasticgpu.io/gpu-memory]: ignored, since 2 whole cards are given with all their memory",),
    ),
    "MiB that are meant as GiB": (
        pod("p").asks("nvidia.com/gpumem", 8),
        (
            "container main: 8Mi, which is too little for any CUDA program to start; give memory with its unit, such "
            "as 8Gi",
        ),
    ),
    "little that may burst": (
        pod("p").asks("gpufraction.io/gpu-memory", "8Mi").asks("gpufraction.io/gpu-memory-limit", "8Gi"),
        (),
    ),
    "a percentage with a limit": (
        pod("p").asks("gpufraction.io/gpu-percent", 1).asks("gpufraction.io/gpu-percent-limit", 60),
        (),
    ),
    "a third": (
        kai(gpu_fraction="0.333"),
        ("metadata.annotations[gpu-fraction]: '0.333' is served as 33 percent of the GPU's memory",),
    ),
}


@pytest.mark.parametrize(("builder", "wanted"), WARNED.values(), ids=WARNED.keys())
def test_the_warnings_of_a_request(builder: PodBuilder, wanted: tuple[str, ...]) -> None:
    found = DIALECTS.read(builder.json())
    assert isinstance(found, PodRequest)
    assert found.warnings == wanted
