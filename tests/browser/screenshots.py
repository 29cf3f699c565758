"""`make screenshots`: the pictures of the page that docs/ui.md shows, written to docs/ui/."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playground.waiting import wait_for
from tests.browser import scenes
from tests.browser.chromium import Browser, chromium, missing

FOLDER = Path(__file__).parents[2] / "docs" / "ui"
NAMED = ("--cluster-name", "prod-eu")
_MOST_BYTES = 150_000


def taken(
    browser: Browser,
    name: str,
    address: str,
    *,
    size: tuple[int, int],
    scheme: str = "light",
    until: str = "main .node, tbody tr",
) -> None:
    """Take one picture, as soon as something matches `until`."""
    browser.size(*size)
    browser.prefers(color_scheme=scheme)
    browser.open(address)
    wait_for(lambda: browser.count(until) > 0, lambda: browser.text("body"), timeout=60)
    if "pod=" in address:
        wait_for(lambda: browser.count("dialog[open] .events li") > 0, lambda: browser.text("body"), timeout=20)
    file = FOLDER / f"{name}.png"
    browser.shot(file)
    length = file.stat().st_size
    print(f"{file.relative_to(FOLDER.parents[1])}: {length // 1000} KB")
    if length > _MOST_BYTES:
        raise SystemExit(f"{file}: {length} bytes, more than {_MOST_BYTES}; show less")


def main() -> int:
    """Take all pictures. Returns the exit status."""
    lacking = missing()
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as directory:
        with scenes.small(Path(directory)) as cluster, scenes.page(cluster.kubeconfig) as address:
            taken(browser, "gpus", address, size=(1200, 790))
            taken(browser, "gpus-dark", address, size=(1200, 790), scheme="dark")
            taken(browser, "queue", f"{address}#queue", size=(1200, 400))
            taken(browser, "story", f"{address}#queue?pod=team-b/train-huge-0", size=(1200, 700))
            taken(browser, "namespaces", f"{address}#namespaces", size=(1200, 400))
            taken(browser, "narrow", f"{address}#gpus?filter=t4", size=(360, 700))
        with scenes.answered(scenes.TROUBLED, Path(directory), *NAMED) as address:
            taken(browser, "trouble", address, size=(1200, 330))
        with scenes.answered(scenes.measured(time.time()), Path(directory), *NAMED, *scenes.WITH_PROMETHEUS) as address:
            taken(browser, "use", address, size=(1200, 360), until=".use")
        with scenes.large(Path(directory)) as kubeconfig, scenes.page(kubeconfig) as address:
            taken(browser, "thousand-nodes", address, size=(1200, 900))
    return 0


if __name__ == "__main__":
    sys.exit(main())
