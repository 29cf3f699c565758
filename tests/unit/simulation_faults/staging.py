"""
Scenes: a small cluster, one fault, and what it observed. They run in processes that have the simulation's modules.

    python -m tests.unit.simulation_faults.staging

prints the names of all `SCENES`, then a line for each when it ends: what it has observed, and what its run violated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.kernel import loader

if __name__ == "__main__":
    loader.install()

from playground.api.kinds.values import ADMIN
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.simulation import pool
from tests.simulation.feature import Fault, Feature, Goal, Operation
from tests.simulation.features.table import FEATURES
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.plan import Plan, Step
from tests.simulation.run import Outcome, Run
from tests.simulation.world.programs import Program

JSON = dict[str, Any]
SEEN = "scene"
SHAPE = {"cards": {"n1": "2 x Tesla T4 15109MiB"}, "latency": (0.001, 0.001)}
FAULTS: Mapping[str, Fault] = {fault.name: fault for feature in FEATURES for fault in feature.faults}


class Stage:
    """What a scene works with."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world

    @property
    def leader(self) -> Program:
        """The allocator that leads."""
        leader = self.world.leader()
        assert leader is not None
        return leader

    def begin(self, name: str, /, **arguments: object) -> Callable[[], None]:
        """Begin the fault of that name. Returns a function that ends it."""
        return FAULTS[name].begin(self.run, arguments) or (lambda: None)

    def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run.kernel.block(int(seconds * SECOND))

    def now(self) -> float:
        """Seconds of virtual time."""
        return self.run.kernel.seconds()

    def client(self, program: Program) -> Kube:
        """A client with all rights that shares the program's connections to the API server."""
        assert program.host is not None
        return self.world.kube(program.host, ADMIN)

    def beside(self, task: Callable[[], None]) -> None:
        """Start a task that runs at the same time as the scene."""
        self.run.kernel.spawn(self.world.admin, task, "beside")

    def tried(self, kube: Kube, name: str) -> JSON:
        """Create a ConfigMap. Returns the error, its status, the wait that it asks for, and the seconds taken."""
        began = self.now()
        error: KubeError | None = None
        try:
            kube.create(paths.path("v1", "configmaps", "team-a"), {"metadata": {"name": name}})
        except KubeError as raised:
            error = raised
        return {
            "error": type(error).__name__ if error else "",
            "status": error.status if error else 201,
            "retry_after": error.retry_after if error else None,
            "seconds": self.now() - began,
        }

    def stored(self, name: str, kind: str = "configmaps") -> bool:
        """Whether the API server has it, in `team-a`."""
        return self.world.api.store.get(kind, ("team-a", name)) is not None

    def pod(self, name: str) -> str:
        """Create a pod that requests a share. Returns the error's name, or an empty text."""
        limits = {"gpufraction.io/gpu-memory": "1Gi"}
        container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
        document = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        try:
            self.run.user.create(paths.pods("team-a"), document)
        except KubeError as error:
            return type(error).__name__
        return ""


class Watcher:
    """Reads ConfigMaps from now on through a watch of a program, and records what arrived and when."""

    def __init__(self, stage: Stage, program: Program) -> None:
        self.came: dict[str, float] = {}
        self.bookmarks = 0
        self.error = ""
        self.ended = False
        self._stage = stage
        self.version = str(stage.world.api.store.revision)
        kube = stage.client(program)
        stage.beside(lambda: self._read(kube))

    def _read(self, kube: Kube) -> None:
        path = paths.path("v1", "configmaps", "team-a")
        try:
            for event in kube.watch(path, resource_version=self.version, timeout_seconds=600):
                if event["type"] == "BOOKMARK":
                    self.bookmarks += 1
                elif event["type"] == "ERROR":
                    self.error = str(event["object"]["code"])
                else:
                    self.came[event["object"]["metadata"]["name"]] = self._stage.now()
        except KubeError as error:
            self.error = type(error).__name__
        self.ended = True


Scene = Callable[[Stage], JSON]


def _playing(scenes: Mapping[str, Scene]) -> Callable[[Plan], Outcome]:
    def act(run: Run, arguments: Mapping[str, Any]) -> None:
        run.tell(SEEN, json.dumps(scenes[arguments["scene"]](Stage(run))))

    def playing(run: Run) -> list[str]:
        return [] if any(line.actor == SEEN for line in run.outcome.lines) else ["the scene goes on"]

    operation = Operation("scene", 1, lambda draw: None, act)
    feature = Feature("scenes", operations=(operation,), goals=(Goal("the scene has ended", playing),))
    # The meters are checked by the plan's faults, and a scene's plan has none.
    others = [each for each in FEATURES if each.name != "metering"]
    return lambda plan: Run(plan, (*others, feature)).play()


def main() -> int:
    """Run every scene."""
    from tests.unit.simulation_faults.scenes import SCENES

    print(json.dumps(list(SCENES)), flush=True)
    plans = [Plan(name, (Step(0.1, "scene", {"scene": name}, 0.0),), SHAPE) for name in SCENES]
    for plan, outcome in pool.run_all(plans, _playing(SCENES), jobs=1):
        told = [json.loads(line.action) for line in outcome.lines if line.actor == SEEN]
        seen = {"seen": told[0] if told else {}, "violation": outcome.violation}
        print(json.dumps({plan.seed: seen}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
