"""
The interface by which admission calls a webhook. A program may implement it to call its webhooks without a network.
"""

from typing import Any, Protocol

from playground.api.kinds.values import JSON


class CallFailed(Exception):
    """The webhook gave no usable response; the failure policy decides whether the request fails."""


class WebhookCaller(Protocol):
    """Must be thread safe: each request calls it from its own thread."""

    def call(self, hook: JSON, review: JSON) -> Any:
        """
        Send a review to a webhook, given as its entry in a configuration. Returns the response as a JSON value.

        Raises `CallFailed`, also when the entry's `timeoutSeconds` are over. `review` must not be changed.
        """
