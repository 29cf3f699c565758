"""
The kinds that are served: the built-in ones as a table, and what CustomResourceDefinitions add.

Adding a built-in kind is one line here. What is special about a kind (defaults, validation, columns) is looked up
elsewhere by its `key`; a kind with nothing special needs nothing else.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind in one version, as discovery describes it."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    status: bool = False
    """There is a /status subresource, and the main resource ignores changes of `.status`."""
    generation: bool = False
    """`metadata.generation` counts the changes of the desired state."""
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = _VERBS
    singular: str = ""
    custom: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)
    """The version entry of the CustomResourceDefinition; None for built-in kinds."""

    @property
    def key(self) -> str:
        """`plural.group`: where objects are stored, and how error messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return f"{self.name}List"

    @property
    def root(self) -> str:
        """The path under which the kind is served."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"


_REVIEW = ("create",)
_APPS, _BATCH, _RBAC = "apps", "batch", "rbac.authorization.k8s.io"
_ADMISSION, _AUTHZ = "admissionregistration.k8s.io", "authorization.k8s.io"
_ALL = ("all",)
_MORE_OF_PODS = ("binding", "ephemeralcontainers", "eviction", "log")

BUILT_IN: tuple[Kind, ...] = (
    Kind("", "v1", "namespaces", "Namespace", False, ("ns",), status=True),
    Kind("", "v1", "nodes", "Node", False, ("no",), status=True),
    Kind("", "v1", "pods", "Pod", True, ("po",), True, False, _MORE_OF_PODS, _ALL),
    Kind("", "v1", "bindings", "Binding", verbs=("create",)),
    Kind("", "v1", "events", "Event", True, ("ev",)),
    Kind("", "v1", "services", "Service", True, ("svc",), status=True, categories=_ALL),
    Kind("", "v1", "endpoints", "Endpoints", True, ("ep",)),
    Kind("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "podtemplates", "PodTemplate", generation=True),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",), subresources=("token",)),
    Kind("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), status=True),
    Kind("", "v1", "limitranges", "LimitRange", True, ("limits",)),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), status=True),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), status=True),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", generation=True),
    Kind(_APPS, "v1", "deployments", "Deployment", True, ("deploy",), True, True, ("scale",), _ALL),
    Kind(_APPS, "v1", "replicasets", "ReplicaSet", True, ("rs",), True, True, ("scale",), _ALL),
    Kind(_APPS, "v1", "statefulsets", "StatefulSet", True, ("sts",), True, True, ("scale",), _ALL),
    Kind(_APPS, "v1", "daemonsets", "DaemonSet", True, ("ds",), True, True, (), _ALL),
    Kind(_BATCH, "v1", "jobs", "Job", True, (), True, True, (), _ALL),
    Kind(_BATCH, "v1", "cronjobs", "CronJob", True, ("cj",), True, True, (), _ALL),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",), generation=True),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), True, True),
    Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False),
    Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True),
    Kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, generation=True),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, ("netpol",), generation=True),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
    Kind(_RBAC, "v1", "roles", "Role"),
    Kind(_RBAC, "v1", "rolebindings", "RoleBinding"),
    Kind(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind(_ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, generation=True),
    Kind(_ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False, generation=True),
    Kind(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, (), True, True),
    Kind(
        _ADMISSION,
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        False,
        generation=True,
    ),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        False,
        ("crd", "crds"),
        True,
        True,
    ),
    Kind(_AUTHZ, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, verbs=_REVIEW),
    Kind(_AUTHZ, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, verbs=_REVIEW),
    Kind(_AUTHZ, "v1", "subjectaccessreviews", "SubjectAccessReview", False, verbs=_REVIEW),
    Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, verbs=_REVIEW),
    Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, verbs=_REVIEW),
)

BY_KEY: Mapping[str, Kind] = {kind.key: kind for kind in BUILT_IN}
PODS = BY_KEY["pods"]
NAMESPACES = BY_KEY["namespaces"]
QUOTAS = BY_KEY["resourcequotas"]
SERVICE_ACCOUNTS = BY_KEY["serviceaccounts"]
CRDS = BY_KEY["customresourcedefinitions.apiextensions.k8s.io"]


class Kinds:
    """Every kind that is served now. Reads take no lock: a change replaces the whole map."""

    def __init__(self, kinds: Iterable[Kind] = BUILT_IN) -> None:
        self._lock = threading.Lock()
        self._served = {(kind.group, kind.version, kind.plural): kind for kind in kinds}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._served.get((group, version, plural))

    def by_key(self, key: str) -> Kind | None:
        """Any served version of a stored resource."""
        return next((kind for kind in self._served.values() if kind.key == key), None)

    def by_name(self, api_version: str, name: str) -> Kind | None:
        """The kind that an object's own `apiVersion` and `kind` name."""
        return next((k for k in self._served.values() if k.name == name and k.api_version == api_version), None)

    def all(self) -> tuple[Kind, ...]:
        return tuple(self._served.values())

    def replace_custom(self, group: str, plural: str, kinds: Iterable[Kind]) -> None:
        """Serve exactly `kinds` for one CustomResourceDefinition; none of them takes it out of service."""
        with self._lock:
            served = {
                key: kind
                for key, kind in self._served.items()
                if kind.custom is None or (kind.group, kind.plural) != (group, plural)
            }
            served.update({(kind.group, kind.version, kind.plural): kind for kind in kinds})
            self._served = served
