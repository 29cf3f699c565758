"""Which container has memory on a GPU, and the consequences of too much of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from contract import names
from contract.encoding.codec import allocation_to_text
from contract.metrics import metrics_of
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.nodes.reports import PodReport
from contract.reasons.pods import PodEventReason
from nodeagent.gpus.library import Card
from nodeagent.publishing.metrics import AgentGauges
from nodeagent.sharing.overuse import OveruseMonitor, OveruseSettings
from nodeagent.sharing.overuse_reports import OveruseReporter
from nodeagent.sharing.residents import Resident, Residents
from nodeagent.sharing.usage import NodeUsage, Use, container_of, measure
from runtime.kubernetes.client import JSON
from runtime.kubernetes.watch import Replaced
from runtime.metrics import Metrics
from tests.unit.nodeagent.builders import MIB, card, observation

ONE, TWO = "a" * 64, "b" * 64
GROUPS = {
    "containerd, systemd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{ONE}.scope\n",
        ONE,
    ),
    "containerd, cgroupfs": (f"0::/kubepods/burstable/pod1/{ONE}\n", ONE),
    "CRI-O": (f"0::/kubepods.slice/kubepods-pod1.slice/crio-{ONE}.scope/container\n", ONE),
    "CRI-O, cgroupfs": (f"0::/kubepods/burstable/pod1/crio-{ONE}\n", ONE),
    "CRI-O's monitor of a container": (f"0::/kubepods.slice/kubepods-pod1.slice/crio-conmon-{ONE}.scope\n", ""),
    "cgroup v1": (f"12:memory:/kubepods/pod1/{ONE}\n0::/\n", ONE),
    "a group of the process's own below": (f"0::/kubepods/pod1/{ONE}/init.scope\n", ONE),
    "seen from a container": (f"0::/../../kubepods-pod2.slice/cri-containerd-{ONE}.scope\n", ONE),
    "a container in a container": (f"0::/kubepods/pod1/{ONE}/docker/{TWO}\n", ONE),
    "no container": ("0::/system.slice/sshd.service\n", ""),
    "a process that is gone": ("", ""),
}


@pytest.mark.parametrize(("text", "want"), GROUPS.values(), ids=GROUPS.keys())
def test_the_container_of_a_process(text: str, want: str) -> None:
    assert container_of(text) == want


def pod(name: str, cid: str, *gpus: str, mib: int = 100) -> Resident:
    shares = tuple(GpuShare(gpu, 0, mib * MIB, 30, 1 << 34) for gpu in gpus)
    allocation = Allocation("a", "n1", (ContainerAllocation("main", shares),))
    return Resident(f"uid-{name}", "team", name, allocation, containers=((cid, "main"),))


P, Q = pod("p", ONE, "GPU-0", "GPU-1"), pod("q", TWO, "GPU-0")


def groups(pid: int) -> str:
    return {1: f"0::/kubepods/pod1/{ONE}", 2: f"0::/kubepods/pod1/{ONE}", 3: f"0::/kubepods/pod2/{TWO}"}.get(pid, "")


def test_memory_is_laid_to_containers_and_never_to_the_wrong_one() -> None:
    cards = (card(0, processes=((1, 5), (2, 6), (3, 7), (9, 8))), card(1, processes=((3, 4),)), card(2))
    assert measure(cards, (P, Q), groups) == NodeUsage(
        (
            Use(P, "main", "GPU-0", 100 * MIB, 30, 11),
            Use(Q, "main", "GPU-0", 100 * MIB, 30, 7),
            Use(P, "main", "GPU-1", 100 * MIB, 30, 0),
        ),
        (("GPU-0", 8), ("GPU-1", 4)),
    )


RULES = OveruseSettings(overuse_slack=5 * MIB, overuse_grace=30.0)
WARNED = PodReport(0, "uid-p", PodEventReason.MEMORY_OVERUSE, 0, "GPU-0", 110 * MIB)


@dataclass(frozen=True)
class Story:
    """MiB that P uses at these seconds, and what is reported at each."""

    rules: OveruseSettings
    used: tuple[tuple[float, int], ...]
    want: tuple[PodReport | None, ...]
    warnings: int = 0


EVICTING = OveruseSettings(overuse_slack=0, overuse_grace=30.0, evict_overuse=60.0)
THREAT = replace(WARNED, evict_after=60)
EVICTED = replace(WARNED, evict=True)
STORIES = {
    "within its share": Story(RULES, ((0, 100), (99, 100)), (None, None)),
    "within the slack": Story(RULES, ((0, 105), (99, 105)), (None, None)),
    "over for a moment": Story(RULES, ((0, 110), (29, 110), (30, 100), (31, 110)), (None, None, None, None)),
    "reported while it lasts": Story(RULES, ((0, 110), (30, 110), (60, 110)), (None, WARNED, WARNED), 1),
    "with the figures of its first moment": Story(RULES, ((0, 110), (30, 110), (60, 150)), (None, WARNED, WARNED), 1),
    "another offence": Story(
        RULES,
        ((0, 110), (30, 110), (31, 90), (40, 110), (70, 110)),
        (None, WARNED, None, None, replace(WARNED, since=40)),
        2,
    ),
    "to be evicted, until it is gone": Story(
        EVICTING, ((0, 110), (30, 110), (89, 110), (90, 110), (91, 110)), (None, THREAT, THREAT, EVICTED, EVICTED), 1
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_a_container_over_time(story: Story) -> None:
    watch = OveruseMonitor(story.rules)
    reported = tuple(
        watch.judge(NodeUsage((Use(P, "main", "GPU-0", 100 * MIB, 0, mib * MIB),)), (), at) for at, mib in story.used
    )
    assert reported == tuple(frozenset() if report is None else {report} for report in story.want)
    assert sum(watch.violations.values()) == story.warnings


def bursting(used: int, booked: int = 20) -> Use:
    """P's use in MiB, with at most 100 MiB of it `booked`."""
    return Use(P, "main", "GPU-0", booked * MIB, 0, used * MIB, burst=(100 - booked) * MIB)


FULL, ROOM = card(0, used_bytes=15_108 * MIB), card(0, used_bytes=1 << 30)
LACKS, HAS = Use(Q, "main", "GPU-0", 100 * MIB, 0, 10 * MIB), Use(Q, "main", "GPU-0", 100 * MIB, 0, 99 * MIB)
PRESSED = PodReport(0, "uid-p", PodEventReason.MEMORY_PRESSURE, 0, "GPU-0", 90 * MIB)
BEYOND = PodReport(0, "uid-p", PodEventReason.MEMORY_OVERUSE, 0, "GPU-0", 110 * MIB)
PRESSURE: dict[str, tuple[Card, Use, Use, frozenset[PodReport]]] = {
    "there is room": (ROOM, bursting(90), LACKS, frozenset()),
    "the GPU's use is not known": (card(0, used_bytes=None), bursting(90), LACKS, frozenset()),
    "full, and everybody has what is booked": (FULL, bursting(90), HAS, frozenset()),
    "full, and another lacks some": (FULL, bursting(90), LACKS, frozenset((PRESSED,))),
    "full, within what it has booked": (FULL, bursting(90, booked=90), LACKS, frozenset()),
    "beyond the limit": (ROOM, bursting(110), LACKS, frozenset((BEYOND,))),
}


@pytest.mark.parametrize(("shown", "use", "other", "want"), PRESSURE.values(), ids=PRESSURE.keys())
def test_what_is_above_the_booked_memory_gives_way_on_a_full_gpu(
    shown: Card, use: Use, other: Use, want: frozenset[PodReport]
) -> None:
    watch = OveruseMonitor(RULES)
    assert watch.judge(NodeUsage((use, other)), (shown,), 0.0) == frozenset()
    assert watch.judge(NodeUsage((use, other)), (shown,), 30.0) == want
    assert sum(watch.violations.values()) == (1 if BEYOND in want else 0)


def test_a_pod_is_evicted_for_what_it_was_warned_of() -> None:
    watch = OveruseMonitor(replace(EVICTING, overuse_slack=5 * MIB))
    looks = [(0, FULL, 90), (30, FULL, 90), (89, ROOM, 90), (90, FULL, 90), (120, FULL, 90), (180, FULL, 90)]
    reported = [
        [(each.code, each.evict) for each in watch.judge(NodeUsage((bursting(used), LACKS)), (shown,), at)]
        for at, shown, used in looks
    ]
    warned, evicted = ("GPUMemoryPressure", False), ("GPUMemoryPressure", True)
    assert reported == [[], [warned], [], [], [warned], [evicted]], "a while with room begins anew"


def test_the_users_of_a_claim_have_its_share_together() -> None:
    share = GpuShare("GPU-0", 0, 100 * MIB, 30, 1 << 34)
    allocation = Allocation("a", "n1", (ContainerAllocation("main", (share,)),), claim="egpu-1")
    one, two, idle = (Resident(f"uid-{name}", "team", name, allocation) for name in ("one", "two", "idle"))

    def usage(*used: int) -> list[tuple[str, int, int]]:
        watch = OveruseMonitor(OveruseSettings(overuse_slack=0, overuse_grace=10.0))
        uses = tuple(
            Use(r, "main", "GPU-0", 100 * MIB, 30, n * MIB) for r, n in zip((one, two, idle), used, strict=True)
        )
        usage = NodeUsage(uses)
        assert watch.judge(usage, (), 0.0) == frozenset()
        return [(each.pod, each.used // MIB, each.others // MIB) for each in sorted(watch.judge(usage, (), 11.0))]

    assert usage(60, 40, 0) == []
    assert usage(70, 40, 0) == [("uid-one", 70, 40), ("uid-two", 40, 70)]


def test_pods_leave_a_gpu_that_stays_ill_where_that_is_set() -> None:
    sick = card(0, healthy=False, reason="XID 79")
    usage = NodeUsage((Use(P, "main", "GPU-0", 1, 0, 0), Use(Q, "main", "GPU-1", 1, 0, 0)))
    leave, none = (
        frozenset((PodReport(0, "uid-p", PodEventReason.UNHEALTHY, 0, "GPU-0", evict=True),)),
        frozenset[PodReport](),
    )

    def reported(watch: OveruseMonitor, *looks: tuple[float, Card]) -> list[frozenset[PodReport]]:
        return [watch.judge(usage, (shown, card(1)), at) for at, shown in looks]

    evicting = OveruseSettings(evict_unhealthy=60.0)
    assert reported(OveruseMonitor(evicting), (0, sick), (59, sick), (60, sick)) == [none, none, leave]
    assert reported(OveruseMonitor(evicting), (0, sick), (30, card(0)), (61, sick)) == [none, none, none]
    assert reported(OveruseMonitor(OveruseSettings()), (0, sick), (9999, sick)) == [none, none]


def here(*pods: Resident) -> Residents:
    """These pods, as the watch delivers them."""
    residents = Residents()
    residents.event(Replaced([_made(pod) for pod in pods]))
    return residents


def _made(pod: Resident) -> JSON:
    assert pod.allocation is not None
    annotations = {str(names.ALLOCATION): allocation_to_text(pod.allocation)}
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations}
    statuses = [{"name": name, "containerID": f"containerd://{cid}"} for cid, name in pod.containers]
    return {"metadata": metadata, "status": {"phase": "Running", "containerStatuses": statuses}}


def test_an_offender_is_reported_once_and_then_to_be_evicted() -> None:
    rules = OveruseSettings(overuse_slack=0, overuse_grace=10.0, evict_overuse=10.0)
    now, woken = [1000.0], list[float]()
    metrics = Metrics(metrics_of("nodeagent"))
    gauges = AgentGauges(metrics, node="n1")
    gauges.show_isolation({"driver": False, "mps": True, "watch": True})
    guard = OveruseReporter(
        here(P),
        OveruseMonitor(rules),
        show=gauges.show_usage,
        changed=lambda: woken.append(now[0]),
        cgroup_of=groups,
        clock=lambda: now[0],
    )
    look = observation(card(0, processes=((1, 200 * MIB),), busy=((1, 40), (99, 60))))
    found = []
    for at in (1000.0, 1010.0, 1015.0, 1020.0, 1025.0):
        now[0] = at
        guard.step(look)
        found.append(guard.reports)
    report = PodReport(1000, "uid-p", PodEventReason.MEMORY_OVERUSE, 0, "GPU-0", 200 * MIB)
    warned, evicted = replace(report, evict_after=10), replace(report, evict=True)
    assert found == [frozenset(), {warned}, {warned}, {evicted}, {evicted}]
    assert woken == [1010.0, 1020.0], "a status is written when something changes, and not at every look"
    labels = '{container="main",gpu="GPU-0",namespace="team",pod="p"}'
    shown = dict(line.rsplit(" ", 1) for line in metrics.render().decode().splitlines() if not line.startswith("#"))
    assert float(shown[f"gpufraction_share_memory_used_bytes{labels}"]) == 200 * MIB
    assert float(shown[f"gpufraction_share_violations{labels}"]) == 1
    assert float(shown[f"gpufraction_share_utilization_ratio{labels}"]) == 0.4
    enforced = {series: value for series, value in shown.items() if series.startswith("gpufraction_share_enforced")}
    assert enforced == {
        'gpufraction_share_enforced{container="main",gpu="GPU-0",level="mps",namespace="team",pod="p"}': "1.0"
    }
