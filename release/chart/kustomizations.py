"""
Reads the kustomizations of `manifests/` for every choice at once: the base, each overlay, each component.

A component's resources are there when its switch is on, and its patches apply then; the same holds for an overlay. Only
what our kustomizations use is understood; anything else is refused with its place, so that no chart leaves it out.

Must not: write, or know Helm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from release.chart.tree import ABSENT, Node, Unsupported, When, edited, merged, simplified, where_present

JSON = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Both read the same language; the one in C is many times faster, but not available everywhere."""
_FIELDS = frozenset(
    {
        "apiVersion", "kind", "metadata", "resources", "components", "patches", "labels", "images",
        "configMapGenerator", "generatorOptions",
    }
)  # fmt: skip


@dataclass
class Entry:
    """One object."""

    source: str
    """Its file, from the folder of the manifests."""
    identity: JSON
    """`apiVersion`, `kind` and `metadata` as its file has them."""
    node: Node


@dataclass
class Manifests:
    """Every object of the base, the overlays and the components, with what each switch changes."""

    entries: list[Entry] = field(default_factory=list)
    images: dict[str, JSON] = field(default_factory=dict)
    """Our images: the name in the manifests, and kustomize's replacement for it (`newName`, `newTag`)."""
    components: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Each component, and the switches besides its own that turn it on: of overlays and of other components."""
    overlays: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    """The first paragraph of each component's comment, without the marks."""

    def switches(self) -> frozenset[str]:
        """The switches of overlays, of which at most one is on."""
        return frozenset(map(overlay, self.overlays))


def component(name: str) -> str:
    """The name of a component's switch."""
    return f"component/{name}"


def overlay(name: str) -> str:
    """The name of an overlay's switch."""
    return f"overlay/{name}"


def read(folder: Path) -> Manifests:
    """The manifests of this folder. Raises `Unsupported`."""
    reader = _Reader(folder)
    reader.base()
    names = sorted(path.parent.name for path in folder.glob("overlays/*/kustomization.yaml"))
    reader.found.overlays = tuple(names)
    for name in names:
        reader.overlay(name)
    for name in _in_order(folder):
        reader.component(name)
    _follow(reader.found)
    for entry in reader.found.entries:
        entry.node = simplified(entry.node, {}, reader.found.switches())
    reader.found.components = dict(sorted(reader.found.components.items()))
    return reader.found


def _in_order(folder: Path) -> list[str]:
    """The components by name, each after those that are part of it: kustomize applies their patches first."""
    found = list[str]()

    def add(name: str) -> None:
        for path in _document(folder / "components" / name).get("components", ()):
            add(Path(path).name)
        if name not in found:
            found.append(name)

    for name in sorted(path.parent.name for path in folder.glob("components/*/kustomization.yaml")):
        add(name)
    return found


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.found = Manifests()

    def base(self) -> None:
        folder = self._folder / "base"
        document = _document(folder)
        self._add(folder, document, None)
        for name in document.get("components", ()):
            self._add(folder / name, _document(folder / name), None)
        for label in document.get("labels", ()):
            for entry in self.found.entries:
                _label(entry.node, label)
        if "patches" in document:
            raise Unsupported("base: patches; write what they say into the files")
        self.found.images = {image["name"]: image for image in document.get("images", ())}

    def overlay(self, name: str) -> None:
        folder, switch = self._folder / "overlays" / name, overlay(name)
        document = _document(folder)
        if document.get("resources") != ["../../base"] or "images" in document or "labels" in document:
            raise Unsupported(f"overlays/{name}: the chart knows overlays that patch the base alone")
        self._patch(folder, document, switch)
        self._turned_on(document, switch)

    def component(self, name: str) -> None:
        folder, switch = self._folder / "components" / name, component(name)
        document = _document(folder)
        if "labels" in document or not {image["name"] for image in document.get("images", ())} <= set(
            self.found.images
        ):
            raise Unsupported(f"components/{name}: labels, or an image that the base does not name")
        self.found.components.setdefault(name, ())
        self.found.notes[name] = _comment((folder / "kustomization.yaml").read_text(encoding="utf-8"))
        self._add(folder, document, switch)
        self._patch(folder, document, switch)
        self._turned_on(document, switch)

    def _turned_on(self, document: JSON, switch: str) -> None:
        for path in document.get("components", ()):
            name = Path(path).name
            self.found.components[name] = (*self.found.components.get(name, ()), switch)

    def _add(self, folder: Path, document: JSON, switch: str | None) -> None:
        for source, found in self._objects(folder, document):
            identity = {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": dict(found["metadata"])}
            self.found.entries.append(Entry(source, identity, found if switch is None else When(switch, found)))

    def _objects(self, folder: Path, document: JSON) -> Iterator[tuple[str, JSON]]:
        for name in document.get("resources", ()):
            path = (folder / name).resolve()
            if path.is_dir():
                yield from self._objects(path, _document(path))
                continue
            source = str(path.relative_to(self._folder.resolve()))
            yield from ((source, found) for found in _documents(path))
        for item in document.get("configMapGenerator", ()):
            source = str(folder.resolve().relative_to(self._folder.resolve()) / Path(f"{item['name']}.configmap.yaml"))
            yield source, _generated(folder, item, document.get("generatorOptions", {}))

    def _patch(self, folder: Path, document: JSON, switch: str) -> None:
        for patch in document.get("patches", ()):
            text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text(encoding="utf-8")
            change = yaml.load(text, _LOADER)
            target = patch.get("target") or {
                "kind": change["kind"],
                "name": re.escape(change["metadata"]["name"]),
                "namespace": change["metadata"].get("namespace"),
            }
            matching = [entry for entry in self.found.entries if _is_target(entry.identity, target)]
            if not matching:
                raise Unsupported(f"{folder.name}: a patch for {target}, which no file has before it")
            for entry in matching:
                entry.node = simplified(_changed(entry.node, change, switch), {}, self.found.switches())


def _follow(found: Manifests) -> None:
    """As kustomize: where a patch gives a ServiceAccount another namespace, ClusterRoleBindings to it name that one."""
    moved = dict[tuple[str, str], Node]()
    for entry in found.entries:
        metadata = entry.identity["metadata"]
        if entry.identity["kind"] == "ServiceAccount" and isinstance(entry.node, dict):
            moved[metadata["namespace"], metadata["name"]] = entry.node["metadata"]["namespace"]
    for entry in found.entries:
        if entry.identity["kind"] == "ClusterRoleBinding":
            entry.node = where_present(entry.node, lambda binding: {**binding, "subjects": _subjects(binding, moved)})


def _subjects(binding: JSON, moved: Mapping[tuple[str, str], Node]) -> list[JSON]:
    return [
        {**each, "namespace": moved.get((each["namespace"], each["name"]), each["namespace"])}
        if each["kind"] == "ServiceAccount"
        else each
        for each in binding["subjects"]
    ]


def _changed(node: Node, change: Any, switch: str) -> Node:
    if isinstance(change, list):
        return edited(node, change, switch)
    if change.get("$patch") == "delete":
        return When(switch, ABSENT, node)
    # By name and namespace a strategic merge finds its object; it changes neither.
    kept = {key: value for key, value in change["metadata"].items() if key not in ("name", "namespace")}
    change = {**change, "metadata": kept}
    return where_present(node, lambda found: merged(found, change, switch))


def _document(folder: Path) -> JSON:
    [document] = _documents(folder / "kustomization.yaml")
    unknown = document.keys() - _FIELDS
    if unknown:
        raise Unsupported(
            f"{folder.name}/kustomization.yaml: {', '.join(sorted(unknown))}, which the chart does not know"
        )
    return document


def _documents(path: Path) -> list[JSON]:
    return [found for found in yaml.load_all(path.read_text(encoding="utf-8"), _LOADER) if found is not None]


def _generated(folder: Path, item: JSON, general: Mapping[str, Any]) -> JSON:
    options = {**general, **item.get("options", {})}
    if not options.get("disableNameSuffixHash") or item.keys() - {"name", "namespace", "files", "options"}:
        raise Unsupported(f"{folder.name}: configMapGenerator {item['name']}: only files, and disableNameSuffixHash")
    metadata = {"name": item["name"], "namespace": item.get("namespace")}
    metadata |= {key: options.get(key) for key in ("labels", "annotations")}
    files = [(key, path) for key, _, path in (name.rpartition("=") for name in item["files"])]
    data = {key or Path(path).name: (folder / path).read_text(encoding="utf-8") for key, path in files}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {key: value for key, value in metadata.items() if value is not None},
        "data": data,
    }


def _label(node: Node, label: JSON) -> None:
    """As kustomize's `labels`: on the object, and with includeTemplates on the pods that it makes."""
    templates = _templates(node) if label.get("includeTemplates") else ()
    for metadata in (node["metadata"], *templates):
        metadata["labels"] = {**metadata.get("labels", {}), **label["pairs"]}


def _templates(node: Node) -> Iterator[JSON]:
    template = (node.get("spec") or {}).get("template")
    if isinstance(template, dict):
        yield template.setdefault("metadata", {})


def _is_target(identity: JSON, target: Mapping[str, Any]) -> bool:
    if target.keys() - {"group", "version", "kind", "name", "namespace"}:
        raise Unsupported(f"{target}: a patch's target by labels")
    group, _, version = identity["apiVersion"].rpartition("/")
    found = {"group": group, "version": version, "kind": identity["kind"]} | {
        key: identity["metadata"].get(key) for key in ("name", "namespace")
    }
    return all(wanted is None or re.fullmatch(wanted, found[key] or "") is not None for key, wanted in target.items())


def _comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return "\n".join(lines)
