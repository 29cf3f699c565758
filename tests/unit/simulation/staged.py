"""Runs functions as tasks of a host, to their end, with a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.simulation.kernel import scheduler
from tests.simulation.kernel.modules import SIMULATED
from tests.simulation.kernel.scheduler import SECOND, Host, Kernel

threading: Any = SIMULATED["threading"]
queues: Any = SIMULATED["queue"]
time: Any = SIMULATED["time"]
futures: Any = SIMULATED["concurrent.futures"]
random: Any = SIMULATED["random"]
uuid: Any = SIMULATED["uuid"]
datetime: Any = SIMULATED["datetime"]

HOUR = 3600 * SECOND

kernels = st.builds(
    lambda seed, preempt: scheduler.activate(Kernel(seed, preempt=preempt)),
    st.integers(0, 1 << 32),
    st.sampled_from((0.0, 0.1, 0.5)),
)
"""A schedule: which task runs next, and how likely a task loses its turn."""


def fresh(seed: int | str = 1, preempt: float = 0.0) -> Kernel:
    """The kernel of a new simulation. Primitives use it from now on."""
    return scheduler.activate(Kernel(seed, preempt=preempt))


def staged(kernel: Kernel, *tasks: Callable[[], object], host: Host | None = None) -> None:
    """Run them at the same time until all have ended. Raises what one of them raises, and `Deadlock`."""
    host = host or Host("host", kernel.seed)
    left = [kernel.spawn(host, task, f"task-{number}") for number, task in enumerate(tasks)]
    kernel.run(HOUR, lambda: all(task.done for task in left))
    assert all(task.done for task in left), "an hour has passed"


def answer(kernel: Kernel, task: Callable[[], Any]) -> Any:
    """What the function returns when it is the only task."""
    answers: list[Any] = []
    staged(kernel, lambda: answers.append(task()))
    return answers[0]
