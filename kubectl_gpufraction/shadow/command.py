"""
`shadow` and `what-if`: show how gpufraction would have placed this cluster's pods, from the recording of shadow mode.

The recorder serves no port, since its recording names the pods of all tenants. Its commands run in its own pod by
`kubectl exec`: users who may do that in its namespace may read it, and the API server's audit log records it. Its
output is passed on, made fit to be shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.session import OUTPUT, Command, Failed, Session

NAMESPACE, DEPLOYMENT = "gpufraction-shadow", "deployment/gpufraction-shadow"
WHAT = ("report", "manifests", "export")
_TIMEOUT = 3600.0
"""Seconds for a replay of a long recording; its progress is not seen."""
_KUBECTL = "kubectl"
_LARGEST = 512 << 20
"""Bytes of an answer that are taken."""
_FLAGS = ("allocator", "last", "replica", "whole")
_CHANGES = ("cards", "mig", "quota", *_FLAGS)


def exec_words(session: Session, words: Sequence[str]) -> list[str]:
    """The command that runs `python -m shadow` with these words in the recorder's pod, as the user."""
    given = session.given
    connection = [
        *(["--kubeconfig", given.kubeconfig] if given.kubeconfig else []),
        *(["--context", given.context] if given.context else []),
        *(["--as", given.as_user] if given.as_user else []),
        *(word for group in given.as_group or () for word in ("--as-group", group)),
    ]
    return [_KUBECTL, *connection, "-n", NAMESPACE, "exec", DEPLOYMENT, "--", "python", "-m", "shadow", *words]


def _executed(session: Session, words: Sequence[str]) -> str:
    """What the recorder's command printed. Raises `Failed`."""
    command = exec_words(session, words)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
    except FileNotFoundError:
        raise Failed("kubectl is not on PATH; this command runs it to reach the recorder") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"the recorder gave no answer within {_TIMEOUT / 60:.0f} min") from None
    if len(done.stdout) > _LARGEST:
        raise Failed(f"the recorder's answer has more than {_LARGEST >> 20} MiB")
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise Failed(_cure(done.stderr.decode(errors="replace").strip()))
    return text


def _cure(words: str) -> str:
    if "NotFound" in words and "gpufraction-shadow" in words:
        return "shadow mode is not installed: kubectl apply -k manifests/shadow installs it; see docs/switching.md"
    return words or "the recorder's command failed without a message"


def _shadow(session: Session) -> CommandOutput:
    given = session.given
    programs = not session.for_people
    words = [given.what, *_passed(given, _FLAGS if given.what == "report" else ("last", "replica", "whole"))]
    if given.what == "export":
        if given.allocator or given.last or given.replica or given.whole:
            raise Failed("export has none of these flags: it prints the unchanged recording")
        words = ["export"]
    if given.what == "manifests" and given.allocator:
        raise Failed("--allocator changes no manifest; omit it")
    if given.what == "manifests" and given.namespace:
        words += ["--namespace", given.namespace]
    if given.what == "report" and programs:
        words += ["--output", "json"]
    return _output(session, words, given.file, programs and given.what == "report")


def _what_if(session: Session) -> CommandOutput:
    given, programs = session.given, not session.for_people
    words = ["what-if", *_passed(given, _CHANGES), *(["--output", "json"] if programs else [])]
    if not any(getattr(given, name) for name in _CHANGES if name != "last"):
        raise Failed("give a change, such as --cards A100=10; kubectl gpufraction help what-if lists them")
    return _output(session, words, given.file, programs)


def _passed(given: argparse.Namespace, names: Sequence[str]) -> list[str]:
    words = []
    for name in names:
        found: Any = getattr(given, name)
        for value in found if isinstance(found, list) else [found] if found else []:
            words.append(f"--{name}={value}")
    return words


def _output(session: Session, words: Sequence[str], file: str | None, programs: bool) -> CommandOutput:
    text = _executed(session, words)
    if file:
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise Failed(f"{file}: {error.strerror or error}") from None
        return CommandOutput(lines=[f"written to {file}"], document={"file": file})
    if programs:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise Failed("the recorder's answer is not JSON; is its version different?") from None
        return CommandOutput(document=document if isinstance(document, dict) else {"items": document})
    return CommandOutput(exact=text, document={"text": text})


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", metavar="FILE", help="write it to this file instead")


def _choices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--allocator",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the allocator, such as queue.order=fair; may be repeated",
    )
    add("--last", metavar="TIME", help="only the last part of the recording, such as 12h or 3d")
    add("--replica", metavar="PERCENT", help="the request of pods with a replica of a time-sliced card")
    add("--whole", metavar="PERCENT", help="the request of pods with whole cards")


def _of_shadow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=WHAT, default="report", help="what is shown; default: the report")
    _choices(parser)
    _file(parser)


def _of_what_if(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., object] = parser.add_argument
    repeated = {"action": "append", "default": []}
    add("--cards", **repeated, metavar="MODEL[:MEMORY]=NUMBER", help="further cards of a model; may be repeated")
    add("--mig", **repeated, metavar="MODEL=PROFILE,...", help="all cards of a model in MIG slices; may be repeated")
    add("--quota", **repeated, metavar="NAMESPACE=MEMORY[,CORES]", help="a namespace's quota; may be repeated")
    _choices(parser)
    _file(parser)


SHADOW = Command(
    "shadow",
    "show what gpufraction would have done on this cluster, from the recording of shadow mode",
    _shadow,
    _of_shadow,
    once=True,
    flags=OUTPUT | {"namespace"},
    example="""# after some days with manifests/shadow
kubectl gpufraction shadow
# the manifests of one team, as admission would store them
kubectl gpufraction shadow manifests -n team-a""",
)
WHAT_IF = Command(
    "what-if",
    "replay the recording with a change of the cluster, and without it",
    _what_if,
    _of_what_if,
    once=True,
    flags=OUTPUT,
    example="""# with ten more cards
kubectl gpufraction what-if --cards A100=10
# with the fair queue, and a quota for one team
kubectl gpufraction what-if --allocator queue.order=fair --quota team-a=160Gi""",
)
