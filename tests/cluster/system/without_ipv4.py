"""
Runs everything on the embedded control plane in a network namespace that has no IPv4, started by
`test_without_ipv4.py`.

The programs listen on their default addresses, so each has its own port of the manifests. Prints the results as JSON.
"""

from __future__ import annotations

import functools
import json
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

from contract import names
from playground.api.kinds.values import ADMIN
from playground.cluster import account
from playground.embedded import Embedded
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.objects.nodes import NodeSpec
from playground.programs import installing
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.builders import pod

JSON = dict[str, Any]
PROBES = {"webhook": 9444, "allocator": 9402, "nodeagent": 9445}
NODE = "n1"
LONG = 60.0


def no_gpus(node: str) -> NodeGpus:
    """No container is started here."""
    return ()


def connects(host: str, port: int) -> bool:
    """Whether a program answers there."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def answer(port: int) -> int:
    """The status of a program's `/healthz`, as a kubelet asks for it."""
    with urllib.request.urlopen(f"http://[::1]:{port}/healthz", timeout=10) as found:
        return int(found.status)


def main(folder: Path) -> dict[str, object]:
    plane = Embedded(gpus_of=no_gpus, host="::1")
    plane.start()
    programs: list[Program] = []

    def program(name: str, *arguments: str, user: str, node: str = "") -> Program:
        config = folder / f"{name}.kubeconfig"
        config.write_text(plane.kubeconfig(account(user, node=node)))
        made = Program(name, arguments, log=folder / f"{name}.log", environment={"KUBECONFIG": str(config)})
        programs.append(made)
        return made

    try:
        config = folder / "admin.kubeconfig"
        config.write_text(plane.kubeconfig(ADMIN))
        kube = Kube.connect(kubeconfig=str(config), user_agent="test")
        for document in installing.to_apply():
            beside: list[JSON] = []
            if document["kind"] == "MutatingWebhookConfiguration":
                document, beside = plane.reach(document, 9443)
            for applied in (*beside, document):
                installing.apply(kube, applied)
        plane.add_node(NodeSpec(NODE, address="fd00::11"))
        kube.create(paths.namespaces(), {"metadata": {"name": "team", "labels": {str(names.INJECT_LABEL): "enabled"}}})
        certs, path = str(folder / "certs"), str(folder / "a.sock")
        made = ("--dir", certs, "--configuration", names.CONFIGURATION)
        program("certs", "webhook", "certs", *made, user="gpufraction-certs").run()
        flags = ("--socket", path, "--election-lease", "3s")
        program("allocator", "allocator", "run", *flags, user="gpufraction-allocator").start()
        program("webhook", "webhook", "serve", "--certificates", certs, "--socket", path, user="nobody").start()
        node = ("--node", NODE, "--simulate", "1 x Tesla T4 15109MiB", "--interval", "1s")
        program("nodeagent", "nodeagent", "run", *node, user="gpufraction-nodeagent", node=NODE).start()
        for port in PROBES.values():
            wait_for(functools.partial(connects, "::1", port), f"nothing listens on {port}", LONG)
        wait_for(lambda: connects("::1", 9443), "no webhook listens", LONG)
        wait_for(lambda: has_capacity(kube), "the node has no GPU capacity", LONG)
        wait_for(lambda: installing.takes_pods(kube, "team"), "the namespace takes no pods", LONG)
        manifest = pod("p").asks("gpufraction.io/gpu-memory", "1Gi").manifest()
        manifest["metadata"]["namespace"] = "team"
        wait_for(lambda: created(kube, manifest), "the pod is refused", LONG)
        of = paths.pods("team", "p")
        wait_for(lambda: names.ALLOCATION in kube.get(of)["metadata"]["annotations"], "the pod gets no share", LONG)
        return {
            "probes": {name: answer(PROBES[name]) for name in PROBES},
            "by IPv4": [port for port in (9443, *PROBES.values()) if connects("127.0.0.1", port)],
            "node": json.loads(kube.get(of)["metadata"]["annotations"][names.ALLOCATION])["node"],
        }
    finally:
        for each in programs:
            if each.alive():
                each.terminate()
                each.wait()
        plane.stop()


def has_capacity(kube: Kube) -> bool:
    """Whether the agent has published the node's card."""
    return names.GPU_MEMORY in (kube.get(paths.nodes(NODE)).get("status") or {}).get("allocatable", {})


def created(kube: Kube, manifest: dict[str, object]) -> bool:
    """Create the pod. The API server does not trust the webhook at once."""
    try:
        kube.create(paths.pods("team"), manifest)
    except KubeError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
