"""
The one table of programs that create pods or nodes: how each is found, and its traps with cure and page.

`docs/workloads/README.md` is made from it (`python -m release.traps`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubectl_gpufraction.check.traps import conditions
from kubectl_gpufraction.check.traps.view import CLUSTER, PODS, View

JSON = dict[str, Any]
DEPLOYMENTS, DAEMONSETS = "deployments.apps", "daemonsets.apps"
PAGE = "docs/workloads/README.md"


@dataclass(frozen=True, slots=True)
class Trap:
    """Something that a program does to pods that wait for a share, or that prevents their share."""

    when: str
    """Where it applies, in the words of the page."""
    what: str
    """The effect on them."""
    cure: str
    """The cure. Names are marked as code here and in the two before; a terminal does not show the marks."""
    applies: Callable[[View, JSON], bool]
    kinds: tuple[str, ...]
    """The objects to which the condition applies: `PLURAL.GROUP`, or a word of the view."""
    configmaps: tuple[str, ...] = ()
    """ConfigMaps that the condition reads, as `namespace/name`."""
    besides: tuple[str, ...] = ()
    """More kinds that it reads."""
    page: str = PAGE


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """A program, found by a kind that the API server serves, or else by a Deployment."""

    name: str
    kind: str = ""
    """`PLURAL.GROUP` of its custom resource."""
    images: tuple[str, ...] = ()
    """The last parts of the names of images of its Deployment."""
    labels: tuple[Mapping[str, str], ...] = ()
    """Labels of its Deployment, one set or another."""
    always: bool = False
    """Part of Kubernetes: it is never named as found."""
    traps: tuple[Trap, ...] = ()


_AUTOSCALING = "docs/autoscaling.md"
_NO_POOL = Trap(
    when="`node-provisioning` is not installed, or no pool in the options describes a new node (`node`)",
    what="adds no node for waiting pods, since it ignores pods with a scheduling gate",
    cure="the component `node-provisioning`, and a pool with `node` in the options",
    applies=conditions.no_pool,
    kinds=(CLUSTER,),
    page=_AUTOSCALING,
)

_TRAINJOBS, _TRAINER = "trainjobs.trainer.kubeflow.org", "docs/workloads/kubeflow-trainer.md"
_AIRFLOW = "docs/workloads/airflow.md"

PROGRAMS: tuple[OtherProgram, ...] = (
    OtherProgram(
        "JobSet",
        "jobsets.jobset.x-k8s.io",
        traps=(
            Trap(
                when="a JobSet of several pods with shares does not say how many start together",
                what="its pods get their shares one by one, and those with a share hold it while the others wait",
                cure="`gpufraction.io/gang-minimum` in the pod templates of all replicated Jobs, or "
                "`gpufraction.io/gang: none` if that is meant",
                applies=conditions.starts_in_part,
                kinds=("jobsets.jobset.x-k8s.io",),
                page="docs/workloads/jobset.md",
            ),
            Trap(
                when="a JobSet has `startupPolicyOrder: InOrder` and `gpufraction.io/gang-minimum`",
                what="its gang is never complete: the next Job is created only when the one before is ready",
                cure="`gpufraction.io/gang: none` in its pod templates",
                applies=conditions.starts_in_order,
                kinds=("jobsets.jobset.x-k8s.io",),
                page="docs/workloads/jobset.md",
            ),
        ),
    ),
    OtherProgram(
        "LeaderWorkerSet",
        "leaderworkersets.leaderworkerset.x-k8s.io",
        traps=(
            Trap(
                when="a LeaderWorkerSet has `startupPolicy: LeaderReady` and `gpufraction.io/gang-minimum` on it",
                what="its leader waits for workers that are created only when the leader is ready",
                cure="no `gpufraction.io/gang-minimum` in the leader's template, or `gpufraction.io/gang: none`",
                applies=conditions.leader_never_ready,
                kinds=("leaderworkersets.leaderworkerset.x-k8s.io",),
                page="docs/workloads/leaderworkerset.md",
            ),
        ),
    ),
    OtherProgram(
        "Kubeflow Trainer",
        _TRAINJOBS,
        traps=(
            Trap(
                when="a TrainJob of several nodes with shares does not say how many start together",
                what="its pods get their shares one by one, and those with a share hold it until the last one starts",
                cure="`gpufraction.io/gang-minimum` in the runtime's pod template, or `gpufraction.io/gang: none` if "
                "that is meant",
                applies=conditions.trains_in_part,
                kinds=(_TRAINJOBS,),
                besides=conditions.TRAINING_RUNTIMES,
                page=_TRAINER,
            ),
            Trap(
                when="a TrainJob whose runtime is for MPI, Flux or XGBoost requests a share",
                what="Trainer reads an amount of GPU memory as a number of GPUs, and starts as many processes",
                cure="for MPI, `numProcPerNode` in the TrainJob's `trainer`; for others, a share by a ResourceClaim",
                applies=conditions.counts_memory_as_gpus,
                kinds=(_TRAINJOBS,),
                besides=conditions.TRAINING_RUNTIMES,
                page=_TRAINER,
            ),
            Trap(
                when="a TrainJob with `activeDeadlineSeconds` requests a share",
                what="the wait for shares counts, so the TrainJob may fail before its pods start",
                cure="a longer `activeDeadlineSeconds`",
                applies=conditions.trainjob_deadline,
                kinds=(_TRAINJOBS,),
                besides=conditions.TRAINING_RUNTIMES,
                page=_TRAINER,
            ),
        ),
    ),
    OtherProgram(
        "Kueue",
        "clusterqueues.kueue.x-k8s.io",
        traps=(
            Trap(
                when="the ClusterQueue of a LocalQueue covers no `gpufraction.io/gpu-memory`",
                what="a pod with a share is not admitted there, unless Kueue's configuration leaves the resource out",
                cure="add `gpufraction.io/gpu-memory` and `gpufraction.io/gpu-cores` to `coveredResources`",
                applies=conditions.queue_lacks_memory,
                kinds=("localqueues.kueue.x-k8s.io",),
                besides=("clusterqueues.kueue.x-k8s.io",),
                page="docs/kueue.md",
            ),
            Trap(
                when="a Job in a queue requests a percentage of a GPU",
                what="Kueue cannot count a percentage from a Job's template, so the Job stays inadmissible",
                cure="request an amount of memory",
                applies=conditions.counts_percent,
                kinds=("jobs.batch",),
                page="docs/kueue.md",
            ),
        ),
    ),
    OtherProgram(
        "JupyterHub",
        images=("k8s-hub", "jupyterhub"),
        labels=conditions.JUPYTERHUB,
        traps=(
            Trap(
                when="a hub is in a served namespace, or a notebook has a share",
                what="KubeSpawner deletes a notebook that is not running after `start_timeout`, 300 s by default; the "
                "check cannot read the hub's settings",
                cure="a larger `c.KubeSpawner.start_timeout`, in the chart `singleuser.startTimeout`",
                applies=conditions.spawns_with_a_limit,
                kinds=(DEPLOYMENTS, PODS),
                page="docs/workloads/jupyterhub.md",
            ),
        ),
    ),
    OtherProgram(
        "Knative Serving",
        "services.serving.knative.dev",
        traps=(
            Trap(
                when="a Service requests a share, and neither it nor `config-deployment` sets a progress deadline",
                what="a revision whose first pod waits for more than 600 s is marked as failed",
                cure="the annotation `serving.knative.dev/progress-deadline` in its template, such as `3600s`",
                applies=conditions.default_deadline,
                kinds=("services.serving.knative.dev",),
                configmaps=(conditions.DEPLOYMENT_CONFIG,),
                page="docs/workloads/knative.md",
            ),
            Trap(
                when="a Service requests a share, all GPU nodes have a taint, and `config-features` allows no "
                "tolerations",
                what="its pods cannot tolerate the taint, so no GPU node accepts them",
                cure="`kubernetes.podspec-tolerations: enabled` in the ConfigMap `knative-serving/config-features`",
                applies=conditions.no_tolerations,
                kinds=("services.serving.knative.dev",),
                configmaps=(conditions.FEATURES_CONFIG,),
                page="docs/workloads/knative.md",
            ),
        ),
    ),
    OtherProgram(
        "KServe",
        "inferenceservices.serving.kserve.io",
        traps=(
            Trap(
                when="an InferenceService in Standard mode requests a share",
                what="it is reported as not ready, although its older revision serves, if the pod of a new one waits "
                "for more than 600 s; the pod still starts",
                cure="`deploymentStrategy: {type: Recreate}` in its predictor if there is no room for both revisions; "
                "KServe sets the time itself",
                applies=conditions.inference_asks,
                kinds=("inferenceservices.serving.kserve.io",),
                configmaps=(conditions.KSERVE_CONFIG,),
                page="docs/workloads/kserve.md",
            ),
        ),
    ),
    OtherProgram(
        "KubeRay",
        "rayclusters.ray.io",
        traps=(
            Trap(
                when="a RayCluster with `enableInTreeAutoscaling` has workers whose resources do not end in `gpu`",
                what="its autoscaler sees no GPU in these workers, so it adds none for tasks that need a GPU",
                cure='`num-gpus: "1"` in `rayStartParams` of the worker group',
                applies=conditions.ray_sees_no_gpu,
                kinds=("rayclusters.ray.io",),
                page="docs/workloads/kuberay.md",
            ),
        ),
    ),
    OtherProgram(
        "Karpenter",
        "nodepools.karpenter.sh",
        traps=(
            _NO_POOL,
            Trap(
                when="`node-provisioning` has no `node-placeholders`, and ProvisioningRequests are not served",
                what="adds no node for waiting pods, since it serves no ProvisioningRequests",
                cure="add the component `node-placeholders`",
                applies=conditions.no_placeholders,
                kinds=(CLUSTER,),
                page=_AUTOSCALING,
            ),
        ),
    ),
    OtherProgram("Cluster Autoscaler", images=("cluster-autoscaler",), traps=(_NO_POOL,)),
    OtherProgram(
        "Argo Workflows",
        "workflows.argoproj.io",
        traps=(
            Trap(
                when="a Workflow with `activeDeadlineSeconds` requests a share",
                what="the wait for shares counts, so it may fail before its pods start",
                cure="a longer `spec.activeDeadlineSeconds`, or `activeDeadlineSeconds` of the template, which counts "
                "only for its own pod",
                applies=conditions.workflow_deadline,
                kinds=(
                    "workflows.argoproj.io",
                    "workflowtemplates.argoproj.io",
                    "cronworkflows.argoproj.io",
                ),
                page="docs/workloads/argo-workflows.md",
            ),
        ),
    ),
    OtherProgram(
        "Argo CD",
        "applications.argoproj.io",
        traps=(
            Trap(
                when="an Application has plain pods",
                what="a plain pod with a share stays OutOfSync, since its resources are changed at its creation",
                cure="a Deployment or a Job in its place, or `ignoreDifferences` for `/spec` and `/metadata` of Pods",
                applies=conditions.owns_pods,
                kinds=("applications.argoproj.io",),
            ),
        ),
    ),
    OtherProgram(
        "Tekton",
        "pipelineruns.tekton.dev",
        traps=(
            Trap(
                when="a Task requests a share, and `coschedule` in `feature-flags` is not `disabled`",
                what="for a PipelineRun with a shared volume, the affinity assistant chooses the node first, so a task "
                "waits if that node has no room",
                cure="`coschedule: disabled` in the ConfigMap `tekton-pipelines/feature-flags`",
                applies=conditions.affinity_assistant,
                kinds=("tasks.tekton.dev", "taskruns.tekton.dev"),
                configmaps=(conditions.TEKTON_CONFIG,),
            ),
        ),
    ),
    OtherProgram(
        "Airflow",
        images=("airflow",),
        labels=conditions.AIRFLOW,
        traps=(
            Trap(
                when="a pod of a KubernetesPodOperator has a share",
                what="the operator gives up a pod that is not scheduled after 120 s by default",
                cure="`schedule_timeout_seconds` of the operator; `startup_timeout_seconds` in older providers",
                applies=conditions.operator_pod,
                kinds=(PODS,),
                page=_AIRFLOW,
            ),
            Trap(
                when="a pod of the KubernetesExecutor has a share",
                what="the scheduler deletes a worker's pod that is not running after 600 s by default, and creates "
                "another one, last in the queue; after the third one the task fails",
                cure="`task_queued_timeout` in `[scheduler]` of Airflow's configuration",
                applies=conditions.executor_pod,
                kinds=(PODS,),
                page=_AIRFLOW,
            ),
        ),
    ),
    OtherProgram(
        "DaemonSet",
        always=True,
        traps=(
            Trap(
                when="`maxUnavailable` pods of a DaemonSet wait for a share, and it has no `maxSurge`",
                what="its rollout stops: a waiting pod counts as unavailable",
                cure="a larger `updateStrategy.rollingUpdate.maxUnavailable`, or a node selector for nodes with room",
                applies=conditions.blocks_its_roll_out,
                kinds=(DAEMONSETS,),
                besides=(PODS,),
            ),
        ),
    ),
)
