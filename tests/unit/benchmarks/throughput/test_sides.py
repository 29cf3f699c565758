"""The ways in which pods get nodes, and what is reported about them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.throughput import __main__ as bound
from benchmarks.throughput import plane, requests, sides
from benchmarks.throughput.sides import Measured, Work
from contract import names
from playground.realapi.components import ENVIRONMENT

_ASKED = dict.fromkeys((*requests.KINDS, requests.READS), 1.0)


def work(seconds: float, cpu: Mapping[str, float]) -> Work:
    """
    Work of this duration, half of it done when the last pod had its node, with one request of each kind for each pod.
    """
    return Work(seconds, cpu, sum(cpu.values()) / 2, _ASKED)


def test_without_a_control_plane_it_says_what_is_missing() -> None:
    (line,) = bound.measure(1, 1, 1, sides.SIDES, environment={})
    assert line.startswith("Bound pods a second were not measured: ")
    assert ENVIRONMENT in line


def test_pods_of_all_sides_differ_in_what_they_ask_for_only() -> None:
    by_name = {side.name: sides.pod_of(side, "one") for side in sides.SIDES}
    for pod in by_name.values():
        limits = pod["spec"]["containers"][0]["resources"].pop("limits")
        assert set(limits) <= {plane.EXTENDED, str(names.GPU_MEMORY)}
    assert by_name["affinity"]["metadata"].pop("annotations") == {str(names.PLACEMENT): "affinity"}
    by_name["nodeName"]["metadata"].pop("annotations")
    assert by_name["affinity"] == by_name["nodeName"]
    assert by_name["gated"]["spec"].pop("nodeSelector") == {plane.POOL: plane.HELD}
    assert by_name["gated"]["spec"] == by_name["nodeName"]["spec"]


def test_the_nodes_that_gated_pods_wait_for_have_room_for_all_of_them() -> None:
    assert [sides.held_nodes(pods) for pods in (1, plane.SHARES, plane.SHARES + 1)] == [1, 1, 2]


def test_of_gated_pods_the_time_until_they_wait_counts_but_not_for_the_rate() -> None:
    one = Measured("gated", 10, work(5.0, {"etcd": 0.1}), work(2.0, {"etcd": 0.1, "webhook": 0.2}))
    assert one.rate == 5.0
    assert one.cpu_ms() == pytest.approx(40.0)
    assert one.cpu_ms("etcd") == pytest.approx(20.0)
    assert one.cpu_ms_bound == pytest.approx(20.0)
    assert one.requests("status") == 2.0


def test_a_ratio_is_the_median_of_what_each_round_came_to() -> None:
    def of(*milliseconds: float) -> list[Measured]:
        return [Measured("", 1, None, work(each, {"etcd": each / 1e3})) for each in milliseconds]

    ratio = bound.Ratio.of(of(20.0, 40.0, 10.0), of(10.0, 10.0, 10.0))
    assert ratio is not None
    assert ratio.cpu == pytest.approx(0.5)
    assert ratio.rate == pytest.approx(0.5)
    assert bound.Ratio.of(of(1.0), ()) is None


def test_sides_are_chosen_by_name() -> None:
    assert sides.chosen(()) == sides.SIDES
    assert [side.name for side in sides.chosen(["gated", "kube-scheduler"])] == ["kube-scheduler", "gated"]
    with pytest.raises(ValueError, match="no side 'other'; there are kube-scheduler"):
        sides.chosen(["other"])


def test_the_report_has_every_side_and_a_line_for_each() -> None:
    cpu = dict.fromkeys(("kube-apiserver", "etcd", "kube-scheduler", "webhook", "allocator"), 0.01)
    found = {
        side.name: [Measured(side.name, 10, work(1.0, cpu) if side.gated else None, work(2.0, cpu))]
        for side in sides.SIDES
    }
    text = "\n".join(bound.report(1000, 10, sides.SIDES, found))
    for side in sides.SIDES:
        assert side.title in text
        assert f"bench throughput side={side.name} nodes=1000 pods=10 " in text
    assert "Of a gated pod's time: 5.0 ms until it waits, 5.0 ms once shares are free" in text
