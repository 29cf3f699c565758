"""
The demo: applies every sample unchanged, and shows its outcome next to the expected one.

It reads all outcomes from the API server. The exit status is 0 only if all of them are as expected.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from typing import TextIO

from playground import scenarios
from playground.cluster import Cluster
from playground.picture import draw
from playground.programs.process import Program
from playground.scenarios import SCENARIOS, Scenario
from playground.waiting import NotInTime, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube


def run(out: TextIO = sys.stdout, *, keep: bool = False) -> int:
    """Run the demo; the exit status. `keep`: show a page of the last sample's pods, and go on until Ctrl-C."""
    began = time.monotonic()
    print("Starting a cluster of 3 GPU nodes, and gpufraction on it ...", file=out, flush=True)
    with Cluster() as cluster:
        print(f"up after {time.monotonic() - began:.1f} s; its GPUs:\n\n{draw(cluster.kube)}\n", file=out, flush=True)
        results = [_show(cluster.kube, scenario, out) for scenario in SCENARIOS]
        results.append(_one_for_one(cluster.kube, out))
        good = sum(results)
        print(f"\n{good} of {len(results)} as expected, in {time.monotonic() - began:.0f} s", file=out, flush=True)
        if keep:
            _page(cluster, out)
    if not keep:
        print("To see such a cluster in a browser: make demo KEEP=1", file=out)
    return 0 if good == len(results) else 1


def _page(cluster: Cluster, out: TextIO) -> None:
    """Fill the cluster again, and serve the plugin's page of it until Ctrl-C."""
    scenario = next(s for s in SCENARIOS if s.sample == "4paradigm-vgpu.yaml")
    scenarios.submit(cluster.kube, scenario)
    scenarios.settled(cluster.kube, scenario.pods)
    log = cluster.directory / "ui.log"
    page = Program(
        "ui", ["kubectl_gpufraction", "ui", "--kubeconfig", str(cluster.kubeconfig)], log=log, environment={}
    )
    page.start()
    try:
        wait_for(lambda: _address(log.read_text()) != "" or not page.alive(), lambda: log.read_text(), timeout=30)
        page.check()
        print(f"\nThe page of this cluster, for a browser on this machine: {_address(log.read_text())}", file=out)
        print(
            f"    export KUBECONFIG={cluster.kubeconfig}\nCtrl-C ends the cluster and the page.", file=out, flush=True
        )
        with contextlib.suppress(KeyboardInterrupt):
            while page.alive():
                time.sleep(0.5)
    finally:
        page.terminate()
        page.wait()


def _address(text: str) -> str:
    """The address of the page, once it has been printed."""
    found = re.search(r"^http://\S+", text, re.MULTILINE)
    return found[0] if found else ""


def _show(kube: Kube, scenario: Scenario, out: TextIO) -> bool:
    made = scenarios.submit(kube, scenario)
    try:
        found = scenarios.settled(kube, scenario.pods)
    except NotInTime as error:
        print(f"  {scenario.title:34} DIFFERS: {error}", file=out, flush=True)
        return False
    seen, missing = scenarios.outcome(found), scenarios.missing_lines(kube, scenario, found)
    good = seen == scenario.want and not missing
    print(f"{'ok' if good else 'DIFFERS':8}{scenario.title}   (samples/{scenario.sample})", file=out)
    print(f"          expected  {scenario.want}", file=out)
    print(f"          observed  {seen}", file=out)
    for line in missing:
        print(f"          not printed by its container: {line}", file=out)
    for line in scenario.prints if not missing else ():
        print(f"          in its container: {line}", file=out)
    message = next((scenarios.condition(p).get("message") for p in found if scenarios.waits(p)), None)
    if message:
        print(f"          reason of the waiting pods: {message}", file=out)
    out.flush()
    scenarios.remove(kube, made)
    return good


def _one_for_one(kube: Kube, out: TextIO) -> bool:
    """Show that deleting one of six running pods starts exactly one of four waiting pods, the first in the queue."""
    scenario = next(s for s in SCENARIOS if s.sample == "4paradigm-vgpu.yaml")
    made = scenarios.submit(kube, scenario)
    before = scenarios.settled(kube, scenario.pods)
    waiting = {p["metadata"]["name"] for p in before if scenarios.waits(p)}
    victim = next(p for p in before if scenarios.is_running(p))["metadata"]["name"]
    kube.delete(paths.pods("default", victim))
    wait_for(
        lambda: victim not in {p["metadata"]["name"] for p in scenarios.all_pods(kube)}, lambda: f"{victim} is there"
    )
    after = scenarios.settled(kube, scenario.pods, running=scenario.want.running)
    started = sorted(p["metadata"]["name"] for p in after if scenarios.is_running(p))
    came = [name for name in started if name in waiting]
    seen = scenarios.outcome(after)
    good = len(came) == 1 and seen == scenario.want
    print(f"{'ok' if good else 'DIFFERS':8}4paradigm: one of the six running pods is deleted", file=out)
    print("          expected  1 of the 4 that waited starts, and 4 wait again", file=out)
    print(f"          observed  {len(came)} of the 4 that waited starts, and {seen.waiting} wait again", file=out)
    print(f"\nthe GPUs now:\n\n{draw(kube)}", file=out, flush=True)
    scenarios.remove(kube, made)
    return good
