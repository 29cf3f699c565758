"""
The page's content: each view as plain values for JSON, from a `ClusterView` and the time at which it was read.

Pure. The rows are those of the commands, so the page and the tables agree. A view has at most `MOST`
rows, and its map of the cluster at most `MOST_TILES`, whatever the size of the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from contract import names
from contract.encoding import moments
from contract.encoding.plain import NAME, plain
from contract.encoding.quantity import mib
from contract.model import WHOLE, Gpu
from contract.options import NO_OPTIONS, PoolOptions
from contract.scheduling.demand import Demand, usage_of
from kubectl_gpufraction.check.cluster import has_agent_label
from kubectl_gpufraction.cluster.state import MISSING, TERMINATING, ClusterView, ListedClaim, Node, Pod, legible
from kubectl_gpufraction.commands import explain, waiting
from kubectl_gpufraction.commands import nodes as nodes_command
from kubectl_gpufraction.commands import pods as pods_command
from kubectl_gpufraction.output.wording import few, request_text
from kubectl_gpufraction.ui import health
from kubectl_gpufraction.ui.groups import groups, model_of, pool_of, word
from kubectl_gpufraction.ui.health import InstallationHealth

JSON = dict[str, Any]
MOST = 100
"""Rows of one answer; the browser asks for the next ones."""
MOST_NAMED = 12
"""Namespaces in the legend, those with most memory."""
MOST_REASONS = 24
"""Groups of the queue in the first rows of an answer."""
SORTS = ("place", "name", "since", "priority")
"""The orders of the queue."""
_STARTS = 600.0
"""Seconds from a node's creation in which its agent may start, and its driver before that."""
_REMEMBERED = timedelta(hours=1)
"""For how long a card that its agent no longer reports keeps its row, where no pod has a share of it."""
_MOST_SHARERS = 24
"""Sharers of one GPU that are drawn by themselves; those with the least memory are drawn as one."""
TONES = 8
"""Colours, each with a pattern of its own; neighbours in the alphabet of namespaces have different ones."""
_OF_A_ROW = (
    *("gpu", "uuid", "model", "health", "reason", "shares", "cores"),
    *("memoryMiB", "freeMiB", "totalMiB", "promisedMiB", "oversubscribed", "limitsMiB"),
)
"""The fields of its row in `nodes` that a GPU shows."""
_MOST_EVENTS = 50
_OF_AN_EVENT = ("type", "reason", "count", "series", "lastTimestamp", "eventTime", "firstTimestamp")
_LONGEST_MESSAGE = 1024
"""Characters of an Event's message; Kubernetes allows as many."""
_MOST_WORDS = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a view: those in which each word of `filter` occurs, `count` of them from number `start` on."""

    filter: str = ""
    start: int = 0
    count: int = 50
    sort: str = ""
    """One of `SORTS`, after a `-` in descending order; empty: the order of the queue, by reason."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words, in lower case."""
        return tuple(self.filter.lower().split()[:_MOST_WORDS])

    def of(self, rows: Sequence[JSON], text: Callable[[JSON], str]) -> JSON:
        """The rows that match, how many there are, and which of them these are."""
        words = self.words
        found = [row for row in rows if all(word in text(row) for word in words)] if words else list(rows)
        start = min(max(0, self.start), max(0, len(found) - 1))
        end = start + min(max(1, self.count), MOST)
        return {"total": len(found), "from": start, "rows": found[start:end]}


@dataclass(frozen=True, slots=True)
class About:
    """The facts that were read in addition to the objects of the views."""

    cluster: str = ""
    """The cluster's name, from the kubeconfig or a flag."""
    dashboard: str = ""
    """The address of a dashboard, or empty."""
    measured: bool = False
    """Whether the page can ask for the real use of GPUs."""
    health: InstallationHealth | None = None
    unlisted: tuple[str, ...] = ()
    """What the user may not list, without which no GPU is shown."""
    options: PoolOptions = NO_OPTIONS
    unserved: tuple[str, ...] = ()
    """Lines about pods that ask for a share in vain, and what to do about it."""


NOTHING_ELSE = About()


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A GPU as its agent last reported it. `since`: when that was found missing; None while it is reported."""

    node: str
    gpu: Gpu
    since: datetime | None = None


class Picture:
    """
    One reading of the cluster, and the views made of it; each is made when it is first requested, and kept.

    Two threads that request it at once may both make it; the results are equal.
    """

    def __init__(
        self,
        state: ClusterView,
        at: datetime,
        namespace: str,
        about: About = NOTHING_ELSE,
        before: Picture | None = None,
    ) -> None:
        """`before`: the previous reading, which has the GPUs that have disappeared since."""
        self.state = state
        self.at = at
        self.namespace = namespace
        self.about = about
        self.cards: Mapping[str, KnownCard] = remembered(before.cards if before is not None else {}, state, at)
        self._made: dict[str, Any] = {}

    def head(self) -> JSON:
        """The part of every view above its rows: the sums of the cluster, and the viewer of this picture."""
        found: JSON = self._once("head", self._head)
        return found

    def gpus(self, wanted: Selection) -> JSON:
        """The nodes with their GPUs, and the map of all nodes where not all of them are among the rows."""
        nodes: list[JSON] = self._once("nodes", self._nodes)
        found = wanted.of(nodes, _node_text)
        more = found["total"] > len(found["rows"]) or found["from"] > 0
        words = wanted.words
        matching = [row for row in nodes if all(word in _node_text(row) for word in words)] if more else []
        return {
            **found,
            "rows": [_public(row) for row in found["rows"]],
            "map": groups(matching),
            "legend": self._once("legend", lambda: legend(self.state)),
        }

    def queue(self, wanted: Selection) -> JSON:
        """The pods that wait, in groups of one reason unless they are sorted otherwise."""
        rows = self._once("queue", lambda: [_waits(dict(row)) for row in waiting.rows(self.state, None)])
        found = wanted.of(ordered(rows, wanted.sort), _queue_text)
        return {**found, "reasons": reasons(rows), "sort": wanted.sort}

    def pods(self, wanted: Selection) -> JSON:
        """The pods that requested a share."""
        rows = self._once("pods", lambda: [dict(row) for row in pods_command.rows(self.state, None)])
        return wanted.of(rows, _text_of("namespace", "name", "status", "node", "dialect", "claim"))

    def namespaces(self, wanted: Selection) -> JSON:
        """The holdings of each namespace's pods and claims, the largest first."""
        return wanted.of(self._once("namespaces", lambda: namespaces(self.state)), _text_of("namespace"))

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod, if it waits for a share or has one."""
        by_key: dict[str, Pod] = self._once("by_key", lambda: {pod.key: pod for pod in self.state.pods})
        return by_key.get(f"{namespace}/{name}")

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _nodes(self) -> list[JSON]:
        return nodes(self.state, self.at, self.about.options, self.cards)

    def _head(self) -> JSON:
        rows: list[JSON] = self._once("nodes", self._nodes)
        gpus = [gpu for row in rows for gpu in row["gpus"] if gpu["health"] != MISSING]
        open_gpus = [(gpu, row["name"]) for row in rows if row["open"] for gpu in row["gpus"]]
        pieces = [(gpu["freeMiB"], name, gpu["gpu"]) for gpu, name in open_gpus if takes_pods(gpu)]
        largest = max(pieces, key=lambda piece: piece[0], default=None)
        return {
            **self._said(rows),
            "whole": self.state.whole,
            "namespace": self.namespace,
            "nodes": len(self.state.nodes),
            "gpus": len(gpus),
            "memoryMiB": sum(gpu["promisedMiB"] for gpu in gpus),
            "usedMiB": sum(gpu["memoryMiB"] for gpu in gpus),
            "cores": round(sum(gpu["cores"] for gpu in gpus) / len(gpus)) if gpus else 0,
            "unhealthy": sum(gpu["health"] == "Unhealthy" for gpu in gpus),
            "withheld": sum(gpu["health"] not in ("Healthy", "Unhealthy") for gpu in gpus),
            "missing": sum(gpu["health"] == MISSING for row in rows for gpu in row["gpus"]),
            "unused": sum(not gpu["shares"] and takes_pods(gpu) for gpu, _ in open_gpus),
            "largest": {"freeMiB": largest[0], "node": largest[1], "gpu": largest[2]} if largest else None,
            "pods": len(self.state.pods),
            "waiting": sum(pod.waits for pod in self.state.pods),
        }

    def _said(self, rows: Sequence[JSON]) -> JSON:
        """The viewer of the page, the faults of the installation, and the parts that the user's rights do not show."""
        about = self.about
        silent = [row["name"] for row in rows if "AgentSilent" in row["state"]] + [
            f"{plain(name, NAME)} (never reported)"
            for name, node in sorted(self.state.bare.items())
            if has_agent_label(node.labels) and self.at.timestamp() - node.created > _STARTS
        ]
        watched = about.health
        return {
            "cluster": about.cluster,
            "dashboard": about.dashboard,
            "measured": about.measured,
            "unlisted": list(about.unlisted),
            "unserved": list(about.unserved),
            "banners": health.banners(watched, silent) if watched is not None else [],
            "unseen": health.unseen(watched) if watched is not None else [],
        }


def remembered(before: Mapping[str, KnownCard], state: ClusterView, at: datetime) -> dict[str, KnownCard]:
    """
    The GPUs by UUID that are reported, and those that were reported within the last hour by nodes that are still there.

    MIG slices are left out: an administrator makes and removes them.
    """
    now = {gpu.uuid: KnownCard(node.name, gpu) for node in state.nodes for gpu in node.inventory.gpus if not gpu.parent}
    there = {node.name for node in state.nodes}
    gone = {
        uuid: replace(card, since=card.since or at)
        for uuid, card in before.items()
        if uuid not in now and card.node in there and at - (card.since or at) < _REMEMBERED
    }
    return gone | now


def takes_pods(gpu: Mapping[str, Any]) -> bool:
    """Whether the GPU of a row has memory and cores left, and is healthy."""
    return bool(gpu["health"] == "Healthy" and gpu["freeMiB"] and gpu["cores"] < WHOLE and not gpu["exclusive"])


# -- nodes ----------------------------------------------------------------------------------------------------------


def nodes(
    state: ClusterView,
    at: datetime,
    options: PoolOptions = NO_OPTIONS,
    known: Mapping[str, KnownCard] = MappingProxyType({}),
) -> list[JSON]:
    """Every node with its GPUs and their sharers; `known`: those that are missing keep their rows."""
    last: dict[str, dict[str, Gpu]] = {}
    for uuid, card in known.items():
        if card.since is not None:
            last.setdefault(card.node, {})[uuid] = card.gpu
    tones = _tones(state)
    return [_node(state, node, gpus, at, options, tones) for node, gpus in state.cards(last)]


def _tones(state: ClusterView) -> dict[str, int]:
    return {namespace: at % TONES for at, namespace in enumerate(sorted({each[0] for each in state.booked()}))}


def _node(
    state: ClusterView,
    node: Node,
    cards: Sequence[Gpu],
    at: datetime,
    options: PoolOptions,
    tones: Mapping[str, int],
) -> JSON:
    gpus = []
    for gpu in cards:
        row, holders = nodes_command.gpu_row(state, node, gpu, at), state.holders(gpu)
        gpus.append(
            {
                **{key: row[key] for key in _OF_A_ROW},
                "exclusive": usage_of(share for _, share in holders).exclusive,
                "parent": gpu.parent,
                **_sharers(holders, tones, node.idle),
            }
        )
    return {
        "name": node.name,
        "state": nodes_command.node_state(node, at),
        "open": node.ready and not node.cordoned,
        "isolation": [] if node.isolation == "-" else node.isolation.split(","),
        "driver": node.inventory.driver,
        "problem": node.inventory.problem,
        "seen": node.seen,
        "model": model_of(gpus),
        "pool": plain(pool_of(node.labels, options), NAME),
        "gpus": gpus,
        "_text": "",
    }


def _sharers(
    holders: Sequence[tuple[Pod | ListedClaim, Demand]], tones: Mapping[str, int], idle: Mapping[str, float]
) -> JSON:
    """The sharers of one GPU, those with most memory first, and the sum of those that are too many to draw."""
    rows = [
        {
            "namespace": holder.namespace,
            "name": holder.name,
            "kind": "pod" if isinstance(holder, Pod) else "claim",
            "memoryMiB": mib(share.memory),
            "cores": share.cores,
            "exclusive": share.exclusive,
            "tone": tones.get(holder.namespace, 0),
            "idleSince": moments.shown(idle.get(holder.uid, 0.0)) if isinstance(holder, Pod) else "",
        }
        for holder, share in holders
    ]
    rows.sort(key=lambda row: (-int(str(row["memoryMiB"])), str(row["namespace"]), str(row["name"])))
    drawn, rest = rows[:_MOST_SHARERS], rows[_MOST_SHARERS:]
    return {
        "sharers": drawn,
        "more": {
            "count": len(rest),
            "memoryMiB": sum(int(str(row["memoryMiB"])) for row in rest),
            "cores": sum(int(str(row["cores"])) for row in rest),
        },
    }


def _node_text(row: JSON) -> str:
    """The words by which a filter finds a node: names, models, UUIDs, and words such as `is:unhealthy`."""
    if not row["_text"]:
        words = {row["name"], row["state"], *row["isolation"], word("model", row["model"])}
        words |= {row["pool"], word("pool", row["pool"])} if row["pool"] else set()
        for gpu in row["gpus"]:
            words |= {gpu["model"], gpu["uuid"], gpu["health"], gpu["reason"]}
            words |= {f"{sharer['namespace']}/{sharer['name']}" for sharer in gpu["sharers"]}
            words |= {word("ns", sharer["namespace"]) for sharer in gpu["sharers"]}
            words |= {f"is:{word}" for word in _marks(row, gpu)}
        row["_text"] = " ".join(sorted(words)).lower()
    return str(row["_text"])


def _marks(row: JSON, gpu: JSON) -> Iterable[str]:
    if gpu["health"] != "Healthy":
        yield {"Unhealthy": "unhealthy", MISSING: "missing"}.get(gpu["health"], "withheld")
    elif row["open"] and takes_pods(gpu):
        yield "free"
        if not gpu["shares"]:
            yield "unused"
    if not row["open"]:
        yield "closed"
    if any(sharer["idleSince"] for sharer in gpu["sharers"]):
        yield "idle"
    if gpu["oversubscribed"]:
        yield "oversubscribed"


def _public(row: JSON) -> JSON:
    return {key: value for key, value in row.items() if not key.startswith("_")}


def _text_of(*keys: str) -> Callable[[JSON], str]:
    def text(row: JSON) -> str:
        namespaced = f"{row['namespace']}/{row['name']}" if "name" in row else ""
        return " ".join((namespaced, word("ns", row["namespace"]), *(str(row[key]) for key in keys))).lower()

    return text


# -- the queue ------------------------------------------------------------------------------------------------------


def _waits(row: JSON) -> JSON:
    """A row of `waiting` with the code that it is grouped by."""
    return row | {"code": row["code"] if row["reason"] or row["code"] == TERMINATING else ""}


def _queue_text(row: JSON) -> str:
    return f"{_text_of('namespace', 'name', 'asks', 'reason', 'dialect')(row)} {word('why', row['code'] or UNDECIDED)}"


UNDECIDED = "undecided"
"""The placeholder for the code of a pod for which the allocator has not decided yet."""


def reasons(rows: Sequence[JSON]) -> list[JSON]:
    """
    Each code with the number of its pods, the most frequent first, and its sentence where all of them have the same.
    """
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(row["code"], set()).add(row["reason"])
    return [
        {
            "code": code,
            "count": count,
            "reason": next(iter(texts[code])) if len(texts[code]) == 1 else "",
            "filter": word("why", code or UNDECIDED),
        }
        for code, count in _by_count(rows)[:MOST_REASONS]
    ]


def _by_count(rows: Sequence[JSON]) -> list[tuple[str, int]]:
    """Codes with their numbers of pods, the most frequent first; last the pods that are being deleted."""
    found = Counter(row["code"] for row in rows).items()
    return sorted(found, key=lambda each: (each[0] == TERMINATING, -each[1], each[0]))


def ordered(rows: Sequence[JSON], sort: str) -> list[JSON]:
    """The queue in the order of `Selection.sort`. `rows`: in the order of the queue."""
    if not sort:
        rank = {code: at for at, (code, _) in enumerate(_by_count(rows))}
        return sorted(rows, key=lambda row: rank[row["code"]])
    key = sort.removeprefix("-")
    keyed: Mapping[str, Callable[[JSON], Any]] = {
        "name": lambda row: (row["namespace"], row["name"]),
        "since": lambda row: row["since"],
        "priority": lambda row: row["priority"],
    }
    if key in keyed:
        return sorted(rows, key=keyed[key], reverse=sort.startswith("-"))
    return list(reversed(rows)) if sort.startswith("-") else list(rows)


# -- namespaces -----------------------------------------------------------------------------------------------------


def namespaces(state: ClusterView) -> list[JSON]:
    """The held and the requested amounts of each namespace, the one with most memory first."""
    found: dict[str, JSON] = {}

    def row(namespace: str) -> JSON:
        empty = {"namespace": namespace, "holders": 0, "memoryMiB": 0, "cores": 0, "gpus": set(), "waiting": 0}
        return found.setdefault(namespace, empty)

    for namespace, _, _, shares in state.booked():
        here = row(namespace)
        here["holders"] += 1
        here["memoryMiB"] += sum(mib(share.memory) for share in shares.values())
        here["cores"] += sum(share.cores for share in shares.values())
        here["gpus"] |= set(shares)
    for pod in state.pods:
        if pod.waits:
            row(pod.namespace)["waiting"] += 1
    for each in found.values():
        each["gpus"] = len(each["gpus"])
    return sorted(found.values(), key=lambda each: (-each["memoryMiB"], each["namespace"]))


def legend(state: ClusterView) -> JSON:
    """The namespaces with shares: those with most memory, each with its colour, and how many more there are."""
    holding, tones = [row for row in namespaces(state) if row["holders"]], _tones(state)
    return {
        "names": [
            {
                "namespace": row["namespace"],
                "tone": tones[row["namespace"]],
                "memoryMiB": row["memoryMiB"],
                "filter": word("ns", row["namespace"]),
            }
            for row in holding[:MOST_NAMED]
        ],
        "more": max(0, len(holding) - MOST_NAMED),
    }


# -- a pod's story --------------------------------------------------------------------------------------------------


def story(picture: Picture, pod: Pod, newest: JSON, events: Sequence[JSON], unseen: str = "") -> JSON:
    """
    The history of a pod since its creation: its request, how long it waited and why, its place, and its Events.

    `pod`: the pod in the picture. `newest`: its object, which is newer. `unseen`: why not all of its Events
    can be shown, or empty.
    """
    now = picture.at.timestamp()
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": (newest.get("status") or {}).get("phase", ""),
        "waits": pod.waits,
        "asks": request_text(pod),
        "lines": [moments.spoken(line, now) for line in explain.explanation(picture.state, pod)],
        "steps": steps(newest, request_text(pod), _place(pod)),
        "events": sorted(legible(_event, events), key=lambda event: str(event["at"]), reverse=True)[:_MOST_EVENTS],
        "unseen": unseen,
    }


def steps(pod: JSON, asks: str, place: str) -> list[JSON]:
    """
    The moments of a pod's life in its object, in order: created, waits or has its share, scheduled, runs.

    `place`: where its share is, for a pod without a condition: it was placed at once.
    """
    metadata, status, ours = pod.get("metadata") or {}, pod.get("status") or {}, str(names.ALLOCATED_CONDITION)
    created = str(metadata.get("creationTimestamp") or "")
    found = [{"at": created, "what": "created", "text": f"requests {asks}" if asks else ""}]
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    if place:
        conditions.setdefault(ours, {"status": "True", "lastTransitionTime": created, "message": place})
    for kind, yes, no in (
        (ours, "share allocated", "waits for a share"),
        ("PodScheduled", "scheduled", "not scheduled"),
        ("Ready", "ready", "not ready"),
    ):
        each = conditions.get(kind)
        if each is None or (kind != ours and each.get("status") != "True"):
            continue
        when, done = str(each.get("lastTransitionTime") or ""), each.get("status") == "True"
        waited = _between(created, when) if kind == ours and done and when != created else ""
        message = str(each.get("message") or "").removeprefix("waiting: ")
        text = " ".join(part for part in (message, waited and f"(after {waited})") if part)
        found.append({"at": when, "what": yes if done else no, "text": text})
    if metadata.get("deletionTimestamp"):
        found.append({"at": str(metadata["deletionTimestamp"]), "what": "is being deleted", "text": ""})
    return sorted(found, key=lambda step: str(step["at"]) or "9")


def _place(pod: Pod) -> str:
    """Where a pod has its share; empty without one."""
    given = pod.allocation.containers if pod.allocation else ()
    indexes = sorted({share.index for each in given for share in each.shares})
    return f"{few([f'GPU {index}' for index in indexes])} on {pod.node}" if indexes else ""


def _between(first: str, then: str) -> str:
    began, ended = moments.seconds(first), moments.seconds(then)
    return "" if began is None or ended is None else moments.duration(ended - began)


def trimmed_event(event: JSON) -> JSON:
    """An Event as the page shows it, with a bound on its message."""
    kept = {key: event[key] for key in _OF_AN_EVENT if key in event}
    return kept | {"message": str(event.get("message") or "")[:_LONGEST_MESSAGE]}


def _last_seen(event: JSON) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event.get("firstTimestamp")
        or ""
    )


def _event(event: JSON) -> JSON:
    return {
        "at": _last_seen(event),
        "warns": event.get("type") == "Warning",
        "reason": str(event.get("reason") or ""),
        "message": str(event.get("message") or "").removeprefix("waiting: "),
        "count": max(1, int(event.get("count") or 1)),
    }
