"""
`python -m benchmarks.metering`: the cost of metering the card seconds of shares on 5,000 nodes with 8 cards each.
"""

from __future__ import annotations

import random
import time
import tracemalloc

from allocator.cache.ledger import CardsChanged, Change, ShareMoved
from allocator.features.metering.meter import Meter, Span
from contract.encoding.quantity import GIB
from contract.model import Gpu
from contract.scheduling.demand import Demand

NODES, CARDS, SHARES, NAMESPACES = 5_000, 8, 100_000, 200
CHANGES, READINGS = 20_000, 100


def _card(name: str, index: int) -> Gpu:
    return Gpu(f"{name}-{index}", index, "NVIDIA A100-SXM4-80GB", 80 * GIB, 80 * GIB)


def _share(rng: random.Random, number: int) -> ShareMoved:
    name = f"node-{rng.randrange(NODES)}"
    demand = Demand(rng.choice((2, 8, 20)) * GIB, rng.choice((0, 10, 30)), False)
    card = f"{name}-{rng.randrange(CARDS)}"
    return ShareMoved(name, card, f"pod-{number}", f"team-{number % NAMESPACES}", "native", demand)


def main() -> None:
    """Print the figures."""
    rng, names = random.Random(1), [f"node-{number}" for number in range(NODES)]
    begin: list[tuple[float, Change]] = [
        (0.0, CardsChanged(name, tuple(_card(name, index) for index in range(CARDS)))) for name in names
    ]
    begin += [(0.0, _share(rng, number)) for number in range(SHARES)]
    later: list[tuple[float, Change]] = [
        (1.0 + number / CHANGES, _share(rng, SHARES + number)) for number in range(CHANGES)
    ]
    tracemalloc.start()
    meter = Meter(lambda gpu: gpu.usable)
    meter.advance(begin, Span(0.0, 1.0))
    memory = tracemalloc.get_traced_memory()[0] / (1 << 20)
    tracemalloc.stop()
    started = time.process_time()
    meter.advance(later, Span(0.0, 2.0))
    changed = time.process_time() - started
    started = time.process_time()
    for _ in range(READINGS):
        counted = meter.counted()
    read = time.process_time() - started
    print(f"{NODES} nodes with {CARDS} cards, {SHARES} shares: {memory:.0f} MiB")
    print(f"a change: {changed / CHANGES * 1e6:.0f} us; a reading of {len(counted.held)} accounts: ", end="")
    print(f"{read / READINGS * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
