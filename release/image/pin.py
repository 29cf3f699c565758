"""
`make pin-images`: the digests of the images that are not ours, looked up in their registries and written where they are
named: the base in the Containerfile, HAMi's in the component preload.

A tag may get other content later, a digest may not. A digest is the SHA-256 of an image's list for all architectures,
as the registry answers it to skopeo, crane or docker, whichever is here.

Must not: pull an image, or change which version is named.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from release.image.check import Unfit

NAMED = (
    (Path("Containerfile"), re.compile(r"(?<=^ARG PYTHON=)(?P<image>[^@\s]+)(?P<digest>@sha256:[0-9a-f]{64})?$", re.M)),
    (
        Path("manifests/components/preload/agent.yaml"),
        re.compile(r"(?<=image: )(?P<image>\S*/hami:[^@\s]+)(?P<digest>@sha256:[0-9a-f]{64})?$", re.M),
    ),
)
"""The files, and where in them an image is named, with a digest or without."""
_ASKING = (
    ("skopeo", "inspect", "--raw", "docker://{image}"),
    ("crane", "manifest", "{image}"),
    ("docker", "buildx", "imagetools", "inspect", "--raw", "{image}"),
)
_PATIENCE = 120.0
Run = Callable[[Sequence[str]], bytes]


def output(command: Sequence[str]) -> bytes:
    """The output of a command. Raises `Unfit` where it fails."""
    try:
        return subprocess.run(list(command), capture_output=True, timeout=_PATIENCE, check=True).stdout
    except subprocess.CalledProcessError as failed:
        raise Unfit(f"{' '.join(command)}: {failed.stderr.decode(errors='replace').strip()}") from failed
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise Unfit(f"{' '.join(command)}: {failed}") from failed


def digest(image: str, run: Run = output, has: Callable[[str], object] = shutil.which) -> str:
    """The digest of an image's list, `sha256:...`. Raises `Unfit` where none of the programs is here, or no list is."""
    asking = next((words for words in _ASKING if has(words[0])), None)
    if asking is None:
        raise Unfit(f"none of {', '.join(words[0] for words in _ASKING)} is installed; install one of them")
    raw = run([word.format(image=image) for word in asking])
    if b'"manifests"' not in raw:
        raise Unfit(
            f"{image}: the registry has no list for several architectures, so its digest would be one machine's"
        )
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def pinned(text: str, pattern: re.Pattern[str], of: Callable[[str], str]) -> str:
    """The text with the image's digest from `of`. Raises `Unfit` if no image is named."""
    found = pattern.search(text)
    if found is None:
        raise Unfit(f"nothing fits {pattern.pattern}")
    return f"{text[: found.start()]}{found['image']}@{of(found['image'])}{text[found.end() :]}"


def main(project: Path, of: Callable[[str], str] = digest) -> int:
    """Look up all images, then write; the exit status."""
    try:
        made = {
            project / path: pinned((project / path).read_text(encoding="utf-8"), pattern, of) for path, pattern in NAMED
        }
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 1
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
        print(f"pinned in {path.relative_to(project)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
