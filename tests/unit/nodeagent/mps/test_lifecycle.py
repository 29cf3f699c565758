"""What the supervisor does about a daemon, look by look, and what holds in any history."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.mps.lifecycle import Action, DaemonState, Phase, RestartPace, Seen, step
from tests.examples import examples

PACE = RestartPace(patience=30, backoff=5, backoff_cap=60, failures=5, stable=300, grace=60, rest=600)
EXCLUSIVE, DEFAULT, START, QUIT, KILL = Action.EXCLUSIVE, Action.DEFAULT, Action.START, Action.QUIT, Action.KILL
GOOD = Seen(alive=True, answers=True, exclusive=True, claimed=True)
ENDED = Seen(exclusive=True, claimed=True)
SILENT = replace(GOOD, answers=False)
FAULT = replace(GOOD, faulted=True, clients=2)


NOTHING = DaemonState()


@dataclass(frozen=True)
class Story:
    """Looks at these seconds, and the phase and actions after each."""

    looks: tuple[tuple[float, Seen], ...]
    want: tuple[tuple[Phase, tuple[Action, ...]], ...]
    start: DaemonState = NOTHING


SERVING = DaemonState(Phase.SERVING, 0.0, exclusive=True)
STORIES = {
    "from nothing to service": Story(
        ((0, Seen()), (1, ENDED), (2, SILENT), (3, GOOD)),
        ((Phase.CLAIMING, (EXCLUSIVE,)), (Phase.STARTING, (START,)), (Phase.STARTING, ()), (Phase.SERVING, ())),
    ),
    "a card whose mode was right already": Story(
        ((0, Seen(exclusive=True)),),
        ((Phase.STARTING, (START,)),),
    ),
    "not while others compute there, and what was claimed is given back": Story(
        ((0, Seen(strangers=True)), (1, Seen(strangers=True, exclusive=True, claimed=True)), (2, Seen())),
        ((Phase.BLOCKED, ()), (Phase.BLOCKED, (DEFAULT,)), (Phase.CLAIMING, (EXCLUSIVE,))),
    ),
    "somebody comes between the claim and the start": Story(
        ((0, Seen()), (1, replace(ENDED, strangers=True))),
        ((Phase.CLAIMING, (EXCLUSIVE,)), (Phase.BLOCKED, (DEFAULT,))),
    ),
    "a daemon that runs already is adopted": Story(
        ((0, replace(GOOD, strangers=True)), (1, replace(GOOD, strangers=True))),
        ((Phase.STARTING, ()), (Phase.SERVING, ())),
    ),
    "a mode that cannot be set is a failure": Story(
        ((0, Seen()), (30, Seen(claimed=True)), (34, Seen(claimed=True)), (35, Seen(claimed=True))),
        (
            (Phase.CLAIMING, (EXCLUSIVE,)),
            (Phase.PAUSED, (KILL,)),
            (Phase.PAUSED, ()),
            (Phase.CLAIMING, (EXCLUSIVE,)),
        ),
    ),
    "a daemon that ends is started again, later each time": Story(
        ((10, ENDED), (14, ENDED), (15, ENDED), (16, ENDED), (25, ENDED), (26, ENDED)),
        (
            (Phase.PAUSED, (KILL,)),
            (Phase.PAUSED, ()),
            (Phase.STARTING, (START,)),
            (Phase.PAUSED, (KILL,)),
            (Phase.PAUSED, ()),
            (Phase.STARTING, (START,)),
        ),
        SERVING,
    ),
    "the fifth failure in a row gives the card back": Story(
        ((10, ENDED), (11, Seen()), (609, Seen()), (610, Seen())),
        (
            (Phase.RESTING, (KILL, DEFAULT)),
            (Phase.RESTING, ()),
            (Phase.RESTING, ()),
            (Phase.CLAIMING, (EXCLUSIVE,)),
        ),
        replace(SERVING, failures=4),
    ),
    "failures are forgotten after long service": Story(
        ((300, GOOD), (301, ENDED)),
        ((Phase.SERVING, ()), (Phase.PAUSED, (KILL,))),
        replace(SERVING, failures=4),
    ),
    "a silence is forgiven, a long one is not": Story(
        ((10, SILENT), (39, GOOD), (40, SILENT), (70, SILENT), (71, SILENT), (72, ENDED)),
        (
            (Phase.SERVING, ()),
            (Phase.SERVING, ()),
            (Phase.SERVING, ()),
            (Phase.STOPPING, (KILL,)),
            (Phase.STOPPING, (KILL,)),
            (Phase.PAUSED, (KILL,)),
        ),
        SERVING,
    ),
    "a fault waits for the clients, then the daemon is started anew": Story(
        ((1, FAULT), (2, FAULT), (3, replace(FAULT, clients=0)), (4, ENDED), (9, ENDED)),
        (
            (Phase.FAULTED, ()),
            (Phase.FAULTED, ()),
            (Phase.STOPPING, (QUIT,)),
            (Phase.PAUSED, ()),
            (Phase.STARTING, (START,)),
        ),
        SERVING,
    ),
    "a fault that goes by itself": Story(
        ((1, FAULT), (2, GOOD)),
        ((Phase.FAULTED, ()), (Phase.SERVING, ())),
        SERVING,
    ),
    "not wanted any more: asked, then killed, then given back": Story(
        (*((at, replace(GOOD, wanted=False)) for at in (1, 60, 61)), (62, replace(ENDED, wanted=False))),
        ((Phase.STOPPING, (QUIT,)), (Phase.STOPPING, ()), (Phase.STOPPING, (KILL,)), (Phase.OFF, (DEFAULT,))),
        SERVING,
    ),
    "somebody else's mode is left alone": Story(
        ((0, Seen(wanted=False, exclusive=True)),),
        ((Phase.OFF, ()),),
    ),
    "an adopted daemon is not ended because the driver is away": Story(
        ((0, replace(GOOD, exclusive=None)), (99, replace(GOOD, exclusive=None)), (100, SILENT), (101, GOOD)),
        ((Phase.STARTING, ()), (Phase.STARTING, ()), (Phase.STARTING, ()), (Phase.SERVING, ())),
    ),
    "one that never answers is": Story(
        ((0, SILENT), (1, SILENT), (30, SILENT), (31, SILENT), (32, ENDED)),
        (
            (Phase.STARTING, ()),
            (Phase.STARTING, ()),
            (Phase.STARTING, ()),
            (Phase.STOPPING, (KILL,)),
            (Phase.PAUSED, (KILL,)),
        ),
    ),
    "a mode that somebody changed is set again": Story(
        ((1, replace(GOOD, exclusive=False)), (2, GOOD)),
        ((Phase.SERVING, (EXCLUSIVE,)), (Phase.SERVING, ())),
        SERVING,
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_look_by_look(story: Story) -> None:
    state, found = story.start, []
    for now, seen in story.looks:
        state, actions = step(state, seen, now, PACE)
        found.append((state.phase, actions))
    assert tuple(found) == story.want


def test_only_a_daemon_that_answers_on_a_claimed_card_counts_as_serving() -> None:
    first, _ = step(SERVING, replace(GOOD, exclusive=None), 1, PACE)
    second, _ = step(SERVING, GOOD, 1, PACE)
    assert [(s.serving, s.taking) for s in (first, second)] == [(False, False), (True, True)]


@dataclass
class World:
    """A machine that does what it is told, unless it is `broken`."""

    alive: bool = False
    exclusive: bool = False
    claimed: bool = False
    answers: bool = True
    faulted: bool = False
    clients: int = 0
    strangers: bool = False
    wanted: bool = True
    broken: bool = False

    def seen(self) -> Seen:
        answers = self.alive and self.answers
        return Seen(
            wanted=self.wanted,
            alive=self.alive,
            answers=answers,
            faulted=answers and self.faulted,
            clients=self.clients if answers else 0,
            strangers=self.strangers,
            exclusive=self.exclusive,
            claimed=self.claimed,
        )

    def do(self, action: Action) -> None:
        match action:
            case Action.START:
                assert not self.alive, "a second daemon"
                assert self.exclusive, "a daemon on a card that is open to everybody"
                assert not self.strangers, "somebody else computes there"
                self.alive, self.faulted = not self.broken, False
            case Action.KILL:
                self.alive = self.alive and self.broken
            case Action.QUIT:
                self.alive = self.alive and (self.broken or not self.answers)
            case Action.EXCLUSIVE:
                assert not self.exclusive
                self.claimed, self.exclusive = True, not self.broken
            case Action.DEFAULT:
                assert self.claimed, "somebody else's mode"
                assert not self.alive, "an open card under a daemon"
                self.exclusive = self.claimed = False


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "alive": st.just(False),
        "answers": st.booleans(),
        "faulted": st.booleans(),
        "clients": st.integers(0, 2),
        "strangers": st.booleans(),
        "wanted": st.booleans(),
        "broken": st.booleans(),
    },
)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 120), CHANGES), max_size=40))
def test_whatever_happens(history: list[tuple[float, dict[str, object]]]) -> None:
    world, state, now = World(), DaemonState(), 0.0
    starts: list[float] = []
    for pause, changes in history:
        now += pause
        for name, value in changes.items():
            setattr(world, name, value)
        seen, before = world.seen(), state
        state, actions = step(state, seen, now, PACE)
        if seen.wanted and seen.answers and not seen.faulted and before.phase is not Phase.STOPPING:
            assert not {KILL, QUIT} & set(actions), "a daemon that answers has clients to lose"
        if state.serving:
            assert seen.alive
            assert seen.exclusive
        if not state.taking:
            assert seen.wanted or seen.alive, "pods are kept away only for a daemon's sake"
        for action in actions:
            if action is START:
                starts.append(now)
            world.do(action)
        if state.phase in (Phase.OFF, Phase.RESTING, Phase.BLOCKED):
            assert not world.claimed, "a card is given back where no daemon is to be"
    for first, sixth in zip(starts, starts[5:], strict=False):
        assert sixth - first >= 4 * PACE.backoff, "a daemon that cannot run is not started without end"
    # Once all is well it serves again, or has ended if it is not wanted.
    world.answers, world.faulted, world.strangers, world.broken, world.clients = True, False, False, False, 0
    for _ in range(100):
        now += 10
        state, actions = step(state, world.seen(), now, PACE)
        for action in actions:
            world.do(action)
    assert (state.serving, world.alive, world.exclusive) == (world.wanted, world.wanted, world.wanted)
