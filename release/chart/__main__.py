"""
`make chart`: writes the Helm chart into `build/chart/gpufraction` and packs it as `build/gpufraction-VERSION.tgz`.

Needs neither Helm nor kubectl. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.chart import kustomizations, render
from release.chart.tree import Unsupported

ROOT = Path(__file__).resolve().parents[2]


def files(root: Path = ROOT) -> dict[str, str]:
    """The chart's files by their path in it. Raises `Unsupported`."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    notes = Path(__file__).with_name("notes.txt").read_text(encoding="utf-8")
    found = render.files(kustomizations.read(root / "manifests"), version, notes)
    return {**found, "LICENSE": (root / "LICENSE").read_text(encoding="utf-8")}


def packed(found: Mapping[str, str]) -> bytes:
    """The chart as Helm packages it: a compressed archive with one folder."""
    archive = io.BytesIO()
    with gzip.GzipFile(fileobj=archive, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path, text in sorted(found.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"gpufraction/{path}")
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the chart. Exit status 1 where the manifests have parts that a chart cannot express."""
    parser = argparse.ArgumentParser(prog="python -m release.chart", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "build", help="the folder that gets the chart")
    into: Path = parser.parse_args(arguments).into
    try:
        found = files()
    except Unsupported as error:
        print(f"the manifests contain something that the chart cannot express: {error}", file=sys.stderr)
        return 1
    folder = into / "chart" / "gpufraction"
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in found.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    [version] = [line.partition(" ")[2] for line in found["Chart.yaml"].splitlines() if line.startswith("version: ")]
    package = into / f"gpufraction-{version}.tgz"
    package.write_bytes(packed(found))
    print(f"{folder}\n{package}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
