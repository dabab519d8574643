"""Explains a backend's failure to users: which backend, what happened, what to do about it."""

import re
from typing import Literal, TypeAlias

import msgspec

from toolwire.backends.failures import NO_SUCH_ENDPOINT
from toolwire.core.errors import Failure

WEB_PAGE = "web_page"
"""The failure code of a reply that is HTML."""

_SYSTEM_FIRST = re.compile(
    r"system (?:message|role|prompt)s? must be (?:at the beginning|(?:the )?first)|only the first message .*\bsystem",
    re.IGNORECASE,
)
"""The error of chat templates that accept one system message, at the beginning."""

KeySource: TypeAlias = Literal["environment", "login", "client", "none"]
"""The source of a backend's key: a variable, a login, or the client."""

_KEYS: dict[KeySource, tuple[str, str]] = {
    "environment": ("the key in {}", "Set {} to a key that this server takes."),
    "login": ("the login", ""),
    "client": ("the key that you sent", "The backend has no api_key_env, so the key of the client is passed on."),
    "none": ("a request without a key", "Set api_key_env of the backend, or send a key of your own."),
}
"""What a server refused, and what to do about it."""


class AskedBackend(msgspec.Struct, frozen=True):
    """The facts about a backend that error messages may contain."""

    name: str
    url: str = ""
    """Its base_url without user and query; empty if it has none."""
    key: KeySource = "none"
    key_variable: str = ""
    shows_url: bool = False
    """Whether clients may see the address. On a gateway without keys the client is its operator."""


def explain_failure(failure: Failure, backend: AskedBackend) -> Failure:
    """The failure with the name of its backend, and a hint if there is one."""
    name = f"Backend `{backend.name}`"
    where = f" ({backend.url})" if backend.url and backend.shows_url else ""
    status, code, message, hint = failure.status, failure.code, failure.message, failure.hint
    if code in (NO_SUCH_ENDPOINT, WEB_PAGE):
        answer = "a web page" if code == WEB_PAGE else f"status {status}"
        message = f"base_url of backend `{backend.name}`{where} looks wrong: the server answered with {answer}."
        hint = "base_url is everything before /chat/completions, /responses or /messages, and usually ends in /v1."
        status = 502
    elif status == 401 and failure.quoted:
        key, hint = (text.format(backend.key_variable) for text in _KEYS[backend.key])
        message = f"{name}{where} refused {key}: {message}"
    elif status == 400 and _SYSTEM_FIRST.search(message):
        hint = 'Set profile = { system = "first" } for this backend.'
    elif not failure.quoted and message.startswith("The backend"):
        message = f"{name}{where}{message.removeprefix('The backend')}"
    if hint:
        message = f"{message.rstrip('.')}. {hint}"
    return msgspec.structs.replace(failure, status=status, message=message, hint=hint, url=backend.url)
