"""
`python -m allocator run`: the allocator alongside a webhook. `snapshot`, `waiting`, `replay`: for the person on call.

Every setting is a flag, a variable of the environment (`GPUFRACTION_...`) and a key of the YAML file that `--settings`
names; `--help` lists them.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence

from allocator import app, commands
from allocator.app import REGISTRY, Registry
from allocator.scheduler.core import Controller
from allocator.settings import Settings
from runtime import logs
from runtime.httpserver import SocketInUse
from runtime.kubernetes.client import Kube, KubeError
from runtime.process import Process
from runtime.settings import SettingsError, describe, effective, load, settings_file

_USAGE = """usage: python -m allocator run [--settings FILE] [--SETTING VALUE ...]

Decides which GPUs pods get, and places waiting pods.

       python -m allocator snapshot [--socket PATH] > FILE    print the state that the next decision will use
       python -m allocator replay FILE [--pod NAMESPACE/NAME] repeat the decision, and explain it
       python -m allocator waiting [--socket PATH]            print the queue
"""
log = logging.getLogger("allocator")
_LOOK_EVERY = 0.1
GC_THRESHOLDS = (50_000, 20, 100)
"""A list of 100,000 pods creates half a million small objects that all stay. By default half of the time goes to the
collector.
"""
_TURN = 0.001
"""Seconds that a busy thread (a scrape, a lesson, a list) keeps the interpreter while others want it; Python's default
is 5 ms. An admission waits that long for its turn."""
GC_THRESHOLDS_LATER = (5_000, 1_000, 100)
"""An admission leaves a dozen objects behind. Collecting a few thousand at a time delays nothing for long."""


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    registry: Registry = REGISTRY,
) -> int:
    """Run the command; the exit status."""
    known = app.settings_type(registry.features)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in commands.COMMANDS:
        return commands.run(given)
    if not given or given[0] != "run" or "--help" in given:
        print(f"{_USAGE}\n{describe(known)}", file=sys.stdout if "--help" in given else sys.stderr)
        return 0 if "--help" in given else 2
    try:
        file, flags = settings_file(given[1:])
        settings = load(known, file=file, env=os.environ if environment is None else environment, argv=flags)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("starting", extra=effective(settings))
    return _run(settings, registry)


def _run(settings: Settings, registry: Registry) -> int:
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(_TURN)
    process = Process()
    process.handle_signals()
    process.watch_threads()
    try:
        kube = Kube.connect(kubeconfig=settings.kubeconfig or None, user_agent="gpufraction-allocator")
        running = app.start(settings, kube, process, registry)
    except (KubeError, app.TooOld, SocketInUse, OSError) as error:
        log.critical("cannot start", extra={"reason": str(error)})
        return 1
    process.spawn("settling", lambda: _settle(running.controller, process.stop))
    code = process.wait()
    running.stop()
    return code


def _settle(controller: Controller, stop: threading.Event) -> None:
    """
    Once the cluster was listed, hide it from the garbage collector, which would look for cycles among half a million
    objects while everything waits. They are freed without it.
    """
    while controller.ready():
        if stop.wait(_LOOK_EVERY):
            return
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS_LATER)


if __name__ == "__main__":
    sys.exit(main())
