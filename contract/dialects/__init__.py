"""
The table of dialects. A new dialect is one module and one line here.
"""

from __future__ import annotations

from contract.dialects import aliyun, claims, elastic, hami, kai, nano, native, resourceclaims
from contract.dialects.table import Dialects

DIALECTS = Dialects(
    (
        native.DIALECT,
        aliyun.DIALECT,
        elastic.DIALECT,
        claims.DIALECT,
        hami.DIALECT,
        nano.DIALECT,
        kai.DIALECT,
        resourceclaims.DIALECT,
    )
)
