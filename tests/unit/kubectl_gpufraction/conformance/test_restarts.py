"""What a run concludes about a pod across a restart, from the API server's answers meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from kubectl_gpufraction.conformance.node import ChosenNode
from kubectl_gpufraction.conformance.report import Environment
from kubectl_gpufraction.conformance.run import Run, RunOptions
from kubectl_gpufraction.conformance.workspace import RunPause, Workspace
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
POD: JSON = {"status": {"phase": "Running", "containerStatuses": [{"name": "probe", "restartCount": 0}]}}
LOST: JSON = {"status": {"phase": "Failed"}}
LOG = "gpufraction-begin\ngpufraction-device 0\ngpufraction-end\n"


@dataclass
class Answers:
    """A workspace with this pod. `log_of`: the result of each read of its log; the last one repeats."""

    pod: JSON
    log_of: list[str]

    def now(self, pod: JSON) -> JSON:
        return self.pod

    def log(self, pod: JSON) -> str:
        return self.log_of.pop(0) if len(self.log_of) > 1 else self.log_of[0]


def a_run(space: Answers) -> Run:
    """A run with a clock that advances by one second at each look."""
    times = iter(range(10_000))
    pause = RunPause(10_000, lambda seconds: False, lambda: next(times))
    node = ChosenNode("n", Environment())
    options = RunOptions("image", "cuda")
    return Run(cast(Kube, None), node, options, pause, cast(Workspace, space), lambda line: None, lambda: 0.0)


CASES = {
    "at once": (POD, [LOG], (True, LOG)),
    "once the kubelet answers": (POD, ["", "", "", LOG], (True, LOG)),
    "never": (POD, [""], (True, "")),
    "of a pod that ended": (LOST, [LOG], (False, LOG)),
}


@pytest.mark.parametrize(("pod", "logs", "wanted"), CASES.values(), ids=CASES.keys())
def test_the_log_is_read_when_the_kubelet_is_back(pod: JSON, logs: list[str], wanted: tuple[bool, str]) -> None:
    run = a_run(Answers(pod, list(logs)))
    assert (run._runs_on(POD), run._log_of_running(POD)) == wanted
