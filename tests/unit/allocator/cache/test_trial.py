"""A copy of the cluster between two questions."""

from __future__ import annotations

import sys

from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import HeldNode
from allocator.cache.trial import Trial
from allocator.engine.reference import DEFAULT_POLICY
from contract.scheduling.clusterfilters.neighbourhood import NeighbourSnapshot
from contract.scheduling.filters import DEFAULT_LIMITS
from tests.builders import node


def test_one_that_rests_keeps_nodes_and_nothing_of_the_pods_that_were_there() -> None:
    state = node("n0").gpus(1).state()
    trial = Trial(DEFAULT_LIMITS, DEFAULT_POLICY)
    seen = NeighbourSnapshot(nodes=(state,))
    reserved = (HeldNode("n0", "uid", priority=0),)
    before = sys.getrefcount(seen), sys.getrefcount(reserved)
    trial.begin(FrozenCluster((state,), reserved, None, (), seen))
    assert sys.getrefcount(seen) > before[0]
    assert sys.getrefcount(reserved) > before[1]
    trial.rest()
    assert (sys.getrefcount(seen), sys.getrefcount(reserved)) == before
    assert trial.nodes == {"n0": state}
