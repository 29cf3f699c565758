"""What a fault strikes: one replica, all of them, an agent, and which of their requests and watches."""

from __future__ import annotations

from collections.abc import Callable

from contract import names
from tests.simulation.feature import Draw
from tests.simulation.run import Run
from tests.simulation.world.network import Call
from tests.simulation.world.programs import Program

EVERY = "every program"


def some_hosts(draw: Draw) -> str:
    """Most often the leader; otherwise all replicas, one of them, an agent, or all programs."""
    one = f"allocator-{draw.rng.randrange(draw.replicas)}"
    agent = f"nodeagent-{draw.rng.choice(draw.nodes)}"
    return draw.rng.choice(("leader", "leader", "allocators", one, agent, EVERY))


def program_of(run: Run, name: str) -> Program:
    """The program of that name; for `leader`, the allocator that leads, or the first one if none leads."""
    if name == "leader":
        return run.world.leader() or run.world.allocators[0]
    return next(each for each in run.world.programs() if each.name == name)


def aimed(run: Run, hosts: str) -> Callable[[str], bool]:
    """Whether the fault strikes a program, by its name. The leader is looked up once, when the fault begins."""
    if hosts == EVERY:
        return {each.name for each in run.world.programs()}.__contains__
    if hosts == "allocators":
        return {each.name for each in run.world.allocators}.__contains__
    return {program_of(run, hosts).name}.__contains__


KINDS = ("anything", "writes", "writes of pods", "writes of status", "writes of the Lease", "reads", "lists")


def is_kind(kind: str, call: Call) -> bool:
    """Whether a request that is not a watch is of one of `KINDS`."""
    if call.is_watch:
        return False
    parts = call.path.strip("/").split("/")
    match kind:
        case "writes":
            return call.is_write
        case "writes of pods":
            return call.is_write and "pods" in parts and parts[-1] != "status"
        case "writes of status":
            return call.is_write and parts[-1] == "status"
        case "writes of the Lease":
            return call.is_write and parts[-1] in ("leases", names.LEASE)
        case "reads":
            return not call.is_write
        case "lists":
            return not call.is_write and "limit" in call.query
    return True
