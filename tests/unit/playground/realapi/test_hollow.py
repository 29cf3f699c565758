"""How a hollow kubelet is started and what it leaves behind, tested with a program that prints what kubemark prints."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from playground.machinery.objects.nodes import NodeSpec
from playground.realapi.components import Assets
from playground.realapi.hollow import HollowKubelets
from playground.waiting import wait_for

KUBEMARK = f"""#!{sys.executable}
import os, socket, sys, time
root = f"/tmp/hollow-kubelet.{{os.getpid()}}"
os.makedirs(f"{{root}}/static-pods1")
listening = socket.socket(socket.AF_UNIX)
listening.bind(f"/tmp/kubelet_remote_{{os.getpid()}}.sock")
listening.listen()
print("PATH", os.environ["PATH"], *sys.argv[1:])
print(f"Using {{root}} as root dir for hollow-kubelet", flush=True)
time.sleep(600)
"""
NODE = NodeSpec("n1", labels={"gpu": "on", "zone": "a"}, taints=("gpu=yes:NoSchedule", "x:NoExecute"), pods=50)


@pytest.fixture
def kubelets(tmp_path: Path) -> HollowKubelets:
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).touch()
    program = tmp_path / "kubemark"
    program.write_text(KUBEMARK)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    offers = {"n1": {"nvidia.com/gpu": "2"}}
    return HollowKubelets(Assets(tmp_path), tmp_path, lambda node: Path(f"/config/{node}"), offers=offers)


def test_a_kubelet_gets_all_of_its_node_and_leaves_nothing(kubelets: HollowKubelets, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        kubelets.static_pods("n1")
    kubelets.register(NODE)
    try:
        log = tmp_path / "kubelet-n1.log"
        wait_for(lambda: log.exists() and "root dir" in log.read_text(), "it says nothing")
        line = log.read_text().splitlines()[0]
        assert line == (
            "PATH /nonexistent --morph=kubelet --kubeconfig=/config/n1 --name=n1 --kubelet-port=0 "
            "--kubelet-read-only-port=0 --use-host-image-service=false --v=2 --node-labels=gpu=on --node-labels=zone=a "
            "--register-with-taints=gpu=yes:NoSchedule --register-with-taints=x:NoExecute "
            "--extended-resources=nvidia.com/gpu=2 --max-pods=50"
        )
        number = kubelets.programs["n1"].pid
        assert kubelets.static_pods("n1") == Path(f"/tmp/hollow-kubelet.{number}/static-pods1")
        left = [Path(f"/tmp/hollow-kubelet.{number}"), Path(f"/tmp/kubelet_remote_{number}.sock")]
        assert all(path.exists() for path in left)
    finally:
        kubelets.stop()
    assert not any(path.exists() for path in left)
    assert not kubelets.programs["n1"].alive()
