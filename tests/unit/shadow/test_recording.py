"""What is recorded, what is not, and what a recording contains after a kill."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow.recording.recorder import Recorder
from shadow.recording.records import LONGEST_LINE, LOST, LeftOut, PodOn, PodSeen, decode, encode
from shadow.recording.store import FILES, RecordingError, RecordingWriter, files, lines
from shadow.recording.trimming import LARGEST_TEMPLATE, template_of
from shadow.replay.demand import DemandWindow, demand_of
from shadow.systems.base import HeldPart
from tests.unit.shadow import played
from tests.unit.shadow.played import START, Played

MIB = 1 << 20


def test_a_pod_is_recorded_from_its_creation_to_its_end() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.runs("p", START + 10, START + 40, START + 100, mib=4000, card="GPU-n-1", node="n")
    (pod,) = cluster.window().pods
    assert (pod.created, pod.on, pod.ended, pod.how) == (START + 10, START + 40, START + 100, "done")
    assert (pod.node, pod.held) == ("n", (HeldPart("GPU-n-1", 4000 * MIB),))
    assert pod.workload == ("Job", "train")


def test_each_record_is_read_as_it_was_written() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.runs("p", START + 10, START + 40, START + 100, mib=4000, card="GPU-n-1", node="n")
    cluster.take(cluster.recorder.node_deleted("n", START + 200))
    cluster.take([LeftOut(START + 300, "team-b", 7)])
    assert [decode(encode(record)) for record in cluster.records] == cluster.records


def test_no_secret_image_or_volume_is_recorded() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.runs("p", START + 10, START + 40, None, mib=4000, card="GPU-n-1", node="n")
    text = "".join(cluster.lines())
    assert [word for word in ("s3cret", "SECRET", "registry.example", "secretName") if word in text] == []
    assert "NVIDIA_VISIBLE_DEVICES" in text


def test_siblings_have_one_template_without_what_their_system_wrote() -> None:
    cluster = Played(played.hami_node("n"))
    for at in range(5):
        cluster.runs(f"p-{at}", START, START + 30 + at, None, mib=4000, card=f"GPU-n-{at % 4}", node="n")
    found = [decode(line) for line in cluster.lines() if '"k":"template"' in line]
    assert len(found) == 1
    assert "vgpu" not in "".join(line for line in cluster.lines() if '"k":"template"' in line)


def test_a_pod_without_a_gpu_is_recorded_on_nodes_with_cards_only() -> None:
    cluster = Played(played.hami_node("n"), played.plain_node("other"))
    cluster.see(played.pod("here", node="n", phase="Running"), START + 5)
    cluster.see(played.pod("there", node="other", phase="Running"), START + 5)
    (pod,) = cluster.window().pods
    assert (pod.name, pod.besides) == ("here", [2000, 8 << 30, 0])


def test_a_namespace_that_makes_thousands_of_pods_is_counted_and_bounded() -> None:
    cluster = Played(played.hami_node("n"), recorder=Recorder(most_new=10))
    for at in range(50):
        cluster.see(played.hami_pod(f"p-{at}", START + at, mib=1000, namespace="flood"), START + at)
    cluster.see(played.hami_pod("own", START + 60, mib=1000), START + 60)
    cluster.take(cluster.recorder.left_out(START + 70))
    window = cluster.window()
    assert {pod.namespace: 0 for pod in window.pods}.keys() == {"flood", "team-a"}
    assert window.left_out == (("flood", 40),)


def test_one_namespace_cannot_fill_what_is_followed() -> None:
    recorder = Recorder(most_pods=40)
    recorder.begin(START)
    recorder.nodes_listed([played.hami_node("n")], START)
    flood = [played.hami_pod(f"p-{at}", mib=1000, namespace="flood") for at in range(500)]
    recorder.pods_listed([*flood, played.hami_pod("own", mib=1000)], START)
    assert recorder.followed == 11
    assert recorder.left_out(START) == [LeftOut(START, "flood", 490)]


def test_a_large_pod_is_recorded_by_what_it_asks_for_alone() -> None:
    pod = played.hami_pod("p", mib=1000)
    pod["metadata"]["labels"] = {f"label-{at}": "x" * 60 for at in range(60)}
    pod["spec"]["nodeSelector"] = {f"label-{at}": "x" * 60 for at in range(600)}
    found = template_of(pod)
    assert found is not None
    assert found["cut"] is True
    assert len(json.dumps(found)) < LARGEST_TEMPLATE
    pod["metadata"]["annotations"] = {"nvidia.com/use-gputype": "x" * LARGEST_TEMPLATE}
    assert template_of(pod) is None


def test_a_pod_that_vanished_while_nobody_recorded_is_lost() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.runs("stays", START, START + 1, None, mib=1000, card="GPU-n-0", node="n")
    cluster.runs("goes", START, START + 1, None, mib=1000, card="GPU-n-0", node="n")
    again = Played(played.hami_node("n"), at=START + 1000)
    again.take(again.recorder.pod_changed(played.hami_pod("x", START + 1500, mib=1), START + 1500))
    recorder = Recorder()
    records = [*recorder.begin(START + 1000), *recorder.nodes_listed([played.hami_node("n")], START + 1000)]
    there = played.hami_pod("stays", START, mib=1000, card="GPU-n-0", node="n", phase="Running", bound=START + 1)
    records += recorder.pods_listed([there], START + 1001)
    window = demand_of([*cluster.lines(), *map(encode, records)])
    fates = {pod.name: (pod.ended, pod.how) for pod in window.pods}
    assert fates == {"stays": (None, ""), "goes": (START + 1001, LOST)}
    assert window.paused == pytest.approx(1000 - 1, abs=1)


def test_a_list_ends_what_it_does_not_have() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.runs("p", START, START + 1, None, mib=1000, card="GPU-n-0", node="n")
    cluster.take(cluster.recorder.pods_listed([], START + 60))
    (pod,) = cluster.window().pods
    assert (pod.ended, pod.how) == (START + 60, "deleted")


def test_a_node_is_written_again_only_when_it_changes() -> None:
    cluster = Played(played.hami_node("n"))
    before = len(cluster.records)
    beats = played.hami_node("n")
    beats["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:01:00Z"
    cluster.take(cluster.recorder.node_changed(beats, START + 60))
    assert len(cluster.records) == before
    beats["spec"]["unschedulable"] = True
    cluster.take(cluster.recorder.node_changed(beats, START + 120))
    assert len(cluster.records) == before + 1


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(0, 3))
def test_a_snapshot_is_read_as_all_that_was_before_it(order: list[str], cut: int) -> None:
    """In any history, the live pods of a file that begins at any point are those of the whole recording."""
    cluster = Played(played.hami_node("n"))
    rng, at = random.Random(cut), START
    for name in order:
        at += 10
        end = rng.random() < 0.3
        cluster.see(
            played.hami_pod(
                name, START + 1, mib=1000, card="GPU-n-0", node="n", phase="Succeeded" if end else "Running"
            ),
            at,
        )
    whole = cluster.window()
    cluster.records = list(cluster.recorder.snapshot(at))
    part = cluster.window()

    def living(window: DemandWindow) -> set[tuple[str, str]]:
        return {(pod.name, pod.node) for pod in window.pods if pod.ended is None}

    assert living(part) == living(whole)


# -- files --------------------------------------------------------------------------------------------------------


def _write(folder: Path, most: int, pods: int) -> Recorder:
    recorder = Recorder()
    writer = RecordingWriter(folder, lambda: recorder.snapshot(START), most=most)
    writer.open()
    writer.write(recorder.begin(START))
    writer.write(recorder.nodes_listed([played.hami_node("n")], START))
    writer.write(recorder.pods_listed([], START))
    for at in range(pods):
        for phase in ("Pending", "Running", "Succeeded"):
            node = "" if phase == "Pending" else "n"
            pod = played.hami_pod(f"p-{at}", START + at, mib=1000 + at, card="GPU-n-0", node=node, phase=phase)
            writer.write(recorder.pod_changed(pod, START + at + 1))
    writer.close()
    return recorder


def test_the_files_stay_within_their_bound_and_can_be_read(tmp_path: Path) -> None:
    most = 64 << 10
    _write(tmp_path, most, 400)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= most
    assert len(files(tmp_path)) > FILES
    window = demand_of(lines(tmp_path))
    assert (window.unread, window.pods[-1].name, window.pods[-1].how) == (0, "p-399", "done")
    assert len(window.pods) == 400 or window.begin >= START


def test_a_writer_that_begins_again_goes_on_after_the_files_there(tmp_path: Path) -> None:
    _write(tmp_path, 1 << 20, 3)
    _write(tmp_path, 1 << 20, 5)
    assert [path.name for path in files(tmp_path)] == ["recording-000001.jsonl.gz", "recording-000002.jsonl"]
    assert len({pod.name for pod in demand_of(lines(tmp_path)).pods}) == 5


def test_a_line_that_is_cut_by_a_kill_is_counted_and_left_out(tmp_path: Path) -> None:
    _write(tmp_path, 1 << 20, 3)
    (path,) = files(tmp_path)
    path.write_text(path.read_text()[:-20])
    window = demand_of(lines(tmp_path))
    assert (window.unread, len(window.pods)) == (1, 3)


def test_a_compressed_file_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    _write(tmp_path, 1 << 20, 50)
    _write(tmp_path, 1 << 20, 1)
    first = files(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-100])
    assert len(demand_of(lines(tmp_path)).pods) > 10


def test_a_folder_without_a_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no recording"):
        list(lines(tmp_path))
    with pytest.raises(RecordingError, match="No such file"):
        list(lines(tmp_path / "none"))


@given(st.text(max_size=300))
def test_no_line_ends_the_reader(text: str) -> None:
    decode(text)
    assert demand_of([text, "[" * 10_000, "9" * 10_000, "{}"]).pods == ()


@pytest.mark.parametrize(
    "line",
    [
        '{"k":"pod","at":NaN,"uid":"u","ns":"n","name":"p","of":0}',
        '{"k":"pod","at":1e300,"uid":"u","ns":"n","name":"p","of":0}',
        '{"k":"pod","at":-1,"uid":"u","ns":"n","name":"p","of":0}',
        '{"k":"on","at":1,"uid":"u","node":"n","held":[["GPU-a",-1,0,0]]}',
        '{"k":"on","at":1,"uid":"u","node":"n","held":' + str([["g", 0, 0, 0]] * 300).replace("'", '"') + "}",
        '{"k":"node","at":1,"name":"n","system":"hami","cards":[["all",0,"m",1,true,1,0]],"node":{}}',
        '{"k":"begin","at":1,"first":true,"form":99}',
        '{"k":"end","at":1,"uid":"u","how":"else"}',
        "x" * (LONGEST_LINE + 1),
    ],
)
def test_a_line_beyond_its_bounds_is_not_read(line: str) -> None:
    assert decode(line) is None


def test_records_name_pods_fit_to_be_shown() -> None:
    record = PodSeen(1.0, "u", "n\x1b[2J", "p\u202e", 0)
    found = decode(encode(record))
    assert isinstance(found, PodSeen)
    assert "\x1b" not in found.namespace
    assert "\u202e" not in found.name
    assert decode(encode(PodOn(1.0, "u", "n", ()))) == PodOn(1.0, "u", "n", ())


def test_a_node_that_changes_all_the_time_is_recorded_so_often_at_most() -> None:
    cluster = Played(played.hami_node("n"))
    for at in range(500):
        node = played.hami_node("n")
        node["metadata"]["labels"]["beat"] = str(at)
        cluster.take(cluster.recorder.node_changed(node, START + 10 + at))
    assert len(cluster.window().nodes) == 60
    cluster.take(cluster.recorder.node_changed(node, START + 4000))
    last = cluster.window().nodes[-1]
    assert getattr(last, "node", {})["metadata"]["labels"]["beat"] == "499"


def test_annotations_that_change_all_the_time_are_recorded_so_often() -> None:
    cluster = Played(played.hami_node("n"))
    for at in range(200):
        cluster.see(played.hami_pod("p", mib=at + 1, card="GPU-n-0", node="n", phase="Running"), START + at)
    assert sum('"k":"on"' in line for line in cluster.lines()) == 32


def test_templates_of_one_namespace_take_a_part_of_their_room() -> None:
    cluster = Played(played.hami_node("n"))
    for at in range(200):
        pod = played.hami_pod(f"p-{at}", mib=1, namespace="flood")
        pod["spec"]["nodeSelector"] = {f"key-{at}-{number}": "x" * 60 for number in range(300)}
        cluster.see(pod, START + at)
    cluster.see(played.hami_pod("own", mib=2), START + 300)
    window = cluster.window()
    size = sum(len(line) for line in cluster.lines() if '"k":"template"' in line)
    assert size < 5 << 20
    assert window.pods[-1].name == "own"


def test_of_a_long_recording_the_last_pods_are_read() -> None:
    whole = Played(played.hami_node("n"))
    for at in range(40):
        whole.runs(f"p-{at}", START + at, START + at, START + at + 100, mib=1000, card="GPU-n-0", node="n")
    window = demand_of(whole.lines(), most=10)
    assert [pod.name for pod in window.pods] == [f"p-{at}" for at in range(30, 40)]
    assert window.begin == START + 29 + 100
    assert [(each.name, each.at) for each in window.nodes] == [("n", window.begin)]


def test_a_pod_or_node_that_cannot_be_read_leaves_the_others_recorded() -> None:
    cluster = Played(played.hami_node("n"))
    poison = played.hami_pod("poison", mib=1, namespace="odd")
    poison["spec"]["containers"] = [7]
    cluster.see(poison, START + 1)
    broken = played.hami_node("broken")
    broken["status"]["conditions"] = 7
    cluster.take(cluster.recorder.node_changed(broken, START + 2))
    cluster.see(played.hami_pod("own", mib=2), START + 3)
    cluster.take(cluster.recorder.left_out(START + 4))
    window = cluster.window()
    assert ([pod.name for pod in window.pods], window.left_out) == (["own"], (("odd", 1),))
    assert {change.name for change in window.nodes} == {"n"}
