"""
A run: the checks one after another, each with its own pods, until all are done or the run is stopped.

    for each check:  report at once what cannot be tried ──▶ pods ──▶ figures ──▶ a result of `verdicts`

Tenants are not disturbed: a program that exceeds a share or loads a card runs only on a card without shares, and
programs are restarted only if a flag of the command requests it. Must not: judge a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from contract import kinds, names, pods
from contract.encoding import moments
from contract.isolation import LIMITING
from kubectl_gpufraction.conformance import checks, verdicts
from kubectl_gpufraction.conformance.checks import BY_PLUGIN, CHECKS, LIMITING_CORES, SERVED, UNSERVED, WAYS
from kubectl_gpufraction.conformance.codes import ReportReason
from kubectl_gpufraction.conformance.node import ChosenNode, idle_gpu
from kubectl_gpufraction.conformance.pods import (
    LOOK_AGAIN,
    LOOK_AND_FAIL,
    LOOK_ONCE,
    Look,
    ProbeAnswer,
    Share,
    answer_of,
    given_of,
    look_of,
    manifest,
    phase,
    program,
    status_of,
    way_of,
)
from kubectl_gpufraction.conformance.report import Result, because
from kubectl_gpufraction.conformance.verdicts import QUARTER
from kubectl_gpufraction.conformance.workspace import NotThere, RunPause, Stopped, Workspace
from runtime.kubernetes import paths
from runtime.kubernetes.client import JSON, Kube, KubeError, KubeForbidden, KubeNotFound

_LONGEST_POD = 600
"""Seconds after which any pod of the kit ends."""
_SHARE, _SMALL = 2048, 1024
"""MiB of the shares of CUDA programs, which need some hundred for a context, and on cards with little memory."""
_CHUNK = 64
"""MiB of one allocation, and of what a program tries beyond its share."""
_RUN = 60.0
"""Seconds that a program has, once it runs, beyond those that it measures for."""
_SETTLE = 3.0
"""Seconds that a neighbour has to load the card."""
_AGENT = "app.kubernetes.io/component=nodeagent"
_KUBELET_STARTS = "Starting"
"""The reason of the Event with which a kubelet reports its start."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """
    `image`, `cuda_image`: of the probes, and of the pods without a share. `interpreter`: the words that run Python
    there. `runtime_class`: of pods that get a GPU; empty: the webhook's or the node's. `start`: seconds that a pod has
    to start, `measure`: that each measurement takes, `hand`: that an administrator's hand has. `restart_agent`,
    `restart_kubelet`: whether these are to be restarted.
    """

    image: str
    cuda_image: str
    interpreter: tuple[str, ...] = ("python3",)
    runtime_class: str = ""
    start: float = 180.0
    measure: int = 10
    hand: float = 300.0
    restart_agent: bool = False
    restart_kubelet: bool = False
    only: tuple[str, ...] = ()
    """The checks to run; all of them where it is empty."""


@dataclass(slots=True)
class Run:
    """One run on a node. `say` reports the progress to a person. `clock`: seconds since 1970."""

    kube: Kube
    node: ChosenNode
    options: RunOptions
    pause: RunPause
    space: Workspace
    say: Callable[[str], None]
    clock: Callable[[], float]
    module: bool = False
    """Whether a pod has seen NVIDIA's kernel module."""
    digest: str = ""
    """Of the probe's image, as the node reports it."""
    results: list[Result] = field(default_factory=list)

    def all(self) -> tuple[Result, ...]:
        """Every result; after a stop, the other checks are `not tried`. Call it once."""
        try:
            for check, results in self._checks().items():
                if self.options.only and check not in self.options.only:
                    variants = CHECKS[check].variants
                    self.results += [because(ReportReason.NOT_ASKED, check, variant) for variant in variants]
                    continue
                self.say(f"{check}: {CHECKS[check].question}?")
                self.results += self._answered(check, results)
        except Stopped as stopped:
            return self.rest(stopped.reason)
        return self.rest(ReportReason.INTERRUPTED)

    def _answered(self, check: str, results: Callable[[], list[Result]]) -> list[Result]:
        """The results of a check; if the API server fails, all of its variants are `not tried`."""
        try:
            return results()
        except KubeError as error:
            self.say(f"{check}: {error}")
            return [because(ReportReason.NO_ANSWER, check, variant) for variant in CHECKS[check].variants]

    def rest(self, reason: ReportReason) -> tuple[Result, ...]:
        """The results, with this one for every check that has none."""
        done = {(each.check, each.variant) for each in self.results}
        wanted = [(name, variant) for name, check in CHECKS.items() for variant in check.variants]
        self.results += [because(reason, *each) for each in wanted if each not in done]
        order = {each: number for number, each in enumerate(wanted)}
        return tuple(sorted(self.results, key=lambda each: order[each.check, each.variant]))

    def _checks(self) -> dict[str, Callable[[], list[Result]]]:
        return {
            checks.DELIVERY: lambda: list(self._delivery()),
            checks.HIDDEN: lambda: [self._hidden(kind) for kind in (SERVED, UNSERVED)],
            checks.MEMORY: lambda: [self._memory(level) for level in LIMITING],
            checks.CORES: lambda: [self._cores(level) for level in LIMITING],
            checks.NEIGHBOUR: lambda: [self._guarded(checks.NEIGHBOUR, "", self._neighbour)],
            checks.SLICES: lambda: [self._guarded(checks.SLICES, "", self._slice)],
            checks.CONTAINER: lambda: [self._guarded(checks.CONTAINER, "", self._container)],
            checks.AGENT: lambda: [self._guarded(checks.AGENT, "", self._agent)],
            checks.KUBELET: lambda: [self._guarded(checks.KUBELET, "", self._kubelet)],
        }

    def _guarded(self, check: str, variant: str, run: Callable[[], Result]) -> Result:
        """The result of a check; if the node's agent is away, or its pods do not start, the reason."""
        if self.node.away:
            return because(ReportReason.AGENT_AWAY, check, variant)
        try:
            return run()
        except NotThere as missing:
            return because(missing.reason, check, variant)

    # -- delivery -----------------------------------------------------------------------------------------------------

    def _delivery(self) -> Iterator[Result]:
        modes = self.node.environment.modes
        there = [way for way in WAYS if way in modes and way != "none"]
        found: dict[str, Result] = {}
        if self.node.away:
            found = {way: because(ReportReason.AGENT_AWAY, checks.DELIVERY, way) for way in WAYS}
        elif there:
            used, result = self._delivered(there[0])
            found[used] = result
        for way in WAYS:
            if way != "none":
                yield found.get(way) or because(ReportReason.OTHER_WAY, checks.DELIVERY, way)
        yield self._guarded(checks.DELIVERY, BY_PLUGIN, self._plugin)

    def _delivered(self, expected: str) -> tuple[str, Result]:
        """The GPUs that a pod with a share sees, and the way in which its GPU came."""
        try:
            pod, look = self._look("delivery", Share())
        except NotThere as missing:
            return expected, because(missing.reason, checks.DELIVERY, expected)
        way = way_of(pod) or expected
        if look is None:
            return way, because(ReportReason.UNREADABLE, checks.DELIVERY, way)
        return way, verdicts.sees(look, given_of(pod), checks.DELIVERY, way, self._parents())

    def _plugin(self) -> Result:
        if not self.node.by_plugin:
            return because(ReportReason.OTHER_WAY, checks.DELIVERY, BY_PLUGIN)
        _, look = self._look("plugin", None, kind=UNSERVED, plugin=True)
        if look is None:
            return because(ReportReason.UNREADABLE, checks.DELIVERY, BY_PLUGIN)
        return verdicts.counts(look, 1, checks.DELIVERY, BY_PLUGIN)

    def _parents(self) -> tuple[str, ...]:
        gpus = self.node.inventory.gpus if self.node.inventory is not None else ()
        return tuple({gpu.parent for gpu in gpus if gpu.parent})

    def _hidden(self, kind: str) -> Result:
        """A pod without a share needs no agent."""
        try:
            _, look = self._look(kind, None, kind=kind, image=self.options.cuda_image)
        except NotThere as missing:
            return because(missing.reason, checks.HIDDEN, kind)
        return (
            verdicts.hidden(look, kind) if look is not None else because(ReportReason.UNREADABLE, checks.HIDDEN, kind)
        )

    def _look(
        self, name: str, share: Share | None, *, kind: str = SERVED, plugin: bool = False, image: str = ""
    ) -> tuple[JSON, Look | None]:
        """A pod that looks once, and its result. Raises `NotThere`."""
        command = ("sh", "-c", LOOK_ONCE)
        pod = self.space.create(kind, self._pod(name, command, share, plugin=plugin, image=image))
        try:
            pod = self.space.awaited(pod, self.options.start, lambda now: phase(now) in ("Succeeded", "Failed"))
            look = look_of(self.space.log(pod))
            self._learn(pod, look, own=not image)
            return pod, look
        finally:
            self.space.delete(pod)

    def _learn(self, pod: JSON, look: Look | None, *, own: bool) -> None:
        self.module = self.module or (look is not None and look.module)
        _, _, digest = str(status_of(pod).get("imageID", "")).rpartition("sha256:")
        if own and len(digest) == 64 and all(each in "0123456789abcdef" for each in digest):
            self.digest = f"sha256:{digest}"

    def _pod(
        self,
        name: str,
        command: tuple[str, ...],
        share: Share | None,
        *,
        plugin: bool = False,
        image: str = "",
        restart: str = "Never",
    ) -> JSON:
        return manifest(
            name,
            self.node.name,
            command,
            image=image or self.options.image,
            seconds=_LONGEST_POD,
            share=share,
            plugin=plugin,
            restart=restart,
            runtime_class=self.options.runtime_class if share is not None or plugin else "",
        )

    # -- limiters -----------------------------------------------------------------------------------------------------

    def _memory(self, level: str) -> Result:
        def tried() -> Result:
            share = self._idle_share(level)
            return verdicts.memory(
                self._answer("memory", share, program("memory", share.mib + _CHUNK, _CHUNK)), level, share.mib
            )

        if not self.node.away and level not in self.node.levels:
            return because(ReportReason.NOT_PUBLISHED, checks.MEMORY, level)
        return self._guarded(checks.MEMORY, level, tried)

    def _cores(self, level: str) -> Result:
        def tried() -> Result:
            command = program("rate", self.options.measure)
            full = self._answer("all-cores", self._idle_share(level, cores=100), command)
            quarter = self._answer("quarter", self._idle_share(level, cores=QUARTER), command)
            return verdicts.cores(full, quarter, level)

        if level not in LIMITING_CORES:
            return because(ReportReason.NO_CORES, checks.CORES, level)
        if not self.node.away and level not in self.node.levels:
            return because(ReportReason.NOT_PUBLISHED, checks.CORES, level)
        return self._guarded(checks.CORES, level, tried)

    def _idle_share(self, level: str = "", cores: int = 0, *, slices: bool = False) -> Share:
        """A share of a GPU without other shares. Raises `NotThere`."""
        query = {"fieldSelector": paths.fields({"spec.nodeName": self.node.name})}
        listed = self.kube.list(paths.pods(), query, of=kinds.RESIDENTS).items
        inventory = self.node.inventory
        uuid, mib, _ = idle_gpu(inventory, listed, slices=slices) if inventory is not None else ("", 0, "")
        if not uuid:
            raise NotThere(ReportReason.NO_IDLE_GPU)
        return Share(_SHARE if mib >= 2 * _SHARE else _SMALL, cores, uuid, level)

    def _answer(self, name: str, share: Share, arguments: tuple[str, ...]) -> ProbeAnswer:
        """The result of a CUDA program. Raises `NotThere`."""
        pod = self.space.create(SERVED, self._pod(name, (*self.options.interpreter, *arguments), share))
        try:
            seconds = self.options.start + self.options.measure + _RUN
            pod = self.space.awaited(pod, seconds, lambda now: phase(now) == "Succeeded" or self._ended(now))
            answer = answer_of(self.space.log(pod))
        finally:
            self.space.delete(pod)
        if answer is None:
            raise NotThere(ReportReason.UNREADABLE)
        return answer

    def _ended(self, pod: JSON) -> bool:
        """Whether the program ended with an answer; its exit code then shows which."""
        return phase(pod) == "Failed" and answer_of(self.space.log(pod)) is not None

    # -- neighbours and slices ----------------------------------------------------------------------------------------

    def _neighbour(self) -> Result:
        share = self._idle_share()
        measure = program("latency", self.options.measure)
        alone = self._answer("alone", share, measure)
        load = program("load", min(120, 4 * self.options.measure + 60))
        greedy = self.space.create(SERVED, self._pod("greedy", (*self.options.interpreter, *load), share))
        try:
            self.space.awaited(greedy, self.options.start, lambda now: phase(now) == "Running")
            self.pause(_SETTLE)
            beside = self._answer("beside", share, measure)
        finally:
            self.space.delete(greedy)
        return verdicts.neighbour(alone, beside)

    def _slice(self) -> Result:
        if not self.node.environment.slices:
            return because(ReportReason.NO_SLICES, checks.SLICES)
        share = self._idle_share(slices=True)
        pod, look = self._look("slice", Share(_SMALL, uuid=share.uuid))
        if look is None:
            return because(ReportReason.UNREADABLE, checks.SLICES)
        return verdicts.sees(look, given_of(pod), checks.SLICES, parents=self._parents())

    # -- restarts -----------------------------------------------------------------------------------------------------

    def _container(self) -> Result:
        command = ("sh", "-c", LOOK_AND_FAIL)
        pod = self.space.create(SERVED, self._pod("again", command, Share(), restart="OnFailure"))
        try:
            pod = self.space.awaited(pod, self.options.start, lambda now: look_of(self.space.log(now)) is not None)
            before, began = look_of(self.space.log(pod)), self.pause.monotonic()
            assert before is not None

            def restarted(now: JSON) -> bool:
                state = status_of(now)
                return bool(state.get("restartCount")) and "running" in (state.get("state") or {})

            pod = self.space.awaited(pod, self.options.start, restarted)
            after = self.pause.until(_RUN, lambda: look_of(self.space.log(pod)))
            return verdicts.kept(before, after, checks.CONTAINER, round(self.pause.monotonic() - began))
        finally:
            self.space.delete(pod)

    def _agent(self) -> Result:
        if not self.options.restart_agent:
            return because(ReportReason.NOT_ASKED, checks.AGENT)
        return self._across(checks.AGENT, self._restart_agent)

    def _restart_agent(self) -> ReportReason | None:
        """Delete the agent's pod on the node, and wait until another one is Ready and has published."""
        try:
            before = self._agents()
            for pod in before:
                self.kube.delete(paths.pods(names.NAMESPACE, str(pod["metadata"]["name"])))
        except KubeForbidden:
            return ReportReason.NO_RIGHT
        if not before:
            return ReportReason.AGENT_AWAY
        deleted, old = self.clock(), {pods.uid(pod) for pod in before}
        self.say("the agent's pod is deleted; waiting for the next one")

        def back() -> bool | None:
            fresh = [pod for pod in self._agents() if pods.uid(pod) not in old and _is_ready(pod)]
            written = moments.seconds(self._published().get("observedAt"))
            return True if fresh and written is not None and written >= int(deleted) else None

        return None if self.pause.until(self.options.hand, back) else ReportReason.NOT_BACK

    def _published(self) -> JSON:
        """The status of the node's GPUNode; empty while there is none."""
        try:
            return self.kube.get(paths.gpunodes(self.node.name)).get("status") or {}
        except KubeNotFound:
            return {}

    def _agents(self) -> list[JSON]:
        fields = paths.fields({"spec.nodeName": self.node.name})
        query = {"labelSelector": _AGENT, "fieldSelector": fields}
        return self.kube.list(paths.pods(names.NAMESPACE), query, of=kinds.SHOWN).items

    def _kubelet(self) -> Result:
        if not self.options.restart_kubelet:
            return because(ReportReason.NOT_ASKED, checks.KUBELET)
        return self._across(checks.KUBELET, self._await_kubelet)

    def _await_kubelet(self) -> ReportReason | None:
        """Ask a person to restart the kubelet, and wait until it reports its start."""
        asked = int(self.clock())
        hand = round(self.options.hand)
        self.say(f"restart the kubelet on the node now, within {hand} s: systemctl restart kubelet")

        def restarted() -> bool | None:
            about = {"involvedObject.kind": "Node", "involvedObject.name": self.node.name, "reason": _KUBELET_STARTS}
            query = {"fieldSelector": paths.fields(about)}
            found = self.kube.list(paths.events("default"), query, of=kinds.EVENTS).items
            times = (moments.seconds(each.get("lastTimestamp")) for each in found)
            return True if any(time is not None and time >= asked for time in times) else None

        return None if self.pause.until(self.options.hand, restarted) else ReportReason.NOT_DONE

    def _across(self, check: str, restart: Callable[[], ReportReason | None]) -> Result:
        """A pod that looks repeatedly while a program restarts, and another one that starts afterwards."""
        pod = self.space.create(SERVED, self._pod("across", ("sh", "-c", LOOK_AGAIN), Share()))
        try:
            pod = self.space.awaited(pod, self.options.start, lambda now: look_of(self.space.log(now)) is not None)
            before, began = look_of(self.space.log(pod)), self.pause.monotonic()
            assert before is not None
            reason = restart()
            seconds = round(self.pause.monotonic() - began)
            if reason is not None:
                return because(reason, check)
            self.pause(_SETTLE)
            after = look_of(self._log_of_running(pod)) if self._runs_on(pod) else None
            if after is None and self._runs_on(pod):
                return because(ReportReason.UNREADABLE, check)
            result = verdicts.kept(before, after, check, seconds)
        finally:
            self.space.delete(pod)
        if result.reason:
            return result
        fresh, look = self._look("afterwards", Share())
        if look is None:
            return because(ReportReason.UNREADABLE, check)
        later = verdicts.sees(look, given_of(fresh), check, parents=self._parents())
        return later if later.reason else result

    def _runs_on(self, pod: JSON) -> bool:
        """Whether the pod runs, and was not started again."""
        now = self.space.now(pod)
        return now is not None and phase(now) == "Running" and not status_of(now).get("restartCount")

    def _log_of_running(self, pod: JSON) -> str:
        """Its log. A kubelet that has just started may take its time to give it."""
        return self.pause.until(_RUN, lambda: self.space.log(pod) or None) or ""


def _is_ready(pod: JSON) -> bool:
    found: list[Any] = (pod.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in found)


__all__ = ["KubeError", "Run", "RunOptions"]
