"""
`python -m release.traps`: writes `docs/workloads/README.md`, the table of programs with their traps.

The table is that of `kubectl gpufraction check`; a test holds the committed page to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kubectl_gpufraction.check.traps.table import PAGE, PROGRAMS, OtherProgram, Trap

_ROOT = Path(__file__).resolve().parents[1]
FILE = _ROOT / PAGE
_HEAD = """\
<!-- Made by `python -m release.traps`; change the code, not this page. -->
# Programs that create pods and nodes

Most pods are created by programs. This page lists the programs that `kubectl gpufraction check` looks for, how it finds
each of them, how each one treats a pod that waits for its share, and what keeps a share from a pod. The check names a
trap only if its condition holds in your cluster, as far as you may read it, and only for namespaces that are served.

## How they are found

| program | found by |
|---|---|
"""
_TRAPS = """
## Traps

| program | the trap applies if | what happens | what to set | page |
|---|---|---|---|---|
"""
_FOOT = """
## What it reads

Everyone may read which kinds are served. To find the other programs you need the right to list Deployments of all
namespaces. The check lists the objects of a program with your rights, and reads the ConfigMaps that the table names. It
reads no Secret, so it cannot know a hub's settings.

JobSet, LeaderWorkerSet, Kubeflow Trainer, Kueue, KubeRay, Argo Workflows, JupyterHub, Knative Serving, KServe, Airflow,
Cluster Autoscaler and Karpenter run in [tests](../testing.md) alongside gpufraction. The rows about the other programs
are based on their documentation, and not all of it was checked in their sources. Each trap is tested with an object to
which it applies, and with one to which it does not apply.
"""


def page() -> str:
    """The whole page."""
    found = [(each.name, _how(each)) for each in PROGRAMS if not each.always]
    traps = [(each.name, trap.when, trap.what, trap.cure, _link(trap)) for each in PROGRAMS for trap in each.traps]
    return _HEAD + _table(found) + _TRAPS + _table(traps) + _FOOT


def _table(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _how(program: OtherProgram) -> str:
    if program.kind:
        return f"the kind `{program.kind}` is served"
    labels = [
        f"the labels {each}"
        for each in (" and ".join(f"`{key}: {value}`" for key, value in each.items()) for each in program.labels)
    ]
    images = [f"an image named `{each}`" for each in program.images]
    return f"a Deployment with {', or '.join([*images, *labels])}"


def _link(trap: Trap) -> str:
    """A link to the trap's own page, where that is another one than this."""
    if trap.page == PAGE:
        return ""
    target = os.path.relpath(trap.page, Path(PAGE).parent)
    return f"[{Path(target).stem}]({target})"


def main() -> int:
    """Write the page."""
    FILE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
