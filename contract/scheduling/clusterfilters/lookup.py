"""
Finds the pods on nodes that matter to the filters for one pod. The results are the same as with all pods.

The filters compare a pod with every kind of pod that they get, and a large cluster has thousands of kinds. So they get
only those that can matter: kinds with a label that a term's selector requires, kinds with volumes for a pod with
volumes, and the anti-affinity that can apply to the pod. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from contract.scheduling.clusterfilters.objects import Cluster, PodKind, PodRules
from contract.scheduling.clusterfilters.selectors import LabelSelector

MOST_LABELS = 16
"""The most labels by which pods are looked up. Tenants choose them, so there must be a bound."""

Counts = Mapping[str, int]
"""The number of pods of a kind on each node."""
Kinds = dict[PodKind, Counts]
ByNamespace = dict[str, Kinds]
"""Kinds are kept by their namespace, because hashing a kind costs as much as comparing it with a pod."""


def _put(kinds: ByNamespace, kind: PodKind, on_nodes: Counts) -> None:
    kinds.setdefault(kind.namespace, {})[kind] = on_nodes


def _drop(kinds: ByNamespace, kind: PodKind) -> None:
    here = kinds.get(kind.namespace, {})
    if here.pop(kind, None) is not None and not here:
        del kinds[kind.namespace]


def _union(one: ByNamespace, other: ByNamespace) -> ByNamespace:
    if not (one and other):
        return one or other
    return {space: {**one.get(space, {}), **other.get(space, {})} for space in one.keys() | other.keys()}


def _equality(selector: LabelSelector) -> tuple[str, tuple[str, ...]] | None:
    """A label that all selected objects have, with its possible values; None if the selector requires no label."""
    for key, operator, values in selector.expressions:
        if operator == "In":
            return key, values
    return None


class _Excluding:
    """The kinds with anti-affinity, by properties of the pods that they can exclude."""

    def __init__(self) -> None:
        self._by_label: dict[tuple[str, str, str], Kinds] = {}
        """By namespace (empty for a term that selects namespaces), label and value."""
        self._others: Kinds = {}
        """Kinds with a term that requires no particular label."""

    def put(self, kind: PodKind, on_nodes: Counts) -> None:
        """A kind with anti-affinity is new."""
        keys = self._keys(kind)
        for key in keys or ():
            self._by_label.setdefault(key, {})[kind] = on_nodes
        if keys is None:
            self._others[kind] = on_nodes

    def drop(self, kind: PodKind) -> None:
        """No pod is of the kind any more."""
        for key in self._keys(kind) or ():
            del self._by_label[key][kind]
            if not self._by_label[key]:
                del self._by_label[key]
        self._others.pop(kind, None)

    @staticmethod
    def _keys(kind: PodKind) -> set[tuple[str, str, str]] | None:
        """The entries for the kind; None: among the others."""
        found: set[tuple[str, str, str]] = set()
        for term in kind.anti_affinity:
            named = _equality(term.selector)
            if named is None:
                return None
            key, values = named
            spaces = term.namespaces if term.namespace_selector.absent else ("",)
            found.update((space, key, value) for space in spaces for value in values)
        return found

    def any_about(self, rules: PodRules) -> bool:
        """Whether some kind may exclude the pod. It costs much less than collecting them."""
        if self._others:
            return True
        here, known = rules.namespace, self._by_label
        for key, value in rules.labels.items():  # noqa: SIM110 - every decision comes here, and a generator costs 3 us
            if (here, key, value) in known or ("", key, value) in known:
                return True
        return False

    def about(self, rules: PodRules) -> Kinds:
        """The kinds that may exclude the pod."""
        found = dict(self._others)
        for key, value in rules.labels.items() if self._by_label else ():
            for space in (rules.namespace, ""):
                found.update(self._by_label.get((space, key, value), ()))
        return found


class _ByLabel:
    """The kinds of pods on nodes, by the labels that our pods select. A label is indexed when it is first needed."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, ByNamespace]] = {}
        """The kinds by value, by label. The most recently used label is the last one."""

    def put(self, kind: PodKind, on_nodes: Counts) -> None:
        """A kind is new."""
        for key, by_value in self.keys.items():
            if key in kind.labels:
                _put(by_value.setdefault(kind.labels[key], {}), kind, on_nodes)

    def drop(self, kind: PodKind) -> None:
        """No pod is of the kind any more."""
        for key, by_value in self.keys.items():
            value = kind.labels.get(key)
            if value is not None:
                _drop(by_value[value], kind)
                if not by_value[value]:
                    del by_value[value]

    def having(self, key: str, values: Iterable[str], everybody: Mapping[str, Mapping[PodKind, Counts]]) -> ByNamespace:
        """The kinds that have the label with one of the values."""
        by_value = self.keys.pop(key, None)
        if by_value is None:
            by_value = {}
            for kinds in everybody.values():
                for kind, on_nodes in kinds.items():
                    if key in kind.labels:
                        _put(by_value.setdefault(kind.labels[key], {}), kind, on_nodes)
            while len(self.keys) >= MOST_LABELS:
                del self.keys[next(iter(self.keys))]
        self.keys[key] = by_value  # it is forgotten last
        return functools.reduce(_union, (by_value.get(value, {}) for value in values), {})


class Lookup:
    """Receives a call for each new kind of pod on nodes, and for each kind whose last pod is gone."""

    def __init__(self) -> None:
        self._with_volumes: ByNamespace = {}
        """Of claims, and of disks that their specs name."""
        self._excluding = _Excluding()
        self._by_label = _ByLabel()

    def put(self, kind: PodKind, on_nodes: Counts) -> None:
        """A kind is new. The given counts by node are kept up to date."""
        self._by_label.put(kind, on_nodes)
        if kind.volumes or kind.disks or kind.inline:
            _put(self._with_volumes, kind, on_nodes)
        if kind.anti_affinity:
            self._excluding.put(kind, on_nodes)

    def drop(self, kind: PodKind) -> None:
        """No pod is of the kind any more."""
        self._by_label.drop(kind)
        _drop(self._with_volumes, kind)
        if kind.anti_affinity:
            self._excluding.drop(kind)

    def excludes(self, rules: PodRules) -> bool:
        """Whether the anti-affinity of some kind may apply to the pod."""
        return self._excluding.any_about(rules)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels by which pods are found."""
        return tuple(self._by_label.keys)

    def narrowed(self, cluster: Cluster, rules: PodRules) -> Cluster:
        """The cluster with only the pods that filters need for this pod. `cluster` contains all kinds of `put`."""
        return replace(cluster, pods=self._relevant(rules, cluster), repelling=self._excluding.about(rules))

    def _relevant(self, rules: PodRules, cluster: Cluster) -> Mapping[str, Mapping[PodKind, Counts]]:
        found: ByNamespace = self._with_volumes if rules.volumes or rules.disks or rules.inline else {}
        terms = [each.selector for each in (*rules.affinity, *rules.anti_affinity)]
        for selector in (*terms, *(each.selector for each in rules.spread)):
            named = _equality(selector)
            if named is not None:
                found = _union(found, self._by_label.having(*named, cluster.pods))
            elif not selector.absent:
                return cluster.pods
        return found
