"""Kueue counts for a template what admission writes into the pod."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names, pods
from contract.dialects import DIALECTS
from contract.dialects.base import Example
from contract.encoding import quantity
from contract.model import PodRequest
from contract.options import DEFAULTS, Options
from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.commands import kueueconfig
from tests.builders import pod
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig

JSON = dict[str, Any]
ACCOUNTING = (str(names.GPU_MEMORY), str(names.GPU_CORES))
RENAMED = Options(resource_names=(("example.com/vgpu", "nvidia.com/gpu"), ("example.com/vgpumem", "nvidia.com/gpumem")))
OTHERWISE = {
    "nvidia.com/gpumem=3Gi": "a quantity where the dialect counts MiB",
    "aliyun.com/gpu-mem=5 aliyun.com/gpu-count=0": "a count of 0",
}
"""Templates that Kueue counts differently, with the reason."""


def charged(limits: JSON, options: Options = DEFAULTS) -> Counter[str]:
    """What Kueue counts for a container with these limits; a resource without a transformation counts as itself."""
    found: Counter[str] = Counter()
    made = {each["input"]: each for each in kueueconfig.transformations(options)}
    for name, amount in limits.items():
        rule = made.get(name)
        times = int(limits.get(rule["multiplyBy"], "1")) if rule and "multiplyBy" in rule else 1
        for output, unit in ({name: "1"} if rule is None else rule["outputs"]).items():
            found[output] += int(quantity.parse(str(amount)) * quantity.parse(unit)) * times
    return found


def named(example: Example) -> str:
    return " ".join(f"{name}={amount}" for name, amount in example.limits.items())


def called(limits: JSON, options: Options = DEFAULTS) -> PodRequest | None:
    made = pod("p")
    for name, amount in limits.items():
        made = made.asks(name, amount)
    request = DIALECTS.read(made.json(), options)
    return request if isinstance(request, PodRequest) else None


COUNTED = {
    named(example): example
    for dialect in DIALECTS
    for example in dialect.examples
    if example.limits and not example.labels and not set(example.limits) & set(kueueconfig.uncounted())
    for request in [called(dict(example.limits))]
    if request is not None and not any(each.percent for each in request.containers) and named(example) not in OTHERWISE
}


@pytest.mark.parametrize("example", COUNTED.values(), ids=COUNTED.keys())
def test_a_template_counts_what_its_pod_will(example: Example) -> None:
    request = called(dict(example.limits))
    assert request is not None
    (fraction,) = request.containers
    want = {
        key: quantity.parse(text)
        for key, text in pods.accounting(fraction, fraction.memory * fraction.count).items()
        if key != names.GPU_MEMORY_LIMIT  # Kueue charges what is allocated
    }
    found = {key: amount for key, amount in charged(dict(example.limits)).items() if key in ACCOUNTING and amount}
    assert found == want


def test_every_dialect_with_countable_words_has_an_example_here() -> None:
    spoken = {
        dialect.name for dialect in DIALECTS for each in COUNTED.values() if set(each.limits) & set(dialect.resources)
    }
    assert spoken == {dialect.name for dialect in DIALECTS if dialect.charges(DEFAULTS)}


def test_what_depends_on_the_gpu_is_listed() -> None:
    assert set(kueueconfig.uncounted()) == {
        "gpufraction.io/gpu-percent",
        "nvidia.com/gpumem-percentage",
        "nano-gpu/gpu-percent",
        "elastic-gpu/gpu-percent",
    }


def test_the_clusters_own_names_are_counted_too() -> None:
    want = charged({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"})
    found = charged({"example.com/vgpu": "2", "example.com/vgpumem": "3000"}, RENAMED)
    assert (found[ACCOUNTING[0]], found[ACCOUNTING[0]]) == (want[ACCOUNTING[0]], 2 * 3000 * quantity.MIB)


def test_the_unit_of_aliyuns_memory_is_the_clusters() -> None:
    assert charged({"aliyun.com/gpu-mem": "5"}, Options(aliyun_unit=quantity.MIB))[ACCOUNTING[0]] == 5 * quantity.MIB


def test_the_document_is_a_comment_and_kueues_form() -> None:
    text = kueueconfig.document(DEFAULTS)
    assert yaml.safe_load(text) == {"resources": {"transformations": kueueconfig.transformations(DEFAULTS)}}
    assert "gpufraction.io/gpu-percent" in text.split("resources:")[0]


OPTIONS = "/api/v1/namespaces/gpufraction-system/configmaps/gpufraction-options"


def printed(given: JSON, folder: Path, *flags: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with answering(given) as port:
        config = str(kubeconfig(folder, port))
        status = main(["kueue-config", "--kubeconfig", config, *flags], out=out, err=err, environment={})
    return status, out.getvalue(), err.getvalue()


def test_the_command_reads_the_clusters_names(tmp_path: Path) -> None:
    text = yaml.safe_dump({"resourceName": "example.com/vgpu", "resourceMem": "example.com/vgpumem"})
    configmap = {"metadata": {"name": "gpufraction-options"}, "data": {"options.yaml": text}}
    assert printed({OPTIONS: (200, configmap)}, tmp_path) == (0, kueueconfig.document(RENAMED), "")


def test_without_options_the_command_prints_the_standard_names(tmp_path: Path) -> None:
    assert printed({}, tmp_path) == (0, kueueconfig.document(Options()), "")


def test_the_command_reads_the_clusters_unit(tmp_path: Path) -> None:
    configmap = {"metadata": {"name": "gpufraction-options"}, "data": {"options.yaml": "aliyunUnit: MiB"}}
    want = kueueconfig.document(Options(aliyun_unit=quantity.MIB))
    assert printed({OPTIONS: (200, configmap)}, tmp_path) == (0, want, "")


WRONG = {
    "an option with a wrong value": "resourceCountName: [a]",
    "no YAML": "{",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_options_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    configmap = {"metadata": {"name": "gpufraction-options"}, "data": {"options.yaml": text}}
    status, out, err = printed({OPTIONS: (200, configmap)}, tmp_path)
    assert (status, out, err.startswith("ConfigMap gpufraction-system/gpufraction-options: ")) == (1, "", True)
