"""
The declared pools as readable text, from one pass over them: the requested nodes, or why none are requested.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allocator.features.provisioning.wishes import Plan, PoolView
from contract.nodes.pool_status import PoolStatus, State
from contract.options import Pool


def of_pools(
    now: float, declared: Iterable[Pool], views: Mapping[str, PoolView], plan: Plan, failed: Mapping[str, str]
) -> tuple[PoolStatus, ...]:
    """
    The status of each declared pool, in the order of the options.

    `views`: the pools about which enough is known. `failed`: why the request of a pool failed, by its name.
    """
    return tuple(_of_pool(now, pool, views.get(pool.name), plan, failed.get(pool.name, "")) for pool in declared)


def wanted(plan: Plan, failed: Mapping[str, str]) -> dict[str, int]:
    """The nodes of live and new requests that are not ready yet, by pool; pools without any are left out."""
    found: dict[str, int] = {}
    for each in plan.live:
        missing = each.outstanding + sum(not node.ready for node in each.came)
        found[each.request.pool] = found.get(each.request.pool, 0) + missing
    for name, count in plan.make:
        if name not in failed:
            found[name] = found.get(name, 0) + count
    return found


def _of_pool(now: float, pool: Pool, view: PoolView | None, plan: Plan, failed: str) -> PoolStatus:
    most = pool.node.most if pool.node is not None else 0
    if view is None:
        return PoolStatus(pool.name, most, pool.spare, state="unknown")
    live = [each for each in plan.live if each.request.pool == pool.name and each.outstanding]
    made = sum(count for name, count in plan.make if name == pool.name and not failed)
    requested = sum(each.outstanding for each in live) + made
    ready = sum(node.ready and not node.occupied for node in view.nodes)
    coming, waits = len(view.nodes) - ready, pool.name in plan.needed or bool(failed)
    pause = plan.memory.pauses.get(pool.name)
    rests = pause is not None and pause.until > now
    idle = any(node.idle for node in view.nodes)
    state: State = ""
    if failed:
        state = "not-asked"
    elif rests:
        state = "paused"
    elif requested:
        state = "asked"
    elif coming:
        state = "coming"
    elif waits and idle:
        state = "idle-node"
    elif waits and len(view.nodes) >= most:
        state = "full"
    return PoolStatus(
        pool.name,
        most,
        pool.spare,
        ready,
        coming,
        requested,
        min((each.request.created for each in live), default=now if made else 0.0),
        state,
        waits,
        pause.failures if pause is not None else 0,
        pause.until if pause is not None and rests else 0.0,
        pause.outcome if pause is not None else "",
        failed or (pause.why if pause is not None else ""),
    )
