"""
The fair order among namespaces, and their weights.

The order depends only on what namespaces hold and on their labels. So an allocator that has just listed everything has
the same order: the goals of `rest` compare the queues.
"""

from __future__ import annotations

from contract import names
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Operation
from tests.simulation.features import workload
from tests.simulation.run import Run


def _weighed(draw: Draw) -> Arguments:
    return {
        "namespace": draw.rng.choice(workload.NAMESPACES),
        "weight": draw.rng.choice(("1", "2", "10", "none", "")),
    }


def _weigh(run: Run, arguments: Arguments) -> None:
    """Give the namespace a weight. A weight that cannot be read counts as 1, like a missing one."""
    run.tell("administrator", f"gives {arguments['namespace']} the weight {arguments['weight'] or 'of all'}")
    path = paths.path("v1", "namespaces", None, arguments["namespace"])
    try:
        run.user.patch_merge(path, {"metadata": {"labels": {names.QUEUE_WEIGHT: arguments["weight"] or None}}})
    except KubeNotFound:
        return


FEATURE = Feature(
    "fairness",
    operations=(
        Operation("namespace.weigh", 2, _weighed, _weigh),
        Operation("pods.many", 2, workload.burst, workload.create_many),
    ),
    knobs={"allocator": (("--queue-order=fair",),)},
)
