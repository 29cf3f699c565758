"""
`python -m playground demo`, `demo-tenants`, `up`, `upgrade`, `break` and `mend`.
"""

from __future__ import annotations

import sys

from playground.operating import ending

if __name__ == "__main__":
    ending.at_once()
    # Only now: a signal during these imports would be a traceback from the middle of a library.
    from playground.commands import main

    sys.exit(main())
