"""
The part of Kueue's configuration that lets it charge a GPU share in every dialect.

Kueue counts a Job from its template, before admission rewrites the pods. So it must know how each dialect's resources
count: `resources.transformations` of its configuration (`config.kueue.x-k8s.io/v1beta2`). A plain pod is counted as it
is stored, and needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Charge
from contract.encoding import quantity
from contract.options import BadOption, Options
from kubectl_gpufraction.cluster import options
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.session import OUTPUT, Command, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound

JSON = dict[str, Any]
_HEAD = """\
# For the Configuration of Kueue (config.kueue.x-k8s.io/v1beta2): what a GPU share counts in a Job's template.
# The memory of {uncounted}
# depends on the GPU that the pod will get, so Kueue cannot count it from a template, nor that of whole GPUs or of
# cores alone. Ask for an amount of memory there, or submit plain pods, which are counted as they are stored.
"""


def transformations(reading: Options) -> list[JSON]:
    """Kueue's transformations, in the order of the dialects; renamed resources too."""
    renamed: dict[str, list[str]] = {}
    for other, standard in reading.resource_names:
        renamed.setdefault(standard, []).append(other)
    return [
        _transformation(charge, name, times)
        for charge in _charges(reading)
        for name, times in _spellings(charge, renamed)
    ]


def _charges(reading: Options) -> Iterator[Charge]:
    for dialect in DIALECTS:
        yield from dialect.charges(reading)


def _spellings(charge: Charge, renamed: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """The resource and what multiplies it, in the standard words and in the cluster's own."""
    yield charge.resource, charge.times
    own = renamed.get(charge.times, [charge.times])
    for name in renamed.get(charge.resource, ()):
        yield name, own[0]


def _transformation(charge: Charge, name: str, times: str) -> JSON:
    outputs = {}
    if charge.memory:
        outputs[str(names.GPU_MEMORY)] = quantity.format_bytes(charge.memory)
    if charge.cores:
        outputs[str(names.GPU_CORES)] = str(charge.cores)
    multiplied = {"multiplyBy": str(times)} if times else {}
    return {"input": str(name), "strategy": "Replace", **multiplied, "outputs": outputs}


def uncounted() -> tuple[str, ...]:
    """The resources by which a template asks for a part of a GPU's memory whose amount depends on the GPU."""
    counted = {name for charge in _charges(Options()) for name in (charge.resource, charge.times)}
    return tuple(name for dialect in DIALECTS for name in dialect.resources if name not in counted)


def document(reading: Options) -> str:
    """The text to put into Kueue's configuration, with a comment on what it cannot count."""
    import yaml  # the other commands start sooner without it

    head = _HEAD.format(uncounted=", ".join(uncounted()))
    return head + yaml.safe_dump({"resources": {"transformations": transformations(reading)}}, sort_keys=False)


def run(session: Session) -> CommandOutput:
    """The document for the cluster's own options."""
    try:
        configmap = session.kube.get(paths.configmaps(names.NAMESPACE, names.OPTIONS))
    except KubeNotFound:
        configmap = None
    try:
        reading = options.options_of(configmap).reading({})
    except BadOption as error:
        raise Failed(f"{options.WHERE}: {error}") from None
    made = transformations(reading)
    return CommandOutput(
        lines=document(reading).splitlines(),
        document={"resources": {"transformations": made}},
        names=[str(each["input"]) for each in made],
    )


COMMAND = Command(
    "kueue-config",
    "print the configuration that Kueue needs to count GPU shares of Jobs",
    run,
    flags=OUTPUT,
    example="""\
# To be merged into Kueue's ConfigMap
kubectl gpufraction kueue-config > kueue-resources.yaml""",
)
