"""
A cluster whose programs are replaced one by one with those of any release, while pods come and go.

`Fleet` replaces programs, `Load` creates and deletes pods, and `Witness` watches what is allocated on each card. The
witness reads the texts with its own code, in every version, because a share that one release cannot read still counts.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from playground.cluster import Cluster
from playground.programs import installing
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.kubernetes.watch import Deleted, Event, Informer, Part, Put, Replaced
from tests.builders import pod
from tests.cluster.system import invariants
from tests.cluster.versions.releases import PRESENT, UNKNOWN, Release

JSON = dict[str, Any]
NAMESPACE = "default"
_WHOLE = 100
_MOST = 16
"""How many pods the load has at once, about as many as the cards hold."""


class Fleet:
    """`runs`: the release of each program, by its name in the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.runs = dict.fromkeys((name for name in cluster.programs if name != "certs"), PRESENT.name)
        self.led: Counter[str] = Counter()
        self._arguments = {name: program.arguments for name, program in cluster.programs.items()}

    def replace(self, release: Release, *programs: str, crash: bool = False) -> None:
        """
        Run these programs from this release from now on, one after another, as a roll-out does: each must serve before
        the next is ended. `crash`: they are killed.
        """
        for name in programs:
            self._replace(name, release, crash=crash)

    def _replace(self, name: str, release: Release, *, crash: bool) -> None:
        cluster = self.cluster
        before = cluster.programs[name]
        arguments = self._arguments[name]
        if release.name == "former":
            arguments = release.known(arguments)
        others = [each.number for each in cluster.replicas if each.name("webhook") != name]
        if name.startswith("webhook"):
            cluster.ask_only(others[0], cut=False)  # as its Service does: a terminating pod gets no more requests
        if crash:
            before.kill()
        else:
            before.terminate()
            before.wait()
        program = Program(name, arguments, log=before.log, environment=before.environment, command=release.command)
        cluster.programs[name] = program
        program.start()
        cluster.await_up()
        cluster.ask_only(None, cut=False)
        self.runs[name] = release.name
        self.note_leader()

    def note_leader(self) -> str:
        """The release of the allocator that leads now; empty between two leaders."""
        for replica in self.cluster.replicas:
            if self.cluster.leads(replica.number):
                release = self.runs[replica.name("allocator")]
                self.led[release] += 1
                return release
        return ""

    def lead(self, number: int) -> None:
        """Make the allocator of this replica lead: the others are paused for a moment, like those of a paused node."""
        others = [each for each in self.cluster.replicas if each.number != number]
        for other in others:
            program = self.cluster.programs[other.name("allocator")]
            if self.cluster.leads(other.number):
                program.terminate()
                program.wait()
                wait_for(lambda: self.cluster.leads(number), f"replica {number} does not lead")
                program.start()
        self.cluster.await_up()
        self.note_leader()


# -- pods that come and go ----------------------------------------------------------------------------------------


_WITHOUT_ANSWER = "failed to call webhook"


class Load:
    """Creates and deletes pods until it is stopped. `refused`: creations and deletions that failed; none may fail."""

    def __init__(self, kube: Kube, seed: int) -> None:
        self._kube = kube
        self._seed, self._rng = seed, random.Random(seed)
        self._numbers = 0
        self._there: list[str] = []
        self.created = 0
        self.refused: list[str] = []

    def step(self) -> None:
        """Create a pod, or delete one."""
        if len(self._there) >= _MOST or (self._there and self._rng.random() < 0.35):
            name = self._there.pop(self._rng.randrange(len(self._there)))
            self._try(lambda: self._kube.delete(paths.pods(NAMESPACE, name)), f"delete {name}")
            return
        self._numbers += 1
        name = f"load-{self._seed}-{self._numbers}"
        if self._try(lambda: self._kube.create(paths.pods(NAMESPACE), self._pod(name)), f"create {name}"):
            self._there.append(name)
            self.created += 1

    def _pod(self, name: str) -> JSON:
        made = pod(name)
        match self._rng.randrange(4):
            case 0:
                made = made.asks(names.GPU_MEMORY, f"{self._rng.randint(2, 9)}Gi").asks(names.GPU_CORES, "30")
            case 1:
                made = made.asks("aliyun.com/gpu-mem", self._rng.randint(1, 8))
            case 2:
                made = made.asks("nvidia.com/gpumem", self._rng.randint(1000, 9000)).asks("nvidia.com/gpucores", "20")
            case _:
                made = made.asks(names.GPU_PERCENT, str(self._rng.randint(10, 60)))
        return made.manifest()

    def _try(self, call: Any, what: str) -> bool:
        try:
            call()
        except KubeNotFound:
            return False
        except KubeError as error:
            self.refused.append(f"{what}: {error}")
            return False
        return True


# -- what is allocated --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Booked:
    """What a pod holds of one card."""

    gpu: str
    memory: int
    cores: int


def booked_of(found: JSON) -> tuple[Booked, ...]:
    """What a pod holds, from its texts alone, in any version."""
    annotations = pods.annotations_of(found)
    text = annotations.get(names.ALLOCATION)
    if text is None or names.WITHDRAWN in annotations or pods.finished(found) or names.GATE in pods.gates(found):
        return ()
    shares = [share for each in json.loads(text)["containers"] for share in each["gpus"]]
    return tuple(Booked(s["uuid"], s["memory"], s.get("cores", 0)) for s in shares)


class Witness:
    """
    Sees every event of the pods. `overbooked`: cards that had more allocated than they have, after some event.
    `shapes`: how many allocations of each version, and with fields of a later release, were seen.
    """

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self._capacity = dict(capacity)
        self._held: dict[str, tuple[Booked, ...]] = {}
        self.overbooked: list[str] = []
        self.shapes: Counter[str] = Counter()
        self.events = 0

    def see(self, event: Event) -> None:
        """Take an event in, in order."""
        match event:
            case Replaced(items):
                self._held = {pods.uid(each): booked_of(each) for each in items}
            case Part(items):
                self._held.update((pods.uid(each), booked_of(each)) for each in items)
            case Put(found):
                self._note(found)
                self._held[pods.uid(found)] = booked_of(found)
            case Deleted(found):
                self._held.pop(pods.uid(found), None)
        self.events += 1
        self.check()

    def _note(self, found: JSON) -> None:
        text = pods.annotations_of(found).get(names.ALLOCATION)
        if text is not None and booked_of(found) and not self._held.get(pods.uid(found)):
            self.shapes[f"v{json.loads(text)['v']}{' and more' if UNKNOWN in text else ''}"] += 1

    def check(self) -> None:
        """Compare what is allocated with what the cards have."""
        memory, cores = Counter[str](), Counter[str]()
        for each in (booked for held in self._held.values() for booked in held):
            memory[each.gpu] += each.memory
            cores[each.gpu] += each.cores
        self.overbooked += [
            f"{gpu}: {memory[gpu]} of {self._capacity.get(gpu, 0)} bytes, {cores[gpu]} of {_WHOLE} percent"
            for gpu in memory
            if memory[gpu] > self._capacity.get(gpu, 0) or cores[gpu] > _WHOLE
        ]

    def booked(self) -> Counter[str]:
        """Bytes by card now."""
        found = Counter[str]()
        for each in (booked for held in self._held.values() for booked in held):
            found[each.gpu] += each.memory
        return found


def capacity(cluster: Cluster) -> dict[str, int]:
    """The bytes of each card that pods may use."""
    found = cluster.kube.list(paths.gpunodes()).items
    return {gpu["uuid"]: gpu["usableBytes"] for each in found for gpu in each["status"]["gpus"]}


@contextmanager
def under_load(
    cluster: Cluster, *, seed: int, pause: float = 0.1, kills: bool = False
) -> Iterator[tuple[Load, Witness]]:
    """
    Pods come and go in this context. At the end it checks that none was refused and no card was ever overbooked.

    `kills`: webhooks are killed meanwhile, so the review that a webhook had at that moment gets no answer.
    """
    witness = Witness(capacity(cluster))
    kube = Kube.connect(kubeconfig=str(cluster.kubeconfig), user_agent="witness")
    informer = Informer(kube, paths.pods(NAMESPACE), witness.see, name="witness")
    informer.start()
    load = Load(Kube.connect(kubeconfig=str(cluster.kubeconfig), user_agent="load"), seed)
    stopping, trouble = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stopping.wait(pause):
                load.step()
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, name="load")
    try:
        wait_for(informer.synced.is_set, "the pods are not listed")
        thread.start()
        yield load, witness
    finally:
        stopping.set()
        if thread.ident is not None:
            thread.join(30)
        informer.stop()
    refused = [text for text in load.refused if not (kills and _WITHOUT_ANSWER in text)]
    found = {"trouble": trouble, "refused": refused, "overbooked": witness.overbooked}
    assert not any(found.values()), found
    assert load.created, "no pod was created, so this shows nothing"


# -- other parts of a release -------------------------------------------------------------------------------------


def define_for_next(cluster: Cluster) -> None:
    """Apply the next release's definition of GPUNodes, which comes before its programs and has more fields."""
    found = [each for each in installing.shipped() if each["kind"] == "CustomResourceDefinition"]
    definition = json.loads(json.dumps(next(e for e in found if e["spec"]["names"]["kind"] == names.GPUNODE_KIND)))
    for version in definition["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
        status["x-kubernetes-preserve-unknown-fields"] = True
        status["properties"]["gpus"]["items"]["x-kubernetes-preserve-unknown-fields"] = True
    path = paths.customresourcedefinitions(definition["metadata"]["name"])
    cluster.kube.patch_merge(path, {"spec": {"versions": definition["spec"]["versions"]}})


def quiet(cluster: Cluster) -> None:
    """Check every invariant, once no more changes come."""
    invariants.check(cluster)
