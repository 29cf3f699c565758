"""
The caller of a webhook: what admission needs of it, so that a program may call its webhooks without a network.
"""

from typing import Any, Protocol

from playground.api.kinds.values import JSON


class CallFailed(Exception):
    """The webhook gave no usable answer; the failure policy decides what that means."""


class WebhookCaller(Protocol):
    """Thread safe: every request that a webhook is asked about calls it from its own thread."""

    def call(self, hook: JSON, review: JSON) -> Any:
        """
        Send a review to a webhook, given as its entry of a configuration; the answer as a JSON value.

        Raises `CallFailed`, also when the entry's `timeoutSeconds` are over. `review` must not be changed.
        """
