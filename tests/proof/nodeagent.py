"""The node agent with the invented mechanism, for a level that tenants know."""

from __future__ import annotations

import sys

from contract.isolation import PRELOAD
from nodeagent.__main__ import main
from nodeagent.isolation.levels import MECHANISMS
from tests.proof import glass

if __name__ == "__main__":
    sys.exit(main(mechanisms={**MECHANISMS, PRELOAD: glass.ENTRY}))
