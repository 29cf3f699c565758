"""
The agent's metrics: the driver's figures at the last look, independent of what is published.

Must not: keep the series of a removed card, whose last figure would stay forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from contract.isolation import NO_LEVEL
from contract.metrics import nodeagent as specs
from contract.metrics.spec import MetricSpec
from contract.model import Inventory
from contract.nodes.idle import IdleShare
from contract.nodes.proofs import ProofState
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.effects import Effects
from nodeagent.sharing.overuse import OveruseMonitor
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.usage import NodeUsage
from runtime.metrics import Metrics

Series = dict[tuple[str, ...], float]


class AgentGauges:
    """The node's gauges. `show` is called after each look, by one thread."""

    def __init__(self, metrics: Metrics, *, node: str) -> None:
        self._metrics = metrics
        self._node = node
        self._shown: dict[MetricSpec, Series] = {}
        self._own: set[MetricSpec] = set()
        self._levels: tuple[str, ...] = ()

    def show(self, observation: Observation) -> None:
        """Set the gauges of GPUs to this observation."""
        self._set(series_of(self._node, observation))
        xids = self._metrics.counter(specs.GPU_XIDS)
        for card in observation.cards:
            for xid in card.xids if card.uuid and not card.parent else ():
                xids.labels(self._node, card.uuid, str(xid)).inc()

    def show_usage(self, usage: NodeUsage, watch: OveruseMonitor) -> None:
        """Set the gauges of containers. One thread calls it, which may be another."""
        self._set(usage_series(self._node, usage, watch, self._levels))

    def show_idle(self, shares: Iterable[IdleShare], residents: Iterable[Resident]) -> None:
        """Set the gauge of idle shares. The thread of `show_usage` calls it."""
        pods = {resident.uid: (resident.namespace, resident.name) for resident in residents}
        self._set(
            {specs.SHARE_IDLE_SINCE: {pods[share.pod]: float(share.since) for share in shares if share.pod in pods}}
        )

    def show_inventory(self, inventory: Inventory) -> None:
        """Set the gauges of the inventory that is about to be published. One thread calls it, which may be another."""
        promised: Series = {(self._node, gpu.uuid): gpu.sharing.promised(gpu.usable) for gpu in inventory.gpus}
        self._set({specs.GPU_MEMORY_PROMISED: promised})

    def show_isolation(self, levels: Mapping[str, bool]) -> None:
        """Set whether each level is enforced, the strongest first."""
        self._levels = tuple(level for level, works in levels.items() if works)
        self._set({specs.NODE_ISOLATION: {(self._node, level): float(works) for level, works in levels.items()}})

    def show_proof(self, state: str) -> None:
        """Set the state of the proof of the levels that limit; no series if none is required."""
        states = ProofState if state else ()
        self._set({specs.ISOLATION_PROOF: {(self._node, str(each)): float(each == state) for each in states}})

    def show_mechanisms(self, effects: Effects) -> None:
        """Set the mechanisms' own gauges, and remove the series that no mechanism has any more."""
        self._own.update(effects.figures)
        for spec in self._own:
            figures = effects.figures.get(spec, {})
            self._set({spec: {(self._node, uuid): figure for uuid, figure in figures.items()}})

    def show_options(self, *, refused: bool) -> None:
        """Set whether the administrator's document is refused. One thread calls it, which may be another."""
        self._set({specs.AGENT_OPTIONS_REFUSED: {(self._node,): float(refused)}})

    def _set(self, shown: dict[MetricSpec, Series]) -> None:
        for spec, series in shown.items():
            gauge = self._metrics.gauge(spec)
            for labels, value in series.items():
                gauge.labels(*labels).set(value)
            for labels in self._shown.get(spec, {}).keys() - series.keys():
                gauge.remove(*labels)
            self._shown[spec] = series


def usage_series(
    node: str, usage: NodeUsage, watch: OveruseMonitor, levels: tuple[str, ...] = ()
) -> dict[MetricSpec, Series]:
    """As `series_of`, for containers, whose number the GPUs' sharing bounds. `levels`: the strongest first."""
    strongest = levels[0] if levels else NO_LEVEL
    labelled = [((u.resident.namespace, u.resident.name, u.container, u.gpu), u) for u in usage.uses]
    return {
        specs.SHARE_MEMORY_USED: {labels: use.used for labels, use in labelled},
        specs.SHARE_MEMORY_LIMIT: {labels: use.limit for labels, use in labelled},
        specs.SHARE_MEMORY_REQUEST: {labels: use.share for labels, use in labelled},
        specs.SHARE_CORES: {labels: use.cores / 100 for labels, use in labelled},
        specs.SHARE_UTILIZATION: {labels: use.busy / 100 for labels, use in labelled if use.busy is not None},
        specs.SHARE_ENFORCED: {(*labels, strongest): 1.0 for labels, _ in labelled},
        specs.SHARE_VIOLATIONS: {
            labels: watch.violations.get((use.resident.uid, use.container, use.gpu), 0) for labels, use in labelled
        },
        specs.GPU_MEMORY_UNCLAIMED: {(node, gpu): used for gpu, used in usage.strangers},
    }


def series_of(node: str, observation: Observation) -> dict[MetricSpec, Series]:
    """Every series by its labels, in the order of the spec. A figure that the driver does not report is absent."""
    cards = [card for card in observation.cards if card.uuid]
    healthy = sum(card.healthy for card in cards)
    return {
        specs.GPUS: {(node, "healthy"): healthy, (node, "unhealthy"): len(observation.cards) - healthy},
        specs.GPU_MEMORY_TOTAL: {(node, card.uuid, card.model): card.memory_bytes for card in cards},
        specs.GPU_MEMORY_USED: {(node, card.uuid): card.used_bytes for card in cards if card.used_bytes is not None},
        specs.GPU_UTILIZATION: {
            (node, card.uuid): card.utilisation / 100 for card in cards if card.utilisation is not None
        },
    }
