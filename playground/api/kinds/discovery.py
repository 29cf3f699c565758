"""
Discovery: the groups, versions and kinds of the server. Clients read it first.

Both forms are served: the old one with one request per group, and the aggregated one of Kubernetes 1.30 with two
requests in all.
"""

from collections.abc import Iterable, Iterator

from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SCALE = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
_SUB_KINDS = {
    "scale": _SCALE,
    "binding": {"version": "v1", "kind": "Binding"},
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction"},
}
_SUB_VERBS = {"binding": ["create"], "eviction": ["create"], "log": ["get"]}


def is_discovery(path: str) -> bool:
    """Whether a path under /api or /apis ends before any resource."""
    parts = path.strip("/").split("/")
    return len(parts) <= (2 if parts[0] == "api" else 3)


def version(server_version: str) -> JSON:
    major, minor, *_ = server_version.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": server_version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "cpython",
        "platform": "linux/amd64",
    }


def legacy(path: str, kinds: Iterable[Kind]) -> JSON | None:
    """The answer under /api or /apis in the old form; None where nothing is served."""
    parts = path.strip("/").split("/")
    match parts:
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(name, versions) for name, versions in _groups(kinds) if name]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", name]:
            found = [versions for group, versions in _groups(kinds) if group == name]
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, found[0])} if found else None
        case ["api", version]:
            return _resources("", version, kinds)
        case ["apis", name, version]:
            return _resources(name, version, kinds)
    return None


def _groups(kinds: Iterable[Kind]) -> Iterator[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for kind in kinds:
        versions = found.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    yield from found.items()


def _group(name: str, versions: list[str]) -> JSON:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def _resources(group: str, version: str, kinds: Iterable[Kind]) -> JSON | None:
    served = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [entry for kind in served for entry in _entries(kind)],
    }


def _entries(kind: Kind) -> Iterator[JSON]:
    entry: JSON = {
        "name": kind.plural,
        "singularName": kind.singular or kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(kind.verbs),
    }
    if kind.short:
        entry["shortNames"] = list(kind.short)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name in _subresources(kind):
        about: JSON = dict(_SUB_KINDS.get(name, {"kind": kind.name}))
        yield {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            **about,
            "verbs": _sub_verbs(name),
        }


def _subresources(kind: Kind) -> Iterator[str]:
    if kind.status:
        yield "status"
    yield from kind.subresources


def _sub_verbs(name: str) -> list[str]:
    return _SUB_VERBS.get(name, ["get", "patch", "update"])


def aggregated(path: str, kinds: Iterable[Kind]) -> JSON:
    """APIGroupDiscoveryList for /api (the core group) or /apis (all others)."""
    core = path.strip("/") == "api"
    served = [kind for kind in kinds if (kind.group == "") is core]
    items = []
    for group, versions in _groups(served):
        entries = [
            {
                "version": version,
                "resources": [_aggregated_entry(k) for k in served if (k.group, k.version) == (group, version)],
                "freshness": "Current",
            }
            for version in versions
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": entries})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_entry(kind: Kind) -> JSON:
    entry: JSON = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.name},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular or kind.name.lower(),
        "verbs": list(kind.verbs),
    }
    if kind.short:
        entry["shortNames"] = list(kind.short)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if subresources := [_aggregated_sub(kind, name) for name in _subresources(kind)]:
        entry["subresources"] = subresources
    return entry


def _aggregated_sub(kind: Kind, name: str) -> JSON:
    own = {"group": kind.group, "version": kind.version, "kind": kind.name}
    about = {"group": "", **_SUB_KINDS[name]} if name in _SUB_KINDS else own
    return {"subresource": name, "responseKind": about, "verbs": _sub_verbs(name)}
