"""
A file that may change while a program runs, such as a ConfigMap mounted by kubelet. A changed file is read again.

Unreadable content is refused as a whole: the last good content stays in use, and `trouble` gives the reason for logs,
metrics and conditions. An absent file counts as empty, since a ConfigMap may be optional.

Must not: start a thread. Each read of the value looks at the file, which costs one `stat`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import yaml

from runtime.settings import NOT_YAML

log = logging.getLogger(__name__)
T = TypeVar("T")
_NEITHER = "neither YAML nor JSON; give YAML"


class UnreadableContent(ValueError):
    """The content cannot be read. The message says where, what was found and what would work."""


class LiveFile(Generic[T]):
    """
    The value of a file. `read` makes it of the text, and raises `UnreadableContent`; `path` None is a file that is
    never there.

    From any thread.
    """

    def __init__(self, path: Path | None, read: Callable[[str], T]) -> None:
        self._path = path
        self._read = read
        self._lock = threading.Lock()
        self._seen: object = self
        self._good: T | None = None
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why the file's present content is refused; empty if it is in use. As of the last `value`."""
        return self._trouble

    def value(self) -> T | None:
        """The value of the last content that could be read; None if there was none."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._take()
            return self._good

    def _look(self) -> object:
        """A mark that changes with the file. Kubelet swaps a link, so that the inode changes too."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return error.errno
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _take(self) -> None:
        try:
            good = self._read(self._text())
        except (UnreadableContent, OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._trouble = f"{self._path}: {reason}"
            instead = "the last good content stays in use" if self._good is not None else "nothing is in use"
            log.error(f"refused; {instead}", extra={"reason": self._trouble})
            return
        if self._good is not None and self._good != good:
            log.info("file reloaded", extra={"file": str(self._path)})
        self._good = good
        self._trouble = ""

    def _text(self) -> str:
        if self._path is None:
            return ""
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""


def yaml_file(path: Path, read: Callable[[object], T]) -> LiveFile[T]:
    """
    A YAML file; `read` makes the value of its document, and raises ValueError with a message for the administrator.

    The empty path is a file that is never there, whose document is None.
    """
    return LiveFile(None if path == Path() else path, yaml_reader(read))


def yaml_reader(read: Callable[[object], T]) -> Callable[[str], T]:
    """What makes the value of a YAML text, as `yaml_file` does. It raises `UnreadableContent`."""

    def value(text: str) -> T:
        document = _document(text)
        try:
            return read(document)
        except ValueError as error:
            raise UnreadableContent(str(error)) from error
        except NOT_YAML as error:
            raise UnreadableContent(_NEITHER) from error

    return value


def _document(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UnreadableContent(f"{where}{error.problem or 'neither YAML nor JSON'}; give YAML") from error
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise UnreadableContent(_NEITHER) from error
