"""
The kinds of writes that our programs send to the API server, and the lines of their code that send each.

Two writes are of one kind if a crash alongside them can leave the same things behind: the patch that places a pod is
one kind, for any pod. A request's kind follows from its method, path and body. `sites_in` reads the code, so that a
test finds a call that no kind names.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpointer

from contract import names
from tests.simulation.world.network import Call

JSON = dict[str, Any]
PROGRAMS = ("allocator", "nodeagent", "webhook")
ANY = "*"
"""Used instead of a kind for a write that is not in the table."""
_VERBS = frozenset({"create", "replace", "delete", "patch_json", "patch_merge", "patch_strategic"})


@dataclass(frozen=True, slots=True)
class Sent:
    """
    The parts of a write that its kind depends on. method: POST, PUT, PATCH or DELETE. part: the subresource, or empty.
    """

    method: str
    resource: str
    part: str
    query: Mapping[str, str]
    body: Any

    @property
    def metadata(self) -> JSON:
        """The metadata of a body that is an object."""
        return (self.body.get("metadata") or {}) if isinstance(self.body, dict) else {}

    def changes(self, annotation: str) -> bool:
        """Whether a merge patch changes that annotation."""
        return annotation in (self.metadata.get("annotations") or {})

    @property
    def spec(self) -> JSON:
        """The spec of a body that is an object."""
        return (self.body.get("spec") or {}) if isinstance(self.body, dict) else {}


@dataclass(frozen=True, slots=True)
class WriteKind:
    """
    A kind of write of one program. `sent`: method, resource and subresource. `only`: a further condition; the first
    kind of the table that matches is used. `sites`: the calls of a `Kube` that send it, as `sites_in` names them.
    """

    program: str
    name: str
    sent: tuple[str, str, str]
    sites: tuple[str, ...]
    only: Callable[[Sent], bool] = lambda sent: True

    @property
    def key(self) -> str:
        """Its name in plans and tables."""
        return f"{self.program}: {self.name}"


def _places(sent: Sent) -> bool:
    return isinstance(sent.body, list) and any(each["path"].startswith("/spec/schedulingGates/") for each in sent.body)


def _takes(sent: Sent) -> bool:
    return bool(sent.spec.get("holderIdentity")) and sent.spec.get("acquireTime") == sent.spec.get("renewTime")


def _adopts(sent: Sent) -> bool:
    return isinstance(sent.body, list) and any(each["path"] == "/spec/elasticGPUName" for each in sent.body)


def _on(field: str) -> Callable[[Sent], bool]:
    return lambda sent: isinstance(sent.body, list) and any(each["path"].startswith(field) for each in sent.body)


_LEASE = "runtime.kubernetes.lease:Leader"
_WRITER = "allocator.features.elasticgpuclaims.writer"
_BINDER = "allocator.workers.binder"
_AGENT = "nodeagent.agent:Agent._write"
_CLAIMS = "allocator.workers.resource_claims"
_SHARES = "allocator.workers.share_claims"
_PROVISIONING = "allocator.features.provisioning.worker"
_EVENT = ("runtime.kubernetes.events:record create",)
_EVICT = ("runtime.kubernetes.evictions:evict create",)
_STEP = (f"{_WRITER}:_patch patch_json",)

KINDS: tuple[WriteKind, ...] = (
    WriteKind("allocator", "Lease created", ("POST", "leases", ""), (f"{_LEASE}._write create",)),
    WriteKind("allocator", "Lease taken", ("PUT", "leases", ""), (f"{_LEASE}._write replace",), _takes),
    WriteKind(
        "allocator",
        "Lease renewed",
        ("PUT", "leases", ""),
        (f"{_LEASE}._write replace",),
        lambda sent: bool(sent.spec.get("holderIdentity")),
    ),
    WriteKind("allocator", "Lease released", ("PUT", "leases", ""), (f"{_LEASE}._give_back replace",)),
    WriteKind("allocator", "pod placed", ("PATCH", "pods", ""), (f"{_BINDER}:write patch_json",), _places),
    WriteKind(
        "allocator",
        "pod fenced",
        ("PATCH", "pods", ""),
        ("allocator.workers.fence:Fencer._give patch_merge",),
        lambda sent: sent.changes(names.FENCE),
    ),
    WriteKind(
        "allocator",
        "pod overtaken",
        ("PATCH", "pods", ""),
        (f"{_BINDER}:_overtake patch_json",),
        _on(f"/metadata/annotations/{jsonpointer.escape(names.FENCE)}"),
    ),
    WriteKind(
        "allocator",
        "late pod failed",
        ("PATCH", "pods", ""),
        ("allocator.workers.fence:Fencer.fail patch_merge",),
        lambda sent: "activeDeadlineSeconds" in sent.spec,
    ),
    WriteKind(
        "allocator",
        "share taken off a pod",
        ("PATCH", "pods", ""),
        (f"{_BINDER}:take_share patch_merge",),
        lambda sent: "resourceVersion" in sent.metadata,
    ),
    WriteKind(
        "allocator",
        "pod's annotations kept up",
        ("PATCH", "pods", ""),
        ("allocator.workers.recorder:Upkeep._write patch_merge",),
    ),
    WriteKind(
        "allocator",
        "pod's condition",
        ("PATCH", "pods", "status"),
        (
            f"{_BINDER}:EventRecorder._patch_conditions patch_strategic",
            "allocator.workers.owners:_by_condition patch_strategic",
        ),
    ),
    WriteKind("allocator", "Event", ("POST", "events", ""), _EVENT),
    WriteKind(
        "allocator",
        "eviction tried",
        ("POST", "pods", "eviction"),
        _EVICT,
        lambda sent: sent.query.get("dryRun") == "All",
    ),
    WriteKind("allocator", "pod evicted", ("POST", "pods", "eviction"), _EVICT),
    WriteKind(
        "allocator",
        "GPUNode held beyond",
        ("PATCH", "gpunodes", ""),
        (f"{_BINDER}:EventRecorder._annotate patch_merge",),
        lambda sent: sent.changes(names.BEYOND),
    ),
    WriteKind(
        "allocator",
        "GPUNode's repeated cards",
        ("PATCH", "gpunodes", ""),
        (f"{_BINDER}:EventRecorder._annotate patch_merge",),
        lambda sent: sent.changes(names.REPEATED),
    ),
    WriteKind("allocator", "ElasticGPU created", ("POST", "elasticgpus", ""), (f"{_WRITER}:bind create",)),
    WriteKind("allocator", "ElasticGPU moved", ("PATCH", "elasticgpus", ""), _STEP, _on("/spec")),
    WriteKind("allocator", "ElasticGPU's finalizers", ("PATCH", "elasticgpus", ""), _STEP),
    WriteKind("allocator", "ElasticGPU's status", ("PATCH", "elasticgpus", "status"), _STEP),
    WriteKind("allocator", "ElasticGPU deleted", ("DELETE", "elasticgpus", ""), (f"{_WRITER}:_delete delete",)),
    WriteKind("allocator", "claim bound to its ElasticGPU", ("PATCH", "elasticgpuclaims", ""), _STEP, _on("/spec")),
    WriteKind("allocator", "claim's finalizers", ("PATCH", "elasticgpuclaims", ""), _STEP),
    WriteKind("allocator", "claim's status", ("PATCH", "elasticgpuclaims", "status"), _STEP),
    WriteKind("allocator", "GPU created", ("POST", "gpus", ""), (f"{_WRITER}:card create",)),
    WriteKind("allocator", "GPU's status", ("PATCH", "gpus", "status"), (f"{_WRITER}:card patch_json",)),
    WriteKind("allocator", "GPU deleted", ("DELETE", "gpus", ""), (f"{_WRITER}:card delete",)),
    WriteKind("allocator", "ResourceClaim created", ("POST", "resourceclaims", ""), (f"{_CLAIMS}:_created create",)),
    WriteKind(
        "allocator",
        "ResourceClaim allocated",
        ("PATCH", "resourceclaims", "status"),
        (f"{_CLAIMS}:write patch_merge", f"{_SHARES}:_allocate patch_merge"),
    ),
    WriteKind(
        "allocator", "ResourceClaim protected", ("PATCH", "resourceclaims", ""), (f"{_SHARES}:_allocate patch_merge",)
    ),
    WriteKind(
        "allocator",
        "ResourceClaim deleted",
        ("DELETE", "resourceclaims", ""),
        ("allocator.features.delivery.sweeper:ClaimSweeper._remove delete",),
    ),
    WriteKind(
        "allocator",
        "pools' report",
        ("PATCH", "configmaps", ""),
        (f"{_PROVISIONING}:PoolReport.show patch_merge",),
    ),
    WriteKind(
        "allocator", "placeholder created", ("POST", "pods", ""), (f"{_PROVISIONING}:Provisioner._ask create#3",)
    ),
    WriteKind("allocator", "placeholder deleted", ("DELETE", "pods", ""), (f"{_PROVISIONING}:_delete delete",)),
    WriteKind(
        "allocator",
        "PodTemplate created",
        ("POST", "podtemplates", ""),
        (f"{_PROVISIONING}:Provisioner._ask create",),
    ),
    WriteKind("nodeagent", "GPUNode created", ("POST", "gpunodes", ""), (f"{_AGENT} create",)),
    WriteKind("nodeagent", "GPUNode adopted", ("PATCH", "gpunodes", ""), (f"{_AGENT} patch_merge",)),
    WriteKind("nodeagent", "GPUNode's status", ("PATCH", "gpunodes", "status"), (f"{_AGENT} patch_merge#2",)),
    WriteKind("nodeagent", "node's capacity", ("PATCH", "nodes", "status"), (f"{_AGENT} patch_merge#3",)),
    WriteKind("nodeagent", "node's startup taint removed", ("PATCH", "nodes", ""), (f"{_AGENT} patch_json",)),
    WriteKind("nodeagent", "Event", ("POST", "events", ""), _EVENT),
)
"""In the order in which they are matched."""
UNREACHED: Mapping[str, str] = {
    "allocator.features.canary.worker:CanaryWorker._carry_out patch_merge": "no simulated cluster has canaries",
    "allocator.features.canary.worker:CanaryWorker._delete delete": "no simulated cluster has canaries",
    "allocator.features.canary.worker:CanaryWorker._start create": "no simulated cluster has canaries",
    "allocator.features.kueue.answers:activate patch_json": "the embedded API server has none of Kueue's kinds",
    "allocator.features.kueue.answers:write patch_json": "the embedded API server has none of Kueue's kinds",
    "allocator.features.provisioning.worker:Provisioner._ask create#2": "no autoscaler serves such requests here",
    "allocator.features.provisioning.worker:SpareKeeper._put create": "no autoscaler serves such buffers here",
    "allocator.features.provisioning.worker:SpareKeeper._put patch_json": "no autoscaler serves such buffers here",
    "nodeagent.sharing.holders:HolderReporter.step patch_merge": "runs in a holder's container, which has a real card",
    "runtime.tokenreview:kube_review.review create": "asks, and changes nothing; /metrics is not served here",
    "runtime.tokenreview:kube_review.review create#2": "asks, and changes nothing; /metrics is not served here",
}
"""Calls that no kind names, with the reason. Kinds that no reference run reaches are in `references.UNREACHED`."""
BY_KEY: Mapping[str, WriteKind] = {each.key: each for each in KINDS}
_BY_SENT: dict[tuple[str, tuple[str, str, str]], list[WriteKind]] = {}
for _each in KINDS:
    _BY_SENT.setdefault((_each.program, _each.sent), []).append(_each)


def program_of(host: str) -> str:
    """The kind of program on a host: `allocator` for `allocator-0.2`."""
    return host.partition("-")[0]


def kind_of(call: Call) -> str | None:
    """The kind of the write, as `WriteKind.key`; None for a request that is not one of our writes."""
    program = program_of(call.host)
    if not call.is_write or program not in PROGRAMS:
        return None
    sent = _sent(call)
    found = next((k for k in _BY_SENT.get((program, _shape(sent)), ()) if k.only(sent)), None)
    return found.key if found is not None else f"{program}: {ANY} {' '.join(filter(None, _shape(sent)))}"


def _shape(sent: Sent) -> tuple[str, str, str]:
    return sent.method, sent.resource, sent.part


def _sent(call: Call) -> Sent:
    parts = call.path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    body = json.loads(call.body) if call.body else None
    return Sent(call.method, parts[0], parts[2] if len(parts) > 2 else "", call.query, body)


# -- what the code has -------------------------------------------------------------------------------------------------


def sites_in(top: Path, packages: tuple[str, ...] = ("runtime", "allocator", "nodeagent")) -> Iterator[str]:
    """
    Each call of a `Kube` that writes, as `module:function verb`. The second call of a verb in a function ends in `#2`.

    A client is a variable named `kube` or `_kube`, as everywhere in these packages.
    """
    for package in packages:
        for path in sorted((top / package).rglob("*.py")):
            module = ".".join(path.relative_to(top).with_suffix("").parts)
            yield from _sites(ast.parse(path.read_text()), f"{module}:")


def _sites(tree: ast.AST, where: str) -> Iterator[str]:
    counts: dict[str, int] = {}
    for verb in _calls(tree):
        counts[verb] = counts.get(verb, 0) + 1
        yield f"{where} {verb}" + (f"#{counts[verb]}" if counts[verb] > 1 else "")
    for inner in _defined(tree):
        dot = "" if where.endswith(":") else "."
        yield from _sites(inner, f"{where}{dot}{inner.name}")


_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _defined(tree: ast.AST) -> Iterator[_Defined]:
    """Functions and classes defined directly inside."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _Defined):
            yield child
        else:
            yield from _defined(child)


def _calls(tree: ast.AST) -> Iterator[str]:
    """Verbs of the writes directly inside, in their order."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _Defined):
            continue
        yield from _calls(child)
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in _VERBS:
            owner = child.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name in ("kube", "_kube"):
                yield child.func.attr
