"""
The text of a gang's plan: which share each of its members gets.

The allocator writes it on the first member that is placed, by the write that places it. The gang has then begun: the
leading allocator, even a new one, gives the other members exactly these shares. Reading it raises only `Malformed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from contract.encoding import codec, wire
from contract.encoding.reading import Malformed, is_uid
from contract.model import MOST_MEMBERS, Allocation

_VERSION = 1
LONGEST = 128 << 10
"""Characters of a plan; Kubernetes takes twice as many bytes for all annotations of a pod."""


def to_text(members: Mapping[str, Allocation]) -> str:
    """
    The plan for these pods, by uid. A plan that is too long is empty: a new leader then decides for the remaining
    members before anything else.
    """
    shares = {uid: codec.allocation_to_json(allocation) for uid, allocation in members.items()}
    text = json.dumps({"v": _VERSION, "members": shares}, separators=(",", ":"), sort_keys=True)
    if len(text) <= LONGEST:
        return text
    return json.dumps({"v": _VERSION, "members": dict.fromkeys(shares)}, separators=(",", ":"), sort_keys=True)


def from_text(text: object) -> dict[str, Allocation | None]:
    """The share of each member by uid; None if the plan was too long. Raises `Malformed`."""
    document = wire.load(text, "gang plan", most=LONGEST, version=_VERSION)
    members = document.get("members")
    if not isinstance(members, dict) or len(members) > MOST_MEMBERS:
        raise Malformed("gang plan: members is not an object within the bound")
    found: dict[str, Allocation | None] = {}
    for uid, each in members.items():
        if not is_uid(uid):
            raise Malformed("gang plan: a member's uid is invalid")
        found[uid] = None if each is None else codec.allocation_from_json(each)
    return found
