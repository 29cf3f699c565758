"""
`python -m playground replay`: how much of a cluster's GPUs each policy gives away.

The benchmark drives the allocator's own engine and so belongs to it; the playground, which imports none of the
programs, starts it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark with these arguments and its output on ours; its exit status."""
    return subprocess.run([sys.executable, "-m", "benchmarks.placement", *arguments], check=False).returncode
