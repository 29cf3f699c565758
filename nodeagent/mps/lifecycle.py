"""
The actions for one GPU's MPS control daemon, given its observed state.

    off ──wanted, no other process computes───▶ claiming ──exclusive──▶ starting ──answers──▶ serving
     ▲ └──one computes──▶ blocked                  (the mode is requested)        │              │ │
     │                                                                            └──────dies────┤ │ a server's fault
     │      resting ◀──the fifth failure in a row── paused ◀──gone── stopping ◀──silent too long─┘ ▼
     │         └──rested──▶ as from off             └──waited──▶ as from off    ◀──no client left── faulted
     └──gone── stopping ◀──not wanted any more, from anywhere

A daemon that is found running is adopted; no second one is started. While a daemon is wanted, the card's compute mode
is EXCLUSIVE_PROCESS, so that a program that bypasses the daemon fails as soon as the daemon serves a client. After
giving up, the mode is reset, or all programs on that card would fail permanently; a mode that another program set
stays.

Pure: the time is passed in. Must not: start, query or end a daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from contract.backoff import backoff


class Phase(StrEnum):
    """The state of a GPU's daemon."""

    OFF = "off"
    BLOCKED = "blocked"
    CLAIMING = "claiming"
    STARTING = "starting"
    SERVING = "serving"
    FAULTED = "faulted"
    STOPPING = "stopping"
    PAUSED = "paused"
    RESTING = "resting"


class Action(StrEnum):
    """The actions of the caller, in this order. Each may fail; the next look shows it."""

    EXCLUSIVE = "exclusive"
    """Set the compute mode, and record that we set it."""
    DEFAULT = "default"
    """Reset the compute mode, and remove that record."""
    START = "start"
    QUIT = "quit"
    """Ask the daemon to end."""
    KILL = "kill"
    """Kill it and what is left of it."""


@dataclass(frozen=True, slots=True)
class RestartPace:
    """Seconds, and the number of failures in a row after which to give up."""

    patience: float = 30.0
    """How long a daemon may take to answer, after its start and later."""
    backoff: float = 5.0
    """After the first failure, doubled with each further one."""
    backoff_cap: float = 60.0
    failures: int = 5
    stable: float = 300.0
    """How long a daemon must serve until earlier failures no longer count."""
    grace: float = 60.0
    """How long it may take to end when asked to."""
    rest: float = 600.0
    """After too many failures."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    One look. `alive`: our daemon runs. `faulted`: a server of it reports a fault. `strangers`: processes of others
    compute on the card, or that is unknown. `exclusive`: whether the mode is EXCLUSIVE_PROCESS, None if unknown.
    `claimed`: whether we set it. `other_mode`: the daemon gives out partitions and should not, or the reverse.
    """

    wanted: bool = True
    alive: bool = False
    answers: bool = False
    faulted: bool = False
    clients: int = 0
    strangers: bool = False
    exclusive: bool | None = False
    claimed: bool = False
    other_mode: bool = False


@dataclass(frozen=True, slots=True)
class DaemonState:
    """The state between two looks. Times are of the caller's clock."""

    phase: Phase = Phase.OFF
    since: float = 0.0
    failures: int = 0
    silent: float | None = None
    """Since when the daemon gives no answer."""
    failing: str = ""
    """While stopping: the failure that caused it, or empty."""
    why: str = ""
    """The last failure or hindrance, as a sentence."""
    exclusive: bool = False
    """Whether the mode was EXCLUSIVE_PROCESS at the last look."""

    @property
    def serving(self) -> bool:
        """Whether limits are enforced: a daemon serves, and programs that bypass it fail."""
        return self.phase is Phase.SERVING and self.exclusive

    @property
    def taking(self) -> bool:
        """Whether the GPU may take new pods: the daemon would serve them, or there is no daemon to disturb."""
        return self.serving or self.phase in (Phase.OFF, Phase.BLOCKED, Phase.RESTING)


Transition = tuple[DaemonState, tuple[Action, ...]]


def step(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    """The state after a look at `now`, and the actions to take."""
    after, actions = _step(state, seen, now, pace)
    return replace(after, exclusive=seen.exclusive is True), actions


def _step(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    if not seen.wanted and state.phase is not Phase.STOPPING:
        return _unwanted(state, seen, now)
    match state.phase:
        case Phase.OFF | Phase.BLOCKED:
            return _open(state, seen, now)
        case Phase.CLAIMING:
            return _claiming(state, seen, now, pace)
        case Phase.STARTING:
            return _starting(state, seen, now, pace)
        case Phase.SERVING | Phase.FAULTED:
            return _running(state, seen, now, pace)
        case Phase.STOPPING:
            return _stopping(state, seen, now, pace)
        case Phase.PAUSED | Phase.RESTING:
            return _waiting(state, seen, now, pace)


def _enter(state: DaemonState, phase: Phase, now: float, **changes: object) -> DaemonState:
    """Enter a phase at `now`; a phase that continues keeps its time."""
    since = state.since if state.phase is phase else now
    return replace(state, **{"phase": phase, "since": since, "silent": None, "failing": "", **changes})  # type: ignore[arg-type]


def _unwanted(state: DaemonState, seen: Seen, now: float) -> Transition:
    if seen.alive:
        return _enter(state, Phase.STOPPING, now, why=""), (Action.QUIT,)
    return _enter(state, Phase.OFF, now, why="", failures=0), _released(seen)


def _released(seen: Seen) -> tuple[Action, ...]:
    return (Action.DEFAULT,) if seen.claimed else ()


def _open(state: DaemonState, seen: Seen, now: float) -> Transition:
    if seen.alive:
        # An earlier supervisor started it; adopt it.
        return _enter(state, Phase.STARTING, now), ()
    if seen.strangers:
        why = "processes that bypass MPS may compute on the GPU"
        return _enter(state, Phase.BLOCKED, now, why=why), _released(seen)
    return _claim(state, seen, now)


def _claim(state: DaemonState, seen: Seen, now: float) -> Transition:
    if seen.exclusive:
        return _enter(state, Phase.STARTING, now), (Action.START,)
    return _enter(state, Phase.CLAIMING, now), (Action.EXCLUSIVE,)


def _claiming(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    if seen.alive or seen.strangers:
        return _open(state, seen, now)
    if not seen.exclusive and now - state.since >= pace.patience:
        return _failed(state, "the compute mode could not be set to EXCLUSIVE_PROCESS", seen, now, pace)
    return _claim(state, seen, now)


def _starting(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    if not seen.alive:
        return _failed(state, "the MPS daemon ended while it started", seen, now, pace)
    if seen.answers and seen.exclusive:
        return _enter(state, Phase.SERVING, now, why=""), ()
    if seen.answers:
        # An adopted daemon may serve clients, so it is not ended because the driver is unavailable or refuses us.
        return replace(state, silent=None, why="the compute mode is not EXCLUSIVE_PROCESS"), _kept_exclusive(seen)
    silent = now if state.silent is None else state.silent
    if now - silent >= pace.patience:
        return _killed(state, "the MPS daemon does not answer", now)
    return replace(state, silent=silent), _kept_exclusive(seen)


def _kept_exclusive(seen: Seen) -> tuple[Action, ...]:
    return () if seen.exclusive is not False else (Action.EXCLUSIVE,)


def _running(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    if not seen.alive:
        return _failed(state, "the MPS daemon ended", seen, now, pace)
    silent = None if seen.answers else now if state.silent is None else state.silent
    if silent is not None and now - silent >= pace.patience:
        return _killed(state, "the MPS daemon no longer answers", now)
    if silent is not None:
        return replace(state, silent=silent), _kept_exclusive(seen)
    if seen.faulted and not seen.clients:
        return _enter(state, Phase.STOPPING, now, why="an MPS server had a fault; the daemon restarts it"), (
            Action.QUIT,
        )
    if seen.other_mode and not seen.clients and not seen.faulted:
        why = "the daemon is restarted to turn partitions on or off"
        return _enter(state, Phase.STOPPING, now, why=why), (Action.QUIT,)
    if seen.faulted:
        why = "a client caused a fault in an MPS server, which accepts new clients when all present ones have ended"
        return _enter(state, Phase.FAULTED, now, why=why), _kept_exclusive(seen)
    served = state.phase is Phase.SERVING and now - state.since >= pace.stable
    failures = 0 if served else state.failures
    return _enter(state, Phase.SERVING, now, failures=failures, why=""), _kept_exclusive(seen)


def _killed(state: DaemonState, why: str, now: float) -> Transition:
    """A daemon that does not answer cannot be asked to end."""
    return _enter(state, Phase.STOPPING, now, why=why, failing=why), (Action.KILL,)


def _stopping(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    if seen.alive:
        overdue = bool(state.failing) or now - state.since >= pace.grace
        return state, (Action.KILL,) if overdue else ()
    if not seen.wanted:
        return _unwanted(state, seen, now)
    if state.failing:
        return _failed(state, state.failing, seen, now, pace)
    return _enter(state, Phase.PAUSED, now), ()


def _failed(state: DaemonState, why: str, seen: Seen, now: float, pace: RestartPace) -> Transition:
    failures = state.failures + 1
    if failures >= pace.failures:
        given_up = f"{why}; given up after {failures} failures in a row"
        return _enter(state, Phase.RESTING, now, failures=0, why=given_up), (Action.KILL, *_released(seen))
    # Servers that outlive their daemon would block the card for the next one.
    return _enter(state, Phase.PAUSED, now, failures=failures, why=why), (Action.KILL,)


def _waiting(state: DaemonState, seen: Seen, now: float, pace: RestartPace) -> Transition:
    resting = state.phase is Phase.RESTING
    delay = pace.rest if resting else backoff(state.failures, pace.backoff, pace.backoff_cap)
    if seen.alive or now - state.since >= delay:
        return _open(state, seen, now)
    return state, _released(seen) if resting else ()
