"""The command `conformance`: chooses the node, runs the checks, writes the report, and prints the results."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contract import names
from contract.encoding.reading import Malformed
from kubectl_gpufraction import connection
from kubectl_gpufraction.cluster.programs import pod_spec
from kubectl_gpufraction.commands import version
from kubectl_gpufraction.conformance import report, vocabulary
from kubectl_gpufraction.conformance.checks import CHECKS
from kubectl_gpufraction.conformance.codes import BY_CODE, FAILED
from kubectl_gpufraction.conformance.node import ChosenNode, candidates, chosen, operator_of
from kubectl_gpufraction.conformance.pods import program
from kubectl_gpufraction.conformance.report import ConformanceReport, Probe, Result
from kubectl_gpufraction.conformance.run import Run, RunOptions
from kubectl_gpufraction.conformance.workspace import RunPause, Stopped, Workspace, leftovers, remove
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import many
from kubectl_gpufraction.session import OUTPUT, Command, Exit, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden, KubeNotFound

JSON = dict[str, Any]
CUDA_IMAGE = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
"""An image that asks for every GPU by itself, as all images of CUDA do."""
_LONGEST = 4 * 3600.0
COLUMNS = (
    Column("check", "CHECK"),
    Column("variant", "FOR"),
    Column("result", "RESULT"),
    Column("reason", "REASON"),
    Column("found", "FOUND"),
    Column("cure", "CURE", wide=True),
)


def add_arguments(to: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    to.add_argument("--report", metavar="FILE", help="write the report there; it names no tenant, node or cluster")
    to.add_argument("--node", metavar="NODE", help="the node; default: the first one that publishes a healthy GPU")
    to.add_argument("--image", metavar="IMAGE", help="of the probes; default: that of the installed agent")
    to.add_argument(
        "--cuda-image", default=CUDA_IMAGE, metavar="IMAGE", help=f"of the pods without a share; default: {CUDA_IMAGE}"
    )
    to.add_argument(
        "--interpreter",
        type=_words,
        default=("python3",),
        metavar="COMMAND",
        help="what runs Python 3.8 or later in the probes' image; default: python3",
    )
    to.add_argument("--runtime-class", default="", metavar="NAME", help="of the pods that get a GPU")
    to.add_argument(
        "--check",
        action="append",
        default=[],
        choices=tuple(CHECKS),
        metavar="CHECK",
        help=f"run only this check; may be repeated: {', '.join(CHECKS)}",
    )
    to.add_argument(
        "--timeout",
        type=_bounded,
        default=1800.0,
        metavar="DURATION",
        help="of the whole run; default: 30m, at most 4h",
    )
    to.add_argument(
        "--start-timeout", type=_bounded, default=180.0, metavar="DURATION", help="until a pod has started; default: 3m"
    )
    to.add_argument(
        "--measure",
        type=_bounded,
        default=10.0,
        metavar="DURATION",
        help="of each measurement; default: 10s, at most 2m",
    )
    to.add_argument("--restart-agent", action="store_true", help="restart the node's agent too, by deleting its pod")
    to.add_argument(
        "--restart-kubelet",
        action="store_true",
        help="wait for you to restart the node's kubelet, while a pod runs",
    )
    to.add_argument("--clean", action="store_true", help="only remove what an earlier run has left")


def _words(text: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(text))
    except ValueError:
        found = ()
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no command")
    return found


def _bounded(text: str) -> float:
    try:
        found = connection.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= found <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r}: expected from 1s to 4h")
    return found


def run(session: Session) -> CommandOutput:
    """Run the checks, reporting each to the user; Ctrl-C and SIGTERM end the run, which still cleans up."""
    given = session.given
    if given.clean:
        return _cleaned(session)
    target = _writable(given.report)
    node, image = _node(session), given.image or _installed_image(session)
    options = RunOptions(
        image=image,
        cuda_image=given.cuda_image,
        interpreter=given.interpreter,
        runtime_class=given.runtime_class,
        start=given.start_timeout,
        measure=min(round(given.measure), 120),
        hand=max(given.start_timeout, 300.0) if not given.restart_kubelet else given.start_timeout + 300.0,
        restart_agent=given.restart_agent,
        restart_kubelet=given.restart_kubelet,
        only=tuple(given.check),
    )
    session.say(f"node {node.name}; probes have the image {image}, pods without a share {given.cuda_image}")
    with _stopping(session.stop):
        pause = RunPause(given.timeout, session.stop.wait)
        space = Workspace(session.kube, pause, volumes=node.volumes, say=session.say)
        run = Run(session.kube, node, options, pause, space, session.say, session.now)
        try:
            with space:
                results = run.all()
        except Stopped as stopped:  # before the namespaces were there
            results = run.rest(stopped.reason)
    found = _report(session, node, run, results)
    if target is not None:
        _write(target, report.to_text(found))
    return _output(found, target, stopped=session.stop.is_set())


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set `stop`, so that pods are removed; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def first(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, first)
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _cleaned(session: Session) -> CommandOutput:
    found = leftovers(session.kube)
    failed = remove(session.kube, found)
    if failed:
        raise Failed("; ".join(failed))
    return CommandOutput(lines=[f"removed {name}" for name in found] or ["nothing was left"])


def _writable(name: str | None) -> Path | None:
    """Where the report goes. Raises `Failed` before anything runs where it cannot."""
    if name is None:
        return None
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise Failed(f"--report {name}: no file can be written there", status=Exit.USAGE)
    return path


def _write(path: Path, text: str) -> None:
    """Write all of it or nothing."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".conformance-", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _node(session: Session) -> ChosenNode:
    """The node to run on. Raises `Failed`."""
    wished = session.given.node
    if not wished:
        there = candidates(session.gpunodes())
        if not there:
            raise Failed("no node publishes a healthy GPU; --node names one whose agent is away")
        wished = there[0]
    try:
        node = session.kube.get(paths.nodes(wished))
    except KubeNotFound:
        raise Failed(f"there is no node {wished}") from None
    try:
        gpunode = session.kube.get(paths.gpunodes(wished))
    except KubeNotFound:
        gpunode = None
    return chosen(
        wished,
        node,
        gpunode,
        kubernetes=".".join(map(str, session.kube.version())),
        operator=_operator(session),
        now=session.now(),
    )


def _operator(session: Session) -> str:
    try:
        return operator_of(session.items(paths.daemonsets()))
    except KubeForbidden:
        return vocabulary.UNKNOWN


def _installed_image(session: Session) -> str:
    """The image of the agent's DaemonSet, which every GPU node can pull. Raises `Failed`."""
    for workload in session.items(paths.daemonsets(names.NAMESPACE), KubeNotFound, KubeForbidden):
        for container in pod_spec(workload).get("containers") or []:
            if [*(container.get("command") or []), "", "", ""][2] == "nodeagent":
                return str(container.get("image", ""))
    raise Failed("the installed agent's image cannot be read; give one with Python 3.8 or later by --image")


def _report(session: Session, node: ChosenNode, run: Run, results: tuple[Result, ...]) -> ConformanceReport:
    text = program("memory")[1]
    image = report.IMAGES[1] if session.given.image else report.IMAGES[0]
    made = ConformanceReport(
        datetime.fromtimestamp(session.now(), UTC).strftime("%Y-%m"),
        vocabulary.version(version.own()),
        Probe(image, run.digest, f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"),
        replace(node.environment, kernelModule=run.module),
        results,
    )
    try:
        return report.from_json(report.to_json(made))
    except Malformed as error:  # only a report that can be read back is written
        raise Failed(f"a bug in kubectl gpufraction, please report it: {error}") from error


def _output(found: ConformanceReport, target: Path | None, *, stopped: bool) -> CommandOutput:
    rows = [_row(each) for each in found.results]
    failed = sum(each.result == FAILED for each in found.results)
    tried = [each for each in found.results if not BY_CODE.get(each.reason) or each.result == FAILED]
    notes = [f"{many(len(tried), 'check was', 'checks were')} tried, {failed} failed"]
    if not found.environment.kernelModule:
        notes.append("No pod saw NVIDIA's kernel module, so the report counts as one of simulated GPUs.")
    if target is not None:
        notes.append(f"The report is in {target}; it names no tenant, node or cluster.")
    return CommandOutput(
        COLUMNS,
        rows,
        notes=notes,
        document=report.to_json(found),
        names=[f"check/{each['check']}" for each in rows],
        status=Exit.INTERRUPTED if stopped else Exit.FAILED if failed else Exit.OK,
    )


def _row(result: Result) -> JSON:
    reason = BY_CODE.get(result.reason)
    figures = ", ".join(f"{key} {value}" for key, value in result.figures.items())
    found = "; ".join(part for part in (reason.text if reason else "", figures) if part)
    return {
        "check": result.check,
        "variant": result.variant,
        "result": result.result,
        "reason": result.reason,
        "found": found,
        "cure": reason.cure if reason else "",
    }


COMMAND = Command(
    "conformance",
    "run real pods on a node, and report what delivers GPUs and what limits programs there",
    run,
    add_arguments,
    once=True,
    flags=OUTPUT | {"no_headers"},
    example="""\
# Test a node that no tenant needs now, and write a report that you can send to anyone
kubectl gpufraction conformance --node NODE --report report.json
# Restart the agent too, and wait for a restart of the kubelet by hand
kubectl gpufraction conformance --node NODE --report report.json --restart-agent --restart-kubelet""",
)
