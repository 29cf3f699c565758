"""
Starts and stops everything behind the API server, as named daemon threads of this process.

    machinery = Machinery(api, gpus_of=inventory)
    machinery.start()
    ...
    machinery.stop()

The caches are filled before any controller acts, so that nothing is created twice after a restart on the same store.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from playground.api.kinds.values import JSON, User
from playground.machinery.client import queueing, rights
from playground.machinery.client.claims import Plugins
from playground.machinery.client.client import (
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    STATEFUL_SETS,
    ApiServer,
    Client,
    Refused,
    Resource,
    service_account,
)
from playground.machinery.client.informer import Cache, Informer, by_owner
from playground.machinery.client.recording import Recorder
from playground.machinery.controllers.control import OWNER, Controller, ControlTiming, Means
from playground.machinery.controllers.deployments import Deployments
from playground.machinery.controllers.jobs import Jobs
from playground.machinery.controllers.podclaims import PodClaims
from playground.machinery.controllers.replicasets import ReplicaSets
from playground.machinery.controllers.statefulsets import StatefulSets
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.kubelet.kubelet import Kubelet, KubeletTiming
from playground.machinery.kubelet.podrun import Programs
from playground.machinery.objects.nodes import NodeSpec, node_object
from playground.machinery.scheduler.scheduler import Scheduler

WATCHED = (PODS, NODES, REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS, JOBS, RESOURCE_CLAIMS)
SYNC_SECONDS = 30.0
JOIN_SECONDS = 5.0
WORKERS = 2
"""Threads of one controller: a slow webhook holds up one object, not all of them."""

MANAGER = User("system:kube-controller-manager", ("system:masters", "system:authenticated"))
SCHEDULER = User("system:kube-scheduler", ("system:authenticated",))


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast the embedded cluster is."""

    kubelet: KubeletTiming = field(default_factory=KubeletTiming)
    control: ControlTiming = field(default_factory=ControlTiming)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the machinery to run: those whose work no real component does."""

    controllers: bool = True
    scheduler: bool = True
    kubelets: bool = True
    roles: str = ""
    """The prefix of the names of the components' roles."""


def no_gpus(node: str) -> NodeGpus:
    return ()


class Machinery:
    """
    `gpus_of(node)` returns the GPUs that a node's driver sees; it is called when a container starts.

    `clock` gives epoch seconds for what is written into objects, `monotonic` the seconds that deadlines count in.
    """

    def __init__(
        self,
        api: ApiServer,
        *,
        gpus_of: Callable[[str], NodeGpus] = no_gpus,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        stop: threading.Event | None = None,
        timing: Timing | None = None,
        parts: Parts | None = None,
    ) -> None:
        self._api = api
        self._clock = clock
        self._monotonic = monotonic
        self._stop = stop or threading.Event()
        self._timing = timing or Timing()
        self._client = Client(api, MANAGER)
        self._threads: list[threading.Thread] = []
        self._parts = parts = parts or Parts()
        watched = WATCHED if parts.controllers else (PODS, NODES)
        self._caches = {resource: Cache({OWNER: by_owner}) for resource in watched}
        self._informers = {
            resource: Informer(self._client, resource, cache, self._stop) for resource, cache in self._caches.items()
        }
        self._controllers = self._make_controllers() if parts.controllers else {}
        self.scheduler = self._make_scheduler() if parts.scheduler else None
        self.kubelet = self._make_kubelet(gpus_of) if parts.kubelets else None

    # -- what it is made of ---------------------------------------------------------------------------------------

    def _means(self, account: str) -> Means:
        client = Client(self._api, service_account(account))
        recorder = Recorder(client, account, self._clock)
        return Means(
            client=client,
            recorder=recorder,
            clock=self._clock,
            monotonic=self._monotonic,
            timing=self._timing.control,
        )

    def _make_controllers(self) -> dict[str, Controller]:
        caches = self._caches
        return {
            "deployment": Deployments(
                self._means("deployment-controller"), objects=caches[DEPLOYMENTS], replica_sets=caches[REPLICA_SETS]
            ),
            "replicaset": ReplicaSets(
                self._means("replicaset-controller"), objects=caches[REPLICA_SETS], pods=caches[PODS]
            ),
            "statefulset": StatefulSets(
                self._means("statefulset-controller"), objects=caches[STATEFUL_SETS], pods=caches[PODS]
            ),
            "resourceclaim": PodClaims(
                self._means("resource-claim-controller"), pods=caches[PODS], claims=caches[RESOURCE_CLAIMS]
            ),
            "job": Jobs(self._means("job-controller"), objects=caches[JOBS], pods=caches[PODS]),
        }

    def _make_scheduler(self) -> Scheduler:
        client = Client(self._api, SCHEDULER)
        return Scheduler(
            client=client,
            recorder=Recorder(client, "default-scheduler", self._clock),
            pods=self._caches[PODS],
            nodes=self._caches[NODES],
            clock=self._clock,
        )

    def _make_kubelet(self, gpus_of: Callable[[str], NodeGpus]) -> Kubelet:
        return Kubelet(
            client=self._client,
            recorder=Recorder(self._client, "kubelet", self._clock),
            pods=self._caches[PODS],
            nodes=self._caches[NODES],
            gpus_of=gpus_of,
            clock=self._clock,
            monotonic=self._monotonic,
            timing=self._timing.kubelet,
        )

    # -- running it -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every thread; at most once.

        Raises RuntimeError where the components cannot be given their rights, TimeoutError where the API server lists
        nothing in time.
        """
        if self._threads:
            raise RuntimeError("this machinery was started before")
        self._grant()
        for resource, informer in self._informers.items():
            self._run(f"informer-{resource.plural}", informer.run)
        for resource, informer in self._informers.items():
            self._await(resource, informer)
        if (scheduler := self.scheduler) is not None:
            self._run("scheduler", lambda: scheduler.run(self._stop))
        if (kubelet := self.kubelet) is not None:
            self._run("kubelet", lambda: kubelet.run(self._stop))
        for name, controller in self._controllers.items():
            for number in range(WORKERS):
                self._run(f"{name}-controller-{number}", self._worker(controller))

    def _grant(self) -> None:
        """Give every component its role; roles that are there already stay as they are."""
        for resource, value in rights.objects(prefix=self._parts.roles):
            answer = self._client.create(resource, "", value)
            if isinstance(answer, Refused) and not answer.outdated:
                raise RuntimeError(f"cannot create {resource.kind} {value['metadata']['name']}: {answer.message}")

    def _await(self, resource: Resource, informer: Informer) -> None:
        if not informer.synced.wait(SYNC_SECONDS):
            self.stop()
            raise TimeoutError(f"no list of {resource.plural} within {SYNC_SECONDS:.0f} s")

    def _worker(self, controller: Controller) -> Callable[[], None]:
        retry = self._timing.control.retry
        return lambda: queueing.work(controller.queue, controller.sync, retry)

    def _run(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"playground-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End every thread and wait for them, a few seconds at most. Idempotent."""
        self._stop.set()
        for informer in self._informers.values():
            informer.close()
        for controller in self._controllers.values():
            controller.queue.close()
        if self.scheduler is not None:
            self.scheduler.close()
        if self.kubelet is not None:
            self.kubelet.close()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    # -- for whoever builds a cluster -----------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> JSON | Refused:
        """Register a node, as its kubelet would. Pods that are created afterwards can be placed on it."""
        answer = self._client.create(NODES, "", node_object(spec, self._clock()))
        if not isinstance(answer, Refused):
            self._caches[NODES].observe(answer)
        return answer

    def logs(self, namespace: str, pod: str, container: str) -> str:
        """For `Api.log_provider`. Covers our kubelets only."""
        return self.kubelet.logs(namespace, pod, container) if self.kubelet is not None else ""

    def use_plugins(self, plugins: Plugins) -> None:
        """Have our kubelets ask these plugins for the devices of ResourceClaims."""
        if self.kubelet is not None:
            self.kubelet.use_plugins(plugins)

    def use_programs(self, programs: Programs) -> None:
        """Have our kubelets run containers' programs with `programs`."""
        if self.kubelet is not None:
            self.kubelet.use_programs(programs)

    def fail_node(self, name: str) -> None:
        """Only of our kubelets."""
        if self.kubelet is not None:
            self.kubelet.fail_node(name)

    def restart_node(self, name: str) -> None:
        """Only of our kubelets."""
        if self.kubelet is not None:
            self.kubelet.restart_node(name)
