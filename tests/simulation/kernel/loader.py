"""
Imports our packages with simulated modules instead of Python's clocks, threads and random numbers.

`install` puts a finder in front of Python's own. It loads modules of `PACKAGES` as usual, but their `import` statements
return the modules of `modules.SIMULATED`. So defaults such as `clock=time.monotonic`, which Python binds at import, are
simulated too. Libraries keep the real modules.

A mutant is a change of one module's text: it is applied as the module is loaded, and nothing on disk changes.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from tests.simulation.kernel.modules import SIMULATED

PACKAGES = ("contract", "runtime", "webhook", "allocator", "nodeagent", "playground")


class NotThere(Exception):
    """The text that a mutant replaces is missing in its module, or occurs more than once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replace `before`, which occurs exactly once in the module, with `after`."""

    module: str
    before: str
    after: str

    def applied(self, text: str) -> str:
        """The module's text with the change. Raises `NotThere`."""
        found = text.count(self.before)
        if found != 1:
            raise NotThere(f"{self.module}: the text to replace is there {found} times: {self.before!r}")
        return text.replace(self.before, self.after)


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> types.ModuleType:
    if level or (name not in SIMULATED and name not in _PARENTS):
        return __import__(name, globals, locals, fromlist or (), level)
    if name in SIMULATED and (fromlist or "." not in name):
        return SIMULATED[name]
    return _PARENTS[name.partition(".")[0]]


def _parent(name: str) -> types.ModuleType:
    """A package of Python's own of which some modules are simulated. It has no other members."""
    found = types.ModuleType(name)
    found.__dict__.update(
        {each.partition(".")[2]: SIMULATED[each] for each in SIMULATED if each.startswith(f"{name}.")}
    )
    return found


_PARENTS = {name: _parent(name) for name in {each.partition(".")[0] for each in SIMULATED if "." in each}}


_BUILTINS = {**vars(builtins), "__import__": _import}


class _Loader(SourceFileLoader):
    """Loads one of our modules. `mutations` are those of this module."""

    mutations: tuple[Mutation, ...] = ()

    def get_code(self, fullname: str) -> Any:
        if not self.mutations:
            return super().get_code(fullname)
        text = self.get_source(fullname) or ""
        for each in self.mutations:
            text = each.applied(text)
        return compile(text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        code = self.get_code(module.__name__)
        module.__dict__["__builtins__"] = _BUILTINS
        exec(code, module.__dict__)


class _Finder:
    """Finds the modules of `PACKAGES`."""

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self._mutations = tuple(mutations)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        loader = _Loader(spec.loader.name, spec.loader.path)
        loader.mutations = tuple(each for each in self._mutations if each.module == name)
        spec.loader = loader
        return spec


def install(mutations: Sequence[Mutation] = ()) -> None:
    """
    Load our packages in this way from now on. Local time is UTC in this process, whatever the machine's zone is.

    Raises RuntimeError if one is already loaded.
    """
    loaded = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
    if loaded:
        raise RuntimeError(f"{loaded[0]} is loaded already, with the real modules")
    os.environ["TZ"] = "UTC"
    time.tzset()
    sys.meta_path.insert(0, _Finder(mutations))
