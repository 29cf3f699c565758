"""What administrators and our own programs write: options, settings, snapshots, descriptions of a machine."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from allocator.app import settings_type
from allocator.scheduler.events import pods_listed
from allocator.server import debug
from contract import options
from contract.encoding.reading import Malformed
from contract.options import BadOption
from nodeagent.gpus import simulated
from nodeagent.gpus.simulated import BadSimulation
from nodeagent.isolation import delivery
from runtime import settings
from runtime.livefile import yaml_file
from tests.builders import node
from tests.fuzzing.judge import NotJson, Target, document, presentable, same
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.allocator.one_gpu import waiting, worker

JSON = dict[str, Any]


def _options_seeds() -> tuple[bytes, ...]:
    pool = {
        "name": "a",
        "nodeSelector": {
            "matchLabels": {"pool": "a"},
            "matchExpressions": [{"key": "b", "operator": "In", "values": ["c"]}],
        },
        "deviceMemoryScaling": 2,
        "memoryLimitRatio": 3,
        "node": {
            "gpus": 4,
            "model": "Tesla T4",
            "gpuMemory": "15Gi",
            "cpu": 16,
            "memory": "60Gi",
            "storage": "100Gi",
            "selector": {"pool": "a"},
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
            "max": 10,
        },
        "spare": 1,
    }
    whole = {
        "deviceSplitCount": 48,
        "resourceName": "example.com/gpu",
        "defaultMem": 1000,
        "disablecorelimit": "true",
        "migStrategy": "none",
        "reserveMem": 100,
        "reserveMemPercentage": 5,
        "pools": [pool],
    }
    return (json.dumps(whole).encode(), json.dumps({"pools": [pool, {**pool, "name": "b"}]}).encode())


def _options(data: bytes) -> None:
    found = options.pool_options(document(data))
    for pool in found.pools:
        pool.has({"pool": "a"})
    found.of_node({"pool": "a"})
    found.of_pod({"pool": "a"})
    found.cluster.of_nodes()


def _options_file(data: bytes) -> None:
    """The file of options: the input is YAML, the result a value or what is wrong with it."""
    live = yaml_file(_written(data), options.pool_options)
    live.value()
    presentable(live.trouble, "what is wrong with the file")


def _written(data: bytes) -> Path:
    """A file with the input. There is one for each process, because a process uses only one at a time."""
    file = Path(tempfile.gettempdir()) / f"gpufraction-fuzzed-{os.getpid()}.yaml"
    file.write_bytes(data)
    return file


def _settings_file(data: bytes) -> None:
    found = settings.load(settings_type(), file=_written(data), env={}, argv=())
    settings.effective(found)


def _snapshots() -> tuple[bytes, ...]:
    harness = SchedulerHarness([node("n1").gpu("Tesla T4", mib=15109).gpu("NVIDIA A100", mib=81920)])
    harness.controller.handle(pods_listed([waiting(worker("w", mib=1000))]))
    return (json.dumps(debug.to_json(harness.controller.view())).encode(),)


def _snapshot(data: bytes) -> None:
    view = debug.from_json(document(data))
    same(debug.from_json(json.loads(json.dumps(debug.to_json(view)))), view, "reading a snapshot that was written")


_SCENE = {
    "gpus": "2 x Tesla T4 15109MiB",
    "driver": "550",
    "cuda": "12.4",
    "failure": "",
    "cards": {
        "0": {"healthy": False, "reason": "XID 79", "used": "100MiB", "utilisation": 40, "computing": {"abc": 30}},
        "1": {"vanished": True, "uuid": "GPU-9", "capability": "7.5"},
    },
}
_TOML = (
    b'[nvidia-container-runtime]\nmode = "cdi"\n'
    b"accept-nvidia-visible-devices-envvar-when-unprivileged = true\n"
    b'[crio.runtime]\ndefault_runtime = "nvidia"\nhooks_dir = ["/usr/share/containers/oci/hooks.d"]\n'
)
_CDI = b'{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-1","containerEdits":{}}]}'


def _machine(data: bytes) -> None:
    if len(data) < 4096:  # a description may request any number of cards, and only its author waits for them
        simulated.scene_from_document(document(data), node="n")


def _host(data: bytes) -> None:
    text = data.decode(errors="replace")
    paths = (
        *delivery.TOOLKIT,
        f"{delivery.CDI}/a.json",
        f"{delivery.CONTAINERD}/config.toml",
        f"{delivery.CRIO}/crio.conf",
    )
    files = {path: text for path in paths}
    delivery.conclude(files, {"nvidia": "nvidia"})
    delivery.described_kind(files)


TARGETS: tuple[Target, ...] = (
    Target(
        "options",
        _options,
        ("contract.options:pool_options", "contract.options:vgpu_options", "contract.nodes.templates:template"),
        _options_seeds,
        (BadOption, NotJson),
        modules=("contract.encoding.quantity",),
    ),
    Target("options-file", _options_file, ("runtime.livefile:yaml_file",), _options_seeds, form="text"),
    Target(
        "settings-file",
        _settings_file,
        ("runtime.settings:load",),
        lambda: (b'{"election": {"lease": "15s"}, "sharing": {"max_unconfirmed": 10}}', b"log:\n  level: info\n"),
        (settings.SettingsError,),
        form="text",
        many_lines=True,
    ),
    Target(
        "snapshot",
        _snapshot,
        ("allocator.server.debug:from_json",),
        _snapshots,
        (Malformed, NotJson),
    ),
    Target(
        "simulated-machine",
        _machine,
        ("nodeagent.gpus.simulated:scene_from_document",),
        lambda: (json.dumps(_SCENE).encode(),),
        (BadSimulation, NotJson),
    ),
    Target("host-files", _host, ("nodeagent.isolation.delivery:conclude",), lambda: (_TOML, _CDI), form="text"),
)
