"""
The webhook's metrics: what it answered, what the allocator answered it, and what it serves with.

Must not: name a pod or a namespace in a label; they come and go by the thousand, and each would be a series.
"""

from __future__ import annotations

from contract.metrics.spec import Program

PROGRAM = Program("webhook")

# The goal for an admission is under 20 ms, and it may take 3 s at most (the webhook's timeoutSeconds).
_ADMISSION_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)

ADMISSION_REQUESTS = PROGRAM.counter(
    "gpufraction_admission_requests_total",
    "Admission reviews answered, by outcome (placed, gated, denied, hidden, untouched, malformed, late, error) and "
    "request dialect.",
    labels=("outcome", "dialect"),
)
ADMISSION_SECONDS = PROGRAM.histogram(
    "gpufraction_admission_duration_seconds",
    "Time from reading an admission review to its answer, by outcome (placed, gated, denied, hidden, untouched, "
    "malformed, late, error).",
    labels=("outcome",),
    buckets=_ADMISSION_SECONDS,
)
QUESTIONS = PROGRAM.counter(
    "gpufraction_allocator_questions_total",
    "Requests to the allocator, by its answer (placed, wait, never; not-leading: the pod waits for the replica that "
    "leads) or why there was none (unreachable, late, not-ready, refused, malformed).",
    labels=("answer",),
)
DEPRECATED_NAMES = PROGRAM.counter(
    "gpufraction_deprecated_names_total",
    "Pods with a share that were admitted with a deprecated annotation, label or resource, by its name. Absent while "
    "nothing is deprecated; see docs/deprecations.md.",
    labels=("name",),
)
CERTIFICATE_EXPIRY = PROGRAM.gauge(
    "gpufraction_certificate_expiry_timestamp_seconds",
    "Time at which the webhook's serving certificate expires, in seconds since 1970.",
)
WEBHOOK_OPTIONS_REFUSED = PROGRAM.gauge(
    "gpufraction_webhook_options_refused",
    "1 while the file of options cannot be read and the last good content stays in use, 0 otherwise.",
)
TURNED_AWAY = PROGRAM.counter(
    "gpufraction_webhook_turned_away_total",
    "Clients of the webhook that its server gave up or refused, by reason: late with something (handshake, "
    "request, answer), too long in the queue (queue), too many (connections, bytes), or not served (malformed, "
    "size, certificate).",
    labels=("reason",),
)
CONNECTIONS = PROGRAM.gauge(
    "gpufraction_webhook_connections",
    "Open connections to the webhook.",
)
