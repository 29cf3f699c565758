"""The webhook with the made-up dialect."""

from __future__ import annotations

import sys

from contract import dialects
from contract.dialects.table import Dialects
from tests.proof import feathers
from webhook.__main__ import main

DIALECTS = Dialects((*dialects.DIALECTS, feathers.DIALECT))

if __name__ == "__main__":
    sys.exit(main(dialects=DIALECTS))
