"""None of Python's own clocks, threads, random numbers or sockets reaches a program of the simulation."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.kernel.loader import PACKAGES

TOP = Path(__file__).resolve().parents[3]
LOADED = (
    "allocator.app",
    "webhook.app",
    "nodeagent.app",
    "playground.api.api",
    "playground.machinery.cluster",
    "playground.programs.installing",
)
"""The modules that the simulation starts; they import the rest."""

PLANTED = {
    "a module": "app.planted = time",
    "a module of threads": "app.planted = concurrent.futures.thread",
    "a function": "app.planted = time.monotonic",
    "chance": "app.planted = random.random",
    "a class": "app.planted = threading.Event",
    "the wall clock": "app.planted = datetime.datetime",
    "a name": "app.planted = uuid.uuid4",
    "a lock": "app.planted = threading.Lock()",
    "a queue in a list in a dictionary": "app.planted = {'a': [queue.Queue()]}",
    "a default": "app.planted = made(lambda clock=time.monotonic: None)",
    "a default by name": "app.planted = made(lambda *, clock=time.time: None)",
    "a closure": "app.planted = made((lambda real: lambda: real)(time.sleep))",
    "an attribute of a class": "app.RunningAllocator.planted = staticmethod(time.sleep)",
    "a property": "app.RunningAllocator.planted = property(time.perf_counter)",
    "a base": "app.planted = type('Planted', (threading.Thread,), {'__module__': 'allocator.app'})",
    "an object": "app.planted = object.__new__(app.RunningAllocator); app.planted.__dict__['a'] = time.time",
    "a partial": "app.planted = functools.partial(time.sleep, 1)",
    "a pool": "app.planted = concurrent.futures.ThreadPoolExecutor",
    "a process": "app.planted = subprocess.run",
    "a connection": "app.planted = socket.create_connection",
    "a bound method": "app.planted = random.Random().random",
}
_RUN = """
import json, os, sys
from tests.simulation.kernel import leaks, loader
loader.install()
from tests.simulation.plan import Plan, Step
from tests.simulation.features.table import FEATURES
from tests.simulation.run import Run
limits = {"gpufraction.io/gpu-memory": "1Gi"}
pod = Step(1.0, "pod.create", {"namespace": "team-a", "name": "p", "limits": limits})
run = Run(Plan("1", (pod,)), FEATURES)
outcome = run.play()
world = run.world
alive = {
    "allocator": world.allocators[0].running.allocator,
    "webhook": world.webhooks[0].running.service,
    "nodeagent": next(iter(world.agents.values())).running,
    "api": world.api,
    "machinery": world.machinery,
}
if sys.argv[1:]:
    import threading
    alive["allocator"].controller.planted = threading.Lock()
print(json.dumps([outcome.violation, leaks.found(alive)]), flush=True)
os._exit(0)
"""
_LOOK = """
import concurrent.futures, datetime, functools, importlib, json, queue, random, socket, subprocess, sys, threading, time
import uuid
from tests.simulation.kernel import leaks, loader
loader.install()
for name in {loaded!r}:
    importlib.import_module(name)
def made(function):
    function.__module__ = "allocator.app"
    return function
app = sys.modules["allocator.app"]
known = set(vars(app))
answers = {{"": leaks.found(), "shared": leaks.shared()}}
for name, plant in {planted!r}.items():
    exec(plant)
    answers[name] = leaks.found()
    for each in set(vars(app)) - known:
        delattr(app, each)
    if "planted" in vars(app.RunningAllocator):
        del app.RunningAllocator.planted
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The findings in the programs, and the findings with each planted object."""
    answers: dict[str, list[str]] = told(_LOOK.format(loaded=LOADED, planted=PLANTED))
    return answers


def told(script: str, *arguments: str) -> Any:
    """What the script prints as JSON, in its own process."""
    command, environment = [sys.executable, "-c", script, *arguments], {**os.environ, "PYTHONPATH": str(TOP)}
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_programs_reach_nothing_real(found: dict[str, list[str]]) -> None:
    assert found[""] == []


def test_programs_that_run_hold_nothing_real() -> None:
    """This includes late imports, and the parts of objects."""
    assert told(_RUN) == ["", []]
    _, wrong = told(_RUN, "planted")
    assert len(wrong) == 1
    assert wrong[0].endswith(".planted is a _thread.lock")


def test_hosts_share_no_lock_but_that_of_a_default_that_none_of_them_takes(found: dict[str, list[str]]) -> None:
    """`World.kube` gives each client its own `Oversized`."""
    assert len(found["shared"]) == 1
    assert "oversized" in found["shared"][0]


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what: str, found: dict[str, list[str]]) -> None:
    assert len(found[what]) == 1, found[what]
    assert "planted" in found[what][0]


# -- real modules that are not replaced by simulated ones -------------------------------------------------------------

MACHINE = {
    "os": (
        "urandom",
        "getrandom",
        "getpid",
        "getppid",
        "environ",
        "getenv",
        "uname",
        "times",
        "getloadavg",
        "cpu_count",
    ),
    "time": ("clock_gettime_ns", "clock_getres", "get_clock_info"),
    "sys": ("modules", "setswitchinterval"),
}
"""Members that reveal this machine or process, or that bypass the loader."""
SOCKETS = (
    "asyncio",
    "multiprocessing",
    "socketserver",
    "http.server",
    "http.client",
    "urllib.request",
    "urllib3",
    "grpc",
)
"""Modules that open connections by themselves."""
EXCUSED = {
    "runtime/kubernetes/transport.py": "connections to an API server; the simulation has a transport of its own",
    "runtime/httpserver.py": "serves routes on sockets; the simulation calls the routes",
    "webhook/serving/": "gunicorn's processes and sockets; the simulation calls the application",
    "nodeagent/dra/": "kubelet's sockets; no simulated agent is a DRA driver",
    "nodeagent/mps/": "NVIDIA's daemon; no simulated agent starts one",
    "nodeagent/isolation/preload.py": "the library for containers; only where the machine is not given",
    "nodeagent/isolation/host.py": "looks at the machine; the simulation gives the agent a HostSystem",
    "*/__main__.py": "reads the environment; the simulation calls what `main` calls",
    "playground/api/http/": "serves the API on sockets; the simulation calls `Api.handle`",
    "playground/api/admission/webhookclient.py": "calls webhooks by TLS; the simulation has a caller of its own",
    "playground/waiting.py": "how much longer tests wait on a slow machine; the simulation has a clock of its own",
    "playground/alone.py": "the lock of a playground's folder",
    "playground/programs/": "starts programs as processes; of it the simulation uses `installing` alone",
    "playground/realapi/": "a real API server beside the embedded one",
    "playground/engines/": "other projects' programs",
    "playground/tenants/": "the demonstration of tenants",
}
"""Files and folders, and why a simulation does not run their calls."""


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((TOP / package).rglob("*.py"))


def _reaches(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in MACHINE.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in SOCKETS)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
            if node.module in SOCKETS or any(name in SOCKETS for name in names):
                yield node.module
            yield from (name for name in names if name.rpartition(".")[2] in MACHINE.get(node.module, ()))


def _excuse(path: str) -> str | None:
    """The entry that covers the file."""
    if path.endswith("/__main__.py"):
        return "*/__main__.py"
    return next((each for each in EXCUSED if path == each or (each.endswith("/") and path.startswith(each))), None)


def test_only_named_files_look_at_the_machine() -> None:
    used: set[str] = set()
    wrong: list[str] = []
    for path in _sources():
        name = str(path.relative_to(TOP))
        for reached in _reaches(ast.parse(path.read_text())):
            if (excuse := _excuse(name)) is None:
                wrong.append(f"{name} reaches {reached}")
            else:
                used.add(excuse)
    assert wrong == []
    assert used == set(EXCUSED), "an exception that nobody needs any more"


@pytest.mark.parametrize(
    "text", ["import os\nos.urandom(8)", "from os import getpid", "from urllib import request", "import grpc"]
)
def test_a_look_at_the_machine_is_seen(text: str) -> None:
    assert len(list(_reaches(ast.parse(text)))) == 1
