"""
The process that fuzzes one target with atheris: `python -m tests.fuzzing.fuzzer TARGET FOLDER SECONDS [FLAG...]`.

libFuzzer ends the process, so each target has its own process. Inputs that reach something new are written to the
folder. Findings are written to a file next to it, one of each kind. Flags are passed to libFuzzer.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(
    include=["contract", "runtime", "webhook", "allocator", "nodeagent", "kubectl_gpufraction"]
):
    from tests.fuzzing import campaign, judge, mutation, table

_PLAIN = 6
"""One of this many changes of a document changes one of its bytes."""


def changes(target: judge.Target, seeds: list[bytes]) -> Any:
    """libFuzzer's custom mutator: bytes in, other bytes out."""
    documents = [seed for seed in seeds if _is_json(seed)]
    mutator = mutation.Mutator([json.loads(seed) for seed in documents], typed=target.form == "typed")

    def change(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if target.form == "json" and chance.randrange(_PLAIN) == 0:
            return bytes(atheris.Mutate(data, most))
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = json.loads(chance.choice(documents))
        try:
            made = mutation.written(mutator.change(found, chance))
        except (RecursionError, ValueError, OverflowError):
            return data[:most]
        return made if len(made) <= most else data[:most]

    return change


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def main(arguments: list[str]) -> None:
    """Fuzz until the time is over. A finding is written once for each kind, and does not end the run."""
    name, folder, seconds, *flags = arguments
    target, work = table.target_named(name), Path(folder)
    logging.disable(logging.CRITICAL)
    seeds = list(target.seeds())
    known = campaign.findings(work)

    def one(data: bytes) -> None:
        try:
            judge.judge(target, data)
        except judge.Finding as error:
            if error.kind not in known:
                known[error.kind] = str(error)
                campaign.note(work, error, data)

    options = [
        "fuzzer",
        f"-max_total_time={seconds}",
        f"-max_len={judge.LONGEST_INPUT}",
        f"-artifact_prefix={work.parent}/{name}-",
        "-timeout=60",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
        *flags,
        folder,
    ]
    mutator = {"custom_mutator": changes(target, seeds)} if target.form in ("json", "typed") else {}
    atheris.Setup(options, one, enable_python_coverage=True, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
