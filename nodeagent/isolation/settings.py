"""
The settings of what holds containers to their shares, field by field.

Must not: open anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class LimiterSettings:
    """All empty: containers get variables, and nothing that acts on them."""

    mps: str = setting(
        "",
        "Folder of the MPS daemons' files on the host, mounted here under the same path; manifests/components/mps sets "
        "it and runs the daemons. Empty: none.",
    )
    preload: str = setting(
        "",
        "Folder of HAMi-core's library on the host, mounted here under the same path; manifests/components/preload "
        "sets it and fills it. Empty: none.",
    )
    cdi: str = setting(
        "",
        "Folder of CDI descriptions on the host, mounted here: where GPUs come by CDI, the sockets of MPS and the "
        "library come by a description of ours. Empty: they do not.",
    )
    host_paths: bool = setting(
        False,
        "Whether pods with a share get them by hostPath volumes where they do not come by CDI: the webhook's "
        "host_paths adds those. Namespaces must allow such volumes, which Pod Security's Baseline level does not.",
    )

    @property
    def any(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.mps or self.preload or self.cdi)
