"""Which allocator leads, and what is done to the Lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contract import names
from playground.api.kinds.values import JSON
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from runtime.kubernetes.lease import RELEASED
from tests.simulation.feature import Arguments, Draw, Fault, Feature, Invariant, Violation
from tests.simulation.features.aiming import program_of
from tests.simulation.features.partitions import part
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.run import Run

ONE_LEADER = "at most one leads"
STRANGER = "stranger_0"
_RENEWS_EVERY = 2.0
_PAST, _FUTURE = "2001-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"
_SPECS: tuple[JSON, ...] = (
    {"holderIdentity": ""},
    {"holderIdentity": None},
    {"holderIdentity": STRANGER},
    {"leaseDurationSeconds": 1},
    {"leaseDurationSeconds": 40},
    {"leaseDurationSeconds": None},
    {"holderIdentity": STRANGER, "leaseDurationSeconds": 1},
    {"renewTime": _PAST},
    {"renewTime": _FUTURE},
    {"renewTime": None},
    {"acquireTime": _PAST},
    {"acquireTime": None},
    {"leaseTransitions": 0},
    {"leaseTransitions": 2**31 - 1},
    {"leaseTransitions": None},
)
_PATCHES: tuple[JSON, ...] = (
    {"metadata": {"labels": {"edited": "yes"}}},
    {"metadata": {"annotations": {RELEASED: "1"}}},
    {"metadata": {"annotations": {RELEASED: "1"}}, "spec": {"holderIdentity": ""}},
    {"spec": None},
)
_WAIT = "at most one leads; after a change by somebody else all wait until the record is as old as it says"


def _at_most_one(run: Run) -> Callable[[Any], Violation | None]:
    """Checked at each answered request too: two can lead without a commit."""

    def holds(change: Any) -> Violation | None:
        leaders = [each.host.name for each in run.world.leaders() if each.host is not None]
        return f"{' and '.join(leaders)} lead" if len(leaders) > 1 else None

    def answered(call: Any, status: int) -> None:
        if (wrong := holds(None)) and not run.suspended(ONE_LEADER):
            run.fail(f"{ONE_LEADER}: {wrong}")

    run.world.network.seen.append(answered)
    return holds


def _with_partition(draw: Draw, arguments: JSON) -> Arguments:
    """In one of three cases, the leader is also cut off, before or after the change."""
    if draw.rng.random() < 1 / 3:
        arguments |= {"cut": draw.rng.choice(("before", "after")), "gap": draw.rng.choice((0.1, 2.0, 8.0))}
    return arguments


def _deleted(draw: Draw) -> Arguments:
    return _with_partition(draw, {"times": draw.rng.choice((1, 1, 3))})


def _edit(draw: Draw) -> Arguments:
    patches = (*_PATCHES, *({"spec": spec} for spec in _SPECS))
    return _with_partition(draw, {"patch": draw.rng.choice(patches)})


def lease_path() -> str:
    """The path of the Lease."""
    return paths.leases(names.NAMESPACE, names.LEASE)


def _tolerant(run: Run, change: Callable[[], object]) -> None:
    """Do it, and ignore what the API server refuses or does not have."""
    try:
        change()
    except KubeError as error:
        run.tell("fault", f"the Lease stays as it is: {error}")


def _beside_partition(change: Callable[[Run, Arguments], None]) -> Callable[[Run, Arguments], Callable[[], None]]:
    """Make the change, with a partition of the leader around it if the arguments ask for one."""

    def begin(run: Run, arguments: Arguments) -> Callable[[], None]:
        if "cut" not in arguments:
            change(run, arguments)
            return lambda: None
        leader, gap = program_of(run, "leader").name, int(arguments["gap"] * SECOND)
        if arguments["cut"] == "after":
            change(run, arguments)
            run.kernel.block(gap)
        join = part(run, {leader}.__contains__, "packets lost")
        if arguments["cut"] == "before":
            run.kernel.block(gap)
            change(run, arguments)
        return join

    return begin


def _delete(run: Run, arguments: Arguments) -> None:
    for _ in range(arguments["times"]):
        _tolerant(run, lambda: run.user.delete(lease_path()))
        run.kernel.block(SECOND)


def _write(run: Run, arguments: Arguments) -> None:
    _tolerant(run, lambda: run.user.patch_merge(lease_path(), arguments["patch"]))


def _stranger(draw: Draw) -> Arguments:
    return {"duration": draw.rng.choice((5, 15, 40))}


def _take(run: Run, arguments: Arguments) -> Callable[[], None]:
    """A stranger overwrites the holder's name with its own, and renews until the fault ends."""
    over: list[bool] = []

    def renew() -> None:
        turn = 0
        while not over:
            turn += 1
            held = {"holderIdentity": STRANGER, "leaseDurationSeconds": arguments["duration"], "acquireTime": _PAST}
            spec = {**held, "renewTime": f"2026-01-01T00:00:00.{turn:06}Z"}
            _tolerant(run, lambda spec=spec: run.user.patch_merge(lease_path(), {"spec": spec}))  # type: ignore[misc]
            run.kernel.block(int(_RENEWS_EVERY * SECOND))

    run.kernel.spawn(run.world.admin, renew, "stranger")
    return lambda: over.append(True)


def _nothing(draw: Draw) -> Arguments:
    return {"how": draw.rng.choice(("edited", "made again"))}


def _copy(run: Run, arguments: Arguments) -> Callable[[], None] | None:
    """Take a copy of the Lease, and restore it when the fault ends."""
    try:
        copy = run.user.get(lease_path())
    except KubeError as error:
        run.tell("fault", f"no copy of the Lease: {error}")
        return None
    metadata = {key: copy["metadata"][key] for key in ("name", "namespace", "annotations") if key in copy["metadata"]}
    document = {"apiVersion": copy["apiVersion"], "kind": "Lease", "metadata": metadata, "spec": copy.get("spec")}

    def restore() -> None:
        if arguments["how"] == "edited":
            _tolerant(run, lambda: run.user.patch_merge(lease_path(), document))
            return
        _tolerant(run, lambda: run.user.delete(lease_path()))
        _tolerant(run, lambda: run.user.create(paths.leases(names.NAMESPACE), document))

    return restore


FEATURE = Feature(
    "election",
    faults=(
        Fault("lease.deleted", 2, _deleted, _beside_partition(_delete), seconds=(1.0, 40.0), during=_WAIT),
        Fault("lease.edited", 3, _edit, _beside_partition(_write), seconds=(1.0, 40.0), during=_WAIT),
        Fault(
            "lease.taken",
            1,
            _stranger,
            _take,
            seconds=(1.0, 60.0),
            during="nobody leads once the leader has read the stranger's name",
            after="one leads when the stranger's last record is as old as it says",
        ),
        Fault("lease.restored", 2, _nothing, _copy, seconds=(1.0, 60.0), during=_WAIT),
    ),
    invariants=(Invariant(ONE_LEADER, _at_most_one),),
)
