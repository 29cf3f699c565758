"""The report, the manifests and the commands that print them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from shadow.__main__ import main
from shadow.replay.cluster import ClusterChoices
from shadow.report import manifests, text
from shadow.report.figures import reported
from tests.unit.shadow import played
from tests.unit.shadow.played import START, Played


def cluster() -> Played:
    """
    Two teams on four cards that HAMi shares: one team spreads its pods, and the annotations on one card exceed it.
    """
    found = Played(played.hami_node("n"))
    for at in range(4):
        found.runs(f"p-{at}", START + 10, START + 20, START + 3620, mib=10000, card=f"GPU-n-{at}", node="n")
    for at in range(2):
        found.runs(
            f"big-{at}",
            START + 100,
            START + 130,
            START + 1900,
            mib=70000,
            card="GPU-n-0",
            node="n",
            namespace="team-b",
            owner="large",
        )
    bad = played.hami_pod("typo", START + 200, mib=1000, namespace="team-b", owner="wrong")
    bad["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "much"
    found.see(bad, START + 200)
    return found


def test_the_report_says_what_was_seen_and_what_would_have_been() -> None:
    found = reported(cluster().window(), ClusterChoices())
    assert (found.before.most, found.after.most) == (4, 3)
    assert found.saved[0] > 0
    assert [(each.uuid, each.cores, len(each.pods)) for each in found.overcommitted] == [("GPU-n-0", 0, 3)]
    assert [(each.namespace, each.before.waited, each.after.waited) for each in found.namespaces] == [
        ("team-a", 4, 0),
        ("team-b", 2 + 1, 0),
    ]
    ((namespace, workload, words, pods),) = found.refused
    assert (namespace, workload, pods) == ("team-b", "Job/wrong", 1)
    assert "nvidia.com/gpumem" in words


def test_the_report_for_people_has_each_part() -> None:
    shown = text.report(reported(cluster().window(), ClusterChoices()))
    for part in (
        "HAMi: 1 node, 4 cards.",
        f"{'cards in use, most':41}4          3\n",
        "gpufraction would have saved",
        "1 overcommitted card seen:",
        "150000 of 81920 MiB",
        "By namespace:",
        "Workloads whose pods admission refuses",
        "Job/wrong",
    ):
        assert part in shown, part


def test_the_manifests_are_what_admission_stores() -> None:
    window = cluster().window()
    found = {each.name: each for each in manifests.manifests(window)}
    assert {name: each.pods for name, each in found.items()} == {"train": 4, "large": 2, "wrong": 1}
    diff = found["train"].diff
    for line in (
        "-        nvidia.com/gpumem: '10000'",
        "+        gpufraction.io/gpu-memory: 10000Mi",
        "-  schedulerName: hami-scheduler",
        "+  schedulerName: default-scheduler",
        "+  - name: gpufraction.io/allocation",
    ):
        assert line in diff.splitlines(), line
    assert "vgpu" not in diff
    assert (found["wrong"].after, "gpumem" in found["wrong"].refused) == ("", True)
    own = list(manifests.manifests(window, namespace="team-a"))
    assert [each.name for each in own] == ["train"]


def test_no_word_of_a_tenant_moves_the_terminal() -> None:
    found = Played(played.hami_node("n"))
    pod = played.hami_pod("p", START + 10, mib=90000, owner="evil\x1b[2J\u202e")
    pod["metadata"]["labels"]["x"] = "\x1b]0;title\x07"
    found.see(pod, START + 10)
    window = found.window(until=START + 100)
    shown = text.report(reported(window, ClusterChoices())) + manifests.shown(manifests.manifests(window))
    assert [line for line in shown.split("\n") if not line.isprintable()] == []


# -- commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "export.jsonl"
    path.write_text("".join(cluster().lines()))
    return path


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    status = main(list(words), out=out)
    return status, out.getvalue()


def test_report_prints_text_or_json(recording: Path) -> None:
    status, shown = run("report", "--recording", str(recording))
    assert (status, "gpufraction would have saved" in shown) == (0, True)
    status, shown = run("report", "--recording", str(recording), "-o", "json")
    document = json.loads(shown)
    assert (status, document["before"]["inUseMost"], document["after"]["inUseMost"]) == (0, 4, 3)
    assert document["overcommitted"][0]["pods"] == ["team-a/p-0", "team-b/big-0", "team-b/big-1"]


def test_what_if_prints_both_sides(recording: Path) -> None:
    status, shown = run("what-if", "--recording", str(recording), "--cards", "A100=4", "-o", "json")
    document = json.loads(shown)
    assert (status, document["without"]["cards"], document["with"]["cards"]) == (0, 4, 8)
    status, shown = run("what-if", "--recording", str(recording), "--quota", "team-a=15Gi")
    assert (status, shown.splitlines()[0].split()) == (0, ["without", "the", "change", "with", "it"])


def test_manifests_are_of_one_namespace_where_it_is_named(recording: Path) -> None:
    status, shown = run("manifests", "--recording", str(recording), "-n", "team-a")
    assert (status, "# team-a: Job train, 4 pods" in shown, "team-b" in shown) == (0, True, False)


def test_export_prints_the_recording_as_it_is(recording: Path) -> None:
    assert run("export", "--recording", str(recording)) == (0, recording.read_text())


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("what-if",), 2, "give a change"),
        (("what-if", "--cards", "A100"), 2, "--cards 'A100': give a model"),
        (("what-if", "--card", "x"), 2, "--card"),
        (("report", "--whole", "0"), 2, "--whole '0': give a whole percentage"),
        (("report", "--options", "/none"), 2, "no such file"),
        (("manifests", "-n", "Team A"), 2, "give the name of a namespace"),
        (("report", "--output", "xml"), 2, "invalid choice"),
        (("report", "--last", "0d"), 2, "give hours or days"),
    ],
)
def test_a_wrong_word_is_named(
    words: tuple[str, ...], status: int, said: str, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words[0], "--recording", str(recording), *words[1:])[0] == status
    assert said in capsys.readouterr().err


def test_an_empty_recording_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recording-000001.jsonl").write_text("")
    assert run("report", "--recording", str(tmp_path))[0] == 1
    assert "nothing has been recorded yet" in capsys.readouterr().err


def test_the_last_part_of_a_recording_stands_alone(tmp_path: Path) -> None:
    found = Played(played.hami_node("n"))
    for at in range(6):
        begin = START + 3600 * at
        found.runs(f"p-{at}", begin + 1, begin + 1, begin + 1800, mib=1000, card="GPU-n-0", node="n")
    path = tmp_path / "export.jsonl"
    path.write_text("".join(found.lines()))
    whole, last = (
        json.loads(run("report", "--recording", str(path), "-o", "json", *words)[1]) for words in ((), ("--last", "2h"))
    )
    assert (whole["before"]["pods"], last["before"]["pods"]) == (6, 2)
    assert (last["systems"], last["before"]["cards"]) == (whole["systems"], 4)


def test_pods_that_were_there_and_find_no_room_are_told() -> None:
    found = Played(at=START)
    for at in range(3):
        pod = played.hami_pod(f"p-{at}", START - 100, mib=60000, card="GPU-n-0", node="n", phase="Running")
        found.see(pod, START)
    found.take(found.recorder.node_changed(played.hami_node("n", cards=1), START))
    report = reported(found.window(until=START + 500), ClusterChoices())
    assert (report.crowded, report.waits[1].pods) == (2, 0)
    assert "2 pods that existed when the recording began find no room at first" in text.report(report)
