"""
Deletes: graceful for pods, held by finalizers, cascading to dependents and to a namespace's content.

In a real cluster, the garbage collector and the namespace controller act a moment later. Here the thread of the request
that causes the deletion does their work at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from playground.api.admission.attributes import Attributes, Plugin
from playground.api.kinds import errors
from playground.api.kinds.kinds import NAMESPACES, PODS, Kind, Kinds
from playground.api.kinds.requests import Request, status_success
from playground.api.kinds.values import JSON, copy_json, timestamp
from playground.api.store.selection import Predicate
from playground.api.store.store import Store
from playground.api.verbs.writes import Writer, may_go

_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"
_FINISHED = ("Succeeded", "Failed")


class Remover:
    def __init__(
        self, *, store: Store, kinds: Kinds, clock: Callable[[], float], writer: Writer, admission: Plugin
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._clock = clock
        self._writer = writer
        self._admission = admission

    def delete(self, request: Request, *, reviewed: bool = False) -> JSON:
        """
        The object that is being deleted, or the Status of a delete that removed it. `reviewed`: admission has already
        decided, so it does not review this delete.
        """
        wanted = delete_options(request)
        while True:
            old = self._writer.existing(request)
            self._check_preconditions(request, old, wanted)
            if not reviewed:
                attributes = self._attributes(request, old, wanted)
                self._admission.mutate(attributes)
                self._admission.validate(attributes)
            if request.dry_run:
                return _answer(request.kind, old, old)
            removed, last = self._delete_once(request.kind, (request.namespace, request.name), old, wanted)
            if last is not None:
                return _answer(request.kind, old, last) if removed else last

    def _attributes(self, request: Request, old: JSON, wanted: JSON) -> Attributes:
        return Attributes(request, "DELETE", None, old, {"kind": "DeleteOptions", "apiVersion": "v1", **wanted})

    def delete_all(self, request: Request, selects: Predicate) -> JSON:
        items, revision = self._store.ordered(request.kind.key, request.namespace)
        chosen = [item for item in items if selects(item)]
        for item in chosen:
            meta = item["metadata"]
            one = Request(
                "delete", request.kind, request.user, meta.get("namespace", ""), meta["name"], "", request.query
            )
            one.body = copy_json(request.body)
            try:
                self.delete(one)
            except errors.ApiError as refusal:
                if refusal.code != 404:
                    raise
        kind = request.kind
        meta = {"resourceVersion": str(revision)}
        return {"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": meta, "items": chosen}

    def _check_preconditions(self, request: Request, old: JSON, wanted: JSON) -> None:
        conditions = wanted.get("preconditions") or {}
        for field, text, may in (
            ("uid", "UID", "been deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "been modified"),
        ):
            expected, found = conditions.get(field), old["metadata"].get(field)
            if expected and expected != found:
                why = f"the {text} in the precondition ({expected}) does not match the {text} in record ({found})"
                raise errors.other_object(request.kind, request.name, f"{why}. The object might have {may}")

    def _delete_once(self, kind: Kind, key: tuple[str, str], old: JSON, wanted: JSON) -> tuple[bool, JSON | None]:
        """Whether the object was removed, and its last state; no state if another writer changed it meanwhile."""
        grace = _grace(kind, old, wanted)
        finalizers = self._finalizers(old, wanted)
        new = {**old, "metadata": dict(old["metadata"])}
        meta = new["metadata"]
        before = meta.get("deletionGracePeriodSeconds")
        already = bool(meta.get("deletionTimestamp"))
        if already and before is not None:
            grace = min(grace, before)
        if not already or grace != before:
            meta["deletionTimestamp"] = (
                timestamp(self._clock() + grace) if grace or not already else (meta["deletionTimestamp"])
            )
            meta["deletionGracePeriodSeconds"] = grace
            if "generation" in meta and not already:
                meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        if kind is NAMESPACES:
            new["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
        removed = not finalizers and may_go(kind, new)
        if new == old and not removed:
            return False, old
        return removed, self._writer.store(kind, key, old, new)

    def _finalizers(self, old: JSON, wanted: JSON) -> list[str]:
        present = [f for f in old["metadata"].get("finalizers") or () if f not in (_FOREGROUND, _ORPHAN)]
        policy = wanted.get("propagationPolicy")
        if wanted.get("orphanDependents"):
            policy = "Orphan"
        dependents = self._store.dependents(old["metadata"]["uid"])
        if policy == "Foreground" and dependents:
            return [*present, _FOREGROUND]
        if policy == "Orphan" and dependents:
            return [*present, _ORPHAN]
        return present

    def committed(self, kind: Kind, old: JSON | None, new: JSON | None) -> None:
        """React to a stored change as the garbage collector and the namespace controller would."""
        if new is None and old is not None:
            self._cascade(old["metadata"]["uid"])
            self._release_owners(old)
            if kind.namespaced:
                self._finish_namespace(old["metadata"]["namespace"])
        elif new is not None and old is None:
            self._collect_orphan(kind, new)
        elif new is not None and new["metadata"].get("deletionTimestamp"):
            self._deleting(kind, new)

    def _deleting(self, kind: Kind, value: JSON) -> None:
        finalizers = value["metadata"].get("finalizers") or ()
        if _FOREGROUND in finalizers:
            self._cascade(value["metadata"]["uid"], foreground=True)
            self._finish_foreground(value["metadata"]["uid"])
        elif _ORPHAN in finalizers:
            self._orphan(value["metadata"]["uid"])
            self._drop_finalizer(kind, value, _ORPHAN)
        if kind is NAMESPACES:
            name = value["metadata"]["name"]
            for resource, key in self._store.in_namespace(name):
                self.delete_by_system(resource, key, {})
            self._finish_namespace(name)

    def _cascade(self, uid: str, *, foreground: bool = False) -> None:
        policy = {"propagationPolicy": "Foreground" if foreground else "Background"}
        for resource, key in self._store.dependents(uid):
            held = self._store.get(resource, key)
            if held is None:
                continue
            others = [o for o in held["metadata"].get("ownerReferences") or () if o.get("uid") != uid]
            if any(self._store.has_uid(owner.get("uid", "")) for owner in others):
                self._change(resource, key, _keeping(others))
            else:
                self.delete_by_system(resource, key, policy)

    def _orphan(self, uid: str) -> None:
        for resource, key in self._store.dependents(uid):
            self._change(resource, key, lambda v: _without_owner(v, uid))

    def _release_owners(self, removed: JSON) -> None:
        for owner in removed["metadata"].get("ownerReferences") or ():
            self._finish_foreground(owner.get("uid", ""))

    def _finish_foreground(self, uid: str) -> None:
        if self._store.dependents(uid) or (place := self._store.locate(uid)) is None:
            return
        kind, owner = self._kinds.by_key(place[0]), self._store.get(*place)
        if kind is not None and owner is not None and _FOREGROUND in (owner["metadata"].get("finalizers") or ()):
            self._drop_finalizer(kind, owner, _FOREGROUND)

    def _drop_finalizer(self, kind: Kind, value: JSON, finalizer: str) -> None:
        meta = value["metadata"]
        self._change(
            kind.key,
            (meta.get("namespace", ""), meta["name"]),
            lambda v: _with_meta(v, finalizers=[f for f in v["metadata"].get("finalizers") or () if f != finalizer]),
        )

    def _collect_orphan(self, kind: Kind, value: JSON) -> None:
        """Also collect an object that was created after its owner was removed."""
        owners = value["metadata"].get("ownerReferences") or ()
        if owners and not any(self._store.has_uid(owner.get("uid", "")) for owner in owners):
            meta = value["metadata"]
            self.delete_by_system(kind.key, (meta.get("namespace", ""), meta["name"]), {})

    def _finish_namespace(self, name: str) -> None:
        held = self._store.get("namespaces", ("", name))
        if held is None or not held["metadata"].get("deletionTimestamp") or self._store.in_namespace(name):
            return
        self._change("namespaces", ("", name), lambda v: {**v, "spec": {}})

    def delete_by_system(self, resource: str, key: tuple[str, str], wanted: Mapping[str, Any]) -> None:
        kind = self._kinds.by_key(resource)
        while kind is not None and (held := self._store.get(resource, key)) is not None:
            _, last = self._delete_once(kind, key, held, dict(wanted))
            if last is not None:
                return

    def _change(self, resource: str, key: tuple[str, str], make: Callable[[JSON], JSON]) -> None:
        kind = self._kinds.by_key(resource)
        while kind is not None and (held := self._store.get(resource, key)) is not None:
            new = make(held)
            if new == held or self._writer.store(kind, key, held, new) is not None:
                return


def delete_options(request: Request) -> JSON:
    """DeleteOptions from the body, or from the query where there is none."""
    body = request.body if isinstance(request.body, dict) else {}
    wanted = {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}
    for key in ("gracePeriodSeconds", "propagationPolicy", "orphanDependents", "dryRun"):
        if key in request.query:
            wanted.setdefault(key, request.query[key])
    if (grace := wanted.get("gracePeriodSeconds")) is not None:
        try:
            wanted["gracePeriodSeconds"] = int(grace)
        except (TypeError, ValueError):
            raise errors.bad_request(f"gracePeriodSeconds: found {grace!r}, expected a number of seconds") from None
    if "All" in (wanted.get("dryRun") or ()) and not request.dry_run:
        request.query = {**request.query, "dryRun": "All"}
    return wanted


def _grace(kind: Kind, old: JSON, wanted: JSON) -> int:
    """The grace period in seconds; 0 except for a pod that a node runs."""
    if kind is not PODS or not old["spec"].get("nodeName") or dig_phase(old) in _FINISHED:
        return 0
    asked = wanted.get("gracePeriodSeconds")
    if asked is None:
        asked = old["spec"].get("terminationGracePeriodSeconds", 30)
    return int(asked) if asked >= 0 else 1


def dig_phase(value: JSON) -> str:
    return str((value.get("status") or {}).get("phase", ""))


def _answer(kind: Kind, old: JSON, last: JSON) -> JSON:
    if kind is PODS:
        return last
    return status_success(kind, old["metadata"]["name"], old["metadata"]["uid"])


def _with_meta(value: JSON, **fields: Any) -> JSON:
    meta = {**value["metadata"], **fields}
    return {**value, "metadata": {key: part for key, part in meta.items() if key not in fields or part}}


def _without_owner(value: JSON, uid: str) -> JSON:
    owners = [o for o in value["metadata"].get("ownerReferences") or () if o.get("uid") != uid]
    return _with_meta(value, ownerReferences=owners)


def _keeping(owners: list[JSON]) -> Callable[[JSON], JSON]:
    return lambda value: _with_meta(value, ownerReferences=owners)
