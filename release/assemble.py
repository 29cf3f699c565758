"""
Packs the files of a release in `build/release`: the output of `make release-files`, with its description.

    python -m release.assemble --url https://SERVER/OWNER/REPOSITORY

Must not: build anything; the Makefile does.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import yaml

from kubectl_gpufraction.__main__ import COMMANDS
from release.plugin import krew
from release.version import PROJECT, differing, version

FOLDER = Path("build/release")
PLUGIN = Path("build/kubectl-gpufraction")
_COPIED = ("build/dist/gpufraction-{version}*", "build/gpufraction-{version}.tgz")
"""The wheel and the sources; the chart, where it is made."""


def assemble(project: Path, url: str) -> list[Path]:
    """Make the folder again; its files. Raises `FileNotFoundError` where the plugin or the wheel was not built."""
    folder, held = project / FOLDER, version(project)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plugin = project / PLUGIN
    packed = krew.archive(plugin, project / "LICENSE")
    shutil.copy2(plugin, folder)
    (folder / krew.ARCHIVE).write_bytes(packed)
    made = krew.manifest(held, url.rstrip("/"), packed, (command.name for command in COMMANDS))
    (folder / krew.MANIFEST).write_text(yaml.safe_dump(made, sort_keys=False, width=120), encoding="utf-8")
    for pattern in _COPIED:
        for path in sorted(project.glob(pattern.format(version=held))):
            shutil.copy2(path, folder)
    if not list(folder.glob("*.whl")):
        raise FileNotFoundError(f"build/dist has no wheel of version {held}; `make dist` builds it")
    return sorted(folder.iterdir())


def main(words: list[str], project: Path = PROJECT) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.assemble")
    parser.add_argument("--url", required=True, help="the repository's page, below which its releases are")
    asked = parser.parse_args(words)
    if wrong := differing(project):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    for path in assemble(project, asked.url):
        print(path.relative_to(project))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
