"""The component hide-gpus in a cluster whose webhook was started with the component's setting."""

from __future__ import annotations

from playground.cluster import Cluster
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import pod


def hide_gpus(cluster: Cluster) -> None:
    """Apply what the component adds to the webhook's configuration, and what the keeper of certificates does then."""
    base = installing.webhook_configuration()
    (component,) = installing.documents(installing.COMPONENTS / "hide-gpus" / "webhook.yaml")
    whole, _ = cluster.reached({**base, "webhooks": [*base["webhooks"], *component["webhooks"]]})
    cluster.kube.patch_strategic(paths.mutatingwebhookconfigurations(base["metadata"]["name"]), whole)

    def hides() -> bool:
        cluster.programs["certs"].run()
        try:
            tried = cluster.kube.create(paths.pods("default"), pod("probe").manifest(), {"dryRun": "All"})
        except KubeError:
            return False
        return "env" in tried["spec"]["containers"][0]

    wait_for(hides, "the API server does not go by hide-gpus")
