"""Nodes that fall silent, leave and return; cards that fail, change and vanish; agents that report nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from contract import pods
from nodeagent.gpus.simulated import cards_from_text
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.run import Run

_OTHER = ("1 x Tesla T4 15109MiB", "2 x Tesla V100-PCIE-32GB 32768MiB", "8 x Tesla T4 15109MiB", "")
_KEPT = "all invariants hold; a share stays where it is, whatever becomes of its card"
_AFTER = "everything that fits the cards of now is placed"


def _node(draw: Draw) -> Arguments:
    return {"node": draw.rng.choice(draw.nodes)}


def _other(draw: Draw) -> Arguments:
    return {"node": draw.rng.choice(draw.nodes), "cards": draw.rng.choice(_OTHER[:-1])}


def _silence(run: Run, node: str) -> None:
    """Neither the kubelet nor the agent of the node writes any more."""
    run.world.machinery.fail_node(node)
    run.world.agents[node].kill()


def _return(run: Run, node: str) -> None:
    run.world.machinery.restart_node(node)
    run.world.agents[node].start()


def _vanish(run: Run, arguments: Arguments) -> Callable[[], None]:
    _silence(run, arguments["node"])
    return lambda: _return(run, arguments["node"])


def _exchange(run: Run, arguments: Arguments) -> Callable[[], None]:
    """The machine comes back with the same name and other cards."""
    node = arguments["node"]
    _silence(run, node)

    def back() -> None:
        run.world.exchange_cards(node, arguments["cards"])
        _return(run, node)
        run.kernel.spawn(run.world.admin, lambda: _clear(run, node), "clear")

    return back


def _clear(run: Run, node: str) -> None:
    """A minute later an administrator deletes the pods that hold a card which the node no longer has."""
    run.kernel.block(60 * SECOND)
    present = {card.uuid for card in cards_from_text(run.world.cards[node], node=node)}
    for pod in run.world.api.store.scan("pods"):
        held = pods.carried_allocation(pod)
        if (
            held is not None
            and held.node == node
            and not {gpu.uuid for each in held.containers for gpu in each.shares} <= present
        ):
            run.tell("user", f"deletes pod {pods.key(pod)}, whose card is gone")
            with contextlib.suppress(KubeNotFound):
                run.user.delete(paths.pods(pod["metadata"]["namespace"], pod["metadata"]["name"]))


def _delete(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Delete the Node; the agent's pod goes with it. The machine registers again when the fault ends."""
    node = arguments["node"]
    run.world.agents[node].kill()
    try:
        run.user.delete(paths.path("v1", "nodes", None, node))
    except KubeNotFound:
        run.tell("fault", f"there was no Node {node}")

    def register() -> None:
        run.world.add_node(node)
        run.world.agents[node].start()

    return register


_CHANGES: dict[str, dict[str, object]] = {
    "fails": {"healthy": False, "reason": "XID 79"},
    "has another UUID": {"uuid": "GPU-11111111-2222-3333-4444-555555555555"},
    "vanishes": {"vanished": True},
}


def _card(draw: Draw) -> Arguments:
    return {"node": draw.rng.choice(draw.nodes), "card": 0, "what": draw.rng.choice(tuple(_CHANGES))}


def _change(run: Run, arguments: Arguments) -> Callable[[], None]:
    node = arguments["node"]
    changes = {str(arguments["card"]): _CHANGES[arguments["what"]]}
    return run.world.disguise_cards(node, lambda cards: json.dumps({"gpus": cards, "cards": changes}))


def _shrink(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Every card of the node has half of its memory, as in a mode that reserves some."""
    return run.world.disguise_cards(arguments["node"], lambda cards: json.dumps({"gpus": _halved(cards)}))


def _halved(cards: str) -> str:
    text, _, memory = cards.rpartition(" ")
    return f"{text} {int(memory.removesuffix('MiB')) // 2}MiB"


_FAILURES = ("DriverGone", "LibraryMissing", "LibraryBroken", "NoPermission")


def _failure(draw: Draw) -> Arguments:
    return {"node": draw.rng.choice(draw.nodes), "failure": draw.rng.choice(_FAILURES)}


def _break(run: Run, arguments: Arguments) -> Callable[[], None]:
    failure = arguments["failure"]
    return run.world.disguise_cards(arguments["node"], lambda cards: json.dumps({"gpus": cards, "failure": failure}))


def _hush(run: Run, arguments: Arguments) -> Callable[[], None]:
    agent = run.world.agents[arguments["node"]]
    agent.kill()
    return agent.start


FEATURE = Feature(
    "machines",
    faults=(
        Fault(
            "node.silent",
            2,
            _node,
            _vanish,
            seconds=(5.0, 200.0),
            during="all invariants hold; nothing is placed on a node that is not ready, and its pods keep their shares",
            after=_AFTER,
        ),
        Fault(
            "node.exchanged",
            2,
            _other,
            _exchange,
            seconds=(5.0, 60.0),
            during=_KEPT,
            after=f"{_AFTER}; pods whose card is gone cannot start, and an administrator deletes them",
        ),
        Fault(
            "node.deleted",
            2,
            _node,
            _delete,
            seconds=(1.0, 120.0),
            during="all invariants hold; the pods of a deleted node go after 40 s, and hold their shares until then",
            after=_AFTER,
        ),
        Fault("card.changed", 3, _card, _change, seconds=(5.0, 120.0), during=_KEPT, after=_AFTER),
        Fault("cards.shrunk", 1, _node, _shrink, seconds=(5.0, 120.0), during=_KEPT, after=_AFTER),
        Fault("driver.broken", 1, _failure, _break, seconds=(5.0, 120.0), during=_KEPT, after=_AFTER),
        Fault(
            "agent.silent",
            2,
            _node,
            _hush,
            seconds=(5.0, 400.0),
            during="all invariants hold; what the agent said last counts, until it has been silent for too long; then "
            "nothing is placed on its node, and pods there keep their shares",
            after=_AFTER,
        ),
    ),
)
