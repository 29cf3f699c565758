"""Which functions a library offers, read from libraries that a compiler built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.isolation.preload import offers

HIDDEN = '__attribute__((visibility("hidden")))'
SOURCES = {
    "offered": ("int cuMemAlloc_v2(void) { return 0; }", True),
    "hidden": (f"{HIDDEN} int cuMemAlloc_v2(void) {{ return 0; }} int a(void) {{ return cuMemAlloc_v2(); }}", False),
    "only wanted of another": ("int cuMemAlloc_v2(void); int a(void) { return cuMemAlloc_v2(); }", False),
    "another of a longer name": ("int cuMemAlloc_v2_ptsz(void) { return 0; }", False),
}


def built(folder: Path, source: str) -> bytes:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc")
    (folder / "made.c").write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "made.so", folder / "made.c"], check=True, timeout=60)
    return (folder / "made.so").read_bytes()


@pytest.mark.parametrize(("source", "there"), SOURCES.values(), ids=SOURCES.keys())
def test_what_a_library_offers(tmp_path: Path, source: str, there: bool) -> None:
    assert offers(built(tmp_path, source), "cuMemAlloc_v2") is there


def test_hami_cores_library_offers_what_it_limits() -> None:
    named = os.environ.get("LIBVGPU", "")
    if not named:
        pytest.skip("needs LIBVGPU=/path/to/libvgpu.so, HAMi-core's library")
    assert offers(Path(named).read_bytes(), "cuMemAlloc_v2")


def test_a_library_with_a_truncated_section_is_read_up_to_its_end(tmp_path: Path) -> None:
    whole = built(tmp_path, SOURCES["offered"][0])
    start = int.from_bytes(whole[40:48], "little")
    sections = range(start, start + int.from_bytes(whole[60:62], "little") * 64, 64)
    [symbols] = [at for at in sections if whole[at + 4] == 11]
    moved = bytearray(whole)
    moved[symbols + 24 : symbols + 32] = (len(whole) - 30).to_bytes(8, "little")
    assert offers(bytes(moved), "cuMemAlloc_v2") is False
    assert offers(whole[:-1], "cuMemAlloc_v2") is True, "the last section's end is not looked at"


@given(st.binary(max_size=400))
def test_no_bytes_are_too_strange(content: bytes) -> None:
    assert offers(b"\x7fELF\x02\x01" + content, "cuMemAlloc_v2") in (None, False)
