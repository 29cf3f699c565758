"""
When a trap applies: one function for each, from the view and one object to whether the object is in it.

Pure. A function may raise anything for an object of another shape than its kind promises; that object is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from contract import names
from kubectl_gpufraction.check.cluster import gpu_nodes
from kubectl_gpufraction.check.facts import installed, labels_of
from kubectl_gpufraction.check.findings import Unseen
from kubectl_gpufraction.check.traps.view import (
    View,
    annotation,
    has_labels,
    has_share,
    is_gang,
    is_undecided,
    waits,
)

JSON = dict[str, Any]

# -- gangs --------------------------------------------------------------------------------------------------------


def _job_templates(jobset: JSON) -> list[tuple[int, JSON]]:
    """The pod templates of a JobSet, each with the number of its pods that run at once."""
    found = []
    for each in jobset["spec"]["replicatedJobs"]:
        job = each["template"]["spec"]
        found.append((int(each.get("replicas", 1)) * int(job.get("parallelism") or 1), job["template"]))
    return found


def starts_in_part(view: View, jobset: JSON) -> bool:
    """A JobSet of several pods with shares that does not say how many start together."""
    asking = [(count, template) for count, template in _job_templates(jobset) if view.asks(template)]
    return sum(count for count, _ in asking) > 1 and any(is_undecided(template) for _, template in asking)


def starts_in_order(view: View, jobset: JSON) -> bool:
    """A JobSet whose pods start together, and which creates a Job only once the one before is ready."""
    order = (jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder")
    templates = [template for _, template in _job_templates(jobset)]
    return order == "InOrder" and len(templates) > 1 and any(view.asks(each) and is_gang(each) for each in templates)


def leader_never_ready(view: View, leaderworkerset: JSON) -> bool:
    """A LeaderWorkerSet that creates workers once the leader is ready, which waits for them."""
    spec = leaderworkerset["spec"]
    worker = spec["leaderWorkerTemplate"]["workerTemplate"]
    leader = spec["leaderWorkerTemplate"].get("leaderTemplate") or worker
    return spec.get("startupPolicy") == "LeaderReady" and view.asks(leader) and is_gang(leader)


TRAINING_RUNTIMES = ("clustertrainingruntimes.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org")
_TRAINS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def trains_in_part(view: View, trainjob: JSON) -> bool:
    """A TrainJob on several nodes whose runtime does not say how many start together."""
    runtime = _runtime_of(view, trainjob)
    nodes = _trainer(trainjob).get("numNodes") or (runtime.get("mlPolicy") or {}).get("numNodes") or 1
    return nodes > 1 and any(view.asks(each) and is_undecided(each) for each in _train_templates(runtime, trainjob))


def counts_memory_as_gpus(view: View, trainjob: JSON) -> bool:
    """A TrainJob whose number of processes or workers is taken from a resource with `gpu` in its name."""
    runtime = _runtime_of(view, trainjob)
    policy = runtime.get("mlPolicy") or {}
    chosen = _trainer(trainjob).get("numProcPerNode") or (policy.get("mpi") or {}).get("numProcPerNode", 1) > 1
    counts = "flux" in policy or "xgboost" in policy or ("mpi" in policy and not chosen)
    return counts and any(view.asks(each) for each in _train_templates(runtime, trainjob))


def trainjob_deadline(view: View, trainjob: JSON) -> bool:
    """A TrainJob with a deadline and a share, which has not ended."""
    conditions = (trainjob.get("status") or {}).get("conditions") or []
    ended = any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)
    limited = bool(trainjob["spec"].get("activeDeadlineSeconds")) and not ended
    return limited and any(view.asks(each) for each in _train_templates(_runtime_of(view, trainjob), trainjob))


def _trainer(trainjob: JSON) -> JSON:
    return trainjob["spec"].get("trainer") or {}


def _runtime_of(view: View, trainjob: JSON) -> JSON:
    """The spec of the runtime that a TrainJob names; empty where it was not read."""
    ref = trainjob["spec"]["runtimeRef"]
    cluster = ref.get("kind", "ClusterTrainingRuntime") == "ClusterTrainingRuntime"
    wanted = ref["name"], None if cluster else trainjob["metadata"]["namespace"]
    for each in view.items(TRAINING_RUNTIMES[0 if cluster else 1]):
        if (each["metadata"]["name"], each["metadata"].get("namespace")) == wanted:
            return dict(each["spec"])
    return {}


def _train_templates(runtime: JSON, trainjob: JSON) -> Iterator[JSON]:
    """The pods that train, with the resources of the TrainJob in place of the runtime's."""
    resources = _trainer(trainjob).get("resourcesPerNode")
    for job in ((runtime.get("template") or {}).get("spec") or {}).get("replicatedJobs") or []:
        template = job["template"]["spec"]["template"]
        if not has_labels(job["template"], _TRAINS):
            continue
        containers = template["spec"]["containers"]
        if resources:
            containers = [{**each, "resources": resources} if each["name"] == "node" else each for each in containers]
        yield {**template, "spec": {**template["spec"], "containers": containers}}


# -- quotas and nodes ---------------------------------------------------------------------------------------------

_PERCENT = frozenset(
    (str(names.GPU_PERCENT), "nvidia.com/gpumem-percentage", "nano-gpu/gpu-percent", "elastic-gpu/gpu-percent")
)
"""Resources that are a percentage of a GPU's memory, of which a template does not say how many bytes they are."""


def queue_lacks_memory(view: View, localqueue: JSON) -> bool:
    """A LocalQueue whose ClusterQueue has no quota for shares."""
    wanted = localqueue["spec"]["clusterQueue"]
    for queue in view.items("clusterqueues.kueue.x-k8s.io"):
        if queue["metadata"]["name"] == wanted:
            groups = queue["spec"].get("resourceGroups") or []
            return not any(names.GPU_MEMORY in (group.get("coveredResources") or []) for group in groups)
    return False


def counts_percent(_: View, job: JSON) -> bool:
    """A Job in Kueue's queue that asks in percent."""
    containers = job["spec"]["template"]["spec"]["containers"]
    queued = bool(labels_of(job).get("kueue.x-k8s.io/queue-name"))
    return queued and any(_PERCENT & _limits(each).keys() for each in containers)


def no_pool(view: View, _: JSON) -> bool:
    """Nodes are requested from no autoscaler: that part is not installed, or no pool describes its new nodes."""
    options, settings = view.options, view.settings()
    if not installed(view.facts) or options is None or settings is None:
        return False
    return settings.get("provisioning-enabled") != "true" or not any(pool.node for pool in options.pools)


def no_placeholders(view: View, _: JSON) -> bool:
    """Nodes are requested by an object that the autoscaler does not serve."""
    served, settings = "provisioningrequests.autoscaling.x-k8s.io" in view.facts.programs.served, view.settings() or {}
    asks = settings.get("provisioning-enabled") == "true" and settings.get("provisioning-placeholders") != "true"
    return bool(installed(view.facts)) and asks and not served


# -- serving ------------------------------------------------------------------------------------------------------

DEPLOYMENT_CONFIG = "knative-serving/config-deployment"
FEATURES_CONFIG = "knative-serving/config-features"
_DEADLINE = "serving.knative.dev/progress-deadline"


def default_deadline(view: View, service: JSON) -> bool:
    """A Service of Knative with Knative's default deadline."""
    template = service["spec"]["template"]
    own = annotation(template, _DEADLINE) or view.config(DEPLOYMENT_CONFIG).get("progress-deadline")
    return view.asks(template) and not own


def no_tolerations(view: View, service: JSON) -> bool:
    """A Service of Knative where every GPU node has a taint, and Knative refuses tolerations."""
    template = service["spec"]["template"]
    allowed = view.config(FEATURES_CONFIG).get("kubernetes.podspec-tolerations", "disabled") in ("enabled", "allowed")
    nodes = [] if isinstance(view.facts.nodes, Unseen) else gpu_nodes(view.facts.nodes)
    return view.asks(template) and not allowed and bool(nodes) and all(_is_tainted(each) for each in nodes)


def _is_tainted(node: JSON) -> bool:
    """Whether the node permanently repels pods without tolerations."""
    taints = (node.get("spec") or {}).get("taints") or []
    return any(
        each.get("effect") in ("NoSchedule", "NoExecute")
        and not str(each.get("key", "")).startswith("node.kubernetes.io/")
        and each.get("key") != names.STARTUP_TAINT
        for each in taints
    )


KSERVE_CONFIG = "kserve/inferenceservice-config"
_BY_KNATIVE = ("Serverless", "Knative")
_PARTS = ("predictor", "transformer", "explainer")


def inference_asks(view: View, service: JSON) -> bool:
    """An InferenceService that asks for a share, as a Deployment."""
    mode = annotation(service, "serving.kserve.io/deploymentMode") or _default_mode(view)
    return mode not in _BY_KNATIVE and any(view.asks(template) for template in _inference_templates(service))


def _default_mode(view: View) -> str:
    """KServe's mode if an InferenceService names none: that of its configuration, or else by whether Knative is
    installed."""
    text = view.config(KSERVE_CONFIG).get("deploy")
    mode = str(json.loads(text).get("defaultDeploymentMode") or "") if text else ""
    return mode or (_BY_KNATIVE[0] if "services.serving.knative.dev" in view.facts.programs.served else "")


def _inference_templates(service: JSON) -> Iterator[JSON]:
    """The pods of an InferenceService: containers of its own, or those of a runtime under `model` and the like."""
    for part in filter(None, (service["spec"].get(each) for each in _PARTS)):
        models = [each for each in part.values() if isinstance(each, dict) and "resources" in each]
        containers = [*(part.get("containers") or []), *({"name": "model", **each} for each in models)]
        annotations = (service.get("metadata") or {}).get("annotations") or {}
        metadata = {"annotations": {**annotations, **(part.get("annotations") or {})}}
        yield {"metadata": metadata, "spec": {"containers": containers}}


def ray_sees_no_gpu(view: View, cluster: JSON) -> bool:
    """A RayCluster whose autoscaler does not see that a group of workers has a GPU."""
    spec = cluster["spec"]
    return bool(spec.get("enableInTreeAutoscaling")) and any(
        view.asks(group["template"]) and not _ray_counts_a_gpu(group) for group in spec.get("workerGroupSpecs") or []
    )


def _ray_counts_a_gpu(group: JSON) -> bool:
    """Whether KubeRay finds a GPU: by its parameters, its resources, or the first container's limits."""
    if (group.get("rayStartParams") or {}).get("num-gpus") or (group.get("resources") or {}).get("GPU"):
        return True
    limits = _limits(group["template"]["spec"]["containers"][0])
    return any(key.endswith("gpu") or key.startswith("nvidia.com/mig-") for key in limits)


# -- notebooks, workflows, pipelines ------------------------------------------------------------------------------

JUPYTERHUB = ({"app": "jupyterhub", "component": "hub"}, {"app.kubernetes.io/name": "jupyterhub", "component": "hub"})
AIRFLOW = ({"tier": "airflow", "component": "scheduler"},)
_NOTEBOOK = {"component": "singleuser-server"}
_OPERATOR_POD = {"kubernetes_pod_operator": "True"}


def spawns_with_a_limit(_: View, item: JSON) -> bool:
    """A hub in a served namespace, or a notebook with a share."""
    if any(has_labels(item, each) for each in JUPYTERHUB):
        return True
    return has_labels(item, _NOTEBOOK) and has_share(item)


def operator_pod(_: View, pod: JSON) -> bool:
    """A pod of Airflow's KubernetesPodOperator with a share."""
    return has_labels(pod, _OPERATOR_POD) and has_share(pod)


def executor_pod(_: View, pod: JSON) -> bool:
    """A pod of Airflow's KubernetesExecutor with a share."""
    return has_labels(pod, {"kubernetes_executor": "True"}) and has_share(pod)


def workflow_deadline(view: View, workflow: JSON) -> bool:
    """A Workflow, or a template of one, with a deadline and a share."""
    spec = workflow["spec"]
    spec = spec.get("workflowSpec") or spec
    if (workflow.get("status") or {}).get("finishedAt") or not spec.get("activeDeadlineSeconds"):
        return False
    return any(view.asks(each) for each in map(_step_template, spec.get("templates") or []))


def _step_template(template: JSON) -> JSON:
    containers = [template[key] for key in ("container", "script") if template.get(key)]
    return {"metadata": template.get("metadata") or {}, "spec": {"containers": containers}}


TEKTON_CONFIG = "tekton-pipelines/feature-flags"


def affinity_assistant(view: View, task: JSON) -> bool:
    """A Task or TaskRun that asks for a share while the affinity assistant is on."""
    if view.config(TEKTON_CONFIG).get("coschedule", "workspaces") == "disabled":
        return False
    spec = task["spec"]
    steps = (spec.get("taskSpec") or spec).get("steps") or []
    containers = [
        {"name": f"step-{number}", "resources": step.get("computeResources") or step.get("resources") or {}}
        for number, step in enumerate(steps)
    ]
    whole = {"name": "task", "resources": spec.get("computeResources") or {}}
    return view.asks({"metadata": task.get("metadata") or {}, "spec": {"containers": [*containers, whole]}})


def owns_pods(_: View, application: JSON) -> bool:
    """An Application of Argo CD with plain pods in a namespace that is served."""
    return any(each.get("kind") == "Pod" and not each.get("group") for each in application["status"]["resources"])


# -- DaemonSets ---------------------------------------------------------------------------------------------------


def blocks_its_roll_out(view: View, daemonset: JSON) -> bool:
    """A DaemonSet of which as many pods wait for a share as may be unavailable."""
    strategy = daemonset["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return False
    rolling, uid = strategy.get("rollingUpdate") or {}, daemonset["metadata"]["uid"]
    status = daemonset.get("status") or {}
    most = _share_of(rolling.get("maxUnavailable", 1), int(status.get("desiredNumberScheduled") or 0))
    waiting = [pod for pod in view.items("pods") if waits(pod) and _owner(pod) == uid]
    return not rolling.get("maxSurge") and bool(waiting) and len(waiting) >= most


def _share_of(value: object, whole: int) -> int:
    """A number, or a percentage of all, rounded up as Kubernetes does it for DaemonSets; at least 1."""
    text = str(value)
    found = -(-whole * int(text[:-1]) // 100) if text.endswith("%") else int(text)
    return max(1, found)


def _owner(pod: JSON) -> str:
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    return str(next((each.get("uid") for each in owners if each.get("controller")), ""))


def _limits(container: JSON) -> dict[str, Any]:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
