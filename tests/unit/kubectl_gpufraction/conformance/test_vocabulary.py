"""What a node reports about itself enters a report only as words of the tables and as digits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpufraction.conformance import vocabulary

MODELS = {
    "Tesla T4": "Tesla T4",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA RTX 6000 Ada Generation": "NVIDIA RTX 6000 Ada Generation",
    "acme-bank T4 of jane.doe@acme.com": "T4",
    "acme": "other",
    "": "unknown",
}
SYSTEMS = {
    "Ubuntu 22.04.5 LTS": "Ubuntu 22.04",
    "Red Hat Enterprise Linux CoreOS 417.94.202410 (Plow)": "Red Hat Enterprise Linux CoreOS 417.94",
    "Red Hat Enterprise Linux 9.4 (Plow)": "Red Hat Enterprise Linux 9.4",
    "Container-Optimized OS from Google": "Container-Optimized OS",
    "Ubuntu acme-golden-image": "Ubuntu",
    "acme golden image 7": "other",
    "": "unknown",
}
RUNTIMES = {
    "containerd://1.7.27-k3s1": "containerd 1.7.27",
    "cri-o://1.36.3": "cri-o 1.36.3",
    "docker://acme": "docker unknown",
    "acme://1.2": "other",
    "": "unknown",
}


@pytest.mark.parametrize(("found", "kept"), MODELS.items())
def test_a_model_keeps_the_words_of_products(found: str, kept: str) -> None:
    assert vocabulary.model(found) == kept


@pytest.mark.parametrize(("found", "kept"), SYSTEMS.items())
def test_a_system_is_a_distribution_and_its_version(found: str, kept: str) -> None:
    assert vocabulary.system(found) == kept


@pytest.mark.parametrize(("found", "kept"), RUNTIMES.items())
def test_a_runtime_is_its_name_and_its_version(found: str, kept: str) -> None:
    assert vocabulary.runtime(found) == kept


def test_a_version_is_no_address() -> None:
    assert vocabulary.version("10.0.17.4") == "10.0.17"


@given(st.text(max_size=40), st.sampled_from(["", "NVIDIA ", "Ubuntu ", "containerd://", "Tesla-", "1.2.3."]))
def test_no_text_of_a_node_passes(text: str, before: str) -> None:
    """Whatever a node reports, only words of the tables, digits, or a short name of a card such as `T4` are kept."""
    given_text = before + text
    kept = {
        "model": vocabulary.model(given_text),
        "system": vocabulary.system(given_text),
        "runtime": vocabulary.runtime(given_text),
        "architecture": vocabulary.architecture(given_text),
        "version": vocabulary.version(given_text),
    }
    assert {kind: vocabulary.is_(kind, word) for kind, word in kept.items()} == dict.fromkeys(kept, True)
    for word in re.findall(r"[^\W\d_]{3,}", kept["model"]):
        assert word in {"other", "unknown", "Max", "GeForce"} or any(word in each for each in vocabulary._PRODUCTS)
