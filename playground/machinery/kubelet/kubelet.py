"""
A stand-in for the kubelets of all nodes: admits or rejects pods, starts, ends and removes them.

One thread owns all of its state and gets changes through an inbox. It makes a kubelet's API calls in a kubelet's order,
and runs no containers. It never decides where a pod goes: a pod that is bound to a node passes that node's admission,
whichever program bound it.
"""

import base64
import binascii
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from contract.encoding.quantity import BadQuantity
from contract.scheduling import needs
from playground.api.kinds.values import JSON, timestamp
from playground.machinery.client import claims
from playground.machinery.client.claims import NoPlugins, Plugins
from playground.machinery.client.client import CONFIG_MAPS, PODS, RESOURCE_CLAIMS, SECRETS, Client, Refused
from playground.machinery.client.informer import Cache
from playground.machinery.client.queueing import Backoff, Timers
from playground.machinery.client.recording import NORMAL, WARNING, Recorder
from playground.machinery.kubelet import nodeadmission, podstatus
from playground.machinery.kubelet.environment import Surroundings
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.kubelet.nodeadmission import Rejected
from playground.machinery.kubelet.nodekeeper import NodeKeeper, node_user
from playground.machinery.kubelet.podrun import NoPrograms, PodRun, Programs, run_seconds, start_seconds
from playground.machinery.kubelet.podstatus import RESTARTING, Placed, Running
from playground.machinery.objects import resources
from playground.machinery.objects.resources import Account, Holding

log = logging.getLogger(__name__)

_ENDED = ("Succeeded", "Failed")
_Task: TypeAlias = Callable[[], None]
_Timer: TypeAlias = tuple[str, str]  # an action, and its object: a pod's uid or a node's name


@dataclass(frozen=True, slots=True)
class KubeletTiming:
    """How long things take on a node; all in seconds."""

    start: float = 0.0  # from admission to Running, for example to pull the image
    terminate: float = 0.2  # from the delete to the end of the containers, at most the pod's grace period
    retry: float = 5.0  # until a container that could not start is retried
    report: float = 1.0  # until a status that the API server refused is sent again
    restart: float = 1.0  # until a container that ended is restarted; doubled each time
    restart_cap: float = 60.0
    heartbeat: float = 300.0
    node_gone: float = 40.0  # until the pods of a node that was deleted are deleted too


class Kubelet:
    """The caches feed it; `run` is its thread."""

    def __init__(
        self,
        *,
        client: Client,
        recorder: Recorder,
        pods: Cache,
        nodes: Cache,
        gpus_of: Callable[[str], NodeGpus],
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        timing: KubeletTiming | None = None,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._gpus_of = gpus_of
        self._clock = clock
        self._monotonic = monotonic
        self._timing = timing or KubeletTiming()
        self._pods = pods
        self._inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._keeper = NodeKeeper(client=client, clock=clock)
        self._accounts: dict[str, Account] = {}
        self._bound: dict[str, dict[str, JSON]] = {}  # node -> its pods by uid, whether the node is known or not
        self._runs: dict[str, PodRun] = {}
        self._refused: set[str] = set()  # uids: a rejected pod stays rejected, even if older events arrive later
        self._unsaid: dict[str, tuple[JSON, JSON]] = {}  # by uid: the pod, and its status that the API server refused
        self._timers: Timers[_Timer] = Timers()
        self._missed: dict[str, list[_Timer]] = {}  # by node: the actions that were due while its kubelet was down
        self._restarts: Backoff[str] = Backoff(self._timing.restart, self._timing.restart_cap)
        self._addresses = itertools.count()
        self._do: Mapping[str, Callable[[str], None]] = {
            "start": self._start,
            "report": self._report,
            "complete": self._complete,
            "deadline": self._past_deadline,
            "remove": self._remove,
            "heartbeat": self._heartbeat,
            "node-gone": self._collect,
        }
        self._plugins: Plugins = NoPlugins()
        self._programs: Programs = NoPrograms()
        self._prepared: dict[str, list[JSON]] = {}
        """Claims that were prepared, by the pod's uid."""
        pods.on_change(lambda old, new: self._inbox.put(lambda: self._pod(old, new)))
        nodes.on_change(lambda old, new: self._inbox.put(lambda: self._node(old, new)))

    # -- from other threads ---------------------------------------------------------------------------------------

    def logs(self, namespace: str, pod: str, container: str) -> str:
        """The container's output at its start; empty before. It reads a dict once, so it needs no lock."""
        known = self._pods.get(namespace, pod)
        run = self._runs.get(known["metadata"]["uid"]) if known is not None else None
        return run.output(container) if run is not None else ""

    def use_plugins(self, plugins: Plugins) -> None:
        """Ask these plugins for the devices of ResourceClaims, from the next pod on."""
        self._inbox.put(lambda: setattr(self, "_plugins", plugins))

    def use_programs(self, programs: Programs) -> None:
        """Run containers' programs with `programs`, from the next pod on."""
        self._inbox.put(lambda: setattr(self, "_programs", programs))

    def fail_node(self, name: str) -> None:
        """Stop the node's reports: it becomes NotReady and tainted. Its pods stay as they are, and new ones wait."""
        self._inbox.put(lambda: self._keeper.fail(name))

    def restart_node(self, name: str) -> None:
        """Start a failed node again, which catches up with the changes of its pods."""

        def back() -> None:
            self._keeper.restart(name)
            self._sync_node(name)

        self._inbox.put(back)

    def close(self) -> None:
        self._inbox.put(None)

    def run(self, stop: threading.Event) -> None:
        """Handle due actions and incoming changes, until `close`."""
        self._arm("heartbeat", "", self._timing.heartbeat)
        while not stop.is_set():
            for action, whom in self._timers.due(self._monotonic()):
                self._guarded(lambda action=action, whom=whom: self._do[action](whom))  # type: ignore[misc]
            deadline = self._timers.next()
            wait = None if deadline is None else max(deadline - self._monotonic(), 0.0)
            try:
                task = self._inbox.get(timeout=wait)
            except queue.Empty:
                continue
            if task is None:
                return
            self._guarded(task)

    def _guarded(self, task: _Task) -> None:
        try:
            task()
        except Exception:
            # One unexpected pod must not stop every node of the cluster.
            log.exception("kubelet task failed")

    def _arm(self, action: str, whom: str, seconds: float) -> None:
        self._timers.set((action, whom), self._monotonic() + seconds)

    # -- what happened --------------------------------------------------------------------------------------------

    def _node(self, old: JSON | None, new: JSON | None) -> None:
        if new is not None:
            if self._keeper.changed(new):
                self._sync_node(new["metadata"]["name"])
        elif old is not None:
            name = old["metadata"]["name"]
            self._keeper.gone(name)
            self._arm("node-gone", name, self._timing.node_gone)

    def _sync_node(self, name: str) -> None:
        for action, uid in self._missed.pop(name, ()):
            self._arm(action, uid, 0.0)
        for pod in list(self._bound.get(name, {}).values()):
            self._sync(pod)

    def _pod(self, old: JSON | None, new: JSON | None) -> None:
        if new is None:
            assert old is not None
            self._forget(old)
        elif node := new["spec"].get("nodeName"):
            self._bound.setdefault(node, {})[new["metadata"]["uid"]] = new
            self._sync(new)

    def _forget(self, pod: JSON) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        self._release(node, uid)
        self._unprepare(uid, node)
        self._bound.get(node, {}).pop(uid, None)
        forgotten = self._runs.pop(uid, None)
        if forgotten is not None:
            forgotten.kill(timestamp(self._clock()))
        self._refused.discard(uid)
        self._restarts.reset(uid)
        self._unsaid.pop(uid, None)
        for action in ("start", "report", "complete", "deadline", "remove"):
            self._timers.cancel((action, uid))

    def _release(self, node: str, uid: str) -> None:
        if node in self._accounts:
            self._accounts[node].release(uid)

    def _sync(self, pod: JSON) -> None:
        metadata, name = pod["metadata"], pod["spec"]["nodeName"]
        uid, node = metadata["uid"], self._keeper.get(name)
        if node is None:
            return
        if uid in self._runs:
            self._runs[uid].pod = pod
        ended = _ended(pod)
        if ended:
            self._release(name, uid)
        if metadata.get("deletionTimestamp"):
            grace = min(self._timing.terminate, float(metadata.get("deletionGracePeriodSeconds") or 0))
            self._arm("remove", uid, 0.0 if ended else grace)
        elif not ended and uid not in self._runs and uid not in self._refused:
            self._take(pod, node)
        seconds = pod["spec"].get("activeDeadlineSeconds")
        if seconds and not ended and uid in self._runs:
            self._arm("deadline", uid, float(seconds))

    def _take(self, pod: JSON, node: JSON) -> None:
        """Admit the pod or fail it. A pod that ran before this program started keeps its state."""
        uid, name = pod["metadata"]["uid"], node["metadata"]["name"]
        account = self._accounts.setdefault(name, Account())
        try:
            adopted = (pod.get("status") or {}).get("phase") == "Running"
            refused = None if adopted else nodeadmission.admit(pod, node, account)
            holding = resources.holding_of(pod, needs.needs_of(pod))
        except BadQuantity as error:
            refused, holding = Rejected("UnexpectedAdmissionError", f"Pod was rejected: {error}"), Holding({})
        if refused is not None:
            self._refused.add(uid)
            self._recorder.event(pod, WARNING, refused.reason, refused.message, host=name)
            self._write(pod, podstatus.rejected(pod, refused.reason, refused.message, timestamp(self._clock())))
            return
        account.book(uid, holding)
        self._runs[uid] = PodRun(
            pod,
            name,
            self._placed(pod, name),
            programs=self._programs,
            ended=lambda container, code: self._inbox.put(lambda: self._program_ended(uid, container, code)),
        )
        delay = start_seconds(pod)
        delay = self._timing.start if delay is None else delay
        if delay:
            self._arm("start", uid, delay)
        else:
            self._start(uid)

    def _placed(self, pod: JSON, node: str) -> Placed:
        status, host = pod.get("status") or {}, self._keeper.address(node)
        number = next(self._addresses)
        fresh = f"10.{244 + number // 65024 % 12}.{number // 254 % 256}.{number % 254 + 1}"
        own = host if pod["spec"].get("hostNetwork") else status.get("podIP") or fresh
        return Placed(own, host, status.get("startTime") or timestamp(self._clock()))

    # -- what is due ----------------------------------------------------------------------------------------------

    def _start(self, uid: str) -> None:
        run = self._runs.get(uid)
        node = self._kubelet_of(run, "start") if run is not None else None
        if run is None or node is None or run.pod["metadata"].get("deletionTimestamp") or _ended(run.pod):
            return
        devices = self._claimed(run)
        if isinstance(devices, str):
            self._recorder.event(run.pod, WARNING, "FailedPrepareDynamicResources", devices, host=run.node)
            self._arm("start", uid, self._timing.report)
            return
        before = dict(run.states)
        around = replace(self._surroundings(run, node), devices=devices)
        run.start(around, self._gpus_of(run.node), timestamp(self._clock()))
        self._tell(run, before)
        self._write(run.pod, run.status(timestamp(self._clock())))
        if run.troubles:
            self._arm("start", uid, self._timing.retry)
        seconds = run_seconds(run.pod)
        if seconds is not None and any(isinstance(state, Running) for state in run.states.values()):
            self._arm("complete", uid, seconds)

    def _kubelet_of(self, run: PodRun, action: str) -> JSON | None:
        """The pod's node. If its kubelet is down, defers the action until it is back, and returns None."""
        node = self._keeper.get(run.node)
        if node is None:
            self._missed.setdefault(run.node, []).append((action, run.pod["metadata"]["uid"]))
        return node

    def _claimed(self, run: PodRun) -> claims.Devices | str:
        """The devices of the pod's ResourceClaims, by container; or, as text, why the pod cannot start."""
        if not run.pod["spec"].get("resourceClaims"):
            return {}
        client, namespace = self._client.as_user(node_user(run.node)), run.pod["metadata"]["namespace"]
        found = claims.devices_of(
            run.pod, run.node, lambda name: client.get(RESOURCE_CLAIMS, namespace, name), self._plugins
        )
        if isinstance(found, str):
            return f"Failed to prepare dynamic resources: {found}"
        devices, prepared = found
        self._prepared[run.pod["metadata"]["uid"]] = prepared
        return devices

    def _unprepare(self, uid: str, node: str) -> None:
        for claim in self._prepared.pop(uid, ()):
            about = claim["metadata"]
            error = self._plugins.unprepare(node, about["namespace"], about["uid"], about["name"])
            if error:
                log.warning("claim not unprepared", extra={"claim": about["name"], "reason": error})

    def _tell(self, run: PodRun, before: Mapping[str, podstatus.State]) -> None:
        for name, state in run.states.items():
            if state == before.get(name):
                continue
            if isinstance(state, Running):
                self._recorder.event(run.pod, NORMAL, "Started", f"Started container {name}", host=run.node)
            elif isinstance(state, podstatus.Waiting) and state.message:
                self._recorder.event(run.pod, WARNING, "Failed", f"Error: {state.message}", host=run.node)

    def _complete(self, uid: str) -> None:
        run = self._runs.get(uid)
        if run is None or self._kubelet_of(run, "complete") is None or _ended(run.pod):
            return
        run.complete(timestamp(self._clock()))
        self._write(run.pod, run.status(timestamp(self._clock())))
        if any(state.reason == RESTARTING for state in run.troubles.values()):
            self._arm("start", uid, self._restarts.failed(uid))

    def _program_ended(self, uid: str, container: str, code: int) -> None:
        run = self._runs.get(uid)
        if run is None or _ended(run.pod):
            return
        run.complete(timestamp(self._clock()), container, code)
        self._write(run.pod, run.status(timestamp(self._clock())))
        if any(state.reason == RESTARTING for state in run.troubles.values()):
            self._arm("start", uid, self._restarts.failed(uid))

    def _past_deadline(self, uid: str) -> None:
        run = self._runs.get(uid)
        if run is None or self._kubelet_of(run, "deadline") is None or _ended(run.pod):
            return
        now = timestamp(self._clock())
        run.kill(now)
        self._timers.cancel(("start", uid))
        before = run.status(now) if run.states else {**(run.pod.get("status") or {}), "startTime": run.placed.started}
        self._write(run.pod, {**before, **podstatus.past_deadline()})

    def _remove(self, uid: str) -> None:
        pod = next((pods[uid] for pods in self._bound.values() if uid in pods), None)
        if pod is None:
            return
        self._end(uid)
        answer = self._client.as_user(node_user(pod["spec"]["nodeName"])).delete(PODS, pod, now=True)
        if isinstance(answer, Refused) and not answer.gone:
            self._arm("remove", uid, self._timing.report)

    def _end(self, uid: str) -> None:
        """End a pod before it is removed: its containers end, and its status says how."""
        run = self._runs.get(uid)
        if run is None or _ended(run.pod) or not run.runs:
            return
        run.kill(timestamp(self._clock()))
        self._write(run.pod, run.status(timestamp(self._clock())))

    def _heartbeat(self, _: str) -> None:
        self._keeper.heartbeat()
        self._arm("heartbeat", "", self._timing.heartbeat)

    def _collect(self, name: str) -> None:
        """Delete the pods of a removed node, as the pod garbage collector does."""
        if self._keeper.exists(name):
            return
        answers = [self._client.delete(PODS, pod, now=True) for pod in self._bound.get(name, {}).values()]
        if any(isinstance(answer, Refused) and not answer.gone for answer in answers):
            self._arm("node-gone", name, self._timing.report)

    # -- the API --------------------------------------------------------------------------------------------------

    def _write(self, pod: JSON, status: JSON) -> None:
        """Send a status. A refused one is sent again until the server accepts it or a newer one replaces it."""
        uid, client = pod["metadata"]["uid"], self._client.as_user(node_user(pod["spec"]["nodeName"]))
        self._unsaid.pop(uid, None)
        # `status` was made from the last seen state of the pod: its conditions of other writers may be outdated.
        answer = client.patch(PODS, pod, {"status": podstatus.own(status)}, sub="status")
        if isinstance(answer, Refused) and not answer.gone:
            log.warning("status refused", extra={"pod": pod["metadata"]["name"], "said": answer.message})
            self._unsaid[uid] = pod, status
            self._arm("report", uid, self._timing.report)

    def _report(self, uid: str) -> None:
        if uid in self._unsaid:
            self._write(*self._unsaid[uid])

    def _surroundings(self, run: PodRun, node: JSON) -> Surroundings:
        client, namespace = self._client.as_user(node_user(run.node)), run.pod["metadata"]["namespace"]

        def lookup(kind: str, name: str) -> Mapping[str, str] | None:
            secret = kind == "Secret"
            found = client.get(SECRETS if secret else CONFIG_MAPS, namespace, name)
            if isinstance(found, Refused):
                return None
            data: Mapping[str, Any] = found.get("data") or {}
            return {key: _decoded(text) if secret else str(text) for key, text in data.items()}

        return Surroundings(lookup, run.placed.pod_ip, run.placed.host_ip, node["status"].get("allocatable") or {})


def _ended(pod: JSON) -> bool:
    return (pod.get("status") or {}).get("phase") in _ENDED


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
