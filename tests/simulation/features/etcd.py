"""An etcd that is restored to an earlier state."""

from __future__ import annotations

from collections.abc import Callable

from playground.programs import installing
from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.cards import BOOKED_ONCE, NEVER_MOVES, NO_REJECTION
from tests.simulation.features.claims import SHARE_IS_THERE
from tests.simulation.features.election import ONE_LEADER
from tests.simulation.run import Run

BUMP = 1_000_000
"""Higher than every revision that was used, as `--bump-revision` of etcdutl should be chosen."""


def _backup(draw: Draw) -> Arguments:
    """Take a backup. bumped: revisions continue above all that were used."""
    return {"bumped": draw.rng.choice((True, True, False))}


def _restore_later(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Take a backup, and restore it when the fault ends."""
    state = run.world.api.store.snapshot()

    def restore() -> None:
        store = run.world.api.store
        run.world.restore(state, bump=store.revision - state.revision + BUMP if arguments["bumped"] else 0)
        run.reread()
        run.tell("fault", f"etcd is as at revision {state.revision} again")
        _apply_again(run)
        for program in run.world.programs():
            program.kill()
            run.restart(program)

    return restore


def _apply_again(run: Run) -> None:
    """An administrator applies our manifests: what was wrong with them at the backup is wrong again."""
    for document in installing.to_apply(components=run.world.shape.components):
        if document["kind"] in ("CustomResourceDefinition", "ClusterRole", "Role"):
            installing.apply(run.user, document)
        if "rules" in document and document["kind"] in ("ClusterRole", "Role"):
            run.user.patch_merge(installing.path_of(document, named=True), {"rules": document["rules"]})


FEATURE = Feature(
    "etcd",
    faults=(
        Fault(
            "etcd.restored",
            1,
            _backup,
            _restore_later,
            seconds=(5.0, 60.0),
            during="no error of ours; all else is another history: what was deleted is back with its shares, which"
            " others may have been given, and a decision of a moment ago may be written into the older state. A leader"
            " whose last renewal is undone leads until it looks again, while another takes the Lease whose old"
            " version it has seen for long enough",
            after="what fits is placed, in the older state, once our manifests are applied again and every program is"
            " restarted, as Kubernetes asks for all components; pods that hold a card twice keep it until they end",
            suspends=frozenset((ONE_LEADER, BOOKED_ONCE, NEVER_MOVES, NO_REJECTION, SHARE_IS_THERE)),
            lingers=float("inf"),
        ),
    ),
)
