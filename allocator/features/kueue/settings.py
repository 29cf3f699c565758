"""
The administrator's settings of Kueue's check.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class FitsSettings:
    """Kueue's admission check `gpufraction.io/fits`, and the reading of templates for it."""

    enabled: bool = setting(
        False,
        "Answer Kueue's AdmissionChecks of the controller gpufraction.io/fits; needs the rights of "
        "manifests/components/kueue-check, which sets it. Off: no object of Kueue is read.",
    )
    retry_after: float = setting(
        30.0,
        "Time after which Kueue retries a Workload that did not fit; whole seconds.",
        unit="duration",
        minimum=1,
        maximum=86_400,
    )
    hold: float = setting(
        60.0,
        "Time for which the room of a Workload that was answered Ready counts as taken for other Workloads, until its "
        "pods have their shares. Must be longer than Kueue and a controller take to create the pods.",
        unit="duration",
        minimum=1,
        maximum=3600,
    )
    runtime_class: str = setting("", "The webhook's setting `runtime_class`.")
