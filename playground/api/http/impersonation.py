"""
Impersonation: kubectl's `--as`, `--as-group` and `--as-uid`, as headers of a request.

The user must have the permission to impersonate each of them. After that, the server treats the request as the other
user's. The rules and messages are those of a real API server.
"""

from collections.abc import Iterator
from email.message import Message
from urllib.parse import unquote

from playground.api.admission.authorization import Authorizer, Question, denial
from playground.api.kinds import errors
from playground.api.kinds.values import ANONYMOUS, User

_USER, _UID, _GROUP, _EXTRA = "Impersonate-User", "Impersonate-Uid", "Impersonate-Group", "impersonate-extra-"
_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATED, _UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
_GROUP_OF_IDENTITIES = "authentication.k8s.io"


def effective(user: User, headers: Message, authorizer: Authorizer) -> User:
    """The user to impersonate; without these headers, `user` itself. Raises `ApiError` 403, or 500 without a name."""
    name = headers.get(_USER, "")
    groups = tuple(headers.get_all(_GROUP) or ())
    extra = dict(_extra(headers))
    uid = headers.get(_UID, "")
    if not name:
        if groups or extra or uid:
            raise errors.internal("impersonation of groups, a UID or extra fields without impersonating a user")
        return user
    for asked in _questions(name, groups, extra, uid):
        if not authorizer.allows(user.authenticated(), asked):
            raise _forbidden(user, asked)
    return User(name, _groups(name, groups), extra)


def _extra(headers: Message) -> Iterator[tuple[str, tuple[str, ...]]]:
    for key in dict.fromkeys(each.lower() for each in headers):
        if key.startswith(_EXTRA):
            yield unquote(key.removeprefix(_EXTRA)), tuple(headers.get_all(key) or ())


def _questions(name: str, groups: tuple[str, ...], extra: dict[str, tuple[str, ...]], uid: str) -> Iterator[Question]:
    account = name.removeprefix(_ACCOUNT).split(":") if name.startswith(_ACCOUNT) else []
    if len(account) == 2:
        yield Question("impersonate", resource="serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield Question("impersonate", resource="users", name=name)
    for group in groups:
        yield Question("impersonate", resource="groups", name=group)
    for key, values in extra.items():
        for value in values:
            yield Question("impersonate", _GROUP_OF_IDENTITIES, "userextras", key, name=value)
    if uid:
        yield Question("impersonate", _GROUP_OF_IDENTITIES, "uids", name=uid)


def _groups(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The groups that the headers name, and the group of all users who are, or are not, authenticated."""
    if name == ANONYMOUS:
        return tuple(dict.fromkeys((*groups, _UNAUTHENTICATED)))
    return groups if _UNAUTHENTICATED in groups else tuple(dict.fromkeys((*groups, _AUTHENTICATED)))


def _forbidden(user: User, asked: Question) -> errors.ApiError:
    resource = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    about = {"name": asked.name, "kind": asked.resource}
    if asked.group:
        about["group"] = asked.group
    text = f'{resource} "{asked.name}" is forbidden: {denial(user, asked)}'
    return errors.ApiError(403, "Forbidden", text, about)
