"""The older inspect tool's output, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.quantity import GIB, MIB
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.commands.inspect import (
    PENDING,
    GpuNode,
    Used,
    details,
    gpu_nodes,
    in_units,
    summary,
    unit_name,
    unit_of,
)
from kubectl_gpufraction.output.tables import tabwriter
from tests.unit.kubectl_gpufraction.objects import admitted, by_claim, gpunode, node, share_of_claim, theirs

TWO = (
    GpuNode("cn-shanghai.i-uf61h64dz1tmlob9hmtc", "192.168.0.70", (15,), (Used("default", "b", {0: 3}),)),
    GpuNode("cn-shanghai.i-uf61h64dz1tmlob9hmtb", "192.168.0.71", (15,), (Used("default", "a", {0: 6}),)),
)
PODS = (Used("default", "two", {1: 4}), Used("default", "pend", {PENDING: 7}), Used("default", "a", {0: 10}))
NODE_A = GpuNode("node-a", "10.0.0.1", (16, 16), PODS)

# In these texts a middle dot marks one blank at the end of a line.
TWO_NODES = """\
NAME                                IPADDRESS     GPU0(Allocated/Total)  GPU Memory(GiB)
cn-shanghai.i-uf61h64dz1tmlob9hmtb  192.168.0.71  6/15                   6/15
cn-shanghai.i-uf61h64dz1tmlob9hmtc  192.168.0.70  3/15                   3/15
------------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
9/30 (30%)··
"""
PENDING_POD = """\
NAME    IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)
node-a  10.0.0.1   10/16                  4/16                   7                   21/32
-------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
21/32 (65%)··
"""
SMALLER_NODE = """\
NAME    IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)
node-a  10.0.0.1   10/16                  4/16                   7                   21/32
node-b  10.0.0.2   0/139                  0/0                                        0/139
-------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
21/171 (12%)··
"""
NO_NODES = """\
NAME  IPADDRESS  GPU Memory()

Allocated/Total GPU Memory In Cluster:
0/0 (0%)··
"""
DETAILS = """\

NAME:       node-a
IPADDRESS:  10.0.0.1

NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)··
a            default    10               0                0···················
pend         default    0                0                7···················
two          default    0                4                0···················
Allocated :  21 (65%)···
Total :      32·········
-------------------------------------------------------------------


Allocated/Total GPU Memory In Cluster:  21/32 (65%)··
"""
NODE_B = GpuNode("node-b", "10.0.0.2", (139,))
SUMMARIES = {
    "two nodes": (TWO, TWO_NODES),
    "two GPUs and a pod on none of them": ((NODE_A,), PENDING_POD),
    "a node with fewer GPUs, of a card with more than 100 GiB": ((NODE_B, NODE_A), SMALLER_NODE),
    "no nodes": ((), NO_NODES),
}


@pytest.mark.parametrize(("nodes", "text"), SUMMARIES.values(), ids=SUMMARIES.keys())
def test_summary(nodes: tuple[GpuNode, ...], text: str) -> None:
    assert summary(nodes, "GiB") == text.replace("·", " ")


def test_details() -> None:
    assert details([NODE_A]) == DETAILS.replace("·", " ")


def test_a_block_of_columns_ends_where_a_line_lacks_the_cell() -> None:
    assert tabwriter("a\tb\tc\nlonger\tx\nwide cell\ty\tz\n") == "a          b  c\nlonger     x\nwide cell  y  z\n"


def test_nodes_of_ours_and_of_the_older_plugin() -> None:
    nodes = [node("new"), node("old", {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}), node("cpu")]
    pods = [
        admitted("shared", "aliyun.com/gpu-mem", 5, on="new", gpu=0),
        admitted("also", "nvidia.com/gpumem", 1500, on="new", gpu=1),
        theirs("by-index", 4, "old", ALIYUN_COM_GPU_MEM_IDX="1"),
        theirs("by-card", 6, "old", **{"scheduler.framework.gpushare.allocation": '{"0":{"0":2},"1":{"0":1,"1":3}}'}),
        theirs("nowhere", 7, "old"),
        theirs("unreadable", 1, "old", **{"scheduler.framework.gpushare.allocation": '{"0":[]}'}),
    ]
    state = ClusterView.of([gpunode("new", 15109, 22731)], nodes, pods)
    unit = unit_of(state)
    assert (unit, unit_name(unit)) == (GIB, "GiB")
    assert sorted(gpu_nodes(state, nodes, pods, unit), key=lambda found: found.name) == [
        GpuNode("new", "10.0.0.1", (14, 22), (Used("default", "also", {1: 2}), Used("default", "shared", {0: 5}))),
        GpuNode(
            "old",
            "10.0.0.1",
            (15, 15),
            (
                Used("default", "by-index", {1: 4}),
                Used("default", "by-card", {0: 3, 1: 3}),
                Used("default", "nowhere", {PENDING: 7}),
                Used("default", "unreadable", {PENDING: 1}),
            ),
        ),
    ]


def test_the_unit_is_the_one_of_the_pods_requests() -> None:
    state = ClusterView.of([], [], [admitted("p", "aliyun.com/gpu-mem", 5000, on="n", gpu=0, unit=MIB)])
    assert unit_name(unit_of(state)) == "MiB"


ROUNDED: dict[str, tuple[dict[str, int], int, dict[str, int]]] = {
    "whole units stay": ({"a": 5 * GIB, "b": 9 * GIB}, 15109 * MIB, {"a": 5, "b": 9}),
    "one that is not whole is rounded up": ({"a": 5 * GIB, "b": 100 * MIB}, 15109 * MIB, {"a": 5, "b": 1}),
    "those that are not whole are rounded up together": (
        {"a": 256 * MIB, "b": 256 * MIB, "c": 10 * GIB, "d": 700 * MIB},
        15109 * MIB,
        {"a": 0, "b": 1, "c": 10, "d": 1},
    ),
    "a GPU that is given away to the last byte shows its units": (
        {"a": 7555 * MIB, "b": 7554 * MIB},
        15109 * MIB,
        {"a": 8, "b": 6},
    ),
    "of an oversubscribed GPU all are shown": ({"a": 10 * GIB, "b": 10 * GIB}, 20 * GIB, {"a": 10, "b": 10}),
    "what is held of a GPU that has less now is shown too": ({"a": 10 * GIB, "b": MIB}, 5 * GIB, {"a": 10, "b": 1}),
    "nothing": ({}, GIB, {}),
}


@pytest.mark.parametrize(("held", "has", "want"), ROUNDED.values(), ids=ROUNDED.keys())
def test_no_more_units_are_shown_than_a_gpu_has(held: dict[str, int], has: int, want: dict[str, int]) -> None:
    assert in_units(held, GIB, has) == want


@given(st.lists(st.integers(1, 4 * GIB), max_size=12), st.integers(1, 8 * GIB))
def test_units_add_up_whatever_is_held(held: list[int], spare: int) -> None:
    has = sum(held) + spare
    shown = in_units(dict(enumerate(held)), GIB, has)
    assert sum(shown.values()) == min(-(-sum(held) // GIB), has // GIB)
    assert all(0 <= shown[at] <= -(-memory // GIB) for at, memory in enumerate(held))


def test_a_share_that_several_pods_have_by_one_claim_is_shown_once() -> None:
    users = [by_claim(name, "c", on="new") for name in ("p", "q")]
    for shares in ([], [share_of_claim("c", "new")]):
        state = ClusterView.of([gpunode("new", 15109)], [node("new")], users, shares)
        (found,) = gpu_nodes(state, [node("new")], users, GIB)
        assert [(each.name, each.units) for each in found.pods] == [("claim/c" if shares else "p", {0: 2})]
