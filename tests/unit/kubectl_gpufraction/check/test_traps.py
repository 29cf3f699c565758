"""Programs that create pods and nodes: how each is found, and for each trap one object with it and one without."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import names
from contract.options import pool_options
from kubectl_gpufraction.check import rules as all_rules
from kubectl_gpufraction.check.facts import ClusterFacts, Programs
from kubectl_gpufraction.check.findings import OK, UNKNOWN, WARN, Finding, Unseen
from kubectl_gpufraction.check.traps import rules
from kubectl_gpufraction.check.traps.table import DAEMONSETS, DEPLOYMENTS, PROGRAMS, Trap
from tests.examples import examples
from tests.odd import VALUES, places, put
from tests.unit.kubectl_gpufraction.objects import admitted

JSON = dict[str, Any]
SHARE = {"limits": {"gpufraction.io/gpu-memory": "8Gi"}}
SERVED = {"metadata": {"name": "team", "labels": {"gpufraction.io/inject": "enabled"}}}
PLAIN = {"metadata": {"name": "other"}}


def container(resources: JSON = SHARE) -> JSON:
    return {"name": "main", "image": "example.org/main", "resources": resources}


def template(annotations: Mapping[str, str] | None = None, resources: JSON = SHARE) -> JSON:
    return {"metadata": {"annotations": dict(annotations or {})}, "spec": {"containers": [container(resources)]}}


def item(spec: JSON, **more: Any) -> JSON:
    return {"metadata": {"name": "it", "namespace": "team", "uid": "u"}, "spec": spec, **more}


GANG = {"gpufraction.io/gang-minimum": "8"}
NO_GANG = {"gpufraction.io/gang": "none"}


def jobset(annotations: Mapping[str, str] | None = None, policy: str = "AnyOrder", replicas: int = 8) -> JSON:
    job = {"name": "workers", "replicas": replicas, "template": {"spec": {"template": template(annotations)}}}
    return item({"replicatedJobs": [job, {**job, "name": "more"}], "startupPolicy": {"startupPolicyOrder": policy}})


def one_pod() -> JSON:
    return item({"replicatedJobs": [{"name": "a", "template": {"spec": {"template": template()}}}]})


def leaderworkerset(annotations: Mapping[str, str] | None = None, policy: str = "LeaderReady") -> JSON:
    return item({"startupPolicy": policy, "leaderWorkerTemplate": {"workerTemplate": template(annotations)}})


def queue(*covered: str, name: str = "team-queue") -> JSON:
    return {"metadata": {"name": name}, "spec": {"resourceGroups": [{"coveredResources": ["cpu", *covered]}]}}


def job(resources: JSON, queued: bool = True) -> JSON:
    made = item({"template": template(resources=resources)})
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"} if queued else {}
    return made


def ksvc(annotations: Mapping[str, str] | None = None, resources: JSON = SHARE) -> JSON:
    return item({"template": template(annotations, resources)})


def inference(mode: str = "", resources: JSON = SHARE) -> JSON:
    made = item({"predictor": {"model": {"modelFormat": {"name": "huggingface"}, "resources": resources}}})
    made["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": mode} if mode else {}
    return made


def ray(group: JSON, autoscaling: bool = True) -> JSON:
    return item({"enableInTreeAutoscaling": autoscaling, "workerGroupSpecs": [{"template": template(), **group}]})


def workflow(deadline: int | None = 600, resources: JSON = SHARE, **more: Any) -> JSON:
    return item({"activeDeadlineSeconds": deadline, "templates": [{"container": container(resources)}]}, **more)


def task(resources: JSON = SHARE) -> JSON:
    return item({"steps": [{"name": "train", "computeResources": resources}]})


def daemonset(**rolling: Any) -> JSON:
    status = {"desiredNumberScheduled": 4}
    return item({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}, status=status)


def waiting(number: int = 0, owner: str = "u", labels: Mapping[str, str] | None = None) -> JSON:
    made = admitted(f"waits-{number}", "gpufraction.io/gpu-memory", "8Gi")
    made["metadata"]["namespace"] = "team"
    made["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}]
    made["metadata"]["labels"] = dict(labels or {})
    made["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
    return made


def labelled(**labels: str) -> JSON:
    made = item({"template": template(resources={})})
    made["metadata"]["labels"] = labels
    return made


def image(name: str) -> JSON:
    return item({"template": {"spec": {"containers": [{"name": "main", "image": name}]}}})


def ours(*flags: str) -> JSON:
    """Our Deployment, with these flags of the allocator."""
    program = {"command": ["python", "-m", "allocator", "run"], "args": list(flags)}
    return {"metadata": {"name": "gpufraction"}, "spec": {"template": {"spec": {"containers": [program]}}}}


TRAINJOBS = "trainjobs.trainer.kubeflow.org"
CLUSTER_RUNTIMES, RUNTIMES = "clustertrainingruntimes.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"


def trainjob(ref: str = "shared", kind: str = "", status: JSON | None = None, **spec: Any) -> JSON:
    """A TrainJob with a share for each node, unless `trainer` says otherwise."""
    reference = {"name": ref, **({"kind": kind} if kind else {})}
    trainer = {"resourcesPerNode": SHARE, **spec.pop("trainer", {})}
    return item({"runtimeRef": reference, "trainer": trainer, **spec}, status=status or {})


def runtime(annotations: Mapping[str, str] | None = None, nodes: int = 4, **policy: Any) -> JSON:
    """A runtime for the whole cluster, with a launcher that has no share."""
    made = template(annotations, resources={})
    made["spec"]["containers"][0]["name"] = "node"
    steps = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    jobs = [
        {"name": "launcher", "template": {"spec": {"template": template(resources={})}}},
        {"name": "node", "template": {**steps, "spec": {"template": made}}},
    ]
    spec = {"mlPolicy": {"numNodes": nodes, **policy}, "template": {"spec": {"replicatedJobs": jobs}}}
    return {"metadata": {"name": "shared"}, "spec": spec}


def training(job: JSON, *runtimes: JSON, kind: str = CLUSTER_RUNTIMES) -> Known:
    return there(TRAINJOBS, job, besides={kind: runtimes})


NODE = {"gpus": 4, "gpuMemory": "22Gi", "cpu": 46, "memory": "180Gi", "max": 3}
POOL = pool_options({"pools": [{"name": "gpus", "nodeSelector": {"matchLabels": {"a": "b"}}, "node": NODE}]})
ASKS = "--provisioning-enabled=true"
PLACES = "--provisioning-placeholders=true"
BASE = ClusterFacts(now=0.0, version=(1, 36), namespaces=(SERVED, PLAIN), webhook={})
GPU_NODE = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.present": "true"}}}
TAINTED = {**GPU_NODE, "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}
STARTING = {**GPU_NODE, "spec": {"taints": [{"key": str(names.STARTUP_TAINT), "effect": "NoSchedule"}]}}
Known = dict[str, Any]


def there(kind: str, *objects: JSON, served: tuple[str, ...] = (), **more: Any) -> Known:
    """Facts with objects of a kind. `configmaps`, `besides`: further objects that were read; the rest are facts."""
    read = {kind: objects, **more.pop("besides", {})}
    found = Programs(frozenset((kind, *served)), read, more.pop("configmaps", {}))
    return {"programs": found, **more}


LOCAL = item({"clusterQueue": "team-queue"})
KUEUE = "clusterqueues.kueue.x-k8s.io"
COUNTED = {KUEUE: (queue("gpufraction.io/gpu-memory"),)}
PERCENT = {"limits": {"gpufraction.io/gpu-percent": "20"}}
KSVC, ISVC, RAY = "services.serving.knative.dev", "inferenceservices.serving.kserve.io", "rayclusters.ray.io"
ARGO, CD = "workflows.argoproj.io", "applications.argoproj.io"
SETS, LWS = "jobsets.jobset.x-k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io"
KARPENTER, TEKTON = "nodepools.karpenter.sh", ("pipelineruns.tekton.dev",)
CA = image("registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.0")
AIRFLOW = labelled(tier="airflow", component="scheduler")
HUB = labelled(app="jupyterhub", component="hub")
NOTEBOOK = {"component": "singleuser-server"}


def config(name: str, **data: str) -> JSON:
    return {name: {"data": {key.replace("_", "-"): value for key, value in data.items()}}}


CASES: dict[str, tuple[str, tuple[Known, ...], tuple[Known, ...]]] = {
    "JobSet: its pods get": (
        "its pods get their shares one by one",
        (there(SETS, jobset()),),
        (there(SETS, jobset(GANG)), there(SETS, jobset(NO_GANG)), there(SETS, one_pod())),
    ),
    "JobSet in order": (
        "its gang is never complete",
        (there(SETS, jobset(GANG, "InOrder")),),
        (there(SETS, jobset(GANG)), there(SETS, jobset(GANG | NO_GANG, "InOrder")), there(SETS, jobset({}, "InOrder"))),
    ),
    "LeaderWorkerSet": (
        "its leader waits for workers",
        (there(LWS, leaderworkerset(GANG)),),
        (
            there(LWS, leaderworkerset()),
            there(LWS, leaderworkerset(GANG | NO_GANG)),
            there(LWS, leaderworkerset(GANG, "LeaderCreated")),
            there(LWS, leaderworkerset({"gpufraction.io/gang-minimum": "1"})),
        ),
    ),
    "Kubeflow Trainer: in part": (
        "hold it until the last one starts",
        (
            training(trainjob(), runtime()),
            training(trainjob(trainer={"numNodes": 2}), runtime(nodes=1)),
            training(
                trainjob(kind="TrainingRuntime"),
                {**runtime(), "metadata": {"name": "shared", "namespace": "team"}},
                kind=RUNTIMES,
            ),
        ),
        (
            training(trainjob(), runtime(GANG)),
            training(trainjob(), runtime(NO_GANG)),
            training(trainjob(), runtime(nodes=1)),
            training(trainjob(trainer={"numNodes": 1}), runtime()),
            training(trainjob(trainer={"resourcesPerNode": None}), runtime()),
            training(trainjob("another"), runtime()),
            training(trainjob(kind="TrainingRuntime"), runtime()),
        ),
    ),
    "Kubeflow Trainer: a number of GPUs": (
        "reads an amount of GPU memory as a number of GPUs",
        (
            training(trainjob(), runtime(mpi={})),
            training(trainjob(), runtime(mpi={"numProcPerNode": 1})),
            training(trainjob(trainer={"numProcPerNode": 2}), runtime(flux={})),
            training(trainjob(), runtime(xgboost={})),
        ),
        (
            training(trainjob(), runtime(torch={})),
            training(trainjob(trainer={"numProcPerNode": 1}), runtime(mpi={})),
            training(trainjob(), runtime(mpi={"numProcPerNode": 8})),
            training(trainjob(trainer={"resourcesPerNode": None}), runtime(xgboost={})),
        ),
    ),
    "Kubeflow Trainer: its deadline": (
        "so the TrainJob may fail before its pods start",
        (training(trainjob(activeDeadlineSeconds=600), runtime(GANG)),),
        (
            training(trainjob(), runtime(GANG)),
            training(trainjob(trainer={"resourcesPerNode": None}, activeDeadlineSeconds=600), runtime(GANG)),
            training(
                trainjob(activeDeadlineSeconds=600, status={"conditions": [{"type": "Failed", "status": "True"}]}),
                runtime(GANG),
            ),
        ),
    ),
    "Kueue's quotas": (
        "is not admitted there",
        (there(KUEUE, queue(), besides={"localqueues.kueue.x-k8s.io": (LOCAL,)}),),
        (
            there(KUEUE, *COUNTED[KUEUE], besides={"localqueues.kueue.x-k8s.io": (LOCAL,)}),
            there(KUEUE, queue(name="another"), besides={"localqueues.kueue.x-k8s.io": (LOCAL,)}),
        ),
    ),
    "Kueue and percentages": (
        "cannot count a percentage",
        (there(KUEUE, besides={"jobs.batch": (job(PERCENT),)}),),
        (
            there(KUEUE, besides={"jobs.batch": (job(SHARE),)}),
            there(KUEUE, besides={"jobs.batch": (job(PERCENT, queued=False),)}),
        ),
    ),
    "JupyterHub": (
        "KubeSpawner deletes a notebook",
        (
            there(DEPLOYMENTS, HUB),
            there(DEPLOYMENTS, image("quay.io/jupyterhub/k8s-hub:4@sha256:a"), pods=(waiting(labels=NOTEBOOK),)),
        ),
        (
            there(DEPLOYMENTS, {**HUB, "metadata": {**HUB["metadata"], "namespace": "other"}}),
            there(DEPLOYMENTS, image("k8s-hub"), pods=(waiting(),)),
            there(DEPLOYMENTS, labelled(app="jupyterhub", component="proxy")),
        ),
    ),
    "Knative's deadline": (
        "a revision whose first pod waits",
        (there(KSVC, ksvc()), there(KSVC, ksvc(), configmaps=config("knative-serving/config-deployment"))),
        (
            there(KSVC, ksvc({"serving.knative.dev/progress-deadline": "3600s"})),
            there(KSVC, ksvc(), configmaps=config("knative-serving/config-deployment", progress_deadline="3600s")),
            there(KSVC, ksvc(resources={})),
        ),
    ),
    "Knative's tolerations": (
        "cannot tolerate the taint",
        (there(KSVC, ksvc(), nodes=(TAINTED,)),),
        (
            there(KSVC, ksvc(), nodes=(GPU_NODE, TAINTED)),
            there(KSVC, ksvc(), nodes=(STARTING,)),
            there(KSVC, ksvc(), nodes=()),
            there(KSVC, ksvc(), nodes=Unseen("you may not list nodes")),
            there(
                KSVC,
                ksvc(),
                nodes=(TAINTED,),
                configmaps={"knative-serving/config-features": {"data": {"kubernetes.podspec-tolerations": "enabled"}}},
            ),
        ),
    ),
    "KServe": (
        "it is reported as not ready",
        (
            there(ISVC, inference()),
            there(ISVC, inference("RawDeployment"), served=(KSVC,)),
            there(
                ISVC,
                inference(),
                served=(KSVC,),
                configmaps={
                    "kserve/inferenceservice-config": {
                        "data": {"deploy": json.dumps({"defaultDeploymentMode": "Standard"})}
                    }
                },
            ),
        ),
        (
            there(ISVC, inference("Serverless")),
            there(ISVC, inference(), served=(KSVC,)),
            there(ISVC, inference(resources={})),
        ),
    ),
    "KubeRay": (
        "its autoscaler sees no GPU",
        (there(RAY, ray({})),),
        (
            there(RAY, ray({"rayStartParams": {"num-gpus": "1"}})),
            there(RAY, ray({"resources": {"GPU": "1"}})),
            there(RAY, ray({}, autoscaling=False)),
            there(RAY, ray({"template": template(resources={})})),
            there(
                RAY, ray({"template": template(resources={"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}})})
            ),
        ),
    ),
    "Karpenter without a pool": (
        "Karpenter adds no node for waiting pods, since it ignores pods",
        (there(KARPENTER, deployments=(ours(ASKS),)), there(KARPENTER, deployments=(ours(),), options=POOL)),
        (
            there(KARPENTER, deployments=(ours(ASKS),), options=POOL),
            there(KARPENTER, webhook=None),
            there(KARPENTER, options=Unseen("you may not read configmaps")),
            there(KARPENTER, deployments=Unseen("you may not list deployments")),
        ),
    ),
    "Karpenter without placeholders": (
        "since it serves no ProvisioningRequests",
        (there(KARPENTER, deployments=(ours(ASKS),), options=POOL),),
        (
            there(KARPENTER, deployments=(ours(ASKS, PLACES),), options=POOL),
            there(
                KARPENTER,
                served=("provisioningrequests.autoscaling.x-k8s.io",),
                deployments=(ours(ASKS),),
                options=POOL,
            ),
        ),
    ),
    "Cluster Autoscaler": (
        "Cluster Autoscaler adds no node",
        (there(DEPLOYMENTS, CA, deployments=(ours(ASKS),)),),
        (there(DEPLOYMENTS, CA, deployments=(ours(ASKS),), options=POOL), there(DEPLOYMENTS, deployments=(ours(),))),
    ),
    "Argo Workflows": (
        "it may fail before its pods start",
        (
            there(ARGO, workflow()),
            there(ARGO, besides={"cronworkflows.argoproj.io": (item({"workflowSpec": workflow()["spec"]}),)}),
        ),
        (
            there(ARGO, workflow(None)),
            there(ARGO, workflow(resources={})),
            there(ARGO, workflow(status={"finishedAt": "2026-11-01T10:00:00Z"})),
        ),
    ),
    "Argo CD": (
        "stays OutOfSync",
        (there(CD, item({}, status={"resources": [{"kind": "Pod", "version": "v1"}]})),),
        (there(CD, item({}, status={"resources": [{"kind": "Deployment", "group": "apps"}]})), there(CD, item({}))),
    ),
    "Tekton": (
        "the affinity assistant chooses the node",
        (
            there("tasks.tekton.dev", task(), served=TEKTON),
            there("taskruns.tekton.dev", item({"taskSpec": task()["spec"]}), served=TEKTON),
            there("taskruns.tekton.dev", item({"computeResources": SHARE}), served=TEKTON),
        ),
        (
            there("tasks.tekton.dev", task({}), served=TEKTON),
            there(
                "tasks.tekton.dev",
                task(),
                served=TEKTON,
                configmaps=config("tekton-pipelines/feature-flags", coschedule="disabled"),
            ),
        ),
    ),
    "Airflow's operator": (
        "the operator gives up a pod",
        (there(DEPLOYMENTS, AIRFLOW, pods=(waiting(labels={"kubernetes_pod_operator": "True"}),)),),
        (there(DEPLOYMENTS, AIRFLOW, pods=(waiting(),)),),
    ),
    "Airflow's executor": (
        "the scheduler deletes a worker's pod",
        (there(DEPLOYMENTS, AIRFLOW, pods=(waiting(labels={"kubernetes_executor": "True"}),)),),
        (
            there(DEPLOYMENTS, AIRFLOW, pods=(waiting(),)),
            there(DEPLOYMENTS, pods=(waiting(labels={"kubernetes_executor": "True"}),)),
        ),
    ),
    "DaemonSet": (
        "its rollout stops",
        (
            there(DAEMONSETS, daemonset(), pods=(waiting(),)),
            there(DAEMONSETS, daemonset(maxUnavailable="25%"), pods=(waiting(),)),
            there(DAEMONSETS, daemonset(maxUnavailable=2), pods=(waiting(1), waiting(2))),
        ),
        (
            there(DAEMONSETS, daemonset()),
            there(DAEMONSETS, daemonset(maxUnavailable=2), pods=(waiting(),)),
            there(DAEMONSETS, daemonset(maxUnavailable="30%"), pods=(waiting(),)),
            there(DAEMONSETS, daemonset(maxSurge=1), pods=(waiting(),)),
            there(DAEMONSETS, daemonset(), pods=(waiting(owner="another"),)),
            there(DAEMONSETS, item({"updateStrategy": {"type": "OnDelete"}}), pods=(waiting(),)),
        ),
    ),
}


def traps(known: Known) -> list[Finding]:
    return [each for each in rules.findings(replace(BASE, **known)) if each.check == rules.TRAP]


@pytest.mark.parametrize("name", CASES)
def test_a_trap_is_named_where_it_applies_and_nowhere_else(name: str) -> None:
    words, inside, outside = CASES[name]
    for known in inside:
        (found,) = (each for each in traps(known) if words in each.found)
        assert (found.level, "`" in found.found + found.cure) == (WARN, False)
    for known in outside:
        assert [each.found for each in traps(known) if words in each.found] == []


def test_every_trap_has_a_case() -> None:
    every = {f"{program.name} {trap.what}".replace("`", "") for program in PROGRAMS for trap in program.traps}
    assert {each for each in every if not any(words in each for words, _, _ in CASES.values())} == set()


def test_objects_and_cure_are_named_with_the_page() -> None:
    (found,) = traps(there(RAY, ray({})))
    assert (found.found, found.cure) == (
        "KubeRay: team/it: its autoscaler sees no GPU in these workers, so it adds none for tasks that need a GPU",
        'num-gpus: "1" in rayStartParams of the worker group: docs/workloads/kuberay.md',
    )


def test_objects_of_namespaces_that_are_not_served_are_in_no_trap() -> None:
    elsewhere = {**ray({}), "metadata": {"name": "it", "namespace": "other"}}
    assert traps(there(RAY, elsewhere)) == []
    (found,) = traps(there(RAY, elsewhere, namespaces=Unseen("you may not list namespaces")))
    assert "KubeRay: other/it" in found.found


def test_the_programs_that_are_found_are_named_and_no_line_where_there_are_none() -> None:
    served = there(RAY, served=(SETS,), besides={DEPLOYMENTS: (HUB, AIRFLOW, CA)})
    (line,) = (each for each in rules.findings(replace(BASE, webhook=None, **served)) if each.check == rules.FOUND)
    named = "found: JobSet, JupyterHub, KubeRay, Cluster Autoscaler, Airflow"
    assert (line.level, line.found) == (OK, named)
    assert list(rules.findings(BASE)) == []


def test_what_may_not_be_read_is_unknown_and_no_trap() -> None:
    hidden = Unseen("you may not list rayclusters.ray.io of all namespaces")
    known = there("x", served=(RAY,), besides={RAY: hidden, DEPLOYMENTS: Unseen("you may not list deployments")})
    found = [(each.level, each.check, each.found) for each in rules.findings(replace(BASE, **known))]
    assert found == [
        (OK, "other-programs", "found: KubeRay"),
        (
            UNKNOWN,
            "other-programs",
            "unknown whether there is JupyterHub, Cluster Autoscaler, Airflow: you may not list deployments",
        ),
        (UNKNOWN, "traps", "KubeRay: unknown: you may not list rayclusters.ray.io of all namespaces"),
    ]
    nothing = Programs(unseen=Unseen("you may not read which kinds are served"))
    (only,) = rules.findings(replace(BASE, programs=nothing))
    assert (only.level, only.found) == (UNKNOWN, "unknown: you may not read which kinds are served")


ODD: list[tuple[Trap, Known]] = [
    (trap, known)
    for program in PROGRAMS
    for trap in program.traps
    for words, inside, _ in CASES.values()
    for known in inside[:1]
    if set(trap.kinds) & known["programs"].objects.keys() and words in trap.what.replace("`", "")
]


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_an_object_of_any_shape_costs_itself_alone(data: st.DataObject) -> None:
    """The check still names the object next to it."""
    trap, known = data.draw(st.sampled_from(ODD))
    programs: Programs = known["programs"]
    kind = next(each for each in trap.kinds if programs.objects.get(each))
    objects = programs.objects[kind]
    assert isinstance(objects, tuple)
    odd = json.loads(json.dumps(objects[0]))
    odd["metadata"]["name"] = "odd"
    where = data.draw(st.sampled_from([each for each in places(odd) if each[:1] != ("metadata",)]))
    odd = put(odd, where, data.draw(VALUES))
    changed = replace(programs, objects={**programs.objects, kind: (odd, *objects)})
    found = all_rules.findings(replace(BASE, **{**known, "programs": changed}))
    assert [each for each in found if each.check == "traps" and each.level == UNKNOWN] == []
    assert any("team/it" in each.found and trap.what.replace("`", "") in each.found for each in found)
