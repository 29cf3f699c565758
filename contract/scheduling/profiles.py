"""
Arguments of kube-scheduler's profiles, which no API shows, as the administrator writes them into the options.

    schedulerProfiles:
      - schedulerName: default-scheduler
        addedAffinity:            # NodeAffinity's: what every pod of the profile requires and prefers of nodes
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [gpu]}]}]
        defaultConstraints:       # PodTopologySpread's, of defaultingType List: for pods without constraints
          - {topologyKey: topology.kubernetes.io/zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}

The names and the rules are those of `KubeSchedulerConfiguration`, so a part of that file can be copied. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from contract.encoding.reading import Malformed, is_subdomain, shown
from contract.scheduling import needs
from contract.scheduling.clusterfilters.objects import (
    DEFAULT_SCHEDULER,
    MOST_WEIGHT,
    Profile,
    read_node_wishes,
    read_spread,
)

MOST_PROFILES, MOST_ITEMS = 16, 32
"""The most profiles of a document, and the most items of each list of a profile."""
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_PART}")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WITH_VALUES, _WITHOUT, _OF_NUMBERS = ("In", "NotIn"), ("Exists", "DoesNotExist"), ("Gt", "Lt")
_WHEN = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = ("Honor", "Ignore")
_CONSTRAINT = ("maxSkew", "topologyKey", "whenUnsatisfiable", "minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy")
_MOST_COUNT = 1 << 31


def profiles(value: object) -> dict[str, Profile]:
    """
    Read `schedulerProfiles`, by `schedulerName`.

    Raises `Malformed`, whose message begins with the field's path.
    """
    found: dict[str, Profile] = {}
    for at, item in enumerate(_list("schedulerProfiles", value, MOST_PROFILES)):
        path = f"schedulerProfiles[{at}]"
        given = _object(path, item, ("schedulerName", "addedAffinity", "defaultConstraints"))
        name = given.get("schedulerName", DEFAULT_SCHEDULER)
        if not isinstance(name, str) or not is_subdomain(name):
            raise Malformed(
                f"{path}.schedulerName: found {shown(name)}; give the name by which pods choose the profile"
            )
        if name in found:
            raise Malformed(f"{path}.schedulerName: {shown(name)} is given twice; give each profile once")
        found[name] = _profile(path, given)
    return found


def _profile(path: str, given: Mapping[str, Any]) -> Profile:
    affinity = _object(f"{path}.addedAffinity", given.get("addedAffinity"), (_REQUIRED, _PREFERRED))
    required, preferred = affinity.get(_REQUIRED), affinity.get(_PREFERRED)
    if required is not None:
        _check_required(f"{path}.addedAffinity.{_REQUIRED}", required)
    for at, item in enumerate(_list(f"{path}.addedAffinity.{_PREFERRED}", preferred)):
        _check_preferred(f"{path}.addedAffinity.{_PREFERRED}[{at}]", item)
    constraints = _list(f"{path}.defaultConstraints", given.get("defaultConstraints"))
    for at, item in enumerate(constraints):
        _check_constraint(f"{path}.defaultConstraints[{at}]", item)
    pairs = [(item["topologyKey"], item["whenUnsatisfiable"]) for item in constraints]
    twice = next((pair for pair in pairs if pairs.count(pair) > 1), None)
    if twice is not None:
        raise Malformed(f"{path}.defaultConstraints: {' with '.join(map(shown, twice))} is given twice; give it once")
    return Profile(
        added_affinity=None if required is None else needs.node_terms(required),
        added_wishes=read_node_wishes(preferred),
        spread=tuple(read_spread(constraints, "DoNotSchedule", {})),
        preferred_spread=tuple(read_spread(constraints, "ScheduleAnyway", {})),
    )


def _check_required(path: str, value: object) -> None:
    terms = _list(f"{path}.nodeSelectorTerms", _object(path, value, ("nodeSelectorTerms",)).get("nodeSelectorTerms"))
    if not terms:
        raise Malformed(f"{path}.nodeSelectorTerms: has no term; give one, or leave out {_REQUIRED}")
    for at, term in enumerate(terms):
        _check_term(f"{path}.nodeSelectorTerms[{at}]", term)


def _check_preferred(path: str, value: object) -> None:
    item = _object(path, value, ("weight", "preference"))
    _check_count(f"{path}.weight", item.get("weight"), MOST_WEIGHT)
    _check_term(f"{path}.preference", item.get("preference"))


def _check_term(path: str, value: object) -> None:
    term = _object(path, value, ("matchExpressions", "matchFields"))
    for kind, is_key in (("matchExpressions", _is_label_key), ("matchFields", _is_node_name)):
        for at, item in enumerate(_list(f"{path}.{kind}", term.get(kind))):
            _check_expression(f"{path}.{kind}[{at}]", item, is_key)


def _check_expression(path: str, value: object, is_key: Callable[[object], bool]) -> None:
    item = _object(path, value, ("key", "operator", "values"))
    key, operator, values = item.get("key"), item.get("operator"), item.get("values") or []
    if not is_key(key):
        wanted = "metadata.name" if is_key is _is_node_name else "a label"
        raise Malformed(f"{path}.key: found {shown(key)}; give {wanted}")
    _check_word(f"{path}.operator", operator, (*_WITH_VALUES, *_WITHOUT, *_OF_NUMBERS))
    number = len(values) if isinstance(values, list) and all(isinstance(each, str) for each in values) else -1
    right = number > 0 if operator in _WITH_VALUES else number == (operator in _OF_NUMBERS)
    if not right:
        raise Malformed(
            f"{path}.values: found {shown(values)}; give texts for In and NotIn, one number as text for Gt and Lt, "
            "none for the others"
        )


def _check_constraint(path: str, value: object) -> None:
    # Each pod's Services and controller give the selector, which replaces one that is written here.
    item = _object(path, value, _CONSTRAINT)
    if not _is_label_key(item.get("topologyKey")):
        raise Malformed(f"{path}.topologyKey: found {shown(item.get('topologyKey'))}; give a label of nodes")
    _check_count(f"{path}.maxSkew", item.get("maxSkew"), _MOST_COUNT)
    _check_word(f"{path}.whenUnsatisfiable", item.get("whenUnsatisfiable"), _WHEN)
    if item.get("minDomains") is not None:
        _check_count(f"{path}.minDomains", item["minDomains"], _MOST_COUNT)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if item.get(policy) is not None:
            _check_word(f"{path}.{policy}", item[policy], _POLICIES)


def _check_count(path: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Malformed(f"{path}: found {shown(value)}; give a whole number from 1 to {most}")


def _check_word(path: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise Malformed(f"{path}: found {shown(value)}; give one of {', '.join(known)}")


def _is_label_key(key: object) -> bool:
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def _is_node_name(key: object) -> bool:
    return key == "metadata.name"


def _list(path: str, value: object, most: int = MOST_ITEMS) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{path}: found {shown(value)}; give a list of at most {most}")
    return value


def _object(path: str, value: object, known: Collection[str]) -> Mapping[str, Any]:
    found = {} if value is None else value
    if not isinstance(found, Mapping):
        raise Malformed(f"{path}: found {shown(value)}; give an object with {', '.join(known)}")
    for name in found:
        if name not in known:
            raise Malformed(f"{path}: {shown(name)}: unknown; give one of {', '.join(known)}")
    return found
