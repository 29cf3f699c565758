"""
`python -m benchmarks.placement --trace DIR`: how much of a cluster's GPUs each policy gives away.

Runs the published protocol (see `benchmarks.placement.trace`) and prints one table per list, then the gains. `--plot
FILE` draws the gains and the curves of the first list as SVG. Every figure is a mean over the seeds that the table
counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from allocator.scoring.constants import HALF_LIFE
from benchmarks.placement import defragmenting, families, replays, report, sensitivity, trace
from benchmarks.placement.departures import Served
from benchmarks.placement.replaying import LOADS, Run, at
from benchmarks.placement.replays import DEPARTING, IN_FAMILIES, PEERS, POLICIES
from benchmarks.placement.results import Results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    wrong = _unknown(given)
    if wrong:
        parser.error(wrong)
    found: dict[str, report.Runs] = {}
    made: dict[str, report.Runs] = {}
    served: Mapping[str, Sequence[Served]] = {}
    results, seeds = Results(given.results), _seeds(given.seeds)
    try:
        if given.sensitivity:
            return _sensitivity(given.trace, given.sensitivity, seeds, results)
        for number, name in enumerate(given.lists):
            policies = given.others if number else given.policies
            if name in trace.BESIDE and "binpack" not in policies:
                policies = ("binpack", *policies)
            few, many = _by_seeds(policies)
            runs = chain(
                replays.replay(given.trace, name, many, seeds, given.half_life, results),
                replays.replay(given.trace, name, few, seeds[: given.peer_seeds], given.half_life, results),
            )
            found[name] = _gathered(name, policies, runs)
            print(report.table(name, found[name]), end="\n\n", flush=True)
        for name in given.families:
            replayed = replays.replay_family(name, IN_FAMILIES, _seeds(given.family_seeds), results)
            made[name] = _gathered(name, IN_FAMILIES, replayed)
            print(report.table(f"{name} (made up)", made[name]), end="\n\n", flush=True)
        if given.departures:
            served = _departures(given.trace, _seeds(given.departures), given.departing, given.moves)
            print(report.departures(served), end="\n\n", flush=True)
    except trace.NoTrace as error:
        print(error, file=sys.stderr)
        return 2
    print(report.peers({**found, **made}), end="\n\n")
    print(report.summary(found))
    if given.plot:
        from benchmarks.placement import plot

        if found:
            plot.draw(found, given.plot)
        if served:
            plot.departures(served, given.plot.with_stem(f"{given.plot.stem}-departures"))
    return 0


def _by_seeds(policies: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The policies that fewer seeds show, and the others."""
    return (
        tuple(policy for policy in policies if policy in replays.FEWER_SEEDS),
        tuple(policy for policy in policies if policy not in replays.FEWER_SEEDS),
    )


def _gathered(name: str, policies: Sequence[str], runs: Iterable[tuple[int, str, Run]]) -> dict[str, dict[int, Run]]:
    """Runs by policy and seed, each printed on standard error as it is done."""
    found: dict[str, dict[int, Run]] = {policy: {} for policy in policies}
    started = time.monotonic()
    for number, (seed, policy, done) in enumerate(runs, 1):
        found[policy][seed] = done
        curve = " ".join(f"{load}:{at(done, load):.2f}" for load in LOADS)
        took = f"run {number}, {time.monotonic() - started:.0f} s"
        print(f"{name} ({took}) seed {seed} {policy} {curve}", file=sys.stderr, flush=True)
    return found


def _sensitivity(folder: Path, file: Path, seeds: Sequence[int], results: Results) -> int:
    from benchmarks.placement import plot

    found: dict[str, dict[str, dict[str, float]]] = {}
    for what, label, name, mean in sensitivity.measure(folder, sensitivity.LISTS, seeds, results):
        found.setdefault(what, {}).setdefault(label, {})[name] = mean
        print(f"{what} {label} {name} {mean:.2f}", file=sys.stderr, flush=True)
    print(sensitivity.table(found))
    plot.sensitivity(found, file)
    return 0


def _departures(
    folder: Path, seeds: Sequence[int], policies: Sequence[str], moves: Sequence[str]
) -> Mapping[str, Sequence[Served]]:
    stayed: dict[str, list[Served]] = {}
    for seed, policy, served in replays.replay_departures(folder, "default", policies, seeds, moves):
        stayed.setdefault(policy, []).append(served)
        part = 100 * served.hours / served.offered
        print(f"departures seed {seed} {policy} served {part:.2f} %", file=sys.stderr, flush=True)
    return stayed


def _unknown(given: argparse.Namespace) -> str:
    """The requested names that do not exist; empty if all exist."""
    for what, names, there in (
        ("policy", [*given.policies, *given.others], replays.known),
        ("family", given.families, families.FAMILIES.__contains__),
    ):
        for name in names:
            if not there(name):
                known = families.FAMILIES if what == "family" else POLICIES
                return f"there is no {what} {name!r}; there are {', '.join(known)}"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="DIR", help="folder of the openb trace")
    add(
        "--lists",
        type=_words,
        default=(*trace.LISTS, *trace.BESIDE),
        help="pod lists, with commas; a+b changes from a to b, late:a has pods of several cards last",
    )
    add("--policies", type=_words, default=POLICIES, help="policies for the first list, with commas")
    add("--others", type=_words, default=PEERS, help="policies for the other lists")
    add("--families", type=_words, default=tuple(families.FAMILIES), help="made-up clusters, with commas")
    add("--family-seeds", default="42-46", help="their seeds")
    add("--departures", default="42-51", help="seeds of the replay with departures; empty: none")
    add("--departing", type=_words, default=DEPARTING, help="its policies, with commas")
    add(
        "--moves",
        type=_words,
        default=(defragmenting.NOBODY_MOVES,),
        help="defragmentation in it: off, or evictions an hour, then kept, any, <hours>h or x<worth> with colons",
    )
    add("--seeds", default="42-51", help="first and last seed, or one")
    add("--peer-seeds", type=int, default=5, help="how many of the seeds for policies that are shown beside")
    add("--half-life", type=int, default=HALF_LIFE, help="requests after which one counts half")
    add(
        "--results",
        type=Path,
        metavar="FILE",
        help="file that stores the runs, so that an interrupted one can continue",
    )
    add("--sensitivity", type=Path, metavar="FILE", help="vary the constants of value instead, and draw it as SVG")
    add("--plot", type=Path, metavar="FILE", help="SVG file to write; a second one next to it shows the departures")
    return parser


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
