"""
LimitRange: defaults for containers that name no amount, and bounds for all of them.

As in a real API server it writes before the webhooks, again after one of them has changed the pod, and validates when
all are done. Bounds on the ratio of limit to request, and on volume claims, are stored and not evaluated.
"""

from collections.abc import Iterator, Mapping

from contract.encoding.quantity import parse
from playground.api.admission.attributes import Attributes
from playground.api.admission.quota import pod_usage
from playground.api.kinds import errors
from playground.api.kinds.kinds import PODS
from playground.api.kinds.values import JSON, dig
from playground.api.store.store import Store

ANNOTATION = "kubernetes.io/limit-ranger"
_KIND = "limitranges"


class LimitRanger:
    """The admission plugin."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mutate(self, attributes: Attributes) -> None:
        """Fill in the amounts that containers do not set, and record that in an annotation of the pod."""
        pod = _new_pod(attributes)
        if pod is None:
            return
        for item in self._items(attributes.namespace, "Container"):
            notes = []
            for what, container in _containers(pod):
                for kind, default in (("requests", "defaultRequest"), ("limits", "default")):
                    given = _fill(container, kind, item.get(default) or {})
                    if given:
                        notes.append(f"{', '.join(given)} {kind[:-1]} for {what} {container.get('name', '')}")
            if notes:  # each LimitRange overwrites the note of the one before it
                metadata = pod.setdefault("metadata", {})
                note = f"LimitRanger plugin set: {'; '.join(notes)}"
                metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: note}

    def validate(self, attributes: Attributes) -> None:
        """Refuse a pod that exceeds the bounds."""
        pod = _new_pod(attributes)
        if pod is None:
            return
        problems: list[str] = []
        for item in self._items(attributes.namespace, "Container"):
            for _, container in _containers(pod):
                resources = container.get("resources") or {}
                problems.extend(
                    _beyond("Container", item, resources.get("requests") or {}, resources.get("limits") or {})
                )
        for item in self._items(attributes.namespace, "Pod"):
            usage = pod_usage(pod)
            requests, limits = (
                {name.partition(".")[2]: amount for name, amount in usage.items() if name.startswith(prefix)}
                for prefix in ("requests.", "limits.")
            )
            problems.extend(_beyond("Pod", item, requests, limits))
        if problems:
            why = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise errors.forbidden(attributes.kind, attributes.name, why)

    def _items(self, namespace: str, kind: str) -> Iterator[JSON]:
        for found in self._store.ordered(_KIND, namespace)[0]:
            yield from (item for item in dig(found, "spec", "limits") or () if item.get("type") == kind)


def _new_pod(attributes: Attributes) -> JSON | None:
    creating = attributes.operation == "CREATE" and not attributes.request.subresource
    return attributes.object if creating and attributes.kind is PODS else None


def _containers(pod: JSON) -> Iterator[tuple[str, JSON]]:
    for container in dig(pod, "spec", "containers") or ():
        yield "container", container
    for container in dig(pod, "spec", "initContainers") or ():
        yield "init container", container


def _fill(container: JSON, kind: str, amounts: JSON) -> list[str]:
    """The resources that were filled in, in their order."""
    have = (container.get("resources") or {}).get(kind) or {}
    missing = {name: amounts[name] for name in sorted(amounts) if name not in have}
    if missing:
        container["resources"] = {**(container.get("resources") or {}), kind: {**have, **missing}}
    return list(missing)


def _beyond(what: str, item: JSON, requests: Mapping[str, object], limits: Mapping[str, object]) -> Iterator[str]:
    for name, least in sorted((item.get("min") or {}).items()):
        bound = f"minimum {name} usage per {what} is {least}"
        if name not in requests:
            yield f"{bound}.  No request is specified"
        elif parse(requests[name]) < parse(least):
            yield f"{bound}, but request is {requests[name]}"
        elif name in limits and parse(limits[name]) < parse(least):
            yield f"{bound}, but limit is {limits[name]}"
    for name, most in sorted((item.get("max") or {}).items()):
        bound = f"maximum {name} usage per {what} is {most}"
        if name not in limits:
            yield f"{bound}.  No limit is specified"
        elif parse(limits[name]) > parse(most):
            yield f"{bound}, but limit is {limits[name]}"
        elif name in requests and parse(requests[name]) > parse(most):
            yield f"{bound}, but request is {requests[name]}"
