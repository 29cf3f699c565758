"""What happens to a pod between our webhook's answer and its storage, and to reviews in transit."""

from __future__ import annotations

from collections.abc import Callable

from playground.api.admission.attributes import Attributes
from playground.api.kinds import errors
from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.cards import NO_REJECTION
from tests.simulation.features.provisioning import WITHIN_BOUND
from tests.simulation.kernel.scheduler import SECOND, stream
from tests.simulation.run import Run
from tests.simulation.world import programs
from tests.simulation.world.programs import Program

_PROBABILITIES = (1.0, 0.5, 0.2)


def _drawn(draw: Draw) -> dict[str, object]:
    return {"probability": draw.rng.choice(_PROBABILITIES), "name": draw.new("admission")}


def _refused(draw: Draw) -> Arguments:
    return {**_drawn(draw), "status": draw.rng.choice((403, 500))}


def _late(draw: Draw) -> Arguments:
    """Seconds: within a reservation, at its end, and beyond every reservation."""
    return {**_drawn(draw), "delay": draw.rng.choice((1.0, 4.0, 6.0, 20.0, 39.0, 60.0, 200.0))}


def _each_new_pod(run: Run, arguments: Arguments, act: Callable[[], None]) -> Callable[[], None]:
    """Do this for admitted pods, with the plan's probability, until the returned function is called."""
    chance = stream(run.plan.seed, arguments["name"])

    def storing(attributes: Attributes) -> None:
        new = attributes.operation == "CREATE" and attributes.kind.key == "pods"
        if new and not attributes.request.subresource and chance.random() < arguments["probability"]:
            act()

    run.world.storing.append(storing)
    return lambda: run.world.storing.remove(storing)


def _refuse(run: Run, arguments: Arguments) -> Callable[[], None]:
    def act() -> None:
        if arguments["status"] == 403:
            raise errors.ApiError(403, "Forbidden", "exceeded quota, by a fault of the simulation")
        raise errors.internal("the API server died after admission, by a fault of the simulation")

    return _each_new_pod(run, arguments, act)


def _hold(run: Run, arguments: Arguments) -> Callable[[], None]:
    return _each_new_pod(run, arguments, lambda: _wait(run, arguments["delay"]))


def _wait(run: Run, seconds: float) -> None:
    run.kernel.block(int(seconds * SECOND))


def _reviewing(run: Run, fault: Callable[[list[Program], str, bytes], list[Program]]) -> Callable[[], None]:
    run.world.reviewing.append(fault)
    return lambda: run.world.reviewing.remove(fault)


def _nothing(draw: Draw) -> Arguments:
    return {}


def _twice(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Ask a webhook twice: the first answer is lost, and the API server asks again."""
    chance = stream(run.plan.seed, arguments["name"])

    def fault(answering: list[Program], path: str, body: bytes) -> list[Program]:
        if answering and chance.random() < arguments["probability"]:
            programs.review(run.kernel, answering[chance.randrange(len(answering))], path, body, 10.0)
        return [each for each in answering if each.alive]

    return _reviewing(run, fault)


def _down(run: Run, arguments: Arguments) -> Callable[[], None]:
    return _reviewing(run, lambda answering, path, body: [])


def _only(draw: Draw) -> Arguments:
    return {"webhook": f"webhook-{draw.rng.randrange(draw.replicas)}"}


def _one_answers(run: Run, arguments: Arguments) -> Callable[[], None]:
    """The Service sends every review to one replica, even if another one leads."""
    return _reviewing(run, lambda answering, path, body: [e for e in answering if e.name == arguments["webhook"]])


def _held(draw: Draw) -> Arguments:
    return {"delay": draw.rng.choice((0.5, 2.0, 2.9, 5.0, 30.0))}


def _slow(run: Run, arguments: Arguments) -> Callable[[], None]:
    world = run.world
    world.review_held += arguments["delay"]

    def quicken() -> None:
        world.review_held -= arguments["delay"]

    return quicken


FEATURE = Feature(
    "admission",
    faults=(
        Fault(
            "admission.refused",
            2,
            _refused,
            _refuse,
            seconds=(1.0, 40.0),
            during="all invariants hold; the share of a pod that is not stored stays reserved for a moment, so others"
            " wait that long",
        ),
        Fault(
            "admission.late",
            3,
            _late,
            _hold,
            seconds=(1.0, 40.0),
            during="no card is booked twice; a pod that is stored after its reservation has no share, and is ended. Its"
            " kubelet may be the first to do so, where the node is full by then. A placeholder that is stored after its"
            " request was given up may ask for a node too many",
            suspends=frozenset((NO_REJECTION, WITHIN_BOUND)),
            lingers=260.0,
        ),
        Fault(
            "admission.twice",
            1,
            _drawn,
            _twice,
            seconds=(1.0, 40.0),
            during="all invariants hold; the share of the first review is reserved in vain for a moment",
        ),
        Fault(
            "admission.down",
            1,
            _nothing,
            _down,
            seconds=(1.0, 30.0),
            during="all invariants hold; no pod is created that asks for a share",
        ),
        Fault(
            "admission.slow",
            2,
            _held,
            _slow,
            seconds=(1.0, 40.0),
            during="all invariants hold; a review that is answered too late has reserved a share in vain",
        ),
        Fault(
            "admission.one",
            1,
            _only,
            _one_answers,
            seconds=(1.0, 60.0),
            during="all invariants hold; with a webhook whose allocator does not lead, pods get their share later",
        ),
    ),
)
