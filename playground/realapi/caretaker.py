"""
The parts of kube-controller-manager that a cluster needs, for a bare API server.

Default service accounts, the garbage collection of what a deleted owner leaves behind, and the status of quotas, which
the API server's own check reads. Foreground deletion, orphans and the deletion of namespaces are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from contract.encoding.quantity import parse
from playground.api.admission.quota import Usage, pod_usage, shown
from playground.api.kinds.values import JSON
from playground.machinery.client.client import (
    DEPLOYMENTS,
    JOBS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Client,
    Refused,
    Resource,
)
from playground.realapi.reacting import Reactor

NAMESPACES = Resource("v1", "namespaces", "Namespace", namespaced=False)
ACCOUNTS = Resource("v1", "serviceaccounts", "ServiceAccount")
QUOTAS = Resource("v1", "resourcequotas", "ResourceQuota")
_OWNERS: Mapping[str, Resource] = {each.kind: each for each in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, JOBS)}


class Caretaker:
    """One thread for each of the duties. `client` may do everything."""

    def __init__(self, client: Client, stop: threading.Event) -> None:
        self._client = client
        self._children: dict[str, dict[str, tuple[Resource, JSON]]] = {}  # owner's uid -> child's uid -> child
        dependents = [(each, partial(self._followed, each)) for each in (PODS, *_OWNERS.values())]
        self._reactors = {
            "accounts": Reactor(client, [(NAMESPACES, self._namespace), (ACCOUNTS, self._account)], stop),
            "garbage": Reactor(client, dependents, stop),
            "quotas": Reactor(client, [(QUOTAS, self._quota), (PODS, self._pod)], stop),
        }

    def start(self) -> None:
        """Start every duty. Raises TimeoutError."""
        for name, reactor in self._reactors.items():
            reactor.start(name)

    def close(self) -> None:
        """End them, after the stop event was set."""
        for reactor in self._reactors.values():
            reactor.close()

    # -- default service accounts -----------------------------------------------------------------------------------

    def _namespace(self, old: JSON | None, new: JSON | None) -> Refused | None:
        if new is None or new["metadata"].get("deletionTimestamp"):
            return None
        return self._default_account(new["metadata"]["name"])

    def _account(self, old: JSON | None, new: JSON | None) -> Refused | None:
        """A deleted one is created again, as long as its namespace exists."""
        if new is not None or old is None or old["metadata"]["name"] != "default":
            return None
        return self._default_account(old["metadata"]["namespace"])

    def _default_account(self, namespace: str) -> Refused | None:
        answer = self._client.create(ACCOUNTS, namespace, {"metadata": {"name": "default"}})
        there = isinstance(answer, Refused) and answer.outdated
        return answer if isinstance(answer, Refused) and not there else None

    # -- garbage ----------------------------------------------------------------------------------------------------

    def _followed(self, resource: Resource, old: JSON | None, new: JSON | None) -> Refused | None:
        """Keep track of owners. The objects that a deleted object owned are deleted too."""
        value = new if new is not None else old
        assert value is not None
        uid, owner = value["metadata"]["uid"], _controller(value)
        if new is None:
            if owner is not None:
                self._children.get(owner["uid"], {}).pop(uid, None)
            refused = self._delete_all(self._children.get(uid, {}))
            if refused is None:
                self._children.pop(uid, None)
            return refused
        if owner is None or (old is not None and _controller(old) == owner):
            return None
        self._children.setdefault(owner["uid"], {})[uid] = (resource, new)
        return self._delete_orphan(resource, new, owner) if old is None else None

    def _delete_orphan(self, resource: Resource, child: JSON, owner: JSON) -> Refused | None:
        """Delete a child that was created while its owner was being deleted."""
        kind = _OWNERS.get(owner["kind"])
        if kind is None:
            return None
        found = self._client.get(kind, child["metadata"]["namespace"], owner["name"])
        if isinstance(found, Refused) and not found.gone:
            return found
        if not isinstance(found, Refused) and found["metadata"]["uid"] == owner["uid"]:
            return None
        return self._delete_all({child["metadata"]["uid"]: (resource, child)})

    def _delete_all(self, children: Mapping[str, tuple[Resource, JSON]]) -> Refused | None:
        failed: Refused | None = None
        for resource, child in children.values():
            answer = self._client.delete(resource, child)
            if isinstance(answer, Refused) and not answer.gone and not answer.outdated:
                failed = answer
        return failed

    # -- quotas -----------------------------------------------------------------------------------------------------

    def _quota(self, old: JSON | None, new: JSON | None) -> Refused | None:
        return self._count(new["metadata"]["namespace"]) if new is not None else None

    def _pod(self, old: JSON | None, new: JSON | None) -> Refused | None:
        """The API server's check counts new pods. It does not subtract ended or deleted pods, so we do."""
        value = new if new is not None else old
        assert value is not None
        ended = new is None or (new.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        return self._count(value["metadata"]["namespace"]) if ended else None

    def _count(self, namespace: str) -> Refused | None:
        quotas = self._client.list(QUOTAS, namespace)
        if isinstance(quotas, Refused) or not quotas["items"]:
            return quotas if isinstance(quotas, Refused) else None
        # Listed after the quotas: if the check counts a pod in between, our write conflicts, and we count again.
        pods = self._client.list(PODS, namespace)
        if isinstance(pods, Refused):
            return pods
        total = Usage()
        for pod in pods["items"]:
            for name, amount in pod_usage(pod).items():
                total[name] = total.get(name, Fraction(0)) + amount
        for quota in quotas["items"]:
            refused = self._write(quota, total)
            if refused is not None:
                return refused
        return None

    def _write(self, quota: JSON, total: Usage) -> Refused | None:
        hard, before = quota["spec"].get("hard") or {}, quota.get("status") or {}
        counted = {name: total.get(name, Fraction(0)) for name in hard}
        used = {name: parse(text) for name, text in (before.get("used") or {}).items()}
        if before.get("hard") == hard and used == counted:
            return None
        status = {"hard": hard, "used": {name: shown(name, amount) for name, amount in counted.items()}}
        full = {"apiVersion": "v1", "kind": "ResourceQuota", **quota, "status": status}
        answer = self._client.replace_status(QUOTAS, full)
        return answer if isinstance(answer, Refused) else None


def _controller(value: JSON) -> JSON | None:
    owners = value["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)
