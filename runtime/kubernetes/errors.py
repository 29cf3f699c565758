"""
The errors of a call to the Kubernetes API.

Callers match on these only: no exception of an HTTP library, the JSON decoder or the credentials loader leaves
`runtime.kubernetes.client`. The original is chained as `__cause__`.

    KubeError
      KubeUnauthorized      401  credentials missing or no longer accepted
      KubeForbidden         403  RBAC, quota or an admission policy says no
      KubeNotFound          404
      KubeConflict          409  another writer was first, or the name is taken (`reason` AlreadyExists)
      KubeGone              410  a resourceVersion or continue token that the server no longer keeps
      KubeInvalid           400, 405, 406, 413, 415, 422: the request itself is wrong
        KubeBadName                a name that cannot be part of a path; nothing was sent
      KubeTooManyRequests   429  `retry_after` seconds
      KubeUnavailable       other 5xx, and connections that could not be made
        KubeTimeout         no answer came in time, or 504
          KubeConnectionLost     the connection broke after the request went out
      KubeMalformed              an answer that is not what the API promises
      KubeConfigError            no usable kubeconfig or service account

`outcome_unknown` is true where a write may have taken effect although no proper answer came: read the object back
before acting on it.

Must not: carry a request, a header or any body but the message of a `kind: Status`, because errors are
logged and those may hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract.encoding.plain import NAME, plain

MESSAGE_LIMIT = 256  # characters; webhooks and quota plugins are known to return pages
MOST_PATIENCE = 60.0  # seconds; a server that asks us to wait a day must not end a watch for a day


class KubeError(Exception):
    """A call to the Kubernetes API failed.

    status: HTTP status, 0 if no answer came. reason: the machine-readable `Status.reason`, such as
    AlreadyExists. retry_after: seconds the server asked to wait, None if it did not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.outcome_unknown = outcome_unknown


class KubeUnauthorized(KubeError):
    """401."""


class KubeForbidden(KubeError):
    """403."""


class KubeNotFound(KubeError):
    """404."""


class KubeConflict(KubeError):
    """409."""

    @property
    def already_exists(self) -> bool:
        """The name is taken, as opposed to a resourceVersion that has moved on."""
        return self.reason == "AlreadyExists"


class KubeGone(KubeError):
    """410: list again."""


class KubeInvalid(KubeError):
    """The server refuses the request itself; repeating it cannot help."""


class KubeBadName(KubeInvalid, ValueError):
    """A name cannot be part of a path or of a selector, because the server would read a different one. Nothing was
    sent."""


class KubeTooManyRequests(KubeError):
    """429: nothing was done; wait `retry_after` seconds where it is given."""


class KubeUnavailable(KubeError):
    """The server cannot answer now; the same request may work later."""


class KubeTimeout(KubeUnavailable):
    """No answer came. A write may or may not have taken effect (`outcome_unknown` is always true)."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message, status=status, reason=reason, outcome_unknown=True)


class KubeConnectionLost(KubeTimeout):
    """The connection broke before the answer was complete."""


class KubeMalformed(KubeError):
    """The server's answer cannot be read."""


class KubeConfigError(KubeError):
    """There is no usable way to reach a cluster from here."""


_BY_STATUS: Mapping[int, type[KubeError]] = {
    401: KubeUnauthorized,
    403: KubeForbidden,
    404: KubeNotFound,
    409: KubeConflict,
    410: KubeGone,
    429: KubeTooManyRequests,
}

# A server answers 503 before it does any work; a 500 or a proxy's 502 may hide a write that etcd accepted.
_NOT_DONE = frozenset({501, 503, 505})


def cut(text: str) -> str:
    """`text` on one line and no longer than MESSAGE_LIMIT."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"


def patience(value: object) -> float | None:
    """The seconds that a server asks us to wait, at most `MOST_PATIENCE`; None for anything but a positive number."""
    try:
        seconds = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return None
    return min(seconds, MOST_PATIENCE) if seconds > 0 else None


def error_from_status(
    status: int,
    document: Any,
    *,
    what: str,
    retry_after: float | None = None,
    withhold: bool = False,
) -> KubeError:
    """The typed error for an HTTP status and the decoded body that came with it.

    what: the call, such as "GET /api/v1/pods", with which the message begins. withhold: leave out the server's
    message, for kinds whose validation messages quote their values (Secrets).
    """
    details = reason = ""
    if isinstance(document, dict) and document.get("kind") == "Status":
        reason = plain(str(document.get("reason") or ""), NAME)
        details = "message withheld" if withhold else plain(cut(str(document.get("message") or "")), MESSAGE_LIMIT << 2)
        found = document.get("details")
        if retry_after is None and isinstance(found, dict):
            retry_after = patience(found.get("retryAfterSeconds"))
    message = f"{what}: {status}{f' {reason}' if reason else ''}{f': {details}' if details else ''}"
    if status == 504:
        return KubeTimeout(message, status=status, reason=reason)
    if status >= 500:
        unknown = status not in _NOT_DONE
        return KubeUnavailable(message, status=status, reason=reason, retry_after=retry_after, outcome_unknown=unknown)
    fallback = KubeInvalid if 400 <= status < 500 else KubeMalformed
    kind = _BY_STATUS.get(status, fallback)
    return kind(message, status=status, reason=reason, retry_after=retry_after)
