"""
The answers of the kubelet plugin: the CDI devices of a ResourceClaim, from the claim alone.

    prepare     claim not known ──read it from the API──▶ devices ──▶ checkpoint ──▶ answer
                claim known, and ours ───────────────────────────────────────────▶ the same answer
    unprepare   forget it, in the checkpoint too

Kubelet repeats its call after its own restarts and ours, also while the API server is unavailable; then the checkpoint
answers. The uid of a claim of ours stands for one allocation: the allocator changes it only while the pod waits behind
its gate, and kubelet calls only for pods that are bound. A tenant's own claim may be used by one pod after another, so
it is read again each time; if it cannot be read, the known content answers.

Must not: know gRPC, or give anything for a claim that is not reserved only for its own pods.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contract.encoding import resourceclaims
from contract.encoding.reading import Malformed
from contract.encoding.resourceclaims import PreparedDevice
from nodeagent.dra.wire import Answer, ClaimRef
from nodeagent.files import read_text, write_atomically

log = logging.getLogger(__name__)


class UnreadableClaim(Exception):
    """The claim cannot be read now; the message says why."""


Read = Callable[[str, str], Mapping[str, Any]]
"""Reads a claim by namespace and name. Raises `UnreadableClaim`."""


class ClaimPlugin:
    """The answers for the claims of one node. `checkpoint`: the file that outlasts the agent. From any thread."""

    def __init__(self, read: Read, *, node: str, checkpoint: Path) -> None:
        self._read = read
        self._node = node
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._known = _from_file(checkpoint)

    @property
    def known(self) -> Mapping[str, tuple[PreparedDevice, ...]]:
        """The prepared devices, by the claim's uid."""
        with self._lock:
            return dict(self._known)

    def devices(self) -> tuple[PreparedDevice, ...]:
        """All devices that are prepared here."""
        return tuple(device for devices in self.known.values() for device in devices)

    def prepare(self, claims: Sequence[ClaimRef]) -> dict[str, Answer]:
        """The answer for each claim, by its uid."""
        return {claim.uid: self._prepared(claim) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> dict[str, str]:
        """For each claim, by its uid, why it is still prepared; empty if it is not, or never was."""
        return {claim.uid: self._changed(claim.uid, None) for claim in claims}

    def _prepared(self, claim: ClaimRef) -> Answer:
        with self._lock:
            known = self._known.get(claim.uid)
        if known is not None and resourceclaims.is_ours(claim.name):
            return known
        about = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid}
        try:
            devices = resourceclaims.prepared(self._read(claim.namespace, claim.name), uid=claim.uid, node=self._node)
        except (Malformed, UnreadableClaim) as error:
            if known is not None and isinstance(error, UnreadableClaim):
                return known
            log.warning("claim not prepared", extra={**about, "reason": str(error)})
            return str(error)
        wrong = self._changed(claim.uid, devices)
        if wrong:
            return wrong
        log.info("claim prepared", extra={**about, "devices": [device.device for device in devices]})
        return devices

    def _changed(self, uid: str, devices: tuple[PreparedDevice, ...] | None) -> str:
        """Store or remove the prepared devices of a claim. Returns why that failed, or empty."""
        with self._lock:
            after = {key: value for key, value in self._known.items() if key != uid}
            if devices is not None:
                after[uid] = devices
            if after == self._known:
                return ""
            try:
                write_atomically(self._checkpoint, resourceclaims.to_checkpoint(after))
            except OSError as error:
                # An answer that a restart would forget must not be given.
                return f"the checkpoint {self._checkpoint} cannot be written: {error.strerror}"
            self._known = after
            return ""


def _from_file(checkpoint: Path) -> dict[str, tuple[PreparedDevice, ...]]:
    text = read_text(checkpoint)
    if not text:
        return {}
    try:
        return resourceclaims.from_checkpoint(text)
    except Malformed as error:
        # Every claim can be read again.
        log.warning("checkpoint ignored", extra={"file": str(checkpoint), "reason": str(error)})
        return {}
