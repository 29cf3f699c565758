"""
Create, update and patch: from a decoded body to a stored object.

The order of the steps is that of a real API server: decode and default, mutating admission, system fields, validation,
validating admission, storage. If a step fails, the later ones do not run.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from playground.api.admission.attributes import Attributes, Plugin
from playground.api.kinds import defaults, errors, strategies
from playground.api.kinds.kinds import PODS, Kind
from playground.api.kinds.requests import STRATEGIC_PATCH, Request
from playground.api.kinds.values import JSON, copy_json
from playground.api.rules import validation
from playground.api.store.store import Store
from playground.api.verbs.patches import apply_patch

Decode: TypeAlias = Callable[[Request, JSON, JSON | None], JSON]
"""A body, and the stored state that it was made from if any, to an object."""
_RETRIES = 5  # as a real server: a patch without a resourceVersion survives this many concurrent writers


class Writer:
    """Writes objects on behalf of requests.

    `hold` surrounds the storing of a new object; `committed` gets every stored change, outside of all locks.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Callable[[], float],
        admission: Plugin,
        decode: Decode,
        committed: Callable[[Kind, JSON | None, JSON | None], None],
        hold: Callable[[Attributes], AbstractContextManager[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._admission = admission
        self._decode = decode
        self._committed = committed
        self._hold = hold

    def create(self, request: Request) -> JSON:
        kind = request.kind
        value = self._decode(request, as_object(request.body), None)
        check_metadata(request, value)
        if value["metadata"].get("resourceVersion"):
            raise errors.unspecific("resourceVersion should not be set on objects to be created")
        defaults.apply(kind, value)
        attributes = Attributes(request, "CREATE", value, None, options(request, "CreateOptions"))
        self._admission.mutate(attributes)
        value = attributes.object or value
        strategies.fill_system_fields(
            kind, value, request.namespace, self._clock(), lambda name: self._taken(kind, request.namespace, name)
        )
        strategies.prepare_create(kind, value)
        name = value["metadata"].get("name", "")
        if problems := validation.on_create(kind, value):
            raise errors.invalid(kind, name, problems)
        key = (request.namespace, name)
        if self._store.get(kind.key, key) is not None:
            raise errors.already_exists(kind, name)
        attributes.object = value
        self._admission.validate(attributes)
        with self._hold(attributes):
            stored = value if request.dry_run else self._store.create(kind.key, key, value)
            if stored is None:
                raise errors.already_exists(kind, name)
        if not request.dry_run:
            self._committed(kind, None, stored)
        return stored

    def _taken(self, kind: Kind, namespace: str, name: str) -> bool:
        return self._store.get(kind.key, (namespace, name)) is not None

    def update(self, request: Request) -> JSON:
        value = self._decode(request, as_object(request.body), None)
        check_metadata(request, value)
        if (name := value["metadata"].setdefault("name", request.name)) != request.name:
            raise errors.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({request.name})"
            )
        if request.kind.custom is not None and not value["metadata"].get("resourceVersion"):
            problem = errors.invalid_field("metadata.resourceVersion", 0, "must be specified for an update")
            raise errors.invalid(request.kind, request.name, [problem], resource=True)
        return self.change(request, lambda _: copy_json(value))

    def patch(self, request: Request) -> JSON:
        return self.change(request, lambda old: self._patched(request, old))

    def _patched(self, request: Request, old: JSON) -> JSON:
        patched = apply_patch(request.kind, request.content_type, old, request.body)
        name = (patched.get("metadata") or {}).get("name")
        if name != request.name:
            raise errors.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({request.name})"
            )
        try:
            return self._decode(request, patched, old)
        except errors.ApiError as refusal:
            if refusal.code != 400 or request.content_type == STRATEGIC_PATCH:
                raise
            why = refusal.message.partition(f"{errors.UNHANDLED}{request.kind.name}: ")[2] or refusal.message
            raise errors.patched_to_nonsense(patched, why) from None

    def change(self, request: Request, produce: Callable[[JSON], JSON]) -> JSON:
        """Replace the object with the result of `produce`. Starts again if another writer was faster."""
        for _ in range(_RETRIES):
            old = self.existing(request)
            new = produce({**old, "apiVersion": request.kind.api_version})
            self._check_preconditions(request, old, new)
            stored = self._change_once(request, old, copy_json(new))
            if stored is not None:
                return stored
        raise errors.modified(request.kind, request.name)

    def existing(self, request: Request) -> JSON:
        found = self._store.get(request.kind.key, (request.namespace, request.name))
        if found is None:
            raise errors.not_found(request.kind, request.name)
        return found

    def _check_preconditions(self, request: Request, old: JSON, new: JSON) -> None:
        meta = new.get("metadata") or {}
        version = meta.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise errors.modified(request.kind, request.name)
        uid = meta.get("uid")
        if uid and uid != old["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            raise errors.conflict(request.kind, request.name, why)

    def _change_once(self, request: Request, old: JSON, new: JSON) -> JSON | None:
        kind = request.kind
        check_metadata(request, new)
        defaults.apply(kind, new)
        before = old if kind.custom is None else {**old, "apiVersion": kind.api_version}
        attributes = Attributes(request, "UPDATE", new, before, options(request, "UpdateOptions"))
        self._admission.mutate(attributes)
        new = strategies.prepare_update(kind, request.subresource, old, attributes.object or new)
        if problems := validation.on_update(kind, request.subresource, old, new):
            raise errors.invalid(kind, request.name, problems)
        attributes.object = new
        self._admission.validate(attributes)
        new["apiVersion"] = old["apiVersion"]
        if request.dry_run or new == old:
            return new if request.dry_run else old
        return self.store(kind, (request.namespace, request.name), old, new)

    def store(self, kind: Kind, key: tuple[str, str], old: JSON, new: JSON) -> JSON | None:
        """Commit a changed state, or the removal that it completes; None when `old` is no longer the state."""
        meta = new["metadata"] = dict(new["metadata"])
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and may_go(kind, new):
            if kind is PODS and new != old:
                # First mark a pod as terminating, then delete it, so that watchers see both changes.
                marked = self._store.replace(kind.key, key, new, old)
                if marked is None:
                    return None
                self._committed(kind, old, marked)
                old, new = marked, {**marked, "metadata": dict(marked["metadata"])}
            removed = self._store.remove(kind.key, key, old, new)
            if removed is not None:
                self._committed(kind, old, None)
            return removed
        stored = self._store.replace(kind.key, key, new, old)
        if stored is not None:
            self._committed(kind, old, stored)
        return stored


def may_go(kind: Kind, value: JSON) -> bool:
    """Whether only finalizers keep a deleted object: the pod's grace period is over, or the namespace is empty."""
    if kind is PODS:
        return not value["metadata"].get("deletionGracePeriodSeconds")
    return kind.key != "namespaces" or not (value.get("spec") or {}).get("finalizers")


def as_object(body: Any) -> JSON:
    if not isinstance(body, dict):
        raise errors.bad_request("the request body is not an object: expected a JSON object with apiVersion and kind")
    return body


def options(request: Request, name: str) -> JSON:
    """The CreateOptions or UpdateOptions for admission."""
    shown: JSON = {"kind": name, "apiVersion": "meta.k8s.io/v1"}
    if request.dry_run:
        shown["dryRun"] = ["All"]
    for key in ("fieldManager", "fieldValidation"):
        if value := request.query.get(key):
            shown[key] = value
    return shown


def check_metadata(request: Request, value: JSON) -> None:
    """Kind and namespace of the body agree with the path; `metadata` is there afterwards."""
    kind = request.kind
    api_version, name = value.setdefault("apiVersion", kind.api_version), value.setdefault("kind", kind.name)
    if kind.custom is None and api_version == kind.api_version and name != kind.name:
        why = f"converting ({kind.version}.{name}) to ({kind.group or 'core'}.{kind.name}): unknown conversion"
        raise errors.unhandled(kind, name, why)
    if (api_version, name) != (kind.api_version, kind.name):
        raise errors.bad_request(
            f"the API version in the data ({api_version}, Kind={name}) does not match the expected API version "
            f"({kind.api_version}, Kind={kind.name})"
        )
    meta = value.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise errors.bad_request(f"metadata: found {type(meta).__name__}, expected an object")
    namespace = meta.get("namespace")
    if kind.namespaced and namespace and namespace != request.namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if kind.namespaced:
        meta["namespace"] = request.namespace
