"""
A serving certificate of the webhooks expires before its successor exists.

The API server verifies it at each new connection; open connections continue. Each replica serves the new certificate
when the file in its own pod has changed, or when it starts again after the Secret has.
"""

from __future__ import annotations

from collections.abc import Callable

from contract import names, pods
from playground.api.admission.webhookcaller import CallFailed
from playground.api.store.store import Change
from tests.simulation.feature import Arguments, Draw, Fault, Feature, Invariant, Violation
from tests.simulation.kernel.scheduler import stream
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

_WHY = "tls: failed to verify certificate: x509: certificate has expired or is not yet valid"
_SWITCHING = ("namespace.", "etcd.", "admission.late")
"""Steps that may have changed a namespace's label before a pod in it was reviewed."""


def _drawn(draw: Draw) -> Arguments:
    """Seconds from the end of the old certificate until each replica has the new one, and until connections close."""
    secret = draw.rng.uniform(1.0, 60.0)
    mounted = {f"webhook-{i}": round(secret + draw.rng.uniform(0.0, 60.0), 2) for i in range(draw.replicas)}
    return {
        "secret": round(secret, 2),
        "mounted": mounted,
        "open": draw.rng.choice((0.0, 0.0, 5.0, 30.0)),
        "name": draw.new("certificate"),
    }


def _expire(run: Run, arguments: Arguments) -> Callable[[], None]:
    began, chance = run.kernel.seconds(), stream(run.plan.seed, arguments["name"])
    starts = {each.name: each.starts for each in run.world.webhooks}

    def serves(program: Program) -> bool:
        """Whether a review reaches the replica."""
        passed = run.kernel.seconds() - began
        if program.starts != starts.get(program.name):
            return passed >= float(arguments["secret"])
        return passed < float(arguments["open"]) or passed >= float(arguments["mounted"][program.name])

    def fault(answering: list[Program], path: str, body: bytes) -> list[Program]:
        if not answering:
            return answering
        chosen = answering[chance.randrange(len(answering))]
        if not serves(chosen):
            raise CallFailed(f'failed to call webhook: Post "https://webhook{path}": {_WHY}')
        return [chosen]

    run.world.reviewing.append(fault)
    return lambda: run.world.reviewing.remove(fault)


def _reviewed(run: Run) -> Callable[[Change], Violation | None]:
    """A pod that requests a share is stored only as a webhook has admitted it: behind its gate, or with its share."""
    told = not any(step.kind.startswith(_SWITCHING) for step in run.plan.steps)

    def holds(change: Change) -> Violation | None:
        if change.resource != "pods" or change.type != "ADDED" or not told or not _looked_after(run, change):
            return None
        pod, annotations = change.object, pods.annotations_of(change.object)
        limits = ((each.get("resources") or {}).get("limits") or {} for each in pod["spec"]["containers"])
        if any(names.GPU_MEMORY in each for each in limits) and names.REQUEST not in annotations:
            return f"{pods.key(pod)} asks for a share, and no webhook has seen it"
        return None

    return holds


def _looked_after(run: Run, change: Change) -> bool:
    namespace = run.world.api.store.get("namespaces", ("", change.object["metadata"]["namespace"])) or {"metadata": {}}
    return bool((namespace["metadata"].get("labels") or {}).get(names.INJECT_LABEL) == names.INJECT_ENABLED)


FEATURE = Feature(
    "certificates",
    invariants=(Invariant("no pod that asks passes the webhook by", _reviewed),),
    faults=(
        Fault(
            "certificate.expired",
            2,
            _drawn,
            _expire,
            seconds=(5.0, 120.0),
            during="all invariants hold; a pod that asks for a share is not created where its review goes to a replica"
            " that still serves the old certificate, and its author reads `certificate has expired`. What runs keeps"
            " its share, and pods that wait are placed, since that needs no webhook",
            after="controllers create what they could not, and everything that fits is placed",
        ),
    ),
)
