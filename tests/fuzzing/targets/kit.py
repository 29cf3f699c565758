"""What the conformance kit and the canaries read: reports of strangers, logs of pods, and pods with their status."""

from __future__ import annotations

import json
from typing import Any

from allocator.features.canary import pods as canaries
from contract.encoding.reading import Malformed
from kubectl_gpufraction.conformance import pods, report
from kubectl_gpufraction.conformance.codes import ReportReason
from kubectl_gpufraction.conformance.report import ConformanceReport, Environment, Probe, because, passed
from runtime import cudaprobe
from tests.fuzzing.judge import NotJson, Target, mapping, same

_RESULTS = (passed("delivery", "dra", seen=1, given=1), because(ReportReason.NOT_HELD, "memory", "mps", tookMiB=2112))


def _report_seeds() -> tuple[bytes, ...]:
    made = ConformanceReport("2026-11", "0.1.0", Probe(), Environment(models=("NVIDIA L4",)), _RESULTS)
    return (report.to_text(made).encode(),)


def _report(data: bytes) -> None:
    found = report.from_text(data)
    same(report.from_text(report.to_text(found).encode()), found, "reading a report that was written")


def _log_seeds() -> tuple[bytes, ...]:
    look = b"gpufraction-begin\ngpufraction-device 0\ngpufraction-gpu GPU 0: T4 (UUID: GPU-a)\ngpufraction-end\n"
    return look, f'{cudaprobe.MARK}{{"tookMiB": 2048, "code": 2}}\n'.encode()


def _log(data: bytes) -> None:
    text = data.decode(errors="replace")
    pods.look_of(text)
    pods.answer_of(text)


def _pod_seeds() -> tuple[bytes, ...]:
    made: dict[str, Any] = canaries.canary("canary-1", "n1", "GPU-a", "image")
    made["spec"]["containers"][0]["command"] = []
    state = {"terminated": {"exitCode": 3}}
    status = {"phase": "Failed", "containerStatuses": [{"name": canaries.CONTAINER, "state": state}]}
    return (json.dumps({**made, "status": status}).encode(),)


def _pod(data: bytes) -> None:
    found = mapping(data)
    canaries.read(found)


TARGETS = (
    Target(
        "conformance-report",
        _report,
        ("kubectl_gpufraction.conformance.report:from_text", "kubectl_gpufraction.conformance.report:from_json"),
        _report_seeds,
        (Malformed,),
        modules=("kubectl_gpufraction.conformance.vocabulary",),
    ),
    Target(
        "conformance-log",
        _log,
        ("kubectl_gpufraction.conformance.pods:look_of", "kubectl_gpufraction.conformance.pods:answer_of"),
        _log_seeds,
        form="text",
    ),
    Target("canary", _pod, ("allocator.features.canary.pods:read",), _pod_seeds, (NotJson,), form="typed"),
)
