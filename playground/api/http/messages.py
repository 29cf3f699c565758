"""
The fields of the messages that kubectl sends, by the field numbers of the published `generated.proto`.

Only reviews, options and the kinds that `kubectl create` makes. A pod has the fields that `kubectl create deployment`
can set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = Mapping[int, "Field"]


@dataclass(frozen=True, slots=True)
class Field:
    """
    `kind`: text, bytes, raw, int, bool, map, bytemap, quantities (a map to amounts), ignored, or a message of a shape.
    """

    name: str
    kind: str = "text"
    shape: Shape | None = None
    repeated: bool = False


def _message(name: str, shape: Shape, *, repeated: bool = False) -> Field:
    return Field(name, "message", shape, repeated)


_META: Shape = {
    1: Field("name"),
    2: Field("generateName"),
    3: Field("namespace"),
    5: Field("uid"),
    6: Field("resourceVersion"),
    11: Field("labels", "map"),
    12: Field("annotations", "map"),
    14: Field("finalizers", repeated=True),
}
_RESOURCE: Shape = {
    1: Field("namespace"),
    2: Field("verb"),
    3: Field("group"),
    4: Field("version"),
    5: Field("resource"),
    6: Field("subresource"),
    7: Field("name"),
}
_NON_RESOURCE: Shape = {1: Field("path"), 2: Field("verb")}
_PRECONDITIONS: Shape = {1: Field("uid"), 2: Field("resourceVersion")}
_DELETE: Shape = {
    1: Field("gracePeriodSeconds", "int"),
    2: _message("preconditions", _PRECONDITIONS),
    3: Field("orphanDependents", "bool"),
    4: Field("propagationPolicy"),
    5: Field("dryRun", repeated=True),
}
_ACCESS: Shape = {1: _message("resourceAttributes", _RESOURCE), 2: _message("nonResourceAttributes", _NON_RESOURCE)}
_METADATA = _message("metadata", _META)
_STATUS = Field("status", "ignored")  # the server sets its own value
_PORT: Shape = {1: Field("name"), 3: Field("containerPort", "int"), 4: Field("protocol")}
_CONTAINER: Shape = {
    1: Field("name"),
    2: Field("image"),
    3: Field("command", repeated=True),
    4: Field("args", repeated=True),
    6: _message("ports", _PORT, repeated=True),
    8: _message("resources", {1: Field("limits", "quantities"), 2: Field("requests", "quantities")}),
}
_POD_SPEC: Shape = {2: _message("containers", _CONTAINER, repeated=True), 3: Field("restartPolicy")}
_TEMPLATE = _message("template", {1: _METADATA, 2: _message("spec", _POD_SPEC)})
_DEPLOYMENT: Shape = {
    1: Field("replicas", "int"),
    2: _message("selector", {1: Field("matchLabels", "map")}),
    3: _TEMPLATE,
    4: _message("strategy", {1: Field("type")}),
}
_RULE: Shape = {
    1: Field("verbs", repeated=True),
    2: Field("apiGroups", repeated=True),
    3: Field("resources", repeated=True),
    4: Field("resourceNames", repeated=True),
    5: Field("nonResourceURLs", repeated=True),
}
_ROLE: Shape = {1: _METADATA, 2: _message("rules", _RULE, repeated=True)}
_SUBJECT: Shape = {1: Field("kind"), 2: Field("apiGroup"), 3: Field("name"), 4: Field("namespace")}
_BINDING: Shape = {
    1: _METADATA,
    2: _message("subjects", _SUBJECT, repeated=True),
    3: _message("roleRef", {1: Field("apiGroup"), 2: Field("kind"), 3: Field("name")}),
}
_TOKEN: Shape = {1: Field("audiences", repeated=True), 4: Field("expirationSeconds", "int")}
SHAPES: Mapping[str, Shape] = {
    "Deployment": {1: _METADATA, 2: _message("spec", _DEPLOYMENT), 3: _STATUS},
    "Job": {1: _METADATA, 2: _message("spec", {6: _TEMPLATE}), 3: _STATUS},
    "Role": _ROLE,
    "ClusterRole": _ROLE,
    "RoleBinding": _BINDING,
    "ClusterRoleBinding": _BINDING,
    "ResourceQuota": {
        1: _METADATA,
        2: _message("spec", {1: Field("hard", "quantities"), 2: Field("scopes", repeated=True)}),
        3: _STATUS,
    },
    "PriorityClass": {
        1: _METADATA,
        2: Field("value", "int"),
        3: Field("globalDefault", "bool"),
        4: Field("description"),
        5: Field("preemptionPolicy"),
    },
    "TokenRequest": {1: _METADATA, 2: _message("spec", _TOKEN), 3: _STATUS},
    "Namespace": {1: _METADATA, 2: Field("spec", "ignored"), 3: _STATUS},
    "ServiceAccount": {1: _METADATA},
    "ConfigMap": {
        1: _METADATA,
        2: Field("data", "map"),
        3: Field("binaryData", "bytemap"),
        4: Field("immutable", "bool"),
    },
    "Secret": {1: _METADATA, 2: Field("data", "bytemap"), 3: Field("type"), 4: Field("stringData", "map")},
    "SelfSubjectAccessReview": {1: _METADATA, 2: _message("spec", _ACCESS), 3: _STATUS},
    "SelfSubjectRulesReview": {1: _METADATA, 2: _message("spec", {1: Field("namespace")}), 3: _STATUS},
    "SelfSubjectReview": {1: _METADATA, 2: _STATUS},
    "Eviction": {1: _METADATA, 2: _message("deleteOptions", _DELETE)},
    "DeleteOptions": _DELETE,
}
