"""
Generated pods and reviews, as many as needed and the same ones each time. They are plausible, odd, mixed or damaged,
and contain values, keys and bytes that anyone could have inserted.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from contract import names
from tests.cluster.hostile.strangers import review
from tests.unit.webhook.admission.test_very_many_pods import any_pods

JSON = dict[str, Any]
JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    1e308,
    "",
    "x",
    "..",
    "\0",
    "\ud800",
    "n" * 5000,
    "9" * 400,
    "1e999999999Gi",
    [],
    {},
    [None],
    {"": None},
    [[[[[[[[]]]]]]]],
)
NAMESPACES = (
    *("default", "neighbour", "kube-system", "made-up", "made-up-2", "made-up-3") * 5,
    *("", "..", "a/b", "N" * 64, "n" * 70_000),
)
OPERATIONS = (*("CREATE",) * 40, "UPDATE", "DELETE", "CONNECT", "", None)
TOLERATED = {"key": "nvidia.com/gpu", "operator": "Exists"}


def pods(number: int) -> list[JSON]:
    """This many pods, from the generators of the webhook's own tests."""
    found: list[JSON] = []

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(any_pods())
    def collect(made: tuple[str, JSON]) -> None:
        found.append(copy.deepcopy(made[1]))

    collect()
    return found


def to_create(pods: list[JSON], number: int, seed: int) -> Iterator[JSON]:
    """
    This many pods that can really be created: each has a name and images, or an API server would refuse all of them.
    """
    chance = random.Random(seed)
    for count in range(number):
        made = copy.deepcopy(pods[chance.randrange(len(pods))])
        if chance.random() < 0.2:
            damage(made, chance)
        metadata = made.get("metadata")
        if not isinstance(metadata, dict):
            metadata = made["metadata"] = {}
        metadata["name"] = f"made-up-{count}"
        spec = made.get("spec")
        if isinstance(spec, dict):
            for key in ("containers", "initContainers"):
                listed = spec.get(key)
                for container in listed if isinstance(listed, list) else ():
                    if isinstance(container, dict):
                        container.setdefault("image", "made-up")
            if chance.random() < 0.5:
                spec["tolerations"] = [TOLERATED]
        yield made


def reviews(pods: list[JSON], number: int, seed: int) -> list[bytes]:
    """Reviews of these pods that no API server sends."""
    chance = random.Random(seed)
    return [_review(pods, count, chance) for count in range(number)]


def _review(pods: list[JSON], count: int, chance: random.Random) -> bytes:
    made = copy.deepcopy(pods[chance.randrange(len(pods))])
    if isinstance(made.get("metadata"), dict) and chance.random() < 0.7:
        made["metadata"]["name"] = f"stranger-{count % 300}"
    asked = json.loads(
        review(
            made,
            uid=f"{chance.randrange(500)}",
            namespace=chance.choice(NAMESPACES),
            operation=chance.choice(OPERATIONS),
        )
    )
    if chance.random() < 0.1:
        asked["request"]["oldObject"] = copy.deepcopy(pods[chance.randrange(len(pods))])
        asked["request"]["subResource"] = "ephemeralcontainers"
    if chance.random() < 0.5:
        for _ in range(chance.randrange(1, 4)):
            damage(asked["request"]["object"], chance)
    if chance.random() < 0.1:
        damage(asked, chance)
    body = bytearray(json.dumps(asked).encode())
    if chance.random() < 0.05:
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(len(body))] = chance.randrange(256)
    if chance.random() < 0.05:
        del body[chance.randrange(len(body)) :]
    return bytes(body)


def damage(document: Any, chance: random.Random) -> None:
    """Replace, remove or add one thing somewhere in the document."""
    place = document
    while True:
        if isinstance(place, dict) and place:
            key: Any = chance.choice(sorted(place, key=str))
        elif isinstance(place, list) and place:
            key = chance.randrange(len(place))
        else:
            return
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
            place = inner
            continue
        _change(place, key, chance)
        return


def _change(place: Any, key: Any, chance: random.Random) -> None:
    what = chance.randrange(4)
    if what == 0:
        del place[key]
    elif what == 1 and isinstance(place, list):
        place.extend(copy.deepcopy(place[key]) for _ in range(chance.choice((1, 30))))
    elif what == 1:
        place[chance.choice((str(names.REQUEST), str(names.ALLOCATION), "namespace", "name", "x" * 400))] = place[key]
    else:
        place[key] = copy.deepcopy(chance.choice(JUNK))
