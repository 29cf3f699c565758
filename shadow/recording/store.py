"""
The files of a recording: written line by line, each bounded; the oldest is removed if all of them are too large.

A file begins with a snapshot, so the files after one that was removed can be read. Full files are compressed. A
recorder that was killed loses the lines of its last second at most; its last line may be cut, which readers expect.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO

from shadow.recording.records import LONGEST_LINE, Record, encode

_NAME = re.compile(r"recording-([0-9]{6})\.jsonl(\.gz)?")
FILES = 8
"""Files that a full recording has."""
_LARGEST_READ = 4 << 30
"""Bytes of all files together that are read at most, uncompressed: a compressed file may claim to be anything."""


class RecordingError(Exception):
    """The recording cannot be read or written. The message says which file, and what would help."""


def files(directory: Path) -> list[Path]:
    """The files of a recording, the oldest first."""
    found: dict[int, Path] = {}
    for path in sorted(directory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match and path.is_file():
            found.setdefault(int(match[1]), path)  # the plain one sorts first, and is whole where both are there
    return [found[number] for number in sorted(found)]


class RecordingWriter:
    """
    Appends records. `snapshot` gives the first records of a new file. `most`: bytes of all files together.

    Raises `OSError` if a write to the disk fails.
    """

    def __init__(self, directory: Path, snapshot: Callable[[], Iterable[Record]], *, most: int) -> None:
        self._directory = directory
        self._snapshot = snapshot
        self._most = most
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob("*.part"):
            left.unlink()
        known = files(directory)
        self._number = _number_of(known[-1]) if known else 0
        self._file: IO[str] | None = None
        self._size = 0

    def open(self) -> None:
        """Begin a file after those that are there, and compress the last one."""
        for path in files(self._directory):
            if path.suffix != ".gz":
                _compress(path)
        self._number += 1
        path = self._directory / f"recording-{self._number:06}.jsonl"
        self._file = path.open("w", encoding="utf-8")
        self._size = 0
        self._remove_old()

    def write(self, records: Iterable[Record]) -> None:
        """Append these, and begin a new file where this one is full."""
        if self._file is None:
            raise RecordingError("the recording is not open")
        for record in records:
            line = encode(record)
            if len(line) <= LONGEST_LINE:
                self._size += self._file.write(line)
        self._file.flush()
        if self._size * FILES > self._most:
            self.close()
            self.open()
            before = self._size
            for record in self._snapshot():
                self._size += self._file.write(encode(record))
            # A snapshot that fills a file by itself must not begin another one with each record.
            self._size = min(self._size, before + self._most // FILES // 2)
            self._file.flush()

    def close(self) -> None:
        """Write the remaining records."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def _remove_old(self) -> None:
        """Remove the oldest files until the rest, and a full new one, are within the bound."""
        known = files(self._directory)
        while len(known) > 1 and sum(path.stat().st_size for path in known) + self._most // FILES > self._most:
            known.pop(0).unlink()


def _number_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def _compress(path: Path) -> None:
    part = path.with_name(f"{path.name}.gz.part")
    with path.open("rb") as plain, gzip.open(part, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    part.replace(path.with_name(f"{path.name}.gz"))
    path.unlink()


def lines(source: Path) -> Iterator[str]:
    """
    The lines of a recording: of its directory, or of one file that was exported. Raises `RecordingError`.
    """
    try:
        paths = files(source) if source.is_dir() else [source]
    except OSError as error:
        raise RecordingError(f"{source}: {error.strerror or error}") from error
    if not paths:
        raise RecordingError(f"{source}: there is no recording; the recorder writes one with `record`")
    left = _LARGEST_READ
    for path in paths:
        with contextlib.closing(_lines_of(path)) as found:
            for line in found:
                left -= len(line)
                if left < 0:
                    raise RecordingError(
                        f"{path}: more than {_LARGEST_READ >> 30} GiB in all; read a part of the files"
                    )
                yield line


def _lines_of(path: Path) -> Generator[str, None, None]:
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                yield line
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise RecordingError(f"{path}: {error.strerror}") from error
        return  # a compressed file that is cut: the part that was read counts


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as start:
        packed = start.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")
