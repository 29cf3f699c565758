"""
Having the API server send us the pods that name a resource as this cluster calls it.

The shipped configuration lets through what the dialects name. Where an administrator has renamed resources, a pod that
uses such a name would pass us by and wait for a resource that no node has, so the configuration's match conditions must
name it too. An entry that names them all already, such as one made by hand, is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

from contract.dialects.conditions import NAME, OTHERS_NAME, match_conditions, other_conditions, unnamed
from webhook.certificates.configuration import ConfigurationApi, change

JSON = dict[str, Any]


def let_through(kube: ConfigurationApi, configuration: str, renamed: Sequence[str]) -> int:
    """Have the named configuration let through pods that name these resources; how many conditions were changed."""
    return change(kube, configuration, lambda found: operations(found, renamed))


def operations(configuration: Mapping[str, Any], renamed: Sequence[str]) -> list[JSON]:
    """One JSON patch operation for each condition of ours that does not name all of them."""
    wanted = {each["name"]: each["expression"] for each in _conditions(renamed)}
    return [
        {
            "op": "replace",
            "path": f"/webhooks/{entry}/matchConditions/{place}/expression",
            "value": wanted[each["name"]],
        }
        for entry, webhook in enumerate(configuration.get("webhooks") or [])
        for place, each in enumerate(webhook.get("matchConditions") or [])
        if each["name"] in wanted and unnamed(each["expression"], renamed)
    ]


def patch(configuration: str, renamed: Sequence[str], *, hide_gpus: bool) -> str:
    """The same as a kustomization's patch, in YAML, for clusters where nothing of ours may write the configuration."""
    ours, others = _conditions(renamed)
    entries = [("pods.gpufraction.io", ours), *([("others.gpufraction.io", others)] if hide_gpus else [])]
    return _HEAD.format(configuration=configuration) + "".join(
        _ENTRY.format(webhook=webhook, name=each["name"], expression=indent(each["expression"], " " * 10))
        for webhook, each in entries
    )


_HEAD = """apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: {configuration}
webhooks:
"""
_ENTRY = """  - name: {webhook}
    matchConditions:
      - name: {name}
        expression: |-
{expression}
"""


def _conditions(renamed: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Ours and the others' condition; each webhook has one."""
    ((ours,), (others,)) = match_conditions(renamed=renamed), other_conditions(renamed=renamed)
    assert (ours["name"], others["name"]) == (NAME, OTHERS_NAME)
    return ours, others
