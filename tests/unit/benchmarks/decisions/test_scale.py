"""`make bench-scale` with small sizes: a table and a growth for each policy, the plot, and a last line for programs."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.decisions import scale


def test_the_default_policy_and_binpack_at_every_size(tmp_path: Path) -> None:
    plot = tmp_path / "scale.svg"
    texts = list(scale.scale(sizes=(3, 6), decisions=80, plot=plot))
    assert [text.split(":")[0] for text in texts[:-1]] == ["value", "value", "binpack", "binpack", "plot"]
    assert [line.split()[0] for line in texts[0].splitlines()[3:]] == ["3", "6"]
    assert re.fullmatch(r"scale nodes=6 p50_us=\d+ p99_us=\d+ rss_mib=\d+", texts[-1])
    assert plot.read_text().count("<svg") == 1
