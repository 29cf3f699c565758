"""
`make bundle`: makes `build/gpufraction-VERSION-bundle.tar`, everything that an installation without the internet needs.

    python -m release.bundle --image gpufraction.tar [--archive IMAGE=FILE ...] [--leave-out IMAGE ...]

It contains the image and the images of other projects as OCI archives, each compared with its digest, the chart, the
plugin, the manifests and the samples, a list of every image that is named anywhere, and the sums of all files. skopeo,
if installed, fetches an archive that is not given.

Must not: build the image or the plugin; the Makefile does.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from release.bundle.archive import digests
from release.bundle.images import Image, base, images, listed
from release.chart.__main__ import files, packed
from release.chart.tree import Unsupported
from release.image.check import Unfit
from release.version import PROJECT, version

PLUGIN = Path("build/kubectl-gpufraction")
_COPIED = ("manifests", "samples", "LICENSE")
_PATIENCE = 3600.0
Fetch = Callable[[str, Path], None]


def fetched(image: str, file: Path) -> None:
    """Have skopeo copy an image with all its architectures. Raises `Unfit`."""
    name, _, digest = image.partition("@")
    # skopeo takes a tag or a digest, not both.
    source = f"{name.rpartition(':')[0] if ':' in name.rpartition('/')[2] else name}@{digest}"
    command = ["skopeo", "copy", "--all", "--preserve-digests", f"docker://{source}", f"oci-archive:{file}"]
    if shutil.which(command[0]) is None:
        raise Unfit(
            f"no archive of {image}, and skopeo is not installed; on a machine that has it, run: {' '.join(command)}"
        )
    try:
        subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=True)
    except subprocess.CalledProcessError as failed:
        raise Unfit(f"{' '.join(command)}: {failed.stderr.decode(errors='replace').strip()}") from failed
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise Unfit(f"{' '.join(command)}: {failed}") from failed


def gathered(
    found: Sequence[Image], given: Mapping[str, Path], left_out: frozenset[str], folder: Path, fetch: Fetch
) -> Iterator[tuple[str, Path]]:
    """
    Each image of other projects, as its name in the bundle and its archive. `folder` gets what is fetched. Raises
    `Unfit` for one by a tag alone, one of another digest, and a name that no file of the manifests has.
    """
    wanted = {each.name: each for each in found if each.included}
    for name in (*given, *left_out):
        if name not in wanted:
            raise Unfit(
                f"{name}: no file of the manifests names it; the names there are {', '.join(sorted(wanted)) or 'none'}"
            )
    for name, image in wanted.items():
        if name in left_out:
            continue
        if not image.digest:
            raise Unfit(
                f"{name} of {', '.join(image.where)} is named by a tag; name it by its digest (make pin-images)"
            )
        file = given.get(name)
        if file is None:
            file = folder / image.file
            fetch(name, file)
        if image.digest not in (held := digests(file)):
            raise Unfit(f"{file}: has {', '.join(sorted(held))}, and {name} was wanted")
        yield f"images/{image.file}", file


def bundled(
    project: Path, ours: Path, others: Sequence[tuple[str, Path]], found: tuple[Image, ...], into: Path
) -> Path:
    """Write the bundle. Raises `Unfit` where the plugin was not built, or our image's archive is none."""
    held, plugin = version(project), project / PLUGIN
    if not plugin.is_file():
        raise Unfit(f"{PLUGIN} does not exist; `make plugin` builds it")
    if not ours.is_file():
        raise Unfit(f"{ours}: no such file; podman save --format oci-archive -o {ours} gpufraction:{held}")
    digests(ours)
    whole = [
        ("images/gpufraction.tar", ours),
        *others,
        (PLUGIN.name, plugin),
        *((str(path.relative_to(project)), path) for path in _copied(project)),
    ]
    texts = {
        "images.txt": listed(found, held, base(project)).encode(),
        f"gpufraction-{held}.tgz": packed(files(project)),
    }
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in texts.items()}
    for name, path in whole:
        with path.open("rb") as file:
            sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    texts["SHA256SUMS"] = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()
    top, target = f"gpufraction-{held}", into / f"gpufraction-{held}-bundle.tar"
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as tar:
        for name, content in sorted(texts.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
        for name, path in sorted(whole):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode = path.stat().st_size, 0o755 if path == plugin else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return target


def _copied(project: Path) -> Iterator[Path]:
    for name in _COPIED:
        path = project / name
        yield from (each for each in sorted(path.rglob("*")) if each.is_file()) if path.is_dir() else (path,)


def main(words: Sequence[str], project: Path = PROJECT, fetch: Fetch = fetched) -> int:
    """The exit status: 1 where something is missing or is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m release.bundle", description=__doc__)
    parser.add_argument("--image", type=Path, required=True, help="our image: podman save --format oci-archive")
    parser.add_argument(
        "--archive", action="append", default=[], metavar="IMAGE=FILE", help="an OCI archive that you have"
    )
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="IMAGE", help="an image that you do not need"
    )
    parser.add_argument("--into", type=Path, default=project / "build")
    given = parser.parse_args(words)
    pairs = [text.partition("=") for text in given.archive]
    found = images(project)
    with tempfile.TemporaryDirectory() as folder:
        try:
            archives = {name: Path(file) for name, _, file in pairs}
            others = list(gathered(found, archives, frozenset(given.leave_out), Path(folder), fetch))
            print(bundled(project, given.image, others, found, given.into))
        except (Unfit, Unsupported, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
