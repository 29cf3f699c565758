"""How the command reaches the API server: with the user's kubeconfig, as the user, and for how long it waits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace

from runtime.kubernetes.transport import HttpRequest, Response, Transport, connect_transport

_AGENT = "kubectl-gpufraction"
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,6})(ms|s|m|h|)")
_NEVER = 86_400.0
"""Seconds that stand for no limit at all."""


def seconds(text: str) -> float:
    """A duration as kubectl takes it: `30s`, `2m`, `1h`, or whole seconds; 0 is no limit. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration; give one such as 30s or 2m")
    return int(found[1]) * _UNITS[found[2]] or _NEVER


class UserTransport:
    """A transport whose requests are sent as another user, or wait for another time."""

    def __init__(
        self, inner: Transport, *, user: str = "", groups: Sequence[str] = (), timeout: float | None = None
    ) -> None:
        """`user`, `groups`: the identity to impersonate, if this user may. `timeout`: seconds for each request."""
        self._inner = inner
        # Header names are not case-sensitive, and each group has a header of its own; the transport sends one of each
        # name, so the groups' names differ by case.
        self._headers = {"Impersonate-User": user} if user else {}
        self._headers |= dict(zip(_spellings("Impersonate-Group"), groups, strict=False))
        self._timeout = timeout

    def request(self, request: HttpRequest) -> Response:
        timeout = request.timeout if self._timeout is None else self._timeout
        return self._inner.request(
            replace(request, timeout=timeout, headers={**request.headers, **self._headers}),
        )


def _spellings(name: str) -> list[str]:
    """The name with each letter in turn in the other case: as many headers as there are letters."""
    return [name, *(name[:at] + name[at].swapcase() + name[at + 1 :] for at in range(len(name)) if name[at].isalpha())]


def connect(
    kubeconfig: str | None, context: str | None, *, user: str = "", groups: Sequence[str] = (), timeout: float | None
) -> Transport:
    """
    The connection to the cluster. Raises KubeConfigError.

    `insecure-skip-tls-verify` in a kubeconfig is obeyed without a message, as in kubectl.
    """
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
    found = connect_transport(kubeconfig=kubeconfig, context=context, user_agent=_AGENT)
    return UserTransport(found, user=user, groups=groups, timeout=timeout) if user or timeout is not None else found


class TokenTransport:
    """A transport whose requests are sent with a token, and with no other credentials."""

    def __init__(self, inner: Transport, token: str) -> None:
        """`inner`: without credentials of its own."""
        self._inner = inner
        self._token = token

    def request(self, request: HttpRequest) -> Response:
        return self._inner.request(
            replace(request, headers={**request.headers, "Authorization": f"Bearer {self._token}"})
        )


def connect_with_token(kubeconfig: str | None, context: str | None, token: str) -> Transport:
    """A connection to the same cluster with the rights of the token. Raises KubeConfigError."""
    found = connect_transport(kubeconfig=kubeconfig, context=context, user_agent=_AGENT, anonymous=True)
    return TokenTransport(found, token)
