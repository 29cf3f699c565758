"""`make demo-tenants` shows every existing scene."""

from __future__ import annotations

import importlib
import pkgutil

from playground import tenants
from playground.tenants.demo import SCENES
from playground.tenants.scenes import Scene


def test_no_scene_is_left_out() -> None:
    modules = [
        importlib.import_module(f"{tenants.__name__}.{each.name}") for each in pkgutil.iter_modules(tenants.__path__)
    ]
    there = {each.title for module in modules for each in vars(module).values() if isinstance(each, Scene)}
    assert there == {scene.title for scene in SCENES}
    assert len(there) == len(SCENES)
