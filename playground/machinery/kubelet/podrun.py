"""
One pod on its node: the environment with which its containers started, whether they run, and how they end.

A container "runs" as soon as its environment resolves and the NVIDIA runtime finds its devices. No program runs unless
`Programs` starts one. Without a program, a container ends by itself only if the pod's annotation says after how long.
Pure apart from its arguments. The kubelet owns it and writes its status.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contract.scheduling import needs
from playground.api.kinds.values import JSON
from playground.machinery.kubelet import environment, gpuruntime
from playground.machinery.kubelet.environment import Missing, Surroundings
from playground.machinery.kubelet.gpuruntime import DeviceError, NodeGpus
from playground.machinery.kubelet.podstatus import RESTARTING, Ended, Placed, Running, State, Waiting, status_of

RUN_SECONDS = "gpufraction-playground/run-seconds"
"""Pod annotation: every app container ends after this many seconds. Absent or unreadable: they run forever."""
START_SECONDS = "gpufraction-playground/start-seconds"
"""Pod annotation: its containers start this many seconds after the kubelet admitted it, as if images were pulled."""
EXIT_CODE = "gpufraction-playground/exit-code"
"""Pod annotation: the exit code with which containers end, also if they are stopped. 0 if absent."""
INITIALIZING = Waiting("PodInitializing")


class Process(Protocol):
    """A container's program that really runs."""

    def output(self) -> str:
        """Its output so far. Call it from any thread."""

    def kill(self) -> None:
        """Kill it. It may have ended already."""


class Programs(Protocol):
    """Runs containers' programs, for tests of their environment. `started` must not block."""

    def started(
        self,
        pod: JSON,
        container: JSON,
        variables: Mapping[str, str],
        gpus: NodeGpus,
        ended: Callable[[int], None],
    ) -> Process | None:
        """Start the container's program; None if none runs. `ended`: call it with the exit code."""


class NoPrograms:
    """Runs nothing."""

    def started(
        self,
        pod: JSON,
        container: JSON,
        variables: Mapping[str, str],
        gpus: NodeGpus,
        ended: Callable[[int], None],
    ) -> None:
        """None."""


@dataclass(slots=True)
class PodRun:
    """The state of one admitted pod."""

    pod: JSON
    node: str
    placed: Placed
    states: dict[str, State] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    programs: Programs = field(default_factory=NoPrograms)
    ended: Callable[[str, int], None] = lambda container, code: None
    """Called from any thread with a container whose program has ended, and its exit code."""
    processes: dict[str, Process] = field(default_factory=dict)

    def output(self, container: str) -> str:
        """The container's output since its last start. Call it from any thread."""
        process = self.processes.get(container)
        return process.output() if process is not None else self.logs.get(container, "")

    def start(self, around: Surroundings, gpus: NodeGpus, now: str) -> None:
        """Start, in order, every container that neither runs nor ended. A failing init container blocks the rest."""
        blocked = False
        for container, ends in needs.containers(self.pod["spec"]):
            name, state = container["name"], self.states.get(container["name"])
            if blocked:
                self.states[name] = INITIALIZING
            elif state is None or isinstance(state, Waiting):
                self.states[name] = self._started(container, around, gpus, now, ends)
                blocked = ends and isinstance(self.states[name], Waiting)

    def _started(self, container: JSON, around: Surroundings, gpus: NodeGpus, now: str, ends: bool) -> State:
        variables = environment.resolve(self.pod, container, around)
        if isinstance(variables, Missing):
            return Waiting(variables.reason, variables.message)
        devices = gpuruntime.visible(variables, container.get("image", ""), gpus)
        if isinstance(devices, DeviceError):
            return Waiting(devices.reason, devices.message)
        devices = gpuruntime.with_described(devices, around.devices.get(container["name"], ()), gpus)
        if isinstance(devices, DeviceError):
            return Waiting(devices.reason, devices.message)
        name = container["name"]
        self.logs[name] = gpuruntime.printed(variables, devices)
        process = self.programs.started(self.pod, container, variables, devices, lambda code: self.ended(name, code))
        if process is not None:
            self.processes[name] = process
            return Running(now)
        return Ended(0, now, now) if ends else Running(now)

    def complete(self, now: str, only: str = "", code: int | None = None) -> None:
        """
        End the running app containers, or `only` this one. Containers that the restart policy restarts wait for it.
        `code`: the exit code, instead of the annotation's.
        """
        code = exit_code(self.pod) if code is None else code
        policy = self.pod["spec"].get("restartPolicy", "Always")
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        apps = [container["name"] for container in self.pod["spec"]["containers"]]
        for name in apps if not only else [only]:
            state = self.states.get(name)
            if not isinstance(state, Running):
                continue
            if again:
                self.restarts[name] = self.restarts.get(name, 0) + 1
                self.states[name] = Waiting(RESTARTING, f"back-off restarting failed container {name}")
            else:
                self.states[name] = Ended(code, state.since, now)
        if all(isinstance(self.states.get(name), Ended) for name in apps):
            self._end_sidecars(now)

    def _end_sidecars(self, now: str) -> None:
        for name, state in self.states.items():
            if isinstance(state, Running):
                self.states[name] = Ended(0, state.since, now)

    def kill(self, now: str) -> None:
        """End everything that runs."""
        for process in self.processes.values():
            process.kill()
        for container in self.pod["spec"]["containers"]:
            name, state = container["name"], self.states.get(container["name"])
            if isinstance(state, Running):
                self.states[name] = Ended(exit_code(self.pod), state.since, now)
        self._end_sidecars(now)

    @property
    def runs(self) -> bool:
        """Whether any container does."""
        return any(isinstance(state, Running) for state in self.states.values())

    @property
    def troubles(self) -> dict[str, Waiting]:
        """The containers that could not start."""
        return {name: state for name, state in self.states.items() if isinstance(state, Waiting)}

    def status(self, now: str) -> JSON:
        return status_of(self.pod, self.states, self.placed, now, restarts=self.restarts)


def run_seconds(pod: Mapping[str, JSON]) -> float | None:
    """How long the pod's containers run; None: forever."""
    return _seconds(pod, RUN_SECONDS)


def start_seconds(pod: Mapping[str, JSON]) -> float | None:
    """Seconds until its containers start; None: as long as for any pod on that node."""
    return _seconds(pod, START_SECONDS)


def _seconds(pod: Mapping[str, JSON], annotation: str) -> float | None:
    try:
        return max(float((pod["metadata"].get("annotations") or {})[annotation]), 0.0)
    except (KeyError, ValueError):
        return None


def exit_code(pod: Mapping[str, JSON]) -> int:
    try:
        return int((pod["metadata"].get("annotations") or {}).get(EXIT_CODE, 0)) & 0xFF
    except ValueError:
        return 0
