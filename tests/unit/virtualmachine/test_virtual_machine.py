"""The virtual machine of the node's tests: what it needs, how QEMU is started, and the results of the tests."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from playground.waiting import wait_for
from tests.cluster.realnode import virtual
from tests.cluster.realnode.virtual import Access, access
from tests.virtualmachine import image, needs, results
from tests.virtualmachine.__main__ import parsed
from tests.virtualmachine.image import Image
from tests.virtualmachine.qemu import QEMU, NoVirtualMachine, Share, accelerator, ask, command_line

JUNIT = """
<testsuites><testsuite name="pytest">
<testcase classname="tests.cluster.realnode.test_agent" name="test_a[containerd]" time="12.34"/>
<testcase classname="tests.cluster.realnode.test_agent" name="test_b[containerd]" time="1">
<skipped message="no crio"/></testcase>
<testcase classname="tests.cluster.realnode.test_agent" name="test_c[containerd]" time="2">
<failure message="it is not so&#10;second line">trace</failure></testcase>
<testcase classname="tests.cluster.realnode.test_agent" name="test_a[containerd]" time="0">
<error message="teardown"/></testcase>
</testsuite></testsuites>
"""
MACHINE = {"kernel": "6.12"}


def line(**changes: object) -> list[str]:
    """The command that starts QEMU, with two folders."""
    shares = [Share("rw", Path("/a"), "/a", writable=True), Share("ro", Path("/b"), "/run/b")]
    given = {"accelerator": "tcg", "memory": 4096, "port": 2222, "key": "ssh-ed25519 AAAA", "shares": shares}
    paths = {"monitor": Path("/m"), "console": Path("/c")}
    return command_line(Image(Path("/i")), **{**given, **paths, **changes})  # type: ignore[arg-type]


def after(option: str, command: list[str]) -> list[str]:
    return [value for before, value in itertools.pairwise(command) if before == option]


def test_nothing_but_ssh_on_loopback_reaches_it_and_it_reaches_nothing() -> None:
    command = line()
    assert after("-nic", command) == [
        "user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:2222-10.0.2.15:22",
    ]
    assert "-netdev" not in command


def test_it_has_one_processor_and_a_disk_that_forgets() -> None:
    command = line(accelerator="kvm")
    assert (after("-smp", command), after("-m", command), after("-cpu", command)) == (["1"], ["4096"], ["host"])
    assert after("-drive", command) == ["file=/i/disk.raw,format=raw,if=virtio,snapshot=on,cache=unsafe"]


def test_only_the_shared_folder_can_be_written() -> None:
    folders = after("-virtfs", line())
    assert [("readonly=on" in each, each.partition(",mount_tag=")[0]) for each in folders] == [
        (False, "local,path=/a"),
        (True, "local,path=/b"),
    ]


def test_an_accelerator_that_is_named_is_not_tried() -> None:
    assert [accelerator(name, Image(Path("/none"))) for name in ("kvm", "tcg")] == ["kvm", "tcg"]


@pytest.mark.skipif(shutil.which(QEMU) is None, reason="needs Debian's package qemu-system-x86")
def test_the_monitor_stops_its_processors(tmp_path: Path) -> None:
    socket = tmp_path / "m"
    flags = ["-machine", "none", "-nodefaults", "-display", "none", "-qmp", f"unix:{socket},server=on,wait=off"]
    process = subprocess.Popen([QEMU, *flags], stdin=subprocess.DEVNULL)
    try:
        wait_for(socket.exists, "no monitor")
        states = []
        for command in ("stop", "cont"):
            assert ask(socket, command) == {}
            states.append(ask(socket, "query-status")["status"])
        assert states == ["paused", "running"]
        with pytest.raises(NoVirtualMachine, match="refuses no-such-command"):
            ask(socket, "no-such-command")
        ask(socket, "quit")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_flags_after_two_dashes_are_pytests() -> None:
    """As `make test-virtualmachine TESTS=...` writes them."""
    found = parsed(["--release", "forky", "--", "tests/a.py", "-k", "containerd and cdi", "-x"])
    assert (found.release, found.tests) == ("forky", ["tests/a.py", "-k", "containerd and cdi", "-x"])
    assert parsed([]).tests == ["tests/cluster/realnode"]


def test_what_it_takes_is_said_in_one_line() -> None:
    assert needs.missing({}) == "REALNODE_ASSETS is not set; it names a folder with a node's programs (docs/testing.md)"


def test_an_image_of_another_release_is_another_image() -> None:
    first, second = image.key("trixie", selinux=False), image.key("forky", selinux=False)
    assert (first.partition("-")[0], second.partition("-")[0], first == image.key("trixie", selinux=True)) == (
        "trixie",
        "forky",
        False,
    )
    assert first.partition("-")[2] != second.partition("-")[2]


CACHES: dict[str, tuple[dict[str, str], str]] = {
    "named": ({"VIRTUALMACHINE_CACHE": "/x", "XDG_CACHE_HOME": "/y"}, "/x"),
    "the user's": ({"XDG_CACHE_HOME": "/y"}, "/y/gpufraction/virtualmachine"),
}


@pytest.mark.parametrize(("environment", "wanted"), CACHES.values(), ids=CACHES.keys())
def test_where_images_are_kept(environment: dict[str, str], wanted: str) -> None:
    assert image.default_cache(environment) == Path(wanted)


def test_the_agents_packages_are_those_of_the_project() -> None:
    names = {each.partition(">")[0] for each in image.requirements()}
    assert {"kubernetes", "nvidia-ml-py", "grpcio"} <= names


def test_a_report_has_each_test_once_and_the_worst_of_it(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    found = results.report(junit, MACHINE, accelerator="tcg", seconds=61.4)
    name = "tests.cluster.realnode.test_agent::test_{}[containerd]".format
    assert found == {
        "machine": MACHINE,
        "accelerator": "tcg",
        "seconds": 61,
        "totals": {"error": 1, "failure": 1, "skipped": 1},
        "tests": {
            name("a"): {"outcome": "error", "seconds": 0.0, "why": "teardown"},
            name("b"): {"outcome": "skipped", "seconds": 1.0, "why": "no crio"},
            name("c"): {"outcome": "failure", "seconds": 2.0, "why": "it is not so"},
        },
    }
    assert list(results.lines(found)) == [
        "1 error, 1 failure, 1 skipped in 61 s under tcg",
        f"error: {name('a')}: teardown",
        f"failure: {name('c')}: it is not so",
        "skipped 1: no crio",
    ]


def test_a_machine_that_ran_no_test_says_so(tmp_path: Path) -> None:
    found = results.report(tmp_path / "none", MACHINE, accelerator="kvm", seconds=1)
    assert list(results.lines(found)) == ["no test ran in 1 s under kvm"]


def test_the_tests_learn_how_to_reach_it(tmp_path: Path) -> None:
    file = tmp_path / "access.json"
    way = Access(("ssh", "-oPort=1", "root@127.0.0.1"), tmp_path, "/opt/python", "/opt/code")
    way.write(file)
    assert access({virtual.ENVIRONMENT: str(file)}) == way
    assert access({}) is None


def test_what_a_command_prints_and_its_status_come_back(tmp_path: Path) -> None:
    """The words arrive as given, whatever they contain, although ssh lets a shell read them."""
    way = Access(("sh", "-c"), tmp_path, "", "")
    assert way.run(["sh", "-c", 'cat; echo "$0"; exit 3', "a  'b"], text="in\n") == (3, "in\na  'b\n")
