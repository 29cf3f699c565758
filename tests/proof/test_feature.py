"""One entry in a table adds a feature to the allocator: the program runs with it, and nothing else was changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocator.app import settings_type
from allocator.features import FEATURES
from allocator.features.base import Feature
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.settings import SettingsError, describe, load
from tests.builders import pod
from tests.cluster.system import invariants
from tests.proof.greeting import FEATURE

WITH_IT = (*FEATURES, FEATURE)


def test_its_settings_are_a_group_of_the_allocators() -> None:
    given = load(settings_type(WITH_IT), file=None, env={}, argv=["--greeting-every=2s"])
    assert FEATURE.chosen(given).every == 2.0
    assert "`greeting.every`" in describe(settings_type(WITH_IT))
    with pytest.raises(SettingsError, match=r"flag --greeting-every: unknown"):
        load(settings_type(), file=None, env={}, argv=["--greeting-every=2s"])


@pytest.mark.parametrize(
    ("feature", "name"),
    [(replace(FEATURE, name="queue"), "queue"), (replace(FEATURE, name="other"), "greeting.every")],
    ids=["a group of the core", "a setting of another feature"],
)
def test_a_feature_with_a_name_that_is_taken_is_refused(feature: Feature[Any, Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"two settings have one name: .*{name}"):
        settings_type((FEATURE, feature))


@pytest.mark.timeout(120)
def test_the_program_runs_with_it(tmp_path: Path) -> None:
    settings = {"allocator": ("--greeting-every=200ms",)}
    with Cluster(directory=tmp_path, settings=settings, modules={"allocator": "tests.proof.allocator"}) as cluster:
        path = paths.pods("default", "p")
        cluster.kube.create(paths.pods("default"), pod("p").asks("gpufraction.io/gpu-count", 4).manifest())
        wait_for(lambda: "greeted with hello" in str(cluster.kube.get(path)["status"]), "the pod is not greeted")
        condition = next(c for c in cluster.kube.get(path)["status"]["conditions"] if "Allocated" in c["type"])
        assert condition["reason"] == "Greeted"
        wait_for(lambda: invariants.figures(cluster).get("gpufraction_greetings_total", 0) > 1, "nothing is counted")
        assert cluster.programs["allocator"].alive()
