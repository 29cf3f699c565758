"""
The table of checks: the name of each, its variants, and its question as text.

A variant is one way of delivery, one level of isolation, or nothing. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.isolation import LIMITING, MPS, PRELOAD

WAYS = ("env-plain", "env-plain-cdi", "env-class", "env-class-cdi", "nri-annotation", "dra", "none")
"""How GPUs reach containers, as `status.delivery.modes` of a GPUNode has them."""
BY_PLUGIN = "device-plugin"
"""Another system's device plugin, which hands out whole GPUs by the kubelet's socket."""
LIMITING_CORES = (MPS.name, PRELOAD.name)
_NONE = ("",)


@dataclass(frozen=True, slots=True)
class Check:
    """`question`: the text for people. `variants`: the check runs for each, with a result of its own."""

    question: str
    variants: tuple[str, ...] = _NONE


DELIVERY, HIDDEN, MEMORY, CORES = "delivery", "without-share", "memory", "cores"
NEIGHBOUR, SLICES, CONTAINER, AGENT, KUBELET = (
    "neighbour",
    "mig",
    "restart-container",
    "restart-agent",
    "restart-kubelet",
)
SERVED, UNSERVED = "served", "unserved"
"""A namespace with the label `gpufraction.io/inject`, and one without."""

CHECKS = {
    DELIVERY: Check(
        "does a container see the GPU of its share, and no other",
        (*(way for way in WAYS if way != "none"), BY_PLUGIN),
    ),
    HIDDEN: Check("does a pod with a CUDA image and without a share see no GPU", (SERVED, UNSERVED)),
    MEMORY: Check("is a program refused memory beyond its share", LIMITING),
    CORES: Check("is a program with a quarter of the cores slower than one with all", LIMITING),
    NEIGHBOUR: Check("how much slower is a program alongside a greedy neighbour"),
    SLICES: Check("does a container see its MIG slice, and no other"),
    CONTAINER: Check("does a container see the same GPU after its restart"),
    AGENT: Check("do pods keep their GPUs while the node's agent restarts"),
    KUBELET: Check("do pods keep their GPUs while the node's kubelet restarts"),
}
FIGURES = frozenset(
    (
        "seen",
        "given",
        "shareMiB",
        "tookMiB",
        "shownMiB",
        "cudaError",
        "fullPerSecond",
        "quarterPerSecond",
        "aloneP50Microseconds",
        "aloneP99Microseconds",
        "besideP50Microseconds",
        "besideP99Microseconds",
        "seconds",
    )
)
"""The names of figures."""
