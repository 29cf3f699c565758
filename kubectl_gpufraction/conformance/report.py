"""
The report: its schema, its JSON, and the reading of one that a stranger sent.

    {"schema": "gpufraction.io/conformance", "version": 1, "made": "2026-11", "kit": "0.1.0",
     "probe": {"image": "installed", "digest": "sha256:...", "program": "sha256:..."},
     "environment": {"kubernetes": "1.36.2", "system": "Ubuntu 24.04", "kernel": "6.8", "architecture": "amd64",
                     "cgroup": "v2", "runtime": "containerd 2.1.4", "operator": "25.3.0", "driver": "570.86.15",
                     "cuda": "12.8", "models": ["NVIDIA L4"], "gpus": 4, "slices": 0, "kernelModule": true,
                     "modes": ["env-class-cdi"], "levels": ["mps", "watch"]},
     "results": [{"check": "delivery", "variant": "dra", "result": "not tried", "reason": "NotThisNodesWay",
                  "figures": {}}, ...]}

Every text is a word of a table (`codes`, `vocabulary`, `checks`) or digits, so a report names no tenant, node or
cluster by its form. A reader takes nothing else, and at most `MOST_BYTES` of it. A new version of the schema gets a new
number; a reader refuses a number that it does not know. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.encoding.reading import Malformed, shown
from contract.isolation import ISOLATION
from kubectl_gpufraction.conformance import vocabulary
from kubectl_gpufraction.conformance.checks import CHECKS, FIGURES, WAYS
from kubectl_gpufraction.conformance.codes import BY_CODE, PASSED, RESULTS, ReportReason

JSON = dict[str, Any]
SCHEMA, VERSION = "gpufraction.io/conformance", 1
MOST_BYTES = 256 << 10
_MOST_RESULTS = 200
_MOST_NUMBER = 1 << 53
_MOST_MODELS, _MOST_GPUS = 16, 1024
IMAGES = ("installed", "given")
"""The probe's image: that of the installed programs, or one that was given to the command."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MONTH = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check. `reason`: empty if it passed. `figures`: whole numbers by name."""

    check: str
    variant: str
    result: str
    reason: str = ""
    figures: Mapping[str, int] = field(default_factory=dict)


def passed(check: str, variant: str = "", **figures: int) -> Result:
    """One that passed."""
    return Result(check, variant, PASSED, "", figures)


def because(reason: ReportReason, check: str, variant: str = "", **figures: int) -> Result:
    """One that failed or was not tried, as the reason says."""
    return Result(check, variant, reason.result, str(reason), figures)


@dataclass(frozen=True, slots=True)
class Environment:
    """The components of a node, in the words of `vocabulary`."""

    kubernetes: str = vocabulary.UNKNOWN
    system: str = vocabulary.UNKNOWN
    kernel: str = vocabulary.UNKNOWN
    architecture: str = vocabulary.OTHER
    cgroup: str = vocabulary.UNKNOWN
    runtime: str = vocabulary.UNKNOWN
    operator: str = vocabulary.UNKNOWN
    driver: str = vocabulary.UNKNOWN
    cuda: str = vocabulary.UNKNOWN
    models: tuple[str, ...] = ()
    gpus: int = 0
    slices: int = 0
    kernelModule: bool = False
    """Whether the node's kernel has NVIDIA's module; without it the GPUs are simulated."""
    modes: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """The programs in the pods: the origin of the image, its digest if the node reports it, and the program's."""

    image: str = IMAGES[0]
    digest: str = ""
    program: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """A whole report."""

    made: str
    kit: str
    probe: Probe
    environment: Environment
    results: tuple[Result, ...]


def to_json(report: ConformanceReport) -> JSON:
    """The report as its JSON."""
    environment = {key: getattr(report.environment, key) for key in Environment.__dataclass_fields__}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "made": report.made,
        "kit": report.kit,
        "probe": {key: getattr(report.probe, key) for key in Probe.__dataclass_fields__},
        "environment": {key: list(value) if isinstance(value, tuple) else value for key, value in environment.items()},
        "results": [
            {
                "check": each.check,
                "variant": each.variant,
                "result": each.result,
                "reason": each.reason,
                "figures": dict(each.figures),
            }
            for each in report.results
        ],
    }


def to_text(report: ConformanceReport) -> str:
    """The report's file."""
    return json.dumps(to_json(report), indent=2) + "\n"


def from_text(text: bytes) -> ConformanceReport:
    """Read a file that anyone may have written. Raises `Malformed`, which names the wrong part."""
    if len(text) > MOST_BYTES:
        raise Malformed(f"the report has {len(text)} bytes; the most is {MOST_BYTES}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("the report is not JSON") from None
    return from_json(document)


def from_json(document: object) -> ConformanceReport:
    """Read a report's JSON. Raises `Malformed`."""
    top = _map("report", document, "schema", "version", "made", "kit", "probe", "environment", "results")
    if top["schema"] != SCHEMA:
        raise Malformed(f"schema is {shown(top['schema'])}; expected {SCHEMA}")
    if type(top["version"]) is not int or top["version"] != VERSION:
        raise Malformed(f"version is {shown(top['version'])}; this reads {VERSION}")
    results = tuple(
        _result(f"results[{n}]", each) for n, each in enumerate(_list("results", top["results"], _MOST_RESULTS))
    )
    keys = [(each.check, each.variant) for each in results]
    if len(set(keys)) != len(keys):
        raise Malformed("results: a check is listed twice")
    return ConformanceReport(
        _text("made", top["made"], lambda text: _MONTH.fullmatch(text) is not None),
        _text("kit", top["kit"], _is_version),
        _probe(top["probe"]),
        _environment(top["environment"]),
        results,
    )


def _probe(value: object) -> Probe:
    found = _map("probe", value, *Probe.__dataclass_fields__)
    return Probe(
        _text("probe.image", found["image"], lambda text: text in IMAGES),
        _text("probe.digest", found["digest"], _is_digest),
        _text("probe.program", found["program"], _is_digest),
    )


def _environment(value: object) -> Environment:
    found = _map("environment", value, *Environment.__dataclass_fields__)

    def text(key: str, right: Callable[[str], bool]) -> str:
        return _text(f"environment.{key}", found[key], right)

    def texts(key: str, most: int, right: Callable[[str], bool]) -> tuple[str, ...]:
        at = f"environment.{key}"
        return tuple(_text(at, each, right) for each in _list(at, found[key], most))

    if type(found["kernelModule"]) is not bool:
        raise Malformed("environment.kernelModule: expected true or false")
    return Environment(
        kubernetes=text("kubernetes", _is_version),
        system=text("system", lambda word: vocabulary.is_("system", word)),
        kernel=text("kernel", _is_version),
        architecture=text("architecture", lambda word: vocabulary.is_("architecture", word)),
        cgroup=text("cgroup", lambda word: word in ("v1", "v2", vocabulary.UNKNOWN)),
        runtime=text("runtime", lambda word: vocabulary.is_("runtime", word)),
        operator=text("operator", lambda word: word == "none" or _is_version(word)),
        driver=text("driver", _is_version),
        cuda=text("cuda", _is_version),
        models=texts("models", _MOST_MODELS, lambda word: vocabulary.is_("model", word)),
        gpus=_number("environment.gpus", found["gpus"], _MOST_GPUS),
        slices=_number("environment.slices", found["slices"], _MOST_GPUS),
        kernelModule=found["kernelModule"],
        modes=texts("modes", len(WAYS), lambda word: word in WAYS),
        levels=texts("levels", len(ISOLATION), lambda word: word in ISOLATION),
    )


def _result(at: str, value: object) -> Result:
    found = _map(at, value, "check", "variant", "result", "reason", "figures")
    check = _text(f"{at}.check", found["check"], CHECKS.__contains__)
    variant = _text(f"{at}.variant", found["variant"], CHECKS[check].variants.__contains__)
    result = _text(f"{at}.result", found["result"], RESULTS.__contains__)
    reason = _text(f"{at}.reason", found["reason"], lambda word: not word or word in BY_CODE)
    if (BY_CODE[reason].result if reason else PASSED) != result:
        raise Malformed(f"{at}: the reason {reason!r} is none of {result!r}")
    figures = found["figures"]
    if not isinstance(figures, dict) or not figures.keys() <= FIGURES:
        raise Malformed(f"{at}.figures: expected numbers by {', '.join(sorted(FIGURES))}")
    return Result(
        check,
        variant,
        result,
        reason,
        {key: _number(f"{at}.figures.{key}", number, _MOST_NUMBER) for key, number in figures.items()},
    )


def _is_version(text: str) -> bool:
    return vocabulary.is_("version", text)


def _is_digest(text: str) -> bool:
    return not text or _DIGEST.fullmatch(text) is not None


def _map(at: str, value: object, *keys: str) -> JSON:
    if not isinstance(value, dict):
        raise Malformed(f"{at} is {shown(value)}; expected a map")
    if value.keys() != set(keys):
        raise Malformed(f"{at} has {shown(sorted(map(str, value)))}; expected {', '.join(keys)}")
    return value


def _list(at: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{at}: expected a list of at most {most}")
    return value


def _text(at: str, value: object, right: Callable[[str], bool]) -> str:
    if not isinstance(value, str) or not right(value):
        raise Malformed(f"{at} is {shown(value)}, which is no word of a report")
    return value


def _number(at: str, value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise Malformed(f"{at} is {shown(value)}; expected a whole number up to {most}")
    return value
