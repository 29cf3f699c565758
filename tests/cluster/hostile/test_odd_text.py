"""
Pods whose author wrote the request annotation, with text that breaks programs that show it: what the victim, an
administrator and Prometheus see.
"""

from __future__ import annotations

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contract import names
from contract.dialects import DIALECTS
from contract.encoding.plain import LINE, MESSAGE
from contract.model import UNKNOWN_DIALECT
from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden, KubeInvalid
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import DELAY, NEIGHBOUR, TENANT, Hostile
from tests.odd import ESCAPE, is_fit

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(900)]
JSON = dict[str, Any]
MEMORY = str(names.GPU_MEMORY)
LONG = 200_000
"""Characters of an invalid name."""
MANY, RUNNING = 520, 30
SERIES = 100_000
"""At most this many bytes for a page of metrics of three nodes."""
HELD = "gpufraction_share_held_seconds_total"


def forged(name: str, size: str = "64Mi", **request: Any) -> PodBuilder:
    """
    A pod as if it had been admitted before: the author wrote its request, which agrees with what its quota counts.
    """
    amount = int(size.removesuffix("Mi")) << 20
    written = {"v": 1, "dialect": "native", "containers": [{"name": "main", "count": 1, "memory": amount}], **request}
    return pod(name).asks(MEMORY, size).annotated(names.REQUEST, json.dumps(written))


NOWHERE = {"example.com/nowhere": "yes"}
"""Labels that no node has."""


def claiming(name: str, claim: str) -> PodBuilder:
    """The same for a pod with a claim, which names no amounts."""
    written = {"v": 1, "dialect": "claims", "claim": claim, "containers": [{"name": "main", "count": 1}]}
    return pod(name).needs(cpu="10m").annotated(names.REQUEST, json.dumps(written))


def pages(hostile: Hostile) -> list[str]:
    """What Prometheus gets from both replicas. An answer with another status is an error."""
    return [hostile.cluster.metrics(replica.number, timeout=10) for replica in hostile.cluster.replicas]


def label_values(text: str, label: str) -> set[str]:
    lines = (line for line in text.splitlines() if line.startswith(HELD))
    return {line.partition(f'{label}="')[2].partition('"')[0] for line in lines}


def administrator(hostile: Hostile, *words: str) -> str:
    """What a command prints. It must succeed, and print no control sequences for terminals."""
    out, err = io.StringIO(), io.StringIO()
    status = main([*words, "--kubeconfig", str(hostile.cluster.kubeconfig)], out=out, err=err, environment={})
    assert (status, err.getvalue()) == (0, ""), words
    assert [line for line in out.getvalue().splitlines() if not is_fit(line, 3 * LINE)] == [], words
    return out.getvalue()


COMMANDS: list[tuple[str, ...]] = [
    (*command, "-A", "-o", form) for command in (("waiting",), ("pods",)) for form in ("table", "wide", "json")
]
COMMANDS += [("nodes", "-o", "wide"), ("idle", "-A"), ("inspect",), ("explain", f"{NEIGHBOUR}/victim")]


def everybody_sees(hostile: Hostile) -> None:
    """Every command and both scrapes work, and show the victim."""
    for words in COMMANDS:
        text = administrator(hostile, *words)
        assert words[0] not in ("pods", "explain") or "victim" in text, words
    for text in pages(hostile):
        assert text.replace("\n", "").isprintable()
        assert len(text) < SERIES
        assert label_values(text, "dialect") <= {*(each.name for each in DIALECTS), UNKNOWN_DIALECT}


def victim(hostile: Hostile) -> None:
    """Another tenant's running pod with a share, of a dialect that no series had before."""
    made = pod("victim").asks("elasticgpu.io/gpu-memory", "256")
    hostile.create(made, NEIGHBOUR)
    wait_for(
        lambda: bool(hostile.kube.get(paths.pods(NEIGHBOUR, "victim"))["spec"].get("nodeName")),
        lambda: "the victim is not placed",
    )


def settled(hostile: Hostile, number: int) -> None:
    def found() -> int:
        return sum(bool(each["spec"].get("nodeName") or scenarios.waits(each)) for each in hostile.pods())

    wait_for(lambda: found() >= number, lambda: f"{found()} of {number} pods are placed or told why they wait", 300)


def messages(hostile: Hostile) -> list[str]:
    """Every message on the tenant's pods that is too long, or that contains control sequences for terminals."""
    conditions = (each for made in hostile.pods() for each in (made.get("status") or {}).get("conditions") or ())
    ours = [each["message"] for each in conditions if each["type"] == names.ALLOCATED_CONDITION]
    events = [
        str(each.get("message"))
        for each in hostile.kube.list(paths.events(TENANT)).items
        if (each.get("source") or {}).get("component") == "gpufraction-allocator"
    ]
    return [message for message in (*ours, *events) if not is_fit(message, MESSAGE)]


ODD = {
    "half a character": "\ud800",
    "an escape sequence": ESCAPE,
    "a name that is too long": "x" * LONG,
    "marks of direction": "\u202eevitan\u2066",
}


def test_odd_text_as_a_dialect_breaks_nobodys_scrape_command_or_condition(hostile: Hostile) -> None:
    for at, dialect in enumerate(ODD.values()):
        hostile.create(forged(f"odd-{at}", dialect=dialect))
        hostile.create(forged(f"odd-waits-{at}", dialect=dialect).spec(nodeSelector=NOWHERE))
    victim(hostile)
    settled(hostile, 2 * len(ODD))
    for made in hostile.pods():
        assert json.loads(made["metadata"]["annotations"][names.REQUEST])["dialect"] == UNKNOWN_DIALECT
    wait_for(
        lambda: all({"unknown", "elastic"} <= label_values(text, "dialect") for text in pages(hostile)[:1]),
        lambda: f"series: {[label_values(text, 'dialect') for text in pages(hostile)]}",
    )
    everybody_sees(hostile)
    assert messages(hostile) == []
    assert hostile.neighbour_is_served() < DELAY


def test_odd_text_as_a_claim_is_refused_in_few_words(hostile: Hostile) -> None:
    for at, claim in enumerate((*ODD.values(), "team")):
        with pytest.raises((KubeInvalid, KubeForbidden)) as refused:
            hostile.create(claiming(f"claims-{at}", claim))
        assert is_fit(str(refused.value), 4 * MESSAGE)
    victim(hostile)
    everybody_sees(hostile)
    assert [made["metadata"]["name"] for made in hostile.pods()] == []


@pytest.mark.storm
def test_made_up_dialects_take_no_series_memory_or_time_from_others(hostile: Hostile) -> None:
    before = dict(hostile.footprint.peaks)
    made = [forged(f"many-{at}", "1Mi", dialect=f"made-up-{at}-".ljust(LONG, "x")) for at in range(MANY)]
    made = [each if at < RUNNING else each.spec(nodeSelector=NOWHERE) for at, each in enumerate(made)]
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(hostile.create, made))
    settled(hostile, MANY)
    victim(hostile)
    wait_for(
        lambda: any(_has_victim(text) for text in pages(hostile)),
        lambda: f"the victim's series: {[label_values(text, 'namespace') for text in pages(hostile)]}",
    )
    everybody_sees(hostile)
    assert hostile.neighbour_is_served() < DELAY
    assert hostile.footprint.killed == []
    peaks = {name: f"{peak >> 20} MiB" for name, peak in hostile.footprint.peaks.items() if name in before}
    sizes = [len(text) for text in pages(hostile)]
    print(f"{MANY} pods with dialects of {LONG} characters: pages of {sizes} bytes; peaks {peaks}")


def _has_victim(text: str) -> bool:
    series = [line for line in text.splitlines() if line.startswith(HELD)]
    return any(f'namespace="{NEIGHBOUR}"' in line and 'dialect="elastic"' in line for line in series)


@pytest.mark.long
def test_what_a_status_says_reaches_nobodys_terminal_as_a_command(hostile: Hostile) -> None:
    """Kubelets write conditions, and so can anyone who may patch a pod's status."""
    victim(hostile)
    hostile.create(forged("runs"))
    hostile.create(forged("waits").spec(nodeSelector=NOWHERE))
    settled(hostile, 2)
    for name in ("runs", "waits"):
        kinds = (names.ALLOCATED_CONDITION, "PodScheduled")
        odd = [{"type": str(kind), "status": "False", "reason": "Odd", "message": ESCAPE * 5_000} for kind in kinds]
        hostile.kube.patch_strategic(paths.pods(TENANT, name, "status"), {"status": {"conditions": odd}})
        everybody_sees(hostile)
        administrator(hostile, "explain", name)
    wait_for(lambda: messages(hostile) == [], lambda: "the condition is not written again", 60)
    assert os.linesep.join(pages(hostile)).isascii()
