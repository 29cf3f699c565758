"""A ConfigMap as a folder of files, also in a folder that an earlier playground has used."""

from __future__ import annotations

import functools
from pathlib import Path

from playground.api.api import Api
from playground.api.http.server import HttpsServer
from playground.programs.mounted import Mounted
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube


def says(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def test_what_an_earlier_playground_left_in_the_folder_is_replaced(tmp_path: Path) -> None:
    api = Api()
    mounted = tmp_path / "options"
    with HttpsServer(api) as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        kube = Kube.connect(kubeconfig=str(tmp_path / "kubeconfig"), user_agent="test")
        for text in ("first", "second"):
            data = {"metadata": {"name": "options"}, "data": {"options.yaml": text}}
            if text == "first":
                kube.create(paths.configmaps("default"), data)
            else:
                kube.patch_merge(paths.configmaps("default", "options"), {"data": data["data"]})
            follower = Mounted(kube, "default", "options", mounted)
            follower.start()
            try:
                wait_for(functools.partial(says, mounted / "options.yaml", text), f"no {text}", 10)
            finally:
                follower.stop()
    assert len([path for path in mounted.iterdir() if path.is_dir() and not path.is_symlink()]) == 1
