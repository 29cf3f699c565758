"""
Placement that depends on other pods: a pod with a share goes where kube-scheduler would place it, and runs there.

On the real control plane kube-scheduler has the last word, so a pod that runs was accepted by its filters too.
"""

from __future__ import annotations

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.system import rules
from tests.cluster.system.rules import HOST, SPACE, ZONE, asking, await_nodes, await_waiting, create, end, required

pytestmark = pytest.mark.system
ANTI = "podAntiAffinity"


def names_of(cluster: Cluster) -> list[str]:
    return [node.spec.name for node in cluster.nodes]


def zones(cluster: Cluster) -> dict[str, str]:
    """All nodes except the last are in zone `a`; the last one is in zone `b`."""
    *most, last = names_of(cluster)
    return {**dict.fromkeys(most, "a"), last: "b"}


# -- anti-affinity ------------------------------------------------------------------------------------------------


def test_replicas_with_anti_affinity_run_on_a_node_each_and_the_last_waits(cluster: Cluster) -> None:
    nodes = names_of(cluster)
    made = [f"web-{at}" for at in range(len(nodes))]
    create(cluster, *(asking(name, "web", **required(ANTI, "web")) for name in made))
    assert sorted(await_nodes(cluster, *made)) == sorted(nodes)
    create(cluster, asking("web-more", "web", **required(ANTI, "web")))
    await_waiting(cluster, "web-more", f"{len(nodes)} because of anti-affinity to another pod")
    end(cluster, "web-0")
    await_nodes(cluster, "web-more")


def test_a_running_pods_anti_affinity_keeps_others_off_its_node(cluster: Cluster) -> None:
    *quiet, free = names_of(cluster)
    for node in quiet:
        create(cluster, asking(f"quiet-{node}", "quiet", nodeSelector={HOST: node}, **required(ANTI, "loud")))
    await_nodes(cluster, *(f"quiet-{node}" for node in quiet))
    create(cluster, *(asking(f"loud-{at}", "loud") for at in range(2)))
    assert await_nodes(cluster, "loud-0", "loud-1") == [free, free]


def test_a_pod_without_a_share_excludes_another_until_it_is_deleted(cluster: Cluster) -> None:
    nodes = names_of(cluster)
    quiet = [f"quiet-{node}" for node in nodes]
    excluding = required(ANTI, "loud")
    create(cluster, *(rules.without_share(f"quiet-{node}", node, **excluding) for node in nodes))
    await_nodes(cluster, *quiet)
    create(cluster, asking("loud", "loud"))
    await_waiting(cluster, "loud", f"{len(nodes)} because of anti-affinity to another pod")
    end(cluster, quiet[1])
    assert await_nodes(cluster, "loud") == [nodes[1]]


def test_anti_affinity_by_zone_excludes_the_other_nodes_of_the_zone_too(cluster: Cluster) -> None:
    with rules.labelled(cluster.kube, zones(cluster)):
        rules.await_seen_nodes(cluster)
        first, *_, alone = names_of(cluster)
        create(cluster, rules.without_share("quiet", first, **required(ANTI, "loud", ZONE)))
        await_nodes(cluster, "quiet")
        create(cluster, asking("loud", "loud"))
        assert await_nodes(cluster, "loud") == [alone]


def test_a_term_means_the_pods_of_the_namespaces_that_it_selects(cluster: Cluster) -> None:
    first, second, third = names_of(cluster)
    with (
        rules.namespace(cluster, "red", team="red") as red,
        rules.namespace(cluster, "blue", team="blue") as blue,
    ):
        for number, (space, node) in enumerate(((red, first), (blue, second), (blue, third))):
            made = rules.without_share(f"db-{number}", node, space).labelled("app", "db")
            create(cluster, made)
            await_nodes(cluster, f"db-{number}", namespace=space)
        by_team = {team: {"namespaceSelector": {"matchLabels": {"team": team}}} for team in ("red", "blue")}
        # It runs once the allocator has seen both labels.
        create(cluster, asking("near", "web", **required("podAffinity", "db", more=by_team["blue"])))
        assert await_nodes(cluster, "near")[0] in (second, third)
        create(
            cluster,
            asking("beside", "web", **required("podAffinity", "db", more=by_team["red"])),
            asking("away", "web", **required(ANTI, "db", more=by_team["blue"])),
            # Without namespaces a term applies to its own namespace, where no pod has the label.
            asking("own", "web", nodeSelector={HOST: third}, **required(ANTI, "db")),
        )
        assert await_nodes(cluster, "beside", "away", "own") == [first, first, third]


# -- affinity -----------------------------------------------------------------------------------------------------


def test_a_pod_runs_beside_the_pod_that_it_wants(cluster: Cluster) -> None:
    for number, node in enumerate(names_of(cluster)):
        app = f"db-{number}"
        create(cluster, asking(app, app, nodeSelector={HOST: node}))
        await_nodes(cluster, app)
        create(cluster, asking(f"web-{number}", "web", **required("podAffinity", app)))
        assert await_nodes(cluster, f"web-{number}") == [node]


def test_a_pod_waits_for_the_pod_that_it_wants(cluster: Cluster) -> None:
    nodes = names_of(cluster)
    create(cluster, asking("web", "web", **required("podAffinity", "db")))
    await_waiting(cluster, "web", f"{len(nodes)} because of required affinity to another pod")
    create(cluster, rules.without_share("db", nodes[1]).labelled("app", "db"))
    assert await_nodes(cluster, "web") == [nodes[1]]


# -- spreading ----------------------------------------------------------------------------------------------------


def test_pods_with_a_hard_spread_constraint_are_spread(cluster: Cluster) -> None:
    nodes = names_of(cluster)
    made = [f"even-{at}" for at in range(len(nodes))]
    create(cluster, *(asking(name, "even", **rules.spread("even", HOST)) for name in made))
    assert sorted(await_nodes(cluster, *made)) == sorted(nodes)


def test_a_pod_waits_for_the_zone_that_is_left_where_a_pinned_pod_would_fit(cluster: Cluster) -> None:
    with rules.labelled(cluster.kube, zones(cluster)):
        first, *_, alone = names_of(cluster)
        create(cluster, asking("even-0", "even", nodeSelector={HOST: first}))
        await_nodes(cluster, "even-0")
        with rules.cordoned(cluster.kube, alone):
            rules.await_seen_nodes(cluster)
            create(cluster, asking("even-1", "even", **rules.spread("even")))
            # With nodeAffinityPolicy: Honor, a pod that is pinned to a node of zone `a` would be accepted there.
            await_waiting(cluster, "even-1", "2 because of a topology spread constraint")
        assert await_nodes(cluster, "even-1") == [alone]


# -- roll-outs ----------------------------------------------------------------------------------------------------

AT_ONCE = {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}
BY_REVISION = {"matchLabelKeys": ["pod-template-hash"]}
REVISIONS = {
    "anti-affinity": required(ANTI, "web", more=BY_REVISION),
    "spreading": rules.spread("web", HOST, more=BY_REVISION),
}


@pytest.mark.parametrize("kept", REVISIONS.values(), ids=REVISIONS)
def test_a_roll_out_counts_the_pods_of_its_own_revision_only(cluster: Cluster, kept: rules.JSON) -> None:
    nodes = names_of(cluster)
    template = asking("x", "web", **kept).manifest()
    made = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": len(nodes),
            "strategy": AT_ONCE,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }
    cluster.kube.create(paths.path("apps/v1", "deployments", SPACE), made)

    def await_one_on_each(revision: str) -> None:
        def placed() -> list[str]:
            found = [each for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)]
            new = [each for each in found if each["metadata"].get("annotations", {}).get("revision", "") == revision]
            return sorted(each["spec"]["nodeName"] for each in new) if len(new) == len(found) else []

        wait_for(lambda: placed() == sorted(nodes), lambda: scenarios.shown(scenarios.all_pods(cluster.kube)))

    await_one_on_each("")
    annotation = {"metadata": {"annotations": {"revision": "second"}}}
    cluster.kube.patch_merge(paths.path("apps/v1", "deployments", SPACE, "web"), {"spec": {"template": annotation}})
    await_one_on_each("second")
