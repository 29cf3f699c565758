"""`-o jsonpath=TEMPLATE`, as kubectl prints it."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpufraction.output.forms import CommandOutput, Form
from kubectl_gpufraction.output.jsonpath import BadTemplate, compiled, printed

DOCUMENT: dict[str, Any] = {
    "items": [
        {
            "name": "a",
            "gpu": 0,
            "free": 512,
            "pods": ["x", "y"],
            "well": True,
            "labels": {"app.kubernetes.io/name": "w"},
        },
        {"name": "b", "gpu": 1, "free": 4096, "pods": [], "well": False, "reason": None},
    ]
}
PRINTED = {
    "{.items[*].name}": "a b",
    "{$.items[*].name}": "a b",
    "{.items[*]['name']}": "a b",
    "{.items[0].pods}": '["x","y"]',
    "{.items[-1].name}": "b",
    "{.items[0:1].name}": "a",
    "{.items[0].pods[*]}": "x y",
    "{.items[0].well} {.items[1].free}": "true 4096",
    "{.items[1].reason}": "",
    "{.items[*].none}": "",
    "{.items[9].name}": "",
    "{..name}": "a b",
    r"{.items[0].labels.app\.kubernetes\.io/name}": "w",
    '{range .items[*]}{.name}{"\\t"}{.free}{"\\n"}{end}': "a\t512\nb\t4096\n",
    "{range .items[*]}[{.name}]{end}": "[a][b]",
    "{.items[?(@.gpu==1)].name}": "b",
    "{.items[?(@.free >= 512)].name}": "a b",
    '{.items[?(@.name != "a")].name}': "b",
    "{.items[?(@.reason)].name}": "b",
    "{.items[?(@.name > 3)].name}": "",
    "free: {.items[0].free} MiB": "free: 512 MiB",
    "{.items[0].*}": 'a 0 512 ["x","y"] true {"app.kubernetes.io/name":"w"}',
    "": "",
}


@pytest.mark.parametrize(("template", "want"), PRINTED.items(), ids=PRINTED.keys())
def test_what_a_template_prints(template: str, want: str) -> None:
    assert printed(template, DOCUMENT) == want


BAD = {
    "{.items[*].name": "'{.items[*].name' is not a JSONPath; give paths in braces, such as {.items[*].name}",
    ".items}": "'}' is not a JSONPath; give paths in braces, such as {.items[*].name}",
    "{.items[x]}": "{.items[x]}: '[x]' cannot be read; give a path such as .items[*].name",
    "{items}": "{items}: 'items' cannot be read; give a path such as .items[*].name",
    "{range .items[*]}{.name}": "{range ...} without its {end}",
    "{.name}{end}": "{end} without a {range ...} before it",
    "x" * 5000: "a template of 5000 characters; 4096 are read",
}


@pytest.mark.parametrize(("template", "why"), BAD.items(), ids=[each[:20] for each in BAD])
def test_a_template_that_cannot_be_read_says_which_part(template: str, why: str) -> None:
    with pytest.raises(BadTemplate) as found:
        compiled(template)
    assert str(found.value) == why


def test_text_of_others_is_made_fit_to_be_shown_here_too() -> None:
    shown = CommandOutput(rows=[{"name": "a\x1b[31m\nb"}]).text(Form("jsonpath={.items[*].name}"))
    assert shown == "a\N{REPLACEMENT CHARACTER}[31m b"
