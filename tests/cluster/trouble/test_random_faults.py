"""Random faults on the way to the API server while many pods come and go: no share twice, and no pod forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.system import invariants
from tests.cluster.trouble.conftest import Troubled
from tests.cluster.trouble.proxy import Drop, Late, Lose, Refuse
from tests.stress.storm.storm import Storm

pytestmark = pytest.mark.system
WEATHER = (
    (0.05, Refuse(429, "TooManyRequests")),
    (0.03, Refuse(500, "InternalError")),
    (0.04, Drop()),
    (0.06, Lose()),
    (0.04, Late(0.3)),
    (0.02, Late(1.2)),
)
"""
Fractions of all requests. The last one is later than a commit's writer waits, and earlier than another replica may
begin to lead.
"""


def sizes() -> list[Any]:
    """A small storm for every run on the real control plane, and a large one on request."""
    return [pytest.param(80, id="80"), pytest.param(1000, id="1000", marks=pytest.mark.storm)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", sizes())
def test_a_storm_in_which_a_fifth_of_all_requests_goes_wrong(trouble: Troubled, count: int) -> None:
    def cut(storm: Storm) -> bool:
        return trouble.cut_watches() > 0

    storm = Storm(trouble.cluster, pods=count, strike=cut, strike_every=1.0, seed=count)
    with trouble.weather(count, *WEATHER) as faults:
        storm.blow()
    storm.settle(timeout=240)
    invariants.check(trouble.cluster)
    assert (storm.refused, storm.strikes > 0, sum(fault.hits for fault in faults) > 0) == ([], True, True)
