"""The bundle for clusters without internet access: every image of the manifests by its digest, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from release.bundle.__main__ import PLUGIN, main
from release.bundle.archive import digests
from release.bundle.images import OURS, images
from release.image.check import Unfit
from release.version import PROJECT, version
from tests.unit.manifests.kube import documents, files

JSON = dict[str, Any]
HELD = version(PROJECT)


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def saved(path: Path, *, without: str = "", changed: str = "") -> str:
    """An OCI archive of an image for two architectures, as skopeo and podman write it. Returns its digest."""
    blobs = dict[str, bytes]()

    def put(content: bytes | JSON) -> JSON:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        blobs[digest(raw)] = raw
        return {"digest": digest(raw), "size": len(raw)}

    shared = put(b"\x1f\x8b a layer")
    parts = [
        {"schemaVersion": 2, "config": put({"architecture": machine}), "layers": [shared]}
        for machine in ("amd64", "arm64")
    ]
    top = put({"schemaVersion": 2, "manifests": [put(part) for part in parts]})
    files = {f"blobs/{name.replace(':', '/')}": content for name, content in blobs.items()}
    files |= {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps({"manifests": [top]}).encode()}
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            if without and content == blobs.get(without):
                continue
            written = content + b" " if changed and content == blobs.get(changed) else content
            entry = tarfile.TarInfo(name)
            entry.size = len(written)
            tar.addfile(entry, io.BytesIO(written))
    return str(top["digest"])


LAYER = digest(b"\x1f\x8b a layer")


def test_an_archive_tells_its_digest_and_shows_what_is_missing_or_changed(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.tar")
    assert digests(tmp_path / "a.tar") == {whole}
    for wrong, words in (({"without": LAYER}, "which its index names"), ({"changed": LAYER}, "has the content of")):
        saved(tmp_path / "b.tar", **wrong)
        with pytest.raises(Unfit, match=words):
            digests(tmp_path / "b.tar")
    for content in (b"", b"no archive"):
        (tmp_path / "c.tar").write_bytes(content)
        with pytest.raises(Unfit, match="not an OCI archive"):
            digests(tmp_path / "c.tar")


def test_every_image_of_the_manifests_is_found_and_those_of_others() -> None:
    named = {
        container["image"]
        for path in files()
        for item in documents(path)
        for spec in _pod_specs(item)
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ()))
        if "image" in container
    }
    found = images(PROJECT)
    assert named <= {each.name for each in found}
    assert OURS in named
    assert all(each.digest for each in found if each.included)


def _pod_specs(value: Any) -> list[JSON]:
    if isinstance(value, list):
        return [spec for item in value for spec in _pod_specs(item)]
    if not isinstance(value, dict):
        return []
    here = [value] if isinstance(value.get("containers"), list) else []
    return here + [spec for inner in value.values() for spec in _pod_specs(inner)]


class Project:
    """A copy of a bundle's sources, whose only foreign image is the one of `saved`."""

    def __init__(self, folder: Path, tag: bool = False) -> None:
        self.folder, self.out = folder / "project", folder / "out"
        for name in ("manifests", "samples"):
            _copy(PROJECT / name, self.folder / name)
        for name in ("LICENSE", "Containerfile", "pyproject.toml"):
            (self.folder / name).write_bytes((PROJECT / name).read_bytes())
        (self.folder / "build").mkdir()
        (self.folder / PLUGIN).write_text("#!/usr/bin/env python3\n")
        self.ours, self.other = folder / "ours.tar", folder / "other.tar"
        saved(self.ours)
        self.digest = saved(self.other)
        agent = self.folder / "manifests/components/preload/agent.yaml"
        self.image = f"docker.io/projecthami/hami:v1{'' if tag else '@' + self.digest}"
        lines = agent.read_text().splitlines()
        text = "\n".join(f"          image: {self.image}" if "projecthami" in each else each for each in lines)
        agent.write_text(text + "\n")

    def run(self, *words: str) -> int:
        return main(["--image", str(self.ours), "--into", str(self.out), *words], self.folder, fetch=_refused)


def _refused(image: str, file: Path) -> None:
    raise Unfit(f"no archive of {image}")


def _copy(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_bundle_has_images_chart_plugin_and_manifests_and_the_sums_of_all(project: Project) -> None:
    assert project.run("--archive", f"{project.image}={project.other}") == 0
    [made] = project.out.iterdir()
    assert made.name == f"gpufraction-{HELD}-bundle.tar"
    with tarfile.open(made) as tar:
        content = {each.name.partition("/")[2]: _read(tar, each) for each in tar}
    lines = (line.split("  ", 1) for line in content.pop("SHA256SUMS").decode().splitlines())
    sums = {name: digest for digest, name in lines}
    assert sums == {name: hashlib.sha256(found).hexdigest() for name, found in content.items()}
    wanted = {"images/gpufraction.tar", "images/hami-v1.tar", "images.txt", f"gpufraction-{HELD}.tgz", PLUGIN.name}
    assert wanted | {"LICENSE", "manifests/base/kustomization.yaml", "samples/check.yaml"} <= content.keys()
    assert content["images/hami-v1.tar"] == project.other.read_bytes()
    assert project.image in content["images.txt"].decode().partition("# Not in this bundle")[0]


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    found = tar.extractfile(entry)
    assert found is not None
    return found.read()


def test_an_image_that_is_left_out_is_not_looked_for(project: Project) -> None:
    assert project.run("--leave-out", project.image) == 0
    with tarfile.open(next(project.out.iterdir())) as tar:
        assert [each for each in tar.getnames() if "/images/" in each] == [f"gpufraction-{HELD}/images/gpufraction.tar"]


def test_what_is_missing_or_wrong_makes_no_bundle(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert project.run(*words) == 1
        assert not project.out.exists()
        return capsys.readouterr().err

    assert said() == f"no archive of {project.image}\n"
    assert f"and {project.image} was wanted" not in said("--archive", f"{project.image}={project.folder / 'none'}")
    saved(project.other, changed=LAYER)
    assert "has the content of" in said("--archive", f"{project.image}={project.other}")
    assert said("--leave-out", "docker.io/x:1").startswith("docker.io/x:1: no file of the manifests names it")
    (project.folder / PLUGIN).unlink()
    assert said("--leave-out", project.image) == f"{PLUGIN} does not exist; `make plugin` builds it\n"


def test_an_archive_of_another_image_is_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(project.ours, "w") as tar:
        raw = b"{}"
        index = json.dumps({"manifests": [{"digest": digest(raw)}]}).encode()
        for name, content in (("index.json", index), (f"blobs/{digest(raw).replace(':', '/')}", raw)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    assert project.run("--archive", f"{project.image}={project.ours}") == 1
    assert capsys.readouterr().err.endswith(f"{project.image} was wanted\n")


def test_an_image_by_its_tag_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Project(tmp_path, tag=True)
    assert project.run("--archive", f"{project.image}={project.other}") == 1
    assert "is named by a tag; name it by its digest (make pin-images)" in capsys.readouterr().err
