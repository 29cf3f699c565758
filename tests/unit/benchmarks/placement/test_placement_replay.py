"""The benchmark on generated traces: the protocol, the baselines and the tables, in a second."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from allocator.engine.reference import Policy
from allocator.scoring import constants, tables
from allocator.scoring.classes import CARD, demanded
from allocator.scoring.constants import HALF_LIFE
from benchmarks.placement import __main__ as quality
from benchmarks.placement import families, plot, replays, report, sensitivity, trace
from benchmarks.placement.baselines import SCORES
from benchmarks.placement.replaying import Engines, Given, Run, at
from benchmarks.placement.results import Results
from benchmarks.placement.trace import Task

ROOT = Path(__file__).parents[4]
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},32000,65536,{cards},{model}\n" for number, (cards, model) in enumerate([(2, "T4"), (4, "G2")] * 6)
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{number:03d},{cpu},1024,{cards},{parts},{models}\n"
    for number, (cpu, cards, parts, models) in enumerate(
        [(1000, 1, 500, ""), (4000, 1, 1000, "T4|G2"), (2000, 1, 320, "G2"), (2000, 2, 1000, ""), (3000, 0, 0, "")] * 10
    )
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)
    return tmp_path


def test_the_trace_is_read(folder: Path) -> None:
    assert trace.machines(folder)[1] == trace.Machine(32_000, 65_536, 4, "G2")
    assert trace.tasks(folder, "default")[2] == Task(2000, 1024, 1, 320, ("G2",))
    with pytest.raises(trace.NoTrace, match=r"openb_pod_list_cpu100\.csv is missing"):
        trace.tasks(folder, "cpu100")


def test_the_list_is_inflated_to_130_percent(folder: Path) -> None:
    listed, capacity = trace.tasks(folder, "default"), 36 * CARD
    arriving = trace.arrivals(listed, capacity, np.random.default_rng(1))
    assert sorted(map(repr, arriving[: len(listed)])) == sorted(map(repr, listed))
    assert 1.25 * capacity < sum(task.volume for task in arriving) <= 1.3 * capacity + 1000
    fewer = trace.arrivals(listed, capacity // 2, np.random.default_rng(1))
    assert sum(task.volume for task in fewer) <= 0.65 * capacity + 1000


def test_a_demand_that_changes(folder: Path) -> None:
    (folder / "openb_pod_list_other.csv").write_text(PODS.replace(",1,500,", ",1,100,"))
    capacity = 36 * CARD

    def ordered(name: str) -> list[Task]:
        return trace.ordered(folder, name, capacity, np.random.default_rng(1))

    late = ordered("late:default")
    assert sorted(map(repr, late)) == sorted(map(repr, ordered("default")))
    assert [task.cards > 1 for task in late] == sorted(task.cards > 1 for task in late)
    changing = ordered("default+other")
    tenth = next(at for at, task in enumerate(changing) if task.parts == 100)
    assert sum(task.volume for task in changing[:tenth]) >= capacity // 2 - 2 * CARD
    assert not any(task.parts == 500 for task in changing[tenth:])
    assert sum(task.volume for task in changing) <= 1.3 * capacity
    assert trace.target_of(folder, "default").keys() < trace.target_of(folder, "default+other").keys()


def test_a_constant_is_varied_for_a_run_and_no_longer(folder: Path, tmp_path: Path) -> None:
    constant = next(each for each in sensitivity.CONSTANTS if each.name == "STEP")
    file, rules = tmp_path / "runs", Results(tmp_path / "runs", "rules")
    found: dict[str, dict[str, dict[str, float]]] = {}
    for what, label, name, mean in sensitivity.measure(folder, ["default"], [1], rules, [constant]):
        found.setdefault(what, {}).setdefault(label, {})[name] = mean
    assert constant.values[sensitivity.OWN[constant.what]] == constants.STEP
    assert found[constant.what].keys() == constant.values.keys()
    assert len(file.read_text().splitlines()) == len(constant.values), "each under rules of its own"
    assert sensitivity.table(found).splitlines()[2].split()[-1] == "default"
    plot.sensitivity(found, tmp_path / "plot.svg")
    assert "step of worth" in (tmp_path / "plot.svg").read_text()


def test_every_policy_fills_the_cluster_and_no_more(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        quality.main(
            ["--trace", str(folder), "--lists", "default", "--seeds", "1-2", "--families", "", "--departures", ""]
        )
        == 0
    )
    rows = capsys.readouterr().out.splitlines()
    figures = {row.split()[0]: row.split()[1:] for row in rows[2 : 2 + len(replays.POLICIES)]}
    assert set(figures) == set(replays.POLICIES)
    for policy, (seeds, *allocated, _error, unallocated, _fragmented, _rate) in figures.items():
        assert seeds == "2"
        assert [float(each) for each in allocated] == sorted(map(float, allocated)), policy
        assert 0 < float(allocated[0]) <= float(allocated[-1]) <= 100
        assert float(unallocated) == pytest.approx(36 * (1 - float(allocated[3]) / 100), abs=1.5)
    assert rows[-1].startswith("quality default@100 ours=")


def test_a_run_that_was_cut_off_goes_on(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    policies = ["hami", "value"]

    def replayed(seeds: range, results: Results) -> list[tuple[int, str, Run]]:
        return list(replays.replay(folder, "default", policies, seeds, results=results))

    before = replayed(range(1), Results(file, "these rules"))
    with file.open("a") as cut_off:
        cut_off.write('{"of": ["default", 1, "hami"')
    again = Results(file, "these rules")
    assert [again.get(("default", 0, policy, HALF_LIFE)) for policy in policies] == [run for _, _, run in before]
    assert replayed(range(1), again) == before, "seconds included: nothing was computed anew"
    assert Results(file, "other rules").get(("default", 0, "hami", HALF_LIFE)) is None


def test_it_is_a_command(folder: Path) -> None:
    given = ["--trace", str(folder), "--lists", "default", "--policies", "fragmentation,value"]
    command = [
        sys.executable,
        "-m",
        "benchmarks.placement",
        *given,
        "--seeds",
        "1",
        "--families",
        "",
        "--departures",
        "",
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1].startswith("quality default@100 ours=")


def test_an_unknown_policy_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        quality.main(["--trace", str(folder), "--policies", "first-fit"])
    assert "there is no policy 'first-fit'; there are random, best-fit" in capsys.readouterr().err


def test_a_missing_trace_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quality.main(["--trace", str(tmp_path)]) == 2
    assert "give the folder of the openb trace with --trace" in capsys.readouterr().err


def test_the_same_seed_gives_the_same_run(folder: Path) -> None:
    policies = [*SCORES, "value"]
    first, second = (
        [(seed, policy, run.curve) for seed, policy, run in replays.replay(folder, "default", policies, [7])]
        for _ in range(2)
    )
    assert first == second


def test_the_last_line_is_for_machines() -> None:
    def run(full: float) -> Run:
        return Run({100: full}, 0, 0, 1, 1)

    lists = {"default": {"value": {1: run(96), 2: run(97)}, "fragmentation": {1: run(95), 2: run(95.5)}}}
    assert report.gains(lists["default"]) == [1.0, 1.5]
    assert report.summary(lists).splitlines()[-1] == "quality default@100 ours=96.50 fgd=95.25"
    assert at(run(5), 130) == 5


def test_wins_ties_and_losses_are_counted_against_either_peer() -> None:
    def runs(ours: float, online: float, known: float) -> report.Runs:
        by_policy = {"value": ours, "fragmentation-online": online, "fragmentation": known}
        return {policy: {1: Run({100: full}, 0, 0, 1, 1)} for policy, full in by_policy.items()}

    lists = {"default": runs(96, 95, 95.5), "late:default": runs(95, 94.95, 96), "unlike": runs(90, 90.5, 90.05)}
    rows = report.peers(lists).splitlines()
    assert [row.split()[-2:] for row in rows[2:5]] == [["win", "win"], ["tie", "loss"], ["loss", "tie"]]
    assert rows[2].split()[:4] == ["default", "96.00", "95.00", "95.50"]
    assert rows[-2:] == [
        "value online against FGD online: 1 wins, 1 ties, 1 losses",
        "value online against FGD known: 1 wins, 1 ties, 1 losses",
    ]


def test_lists_beside_the_published_ones_are_not_in_their_mean() -> None:
    def runs(full: float) -> report.Runs:
        return {"value": {1: Run({100: full}, 0, 0, 1, 1)}, "fragmentation": {1: Run({100: 95}, 0, 0, 1, 1)}}

    rows = report.summary({"default": runs(96), trace.BESIDE[-1]: runs(90)}).splitlines()
    assert rows[-2].split() == ["all", "+1.00", "(+1.00)"]


@pytest.mark.parametrize("name", [name for name, family in families.FAMILIES.items() if family.late])
def test_pods_of_several_cards_come_late(name: str) -> None:
    rng = np.random.default_rng(3)
    family = families.FAMILIES[name]
    drawn = families.arrivals(family, families.supply(families.nodes(family, rng)), rng)
    several = [pod.cards > families.FAMILIES[name].late for pod in drawn]
    assert any(several)
    assert several == sorted(several)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_families_ask_for_more_than_there_is(name: str) -> None:
    rng = np.random.default_rng(3)
    family = families.FAMILIES[name]
    supply = families.supply(families.nodes(family, rng))
    drawn = families.arrivals(family, supply, rng)
    volume, capacity = sum(pod.volume for pod in drawn), families.capacity(supply)
    assert 1.3 * capacity < volume < 1.3 * capacity + 8 * 80 * CARD


def test_a_policy_that_knows_the_demand_sees_how_full_the_cluster_is() -> None:
    family, rng = families.FAMILIES["name-models"], np.random.default_rng(3)
    nodes = families.nodes(family, rng)
    supply = families.supply(nodes)
    drawn = families.arrivals(family, supply, rng)
    target = Counter(each for pod in drawn for each in demanded(pod.request, pod.cpu))
    first = tables.value(target, supply)
    knowing = Engines(nodes, Policy("value"), measure=first, tables=first, learner=Given(target))
    for pod in drawn[:512]:
        knowing.place(pod)
    later = knowing.engine.tables
    assert later is not None
    assert later is not first, "a tenth of the cluster was taken since"
    assert later.target == first.target
