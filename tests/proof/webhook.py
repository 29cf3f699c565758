"""The webhook with the invented dialect."""

from __future__ import annotations

import sys

from contract import dialects
from contract.deprecations import Deprecation
from contract.dialects.table import Dialects
from tests.proof import feathers
from webhook.__main__ import main

DEPRECATED = Deprecation(feathers.PLUMES, "leave it out", since="0.1.0", until="0.3.0")
DIALECTS = Dialects((*dialects.DIALECTS, feathers.DIALECT), (DEPRECATED,))

if __name__ == "__main__":
    sys.exit(main(dialects=DIALECTS))
