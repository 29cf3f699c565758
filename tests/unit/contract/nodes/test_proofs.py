"""The annotation of a proof is read back as written; any other text is not a proof."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.nodes import proofs
from contract.nodes.proofs import Proof

_PROOFS = st.builds(
    Proof, st.booleans(), st.integers(0, 4_000_000_000), st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}", fullmatch=True)
)


@given(_PROOFS)
def test_a_proof_is_read_back(proof: Proof) -> None:
    assert proofs.from_text(proofs.to_text(proof)) == proof


@given(st.text(max_size=200))
def test_any_text_is_a_proof_or_none(text: str) -> None:
    found = proofs.from_text(text)
    assert found is None or found.driver in text


ODD = ("", "held", "held 2026-11-27T00:00:00Z", "HELD 2026-11-27T00:00:00Z 570", "held yesterday 570.1", "held 570 570")


@pytest.mark.parametrize("text", [*ODD, "held 2026-11-27T00:00:00Z 570\n", "held 2026-11-27T00:00:00Z 570 x"])
def test_what_is_no_proof(text: str) -> None:
    assert proofs.from_text(text) is None
