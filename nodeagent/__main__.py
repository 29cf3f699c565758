"""
The commands of the node agent: `run`, `inventory`, `hold` and `mps`.

`_run` gives the process its log, its signals and its way to the API server; `nodeagent.app` makes the rest. Every
setting is a flag and a variable of the environment; `--help` lists them.

Must not: decide anything.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from contract.encoding.quantity import MIB
from contract.options import pool_options
from nodeagent import app
from nodeagent.delivering import DELIVERY, BuildWay
from nodeagent.gpus.library import GpuLibrary
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import look
from nodeagent.gpus.simulated import BadSimulation, Simulated
from nodeagent.isolation.host import read_host
from nodeagent.isolation.levels import MECHANISMS
from nodeagent.isolation.mechanism import MechanismTable
from nodeagent.mps import commands
from nodeagent.mps.commands import MpsSettings
from nodeagent.publishing.status import Terms, usable
from nodeagent.publishing.terms import PoolDocument, pooled
from nodeagent.settings import AgentSettings, HoldSettings, settings_type
from nodeagent.sharing.holders import HolderReporter
from runtime import logs
from runtime.kubernetes.client import Kube, KubeConfigError
from runtime.livefile import yaml_file
from runtime.process import Process
from runtime.settings import SettingsError, describe, effective, load, settings_file

log = logging.getLogger("nodeagent")

USAGE = """\
usage: python -m nodeagent run [--settings FILE] [flags]
       python -m nodeagent inventory [--settings FILE] [flags]
       python -m nodeagent hold [--settings FILE] [flags]
       python -m nodeagent mps [--settings FILE] [flags]

run        publish this node's GPUs, until stopped
hold       report the GPUs that a device plugin allocated to this pod, until stopped
mps        run an MPS control daemon for each GPU that the agent names, until stopped
inventory  print this machine's GPUs as they would be published, and exit; no cluster is needed

A flag is the setting's name with dashes: --node, --nvml-library.
"""


COMMANDS = ("run", "inventory", "hold", "mps", "mps-supervisor")


_SETTINGS: Mapping[str, type] = {
    "hold": HoldSettings,
    "mps": MpsSettings,
    "mps-supervisor": MpsSettings,
}


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    mechanisms: MechanismTable = MECHANISMS,
    ways: Sequence[BuildWay] = DELIVERY,
) -> int:
    """Run the command; the exit status: 0 success, 1 failure, 2 wrong arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given.pop(0) if given else ""
    if command in ("-h", "--help") or {"-h", "--help"} & set(given):
        print(f"{USAGE}\n{describe(_SETTINGS.get(command, settings_type(mechanisms)))}")
        return 0
    if command not in COMMANDS:
        print(f"{USAGE}\nfound {command!r}; give run, inventory, hold or mps", file=sys.stderr)
        return 2
    env = dict(os.environ if environment is None else environment)
    if command == "inventory":
        # Nothing is published, so any name will do.
        env.setdefault("GPUFRACTION_NODE", socket.gethostname())
    try:
        file, flags = settings_file(given)
        if command == "hold":
            return _hold(load(HoldSettings, file=file, env=env, argv=flags))
        if command.startswith("mps"):
            about = load(MpsSettings, file=file, env=env, argv=flags)
            return commands.keep(about, given) if command == "mps" else commands.supervise(about)
        settings = load(settings_type(mechanisms), file=file, env=env, argv=flags)
        library = _library(settings)
        if command == "inventory":
            return inventory(library, settings, sys.stdout)
        return _run(library, settings, mechanisms, ways)
    except BadSimulation as error:
        print(f"settings:\n  simulate: {error}", file=sys.stderr)
        return 2
    except (SettingsError, KubeConfigError) as error:
        print(error, file=sys.stderr)
        return 2


def inventory(library: GpuLibrary, settings: AgentSettings, out: TextIO) -> int:
    """Print a table of this machine's GPUs. Without one, print the reason and return 1."""
    seen = look(library)
    if seen.problem:
        print(f"no GPU: {seen.problem}", file=sys.stderr)
        return 1
    file = yaml_file(settings.options, pool_options)
    terms = pooled(Terms(), PoolDocument(file.value(), file.trouble), labels={}, published={})
    print(f"driver {seen.driver}, CUDA {seen.cuda or 'unknown'}", file=out)
    rows: list[tuple[str, ...]] = [("INDEX", "UUID", "MODEL", "MEMORY", "USABLE", "HEALTH")]
    for card in seen.cards:
        amounts = [f"{amount // MIB}MiB" for amount in (card.memory_bytes, usable(card, terms.reserve))]
        health = "Healthy" if card.healthy else f"Unhealthy: {card.reason}"
        rows.append((str(card.index), card.uuid or "-", card.model or "-", *amounts, health))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join((*cells, row[-1])), file=out)
    return 0


def _run(library: GpuLibrary, settings: AgentSettings, mechanisms: MechanismTable, ways: Sequence[BuildWay]) -> int:
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("settings", extra={"settings": effective(settings)})
    kube = Kube.connect(kubeconfig=settings.kubeconfig or None, user_agent="gpufraction-nodeagent")
    process = Process()
    process.handle_signals()
    process.watch_threads()
    running = app.start(settings, library, kube, process, host=read_host(), mechanisms=mechanisms, ways=ways)
    code = process.wait()
    running.stop()
    return code


def _hold(settings: HoldSettings) -> int:
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    kube = Kube.connect(user_agent="gpufraction-holder")
    holder = HolderReporter(kube, Nvml(), settings.pod)
    process = Process()
    process.handle_signals()
    process.watch_threads()
    process.spawn("holder", lambda: holder.run(process.stop))
    return process.wait()


def _library(settings: AgentSettings) -> GpuLibrary:
    if settings.simulate:
        return Simulated(settings.simulate, node=settings.node)
    return Nvml(path=settings.nvml_library)


if __name__ == "__main__":
    sys.exit(main())
