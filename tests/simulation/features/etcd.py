"""An etcd that is restored to an earlier state."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.cards import BOOKED_ONCE, NEVER_MOVES, NO_REJECTION
from tests.simulation.run import Run

BUMP = 1_000_000


def _backup(draw: Draw) -> Arguments:
    """bump: what revisions go on with; with 0, revisions are given out twice, and our programs are restarted."""
    return {"bump": draw.rng.choice((BUMP, BUMP, 0))}


def _restore_later(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Take a backup, and go back to it when the fault ends."""
    state = run.world.api.store.snapshot()

    def restore() -> None:
        run.world.restore(state, bump=arguments["bump"])
        run.reread()
        run.tell("fault", f"etcd is as at revision {state.revision} again")
        if not arguments["bump"]:
            for program in run.world.programs():
                program.kill()
                run.restart(program)

    return restore


FEATURE = Feature(
    "etcd",
    faults=(
        Fault(
            "etcd.restored",
            1,
            _backup,
            _restore_later,
            seconds=(5.0, 60.0),
            during="at most one leads; all else is another history: what was deleted is back with its shares, which"
            " others may have been given, and a decision of a moment ago may be written into the older state",
            after="what fits is placed, in the older state; pods that hold a card twice keep it until they end. Where"
            " revisions do not go on from above (etcdutl's --bump-revision), programs must be restarted",
            suspends=frozenset((BOOKED_ONCE, NEVER_MOVES, NO_REJECTION)),
            lingers=float("inf"),
        ),
    ),
)
