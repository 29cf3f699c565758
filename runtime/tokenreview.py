"""
Finds the user of a scraper's token, and whether that user may read metrics, by two requests to the API server.

Must not: log a token, or remember it (`runtime.scraping` remembers the answer).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.paths import path as path_of
from runtime.scraping import METRICS_PATH, Review, ScrapeVerdict

log = logging.getLogger(__name__)

TIMEOUT = 3.0
"""Seconds for each of the two."""
_TOKEN_REVIEWS = path_of("authentication.k8s.io/v1", "tokenreviews")
_ACCESS_REVIEWS = path_of("authorization.k8s.io/v1", "subjectaccessreviews")


def kube_review(kube: Kube, *, timeout: float = TIMEOUT) -> Review:
    """Ask the API server for the token's user, and whether that user may `get` the path `/metrics`."""

    def review(token: str) -> ScrapeVerdict:
        try:
            answered = kube.create(_TOKEN_REVIEWS, {"spec": {"token": token}}, timeout=timeout)
            user = _user_of(answered)
            if user is None:
                return ScrapeVerdict.UNKNOWN
            attributes = {**user, "nonResourceAttributes": {"path": METRICS_PATH, "verb": "get"}}
            access = kube.create(_ACCESS_REVIEWS, {"spec": attributes}, timeout=timeout)
        except KubeError as error:
            log.warning("scraper's token not reviewed", extra={"reason": type(error).__name__})
            return ScrapeVerdict.UNAVAILABLE
        status = access.get("status")
        allowed = isinstance(status, Mapping) and status.get("allowed") is True and status.get("denied") is not True
        return ScrapeVerdict.ALLOWED if allowed else ScrapeVerdict.DENIED

    return review


def _user_of(review: Mapping[str, Any]) -> dict[str, Any] | None:
    """The user of a TokenReview, in the fields of a SubjectAccessReview; None if the token belongs to no user."""
    status = review.get("status")
    if not isinstance(status, Mapping) or status.get("authenticated") is not True:
        return None
    user = status.get("user")
    name = user.get("username") if isinstance(user, Mapping) else None
    if not isinstance(user, Mapping) or not isinstance(name, str) or not name:
        return None
    more = {"groups": user.get("groups"), "uid": user.get("uid"), "extra": user.get("extra")}
    return {"user": name, **{field: value for field, value in more.items() if value}}
