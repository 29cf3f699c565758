"""
`python -m release.traps`: writes `docs/workloads/README.md`, the table of programs with their traps.

The table is that of `kubectl gpufraction check`; a test holds the committed page to it.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from kubectl_gpufraction.check.traps.table import PAGE, PROGRAMS, OtherProgram, Trap

_ROOT = Path(__file__).resolve().parents[1]
FILE = _ROOT / PAGE
_HEAD = """\
<!-- Made by `python -m release.traps`; change the code, not this page. -->
# Programs that create pods and nodes

Most pods are created by programs. See how each program treats a pod that waits for its share, and what to set.
`kubectl gpufraction check` names those traps whose condition holds in your cluster, in namespaces that are served.

## Traps

| program | if | then | what to set |
|---|---|---|---|
"""
_FOUND = """
## How they are found

{how}

| program | a Deployment with |
|---|---|
"""
_FOOT = """
The check lists the objects of a program with your rights. To find Deployments, you need the right to list them in all
namespaces. It reads the ConfigMaps that the table names and no Secret, so it cannot know a hub's settings.

Each trap is tested with an object to which it applies, and with one to which it does not apply. The rows about Argo CD
and Tekton are based on documentation, not all of it checked in sources; the other programs run in
[tests](../testing.md) alongside gpufraction.
"""


def page() -> str:
    """The whole page."""
    traps = [(_link(each.name, trap), trap.when, trap.what, trap.cure) for each in PROGRAMS for trap in each.traps]
    kinds = ", ".join(f"`{each.kind}`" for each in PROGRAMS if each.kind)
    how = (
        f"The check finds a program by a kind that the API server serves: {kinds}. It finds the others by a Deployment:"
    )
    found = [(each.name, _deployment(each)) for each in PROGRAMS if not each.kind and not each.always]
    return _HEAD + _table(traps) + _FOUND.format(how=textwrap.fill(how, 120)) + _table(found) + _FOOT


def _table(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _deployment(program: OtherProgram) -> str:
    """The marks of the program's Deployment."""
    labels = [
        f"the labels {each}"
        for each in (" and ".join(f"`{key}: {value}`" for key, value in each.items()) for each in program.labels)
    ]
    images = [f"an image named `{each}`" for each in program.images]
    return ", or ".join([*images, *labels])


def _link(name: str, trap: Trap) -> str:
    """The program's name, as a link to the trap's own page where that is another one than this."""
    return name if trap.page == PAGE else f"[{name}]({os.path.relpath(trap.page, Path(PAGE).parent)})"


def main() -> int:
    """Write the page."""
    FILE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
