from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.machinery.objects.nodes import parse_taint
from playground.machinery.objects.resources import Account, Holding, is_extended, requests_of, shortages, with_extended
from tests.unit.playground.machinery.builders import GPU_MEMORY, node, pod

POD_NAMES = st.sampled_from("abcde")
HOLDINGS = st.builds(
    Holding,
    st.dictionaries(st.sampled_from(["cpu", "pods", GPU_MEMORY]), st.integers(0, 5)),
    st.frozensets(st.tuples(st.just(""), st.just("TCP"), st.integers(1, 3)), max_size=2),
)


@given(st.lists(st.tuples(POD_NAMES, st.one_of(st.none(), HOLDINGS)), max_size=30))
def test_an_account_is_the_sum_of_what_is_held(steps: list[tuple[str, Holding | None]]) -> None:
    """This holds for bookings and releases in any order, also repeated or missing ones."""
    account, held = Account(), dict[str, Holding]()
    for name, holding in steps:
        if holding is None:
            assert account.release(name) == (name in held)
            held.pop(name, None)
        else:
            account.book(name, holding)
            held.setdefault(name, holding)
    names = {resource for holding in held.values() for resource in holding.requests}
    totals = {name: sum(holding.requests.get(name, 0) for holding in held.values()) for name in names}
    assert {name: much for name, much in account.used.items() if much} == {n: m for n, m in totals.items() if m}
    assert account.ports == frozenset(port for holding in held.values() for port in holding.ports)


def test_requests_count_every_resource_and_the_pod() -> None:
    value = pod(limits={"cpu": "500m", "memory": "1Gi", GPU_MEMORY: "8Gi"})
    first = {"name": "first", "resources": {"limits": {"cpu": "2", "example.com/x": "1"}}}
    value["spec"]["initContainers"] = [first]
    assert requests_of(value) == {
        "pods": 1,
        "cpu": 2000,
        "memory": 1 << 30,
        GPU_MEMORY: 8 << 30,
        "example.com/x": 1,
    }


def test_shortages_come_in_a_fixed_order() -> None:
    wanted = {"pods": 1, "memory": 5, "cpu": 5, "z.io/a": 5, "b.io/a": 5, "ephemeral-storage": 0}
    assert shortages(wanted, {"memory": 5}) == ["pods", "cpu", "b.io/a", "z.io/a"]


def test_extended_resources_follow_the_capacity() -> None:
    value = node()
    value["status"]["capacity"].update({GPU_MEMORY: "16Gi", "hugepages-2Mi": "0"})
    value["status"]["allocatable"]["gpufraction.io/gpu-cores"] = "100"
    assert with_extended(value) == {GPU_MEMORY: "16Gi", "gpufraction.io/gpu-cores": None}
    assert with_extended(node(extended={GPU_MEMORY: "16Gi"})) == {}


@pytest.mark.parametrize(
    ("name", "want"),
    {"cpu": False, "hugepages-2Mi": False, "kubernetes.io/x": False, "nvidia.com/gpu": True, GPU_MEMORY: True}.items(),
)
def test_is_extended(name: str, want: bool) -> None:
    assert is_extended(name) is want


def test_taints_as_kubectl_writes_them() -> None:
    assert parse_taint("nvidia.com/gpu=present:NoSchedule") == {
        "key": "nvidia.com/gpu",
        "value": "present",
        "effect": "NoSchedule",
    }
    assert parse_taint("x:NoExecute") == {"key": "x", "effect": "NoExecute"}
    with pytest.raises(ValueError, match="expected key=value:Effect"):
        parse_taint("x=y")
