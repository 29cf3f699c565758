"""Who leads, and what is done to the Lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contract import names
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Fault, Feature, Invariant, Violation
from tests.simulation.run import Run

ONE_LEADER = "at most one leads"


def _at_most_one(run: Run) -> Callable[[Any], Violation | None]:
    def holds(change: Any) -> Violation | None:
        leaders = [each.host.name for each in run.world.leaders() if each.host is not None]
        return f"{' and '.join(leaders)} lead" if len(leaders) > 1 else None

    return holds


def _nothing(draw: Draw) -> Arguments:
    return {}


def _lease() -> str:
    return paths.leases(names.NAMESPACE, names.LEASE)


def _delete(run: Run, arguments: Arguments) -> None:
    try:
        run.world.kube(run.world.admin).delete(_lease())
    except KubeNotFound:
        run.tell("fault", "there was no Lease")


def _edit(draw: Draw) -> Arguments:
    return {
        "holder": draw.rng.choice(("", "stranger", "replica-0", "replica-1")),
        "duration": draw.rng.choice((1, 15, 40)),
    }


def _write(run: Run, arguments: Arguments) -> None:
    spec = {"holderIdentity": arguments["holder"], "leaseDurationSeconds": arguments["duration"]}
    try:
        run.world.kube(run.world.admin).patch_merge(_lease(), {"spec": spec})
    except KubeNotFound:
        run.tell("fault", "there was no Lease")


FEATURE = Feature(
    "election",
    faults=(
        Fault(
            "lease.deleted",
            2,
            _nothing,
            _delete,
            during="one leads at most; all wait for the duration of a Lease",
        ),
        Fault("lease.edited", 2, _edit, _write, during="one leads at most; all wait for the duration of a Lease"),
    ),
    invariants=(Invariant(ONE_LEADER, _at_most_one),),
)
