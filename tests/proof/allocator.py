"""The allocator with a made-up feature: its main program, given a table that has one entry more."""

from __future__ import annotations

import sys

from allocator.__main__ import main
from allocator.features import FEATURES
from tests.proof.greeting import FEATURE

if __name__ == "__main__":
    sys.exit(main(features=(*FEATURES, FEATURE)))
