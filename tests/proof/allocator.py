"""The allocator with invented additions: its main program, with one more entry in each table."""

from __future__ import annotations

import sys

from allocator.__main__ import main
from allocator.app import Registry
from allocator.features import FEATURES
from contract.scheduling.clusterfilters import FILTERS
from tests.proof import damp, greeting
from tests.proof.webhook import DIALECTS

REGISTRY = Registry((*FEATURES, greeting.FEATURE), DIALECTS, (*FILTERS, damp.check))

if __name__ == "__main__":
    sys.exit(main(registry=REGISTRY))
