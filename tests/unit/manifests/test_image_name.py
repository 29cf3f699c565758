"""The image's name is in one place: `images` of the administrator's own kustomization reaches every container."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.unit.manifests.kube import JSON, MANIFESTS, ROOT, below, built, documents, with_components

NAME, TAG = "registry.example.com/team/gpufraction", "9.9.9"
IMAGES = [{"name": "gpufraction", "newName": NAME, "newTag": TAG}]
WITH_CONTAINERS = ["node-access", "holders", "mps", "preload", "node-provisioning", "node-placeholders", "ui"]
"""Components that add containers of our image, and those that they need."""
OTHERS = {"docker.io/projecthami/hami"}
"""Images of other projects, which `images` names separately."""


def images(found: object) -> Iterator[str]:
    """Every image that an object names, at any depth."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "image" and isinstance(value, str):
                yield value
            yield from images(value)
    elif isinstance(found, list):
        for each in found:
            yield from images(each)


def ours(objects: list[JSON]) -> set[str]:
    return {image for each in objects for image in images(each) if image.partition(":")[0] not in OTHERS}


@pytest.mark.parametrize("overlay", below("overlays"))
def test_every_overlay_has_the_one_name_that_the_entry_replaces(overlay: str) -> None:
    assert {image.partition(":")[0] for image in ours(built(f"overlays/{overlay}"))} == {"gpufraction"}


def test_one_entry_names_the_image_of_every_component() -> None:
    adding = {
        path.parent.name
        for path in (MANIFESTS / "components").glob("*/*.yaml")
        if re.search(r"^ *(- )?image: gpufraction\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert adding <= set(WITH_CONTAINERS)
    assert ours(with_components(*WITH_CONTAINERS, images=IMAGES)) == {f"{NAME}:{TAG}"}


def test_every_image_that_is_not_ours_is_named_by_digest() -> None:
    found = {
        image
        for path in MANIFESTS.rglob("*.yaml")
        for document in documents(path)
        for image in images(document)
        if image.partition(":")[0] != "gpufraction"
    }
    assert {image.partition(":")[0] for image in found} == OTHERS
    assert [image for image in found if not re.fullmatch(r"[\w./-]+:v[\w.]+@sha256:[0-9a-f]{64}", image)] == []


def test_a_mirror_of_anothers_image_keeps_the_digest() -> None:
    mirror = [{"name": "docker.io/projecthami/hami", "newName": "registry.example.com/hami"}]
    items = with_components("node-access", "preload", images=mirror)
    [found] = {image for each in items for image in images(each) if "hami" in image}
    assert re.fullmatch(r"registry\.example\.com/hami:v[\w.]+@sha256:[0-9a-f]{64}", found)


def test_no_manifest_names_a_registry_and_all_have_the_version_of_the_sources() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [version] = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    entries = {
        str(path.parent.relative_to(MANIFESTS)): yaml.safe_load(path.read_text(encoding="utf-8")).get("images")
        for path in sorted(MANIFESTS.rglob("kustomization.yaml"))
    }
    found = {folder: value for folder, value in entries.items() if value}
    assert set(found) == {"base", "components/holders", "components/mps", "components/ui", "shadow"}
    assert list(found.values()) == [[{"name": "gpufraction", "newTag": version}]] * 5
