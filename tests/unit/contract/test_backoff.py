"""How long a caller waits after consecutive failures."""

from __future__ import annotations

from contract.backoff import backoff, with_jitter


def test_the_wait_doubles_with_each_failure_up_to_the_longest() -> None:
    assert [backoff(failures, 0.5, 3.0) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_no_failure_waits_as_the_first_does() -> None:
    assert backoff(0, 0.5, 3.0) == 0.5


def test_any_number_of_failures_is_a_wait() -> None:
    assert backoff(10**6, 1.0, 60.0) == 60.0


def test_jitter_takes_half_of_the_wait_at_most() -> None:
    assert [with_jitter(8.0, chance) for chance in (0.0, 0.5, 1.0)] == [4.0, 6.0, 8.0]
