"""An etcd that is restored to an earlier state."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.cards import BOOKED_ONCE, NEVER_MOVES, NO_REJECTION
from tests.simulation.features.election import ONE_LEADER
from tests.simulation.run import Run

BUMP = 1_000_000
"""Beyond every revision that was given out, as etcdutl's `--bump-revision` is to be chosen."""


def _backup(draw: Draw) -> Arguments:
    """bumped: revisions go on above all that were given out. Where not, all our programs are restarted."""
    return {"bumped": draw.rng.choice((True, True, False))}


def _restore_later(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Take a backup, and go back to it when the fault ends."""
    state = run.world.api.store.snapshot()

    def restore() -> None:
        store = run.world.api.store
        run.world.restore(state, bump=store.revision - state.revision + BUMP if arguments["bumped"] else 0)
        run.reread()
        run.tell("fault", f"etcd is as at revision {state.revision} again")
        if not arguments["bumped"]:
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
            during="no error of ours; all else is another history: what was deleted is back with its shares, which"
            " others may have been given, and a decision of a moment ago may be written into the older state. A leader"
            " whose last renewal is undone leads until it looks again, while another takes the Lease whose old"
            " version it has seen for long enough",
            after="what fits is placed, in the older state; pods that hold a card twice keep it until they end. Where"
            " revisions do not go on from above (etcdutl's --bump-revision), programs must be restarted",
            suspends=frozenset((ONE_LEADER, BOOKED_ONCE, NEVER_MOVES, NO_REJECTION)),
            lingers=float("inf"),
        ),
    ),
)
