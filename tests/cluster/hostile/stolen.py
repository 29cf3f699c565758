"""
Our tokens in the hands of an attacker: what each token can write, tested on the API server with the token itself.

Every attempt is a dry run, so none depends on another. RBAC allows every attempt, so a refusal comes from a policy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from contract import names
from contract.scheduling import protection
from playground import scenarios
from playground.api.kinds.values import User
from playground.cluster import Cluster, account
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeForbidden, KubeInvalid
from tests.builders import pod

JSON = dict[str, Any]
SERVED, SYSTEM, OURS = "default", "kube-system", str(names.NAMESPACE)
FOREIGN_GATE = "example.com/not-yet"
ALLOWED, BY_POLICY, BY_RBAC = "allowed", "refused by a policy", "refused by RBAC"
ANOTHER = "not done, since it is another object"


@dataclass(frozen=True)
class Attempt:
    """One request with a stolen token. `form`: `create`, `merge`, `json`, `strategic`, `delete` or `get`."""

    want: str
    who: User
    form: str
    path: str
    body: Any = None

    def outcome(self, kube: Kube) -> str:
        """The result of the attempt. A refusal of another kind is given in its own words."""
        dry = {"dryRun": "All"}
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: kube.create(self.path, self.body, dry),
            "merge": lambda: kube.patch_merge(self.path, self.body, dry),
            "json": lambda: kube.patch_json(self.path, self.body, dry),
            "strategic": lambda: kube.patch_strategic(self.path, self.body, dry),
            "delete": lambda: kube.delete(self.path, None, dry),
            "get": lambda: kube.get(self.path),
        }
        try:
            calls[self.form]()
        except KubeInvalid as error:
            message = str(error)
            judged = "ValidatingAdmissionPolicy 'gpufraction-" in message and "resulted in error" not in message
            return BY_POLICY if judged else message
        except KubeForbidden:
            return BY_RBAC
        except KubeConflict:
            return ANOTHER
        return ALLOWED


class Tokens:
    """The cluster, with a client for each user. `directory` receives their kubeconfigs."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster, self.kube = cluster, cluster.kube
        self._directory = directory
        self.as_user = functools.cache(self._as_user)

    def _as_user(self, user: str, node: str, pod_name: str) -> Kube:
        path = self._directory / f"kubeconfig-{user}-{node}-{pod_name}"
        path.write_text(self.cluster.control_plane.kubeconfig(account(user, node=node, pod=pod_name)))
        return Kube.connect(kubeconfig=str(path), user_agent="thief")

    def client(self, user: User) -> Kube:
        """A client with that user's own token, or with a certificate."""
        if ":serviceaccount:" not in user.name:
            return self.kube
        extra = {key.rpartition("/")[2]: value for key, (value,) in user.extra.items()}
        return self.as_user(user.name.rpartition(":")[2], extra.get("node-name", ""), extra.get("pod-name", ""))

    def outcome(self, attempt: Attempt) -> str:
        """The result of an attempt."""
        return attempt.outcome(self.client(attempt.who))


def create(kube: Kube, namespace: str, made: JSON) -> None:
    """Submit a pod as an administrator."""
    made["metadata"]["namespace"] = namespace
    kube.create(paths.pods(namespace), made)


AUTOSCALER, KARPENTER = protection.AGAINST_SCALE_DOWN


def prepare(cluster: Cluster) -> None:
    """Create a placed pod and a waiting one, a pod of the cluster's own, two holder pods and a pod of MPS."""
    kube = cluster.kube
    cluster.await_account(SYSTEM)
    cluster.await_account(OURS)
    for name in ("placed", "protected"):
        create(kube, SERVED, pod(name).asks(names.GPU_MEMORY, "1Gi").manifest())
    waiting = pod("waiting").asks(names.GPU_MEMORY, "1Gi").manifest()
    waiting["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}]
    create(kube, SERVED, waiting)
    create(kube, SERVED, pod("plain").container("main").manifest())
    unbound = pod("unbound").container("main").manifest()
    unbound["spec"]["schedulerName"] = "nobody"
    create(kube, SERVED, unbound)
    create(kube, SYSTEM, pod("dns").container("main").manifest())
    for name in ("holder-a", "holder-b", "mps"):
        create(kube, OURS, holder(name))
    foreign = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPU", "metadata": {"name": "foreign"}, "spec": {}}
    kube.create(paths.path(scenarios.ELASTIC, "elasticgpus"), foreign)
    # It belongs to another provisioner, so nothing binds it in the meantime.
    asks = {"resources": {"requests": {"example.com/gpu-core": 1}}, "elasticGPUClassName": "nobodys"}
    claim = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPUClaim", "metadata": {"name": "claim"}, "spec": asks}
    kube.create(paths.path(scenarios.ELASTIC, "elasticgpuclaims", SERVED), claim)
    for name in ("placed", "protected"):
        wait_for(functools.partial(allocated, kube, name), f"the pod {name} is not placed")
    # As the setting placement.scale_down writes them, next to one of the author's own.
    protecting = {AUTOSCALER: "false", KARPENTER: "true", str(names.PROTECTED): KARPENTER}
    kube.patch_merge(paths.pods(SERVED, "protected"), {"metadata": {"annotations": protecting}})
    gates = kube.get(paths.pods(SERVED, "waiting"))["spec"]["schedulingGates"]
    assert [gate["name"] for gate in gates] == [FOREIGN_GATE, str(names.GATE)], gates


def allocated(kube: Kube, name: str) -> bool:
    return str(names.ALLOCATION) in kube.get(paths.pods(SERVED, name))["metadata"].get("annotations", {})


def holder(name: str) -> JSON:
    """A pod as the DaemonSet of the component holders creates it."""
    text = (installing.COMPONENTS / "holders" / "daemonset.yaml").read_text(encoding="utf-8")
    template: JSON = yaml.safe_load(text)["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": name},
        "spec": template["spec"],
    }
