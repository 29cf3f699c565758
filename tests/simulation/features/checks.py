"""Steps for handwritten plans: what holds at that moment of the plan. None of them is ever drawn."""

from __future__ import annotations

from allocator.features.elasticgpuclaims import objects
from contract import names, pods
from playground.api.kinds.values import JSON
from tests.simulation.feature import Arguments, Draw, Feature, Operation
from tests.simulation.run import Run


def _never(draw: Draw) -> None:
    return None


def _pod(run: Run, arguments: Arguments) -> JSON | None:
    return run.world.api.store.get("pods", (arguments["namespace"], arguments["name"]))


def _runs(run: Run, arguments: Arguments) -> None:
    """By now the pod runs with a share."""
    name, pod = f"{arguments['namespace']}/{arguments['name']}", _pod(run, arguments)
    if pod is None:
        run.fail(f"pod runs: there is no pod {name}")
    elif (pod.get("status") or {}).get("phase") != "Running":
        run.fail(f"pod runs: {name} does not run yet, and its gates are {list(pods.gates(pod))}")


def _says(run: Run, arguments: Arguments) -> None:
    """The pod's condition has this status and reason, and this text in its message."""
    name, pod = f"{arguments['namespace']}/{arguments['name']}", _pod(run, arguments)
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    told: JSON = next((each for each in conditions if each["type"] == names.ALLOCATED_CONDITION), {})
    wanted = {key: arguments[key] for key in ("status", "reason") if key in arguments}
    if {key: told.get(key) for key in wanted} != wanted or arguments.get("text", "") not in told.get("message", ""):
        run.fail(f"pod says: the condition of {name} is {told}")


def _share_stays(run: Run, arguments: Arguments) -> None:
    """The claim is bound, and its ElasticGPU exists."""
    store, key = run.world.api.store, (arguments["namespace"], arguments["name"])
    found = store.get(f"{objects.CLAIMS}.elasticgpu.io", key)
    share = objects.claim(found).share_name if found is not None else ""
    if not share or store.get(f"{objects.SHARES}.elasticgpu.io", ("", share)) is None:
        run.fail(f"share stays: claim {'/'.join(key)} names {share!r}, which is not there")


FEATURE = Feature(
    "checks",
    operations=(
        Operation("pod.runs", 0, _never, _runs),
        Operation("pod.says", 0, _never, _says),
        Operation("share.stays", 0, _never, _share_stays),
    ),
    always=True,
)
