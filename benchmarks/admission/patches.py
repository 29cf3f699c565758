"""
The JSON patch of a review: by ours, and by the library `jsonpatch`.

`python -m benchmarks.admission.patches` prints the median time for each of the benchmark's pods that is gated, and how
long the patches are. Both patches must make the same pod, or the command fails.
"""

from __future__ import annotations

import base64
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jsonpatch

from benchmarks.admission import workload
from webhook.admission import review
from webhook.admission.admit import Configuration, admit

JSON = dict[str, Any]
_PODS, _TIMES = 16, 50


def main() -> int:
    """Measure and print."""
    changes = [change for body in workload.reviews(_PODS, namespace="team-a") if (change := _change(body)) is not None]
    _report("ours", changes, review.patch)
    _report("jsonpatch", changes, lambda before, after: list(jsonpatch.make_patch(before, after)))
    return 0


def _change(body: bytes) -> tuple[JSON, JSON] | None:
    """The pod before and after its review, without an answer to the webhook's question; None if it is refused."""
    submitted = review.decode(body)
    answer = admit(submitted, Configuration(), lambda question: None, lambda node: frozenset(), now_ns=0)
    patch = json.loads(answer.body)["response"].get("patch")
    return (
        None
        if patch is None
        else (submitted.pod, jsonpatch.apply_patch(submitted.pod, json.loads(base64.b64decode(patch))))
    )


def _report(name: str, changes: Sequence[tuple[JSON, JSON]], make: Callable[[JSON, JSON], list[JSON]]) -> None:
    took, lengths = [], []
    for before, after in changes:
        patch = make(before, after)
        assert jsonpatch.apply_patch(before, patch) == after
        lengths.append(len(patch))
        took.append(_microseconds(functools.partial(make, before, after)))
    print(f"{name:10}{statistics.median(took):7.0f} us{statistics.median(lengths):5.0f} operations")


def _microseconds(act: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


if __name__ == "__main__":
    sys.exit(main())
