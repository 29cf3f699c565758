"""
The findings of `kubectl gpufraction check` on the tests' cluster while nothing is wrong, and how a fault changes them.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

from kubectl_gpufraction.__main__ import main
from playground.cluster import Cluster
from runtime.kubernetes.client import Kube
from tests.versions import WHOLE_PODS, shown

IMAGE = "registry.example.com/gpufraction:0.1.0"
_SAID = re.compile(r" \(it says: .*\)$")
"""The API server's own message about a webhook that it cannot call. It differs between versions."""
Line = tuple[str, str, str, str | None]
"""Result, check, finding, and cure."""


@dataclass(frozen=True, slots=True)
class Want:
    """The findings in order, by check."""

    by_check: dict[str, tuple[Line, ...]]

    @property
    def lines(self) -> list[Line]:
        """All findings."""
        return [line for lines in self.by_check.values() for line in lines]

    def but(self, *lines: Line, without: tuple[str, ...] = ()) -> Want:
        """With these findings instead of those of the same checks."""
        changed = {check: tuple(line for line in lines if line[1] == check) for check in {line[1] for line in lines}}
        assert not changed.keys() - self.by_check.keys()
        return Want(self.by_check | changed | {check: () for check in without})


def check(kubeconfig: Path, *arguments: str) -> list[Line]:
    """Run the check. Returns the findings; the exit status must agree with them."""
    out, err = io.StringIO(), io.StringIO()
    flags = ("--kubeconfig", str(kubeconfig), "-o", "json")
    status = main(["check", *arguments, *flags], out=out, err=err, environment={})
    assert err.getvalue() == ""
    items = json.loads(out.getvalue())["items"]
    assert status == any(each["result"] == "FAIL" for each in items)
    return [(each["result"], each["check"], _SAID.sub("", each["found"]), each["cure"]) for each in items]


SEEN: Line = (
    "WARN",
    "hidden-gpus",
    "pods without a share may see every GPU of their node: nothing hides them",
    "kustomize edit add component manifests/components/hide-gpus && kubectl apply -k YOUR_KUSTOMIZATION; then the same "
    "with guard-gpus: see docs/multitenant.md",
)
"""The findings wherever the components that hide GPUs are not installed."""


def ok(check_: str, found: str) -> Line:
    """A finding that is OK."""
    return ("OK", check_, found, None)


def watched(nodes: str) -> Line:
    """The findings for nodes whose agents see processes, as those of the playground do, and enforce no limits."""
    found = f"{nodes}: use beyond a share is reported (watch), and nothing limits a program to its share"
    return (
        "WARN",
        "enforcement",
        found,
        "see docs/isolation.md#switch-a-limiter-on, which chooses the way by what the node has",
    )


def kubernetes(kube: Kube) -> Line:
    """The finding about the server's version."""
    version = kube.version()
    lacks = "" if version >= WHOLE_PODS else "; requests of a whole pod (spec.resources) need 1.34"
    return ok("kubernetes", f"Kubernetes {shown(version)}{lacks}")


def healthy(cluster: Cluster) -> Want:
    """The findings while nothing is wrong."""
    lines = (
        kubernetes(cluster.kube),
        ok("your-rights", "you may install and upgrade"),
        ok("node-labels", "2 of 2 nodes have a label of GPU nodes"),
        ok("device-plugins", "no other device plugin offers GPUs"),
        ok("container-runtime", "containerd 1.7.27 on 2 GPU nodes"),
        ok(
            "runtime-class",
            "no RuntimeClass nvidia; NVIDIA's runtime must be the default of the GPU nodes",
        ),
        ok("installation", "webhook configuration, GPUNodes, Deployment and DaemonSet exist"),
        ok("image", f"{IMAGE} everywhere"),
        ok("own-pod-security", "namespace gpufraction-system: restricted, which gpufraction's pods meet"),
        ok("policies", "all 14 admission policies exist"),
        ok("webhook", "2 of 2 replicas of the Deployment gpufraction Ready"),
        ok("keeper-of-certificates", "1 of 1 replicas of the Deployment gpufraction-certs Ready"),
        ok("certificates", "the authority of the webhook is valid for 3649 days"),
        ok("leader", "replica-0 leads"),
        ok("program-rights", "the service accounts may do what their settings need (12 checked)"),
        ok("dry-run", "a pod in namespace default: the webhook answers; the pod would run on t4"),
        ok("gpus", "2 of 2 nodes share 4 GPUs"),
        watched("t4, v100"),
        SEEN,
        ok("namespaces", "served: default"),
        ok("unserved-pods", "no pod requests a share in a namespace that is not served"),
    )
    found = {line[1]: (line,) for line in lines}
    absent = {
        "node-problems": "gpus",
        "pod-security": "namespaces",
        "other-programs": "unserved-pods",
        "traps": "unserved-pods",
    }
    return Want(
        {
            key: value
            for check_, line in found.items()
            for key, value in ((check_, line), *((name, ()) for name, after in absent.items() if after == check_))
        }
    )
