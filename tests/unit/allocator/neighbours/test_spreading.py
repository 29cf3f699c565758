"""Which pods belong together, by Services and controllers: default topology spread constraints count these."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.neighbours.spreading import KINDS, Spreading
from contract.scheduling.clusterfilters.objects import Controller
from contract.scheduling.clusterfilters.selectors import Expression

JSON = dict[str, Any]
LABELS = {"app": "web", "version": "1"}


def equal(key: str, value: str) -> Expression:
    return key, "In", (value,)


def spreading(**found: dict[str, JSON | None]) -> Spreading:
    """Objects of the namespace `one`, by plural and name, with their selectors."""
    it = Spreading(set())
    for plural, kind in KINDS.items():
        named = found.get(plural, {}).items()
        it.listed(plural, [(("one", name), kind.read({"spec": {"selector": selector}})) for name, selector in named])
    return it


BY_VERSION = {"matchLabels": {"version": "1"}, "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}]}
CASES: dict[str, tuple[Spreading, Controller | None, tuple[Expression, ...]]] = {
    "nothing selects it": (spreading(services={"s": {"app": "db"}}), None, ()),
    "a Service": (spreading(services={"s": {"app": "web"}}), None, (equal("app", "web"),)),
    "two Services": (
        spreading(services={"s": {"app": "web"}, "t": {"version": "1"}}),
        None,
        (equal("app", "web"), equal("version", "1")),
    ),
    "a Service without a selector selects nobody": (spreading(services={"s": None}), None, ()),
    "one with an empty selector adds nothing": (spreading(services={"s": {}}), None, ()),
    "a ReplicaSet": (
        spreading(replicasets={"r": BY_VERSION}),
        ("replicasets", "r"),
        (equal("version", "1"), ("old", "DoesNotExist", ())),
    ),
    "a StatefulSet, with a Service": (
        spreading(services={"s": {"app": "web"}}, statefulsets={"r": BY_VERSION}),
        ("statefulsets", "r"),
        (equal("app", "web"), equal("version", "1"), ("old", "DoesNotExist", ())),
    ),
    "a controller that is not there": (spreading(), ("replicasets", "r"), ()),
    "labels of a ReplicationController replace those of Services": (
        spreading(services={"s": {"app": "web", "version": "1"}}, replicationcontrollers={"r": {"app": "other"}}),
        ("replicationcontrollers", "r"),
        (equal("app", "other"), equal("version", "1")),
    ),
}


@pytest.mark.parametrize(("it", "controller", "want"), CASES.values(), ids=CASES)
def test_which_pods_belong_together(it: Spreading, controller: Controller | None, want: tuple[Expression, ...]) -> None:
    assert it.selector("one", LABELS, controller).expressions == want


def test_services_of_other_namespaces_do_not_count() -> None:
    assert spreading(services={"s": {"app": "web"}}).selector("two", LABELS, None).expressions == ()


def test_services_come_change_and_go() -> None:
    it, read = spreading(), KINDS["services"].read
    found = []
    for app in ("web", "db", "web"):
        it.put("services", ("one", "s"), read({"spec": {"selector": {"app": app}}}))
        found.append(it.selector("one", LABELS, None).expressions)
    it.drop("services", ("one", "s"))
    found.append(it.selector("one", LABELS, None).expressions)
    assert found == [(equal("app", "web"),), (), (equal("app", "web"),), ()]
