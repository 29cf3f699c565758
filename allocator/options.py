"""
What the administrator chose, as the controller needs it; `allocator.settings` says where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.scheduling.gates import NEWEST, Gates


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What the administrator chose."""

    placement: str = "auto"
    """`auto`, `nodeName` or `affinity`, where the pod does not say."""
    protects: bool = False
    """Whether pods with a share get the annotations that keep autoscalers from removing their node."""
    gates: Gates = NEWEST
    """kube-scheduler's feature gates that are on."""
    when: str = "admission"
    """`admission` or `stored`: when a pod gets its share."""
    max_unconfirmed: int = 0
    """Shares that one namespace may have reserved for pods that are not stored yet; 0 for no bound."""
    unsatisfiable: str = "deny"
    """`deny` or `wait`: a request that no GPU of the cluster could ever serve."""
    assume_ttl: float = 40.0
    """The most seconds until a reservation whose pod was not seen is dropped; an API server gives up after 34."""
    unbound: str = "release"
    """`keep`, `release` or `delete`: what happens to a share whose pod kube-scheduler cannot bind, and to the pod."""
    unbound_after: float = 300.0
    """Seconds that kube-scheduler must have failed for."""
    queue_order: str = "age"
    """`age` or `fair`: which of the waiting pods of equal priority come first."""
    queue_memory: int = 32 << 20
    """Bytes that the waiting pods of one namespace have; further ones are parked."""
    queue_memory_total: int = 192 << 20
    """Bytes that those of all namespaces have together."""
    starvation_timeout: float = 300.0
    """Seconds that a pod waits until a node is reserved for it; 0 reserves none."""
    starvation_reservation_limit: float = 3600.0
    """Seconds for which nodes are reserved for pods of one namespace while none of them is placed; 0 for no limit."""
    by_claims: bool = False
    """Whether pods name ResourceClaims, by which some nodes deliver."""
    preemption: bool = False
    """Whether a waiting pod may have sharers of lower priority evicted."""
    idle_evict: bool = False
    """Whether a waiting pod may have idle pods of at most its priority evicted that agreed to it."""
    idle_grace: float = 300.0
    """Seconds between an idle pod's warning and its eviction."""
    repair: str = "report"
    """`report` or `evict`: what becomes of the youngest pod on a GPU that is promised beyond what it has."""
