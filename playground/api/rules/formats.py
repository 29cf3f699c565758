"""
The formats of names, labels and keys: each function takes text and returns its error (None: valid).

The texts are those of k8s.io/apimachinery `validation`.
"""

import re
from collections.abc import Iterator

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_ENV_NAME = re.compile(r"[ -<>-~]+")

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    rf"'{_LABEL}(\.{_LABEL})*')"
)
_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_KEY_TEXT = (
    f"a qualified name {_QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_ENV_TEXT = "a valid environment variable name must consist only of printable ASCII characters other than '='"


def label_problem(text: str) -> str | None:
    """A DNS label (RFC 1123): container names, namespaces."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return None if _DNS_LABEL.fullmatch(text) else _LABEL_TEXT


def subdomain_problem(text: str) -> str | None:
    """A DNS subdomain (RFC 1123): the names of most objects."""
    if len(text) > 253:
        return "must be no more than 253 characters"
    return None if _SUBDOMAIN.fullmatch(text) else _SUBDOMAIN_TEXT


def qualified_name_problem(text: str) -> str | None:
    """The first thing that is wrong with a key."""
    return next(iter(qualified_name_problems(text)), None)


def qualified_name_problems(text: str) -> Iterator[str]:
    """A key of a label, an annotation, a taint or a resource: `[prefix/]name`, the name at most 63 characters."""
    if text.count("/") > 1:
        yield _KEY_TEXT
        return
    prefix, slash, name = text.rpartition("/")
    if slash and not prefix:
        yield "prefix part must be non-empty"
    elif slash and (problem := subdomain_problem(prefix)):
        yield f"prefix part {problem}"
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield "name part must be no more than 63 characters"
    if not _QUALIFIED.fullmatch(name):
        yield f"name part {_QUALIFIED_TEXT}"


def label_value_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return _VALUE_TEXT
    if len(text) > 63:
        return "must be no more than 63 characters"
    return None if not text or _QUALIFIED.fullmatch(text) else _VALUE_TEXT


def env_name_problem(text: str) -> str | None:
    return None if _ENV_NAME.fullmatch(text) else _ENV_TEXT
