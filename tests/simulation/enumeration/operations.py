"""
What reference runs do in addition to the operations of the features, and how they must end.

The steps carry whole objects, so that one operation serves every kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from allocator.features.elasticgpuclaims import objects
from contract import names, pods
from playground.api.admission.attributes import Attributes
from playground.api.kinds.values import JSON
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Fault, Feature, Goal, Operation, Violation
from tests.simulation.features.cards import SHARES, allocation_of
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.run import Run

CLAIMS = f"{objects.CLAIMS}.elasticgpu.io"
ENDS = "run.ends-as"
"""The step that says how the run ends; its `lines` are those of `end_of`."""


def _create(run: Run, arguments: Arguments) -> None:
    body = arguments["body"]
    run.tell("user", f"creates {body['kind']} {body['metadata']['name']}")
    run.user.create(arguments["path"], body)


def _patch(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"changes {arguments['path']}: {arguments['body']}")
    write = run.user.patch_strategic if arguments.get("strategic") else run.user.patch_merge
    write(arguments["path"], arguments["body"])


def _delete(run: Run, arguments: Arguments) -> None:
    run.tell("user", f"deletes {arguments['path']}")
    try:
        run.user.delete(arguments["path"], arguments.get("options"))
    except KubeNotFound:
        return


def _show(run: Run, arguments: Arguments) -> None:
    run.tell("driver", f"of {arguments['node']} shows: {arguments['text']}".rstrip())
    run.world.show_cards(arguments["node"], arguments["text"])


def _set_flags(run: Run, arguments: Arguments) -> None:
    """Set the flags for the program's next start. `{folder}` is replaced by the folder of the run."""
    run.tell("user", f"sets {arguments['program']} {' '.join(arguments['flags'])}")
    flags = (each.format(folder=run.world.folder) for each in arguments["flags"])
    run.world.flags[arguments["program"]] = tuple(flags)


def _write_file(run: Run, arguments: Arguments) -> None:
    """Write a file in the folder of the run."""
    (run.world.folder / arguments["name"]).write_text(arguments["text"])


def _store_late(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Delay pods between their admission and their storage, as a slow webhook of another program does."""

    def storing(attributes: Attributes) -> None:
        metadata = (attributes.object or {}).get("metadata") or {}
        new = attributes.operation == "CREATE" and attributes.kind.key == "pods"
        if new and str(metadata.get("name", "")).startswith(arguments["name"]):
            run.kernel.block(int(arguments["takes"] * SECOND))

    run.world.storing.append(storing)
    return lambda: run.world.storing.remove(storing)


def _nothing(run: Run, arguments: Arguments) -> None:
    """The step only carries data in the plan, so there is nothing to do."""


def _never(draw: Draw) -> None:
    """These steps are not drawn."""


# -- the end ----------------------------------------------------------------------------------------------------------


def end_of(run: Run) -> list[str]:
    """
    The final state of the objects, without the names of cards and of generated pods: which pods run, wait or have
    ended, with how much of how many cards, and which claims are bound. There is a line for each distinct state, with
    its count.
    """
    store = run.world.api.store
    found = Counter(_pod(each) for each in store.scan("pods"))
    found.update(_claim(each) for each in store.scan(CLAIMS))
    found.update(_share(each) for each in store.scan(SHARES))
    return sorted(f"{count} x {line}" for line, count in found.items())


def _pod(pod: JSON) -> str:
    metadata = pod["metadata"]
    who = metadata.get("generateName") or metadata["name"]
    return f"pod {metadata['namespace']}/{who} {_state(pod)}"


def _state(pod: JSON) -> str:
    if pods.finished(pod):
        return str(pod["status"]["phase"])
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    if names.GATE in pods.gates(pod):
        return "waits"
    phase = str((pod.get("status") or {}).get("phase"))
    if (allocation := allocation_of(pod)) is None:
        return f"{phase} without a share"
    shares = [share for container in allocation.containers for share in container.shares]
    return f"{phase} with {sum(each.memory for each in shares) >> 20} MiB on {len(shares)} cards"


def _claim(claim: JSON) -> str:
    return f"claim {claim['metadata']['name']} {(claim.get('status') or {}).get('phase')}"


def _share(share: JSON) -> str:
    reference = (share.get("spec") or {}).get("claimRef") or {}
    return f"ElasticGPU of {reference.get('name')} {(share.get('status') or {}).get('phase')}"


def _as_without_faults(run: Run) -> list[Violation]:
    wanted = next((step.arguments["lines"] for step in run.plan.steps if step.kind == ENDS), None)
    if wanted is None:
        return []
    found = end_of(run)
    missing, beyond = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    return [f"lacks {missing}, and has {beyond}"] if missing or beyond else []


def _operation(name: str, act: Any) -> Operation:
    return Operation(name, 0, _never, act)


FEATURE = Feature(
    "references",
    operations=(
        _operation("object.create", _create),
        _operation("object.patch", _patch),
        _operation("object.delete", _delete),
        _operation("cards.show", _show),
        _operation("flags.set", _set_flags),
        _operation("file.write", _write_file),
        _operation(ENDS, _nothing),
    ),
    faults=(
        Fault(
            "pod.stored-late",
            0.01,
            _never,
            _store_late,
            during="a pod that is stored after its reservation has ended may book a full card, until it is failed",
            suspends=frozenset({"no card is booked twice", "no kubelet rejects a pod with a share"}),
        ),
    ),
    goals=(Goal("the end is that of a run without faults", _as_without_faults),),
)
