"""Rights that are taken from our programs and returned; our CRD, deleted and applied again."""

from __future__ import annotations

from collections.abc import Callable

from contract import names
from playground.api.kinds.values import JSON
from playground.programs import installing
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.run import Run

_RBAC = "rbac.authorization.k8s.io/v1"
_ROLES = ("gpufraction-allocator", "gpufraction-allocator", "gpufraction-nodeagent")
_CRD = f"{names.GPUNODE_PLURAL}.{names.GROUP}"


def _rule(draw: Draw) -> Arguments:
    """A rule of a ClusterRole, or of the Role for the Lease."""
    if draw.rng.random() < 0.2:
        return {"kind": "Role", "name": "gpufraction-allocator", "rule": draw.rng.randrange(2)}
    return {"kind": "ClusterRole", "name": draw.rng.choice(_ROLES), "rule": draw.rng.randrange(8)}


def _path(arguments: Arguments) -> str:
    cluster = arguments["kind"] == "ClusterRole"
    plural, namespace = ("clusterroles", None) if cluster else ("roles", names.NAMESPACE)
    return paths.path(_RBAC, plural, namespace, arguments["name"])


def _take_away(run: Run, arguments: Arguments) -> Callable[[], None] | None:
    """Remove one rule; it is added again when the fault ends."""
    path = _path(arguments)
    rules: list[JSON] = run.user.get(path)["rules"]
    if not rules:
        return None
    gone = rules.pop(arguments["rule"] % len(rules))
    run.tell("user", f"takes {gone['verbs']} of {gone.get('resources')} from {arguments['name']}")
    run.user.patch_merge(path, {"rules": rules})

    def give_back() -> None:
        present: list[JSON] = run.user.get(path)["rules"]
        run.user.patch_merge(path, {"rules": [*present, gone]})

    return lambda: _persist(run, give_back)


def _persist(run: Run, change: Callable[[], object]) -> None:
    """Do it, and try again for as long as the API server cannot, as an administrator does."""
    try:
        change()
    except KubeError as error:
        run.tell("user", f"tries once more: {error}")
        change()


def _nothing(draw: Draw) -> Arguments:
    return {}


def _delete_crd(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Delete our CRD, and with it every GPUNode. It is applied again when the fault ends."""
    crd = next(each for each in installing.to_apply() if each["metadata"]["name"] == _CRD)
    try:
        run.user.delete(paths.path("apiextensions.k8s.io/v1", "customresourcedefinitions", None, _CRD))
    except KubeNotFound:
        run.tell("fault", "the CRD was gone already")
    return lambda: _persist(run, lambda: installing.apply(run.user, crd))


FEATURE = Feature(
    "rights",
    faults=(
        Fault(
            "rights.removed",
            2,
            _rule,
            _take_away,
            seconds=(1.0, 120.0),
            during="all invariants hold; a program that lacks a right tries again and waits, and decides nothing by an"
            " old view",
            after="everything that fits is placed within minutes of the right's return",
        ),
        Fault(
            "crd.deleted",
            1,
            _nothing,
            _delete_crd,
            seconds=(1.0, 60.0),
            during="all invariants hold; without GPUNodes no node has cards, so pods wait and shares stay",
            after="each agent publishes its cards again, and everything that fits is placed",
        ),
    ),
)
