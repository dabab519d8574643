"""Failures of a backend in words that a user can act on: which backend, what happened, what to do about it."""

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
"""The words of chat templates that take one system message, first."""

KeySource: TypeAlias = Literal["environment", "login", "client", "none"]
"""Where the key comes from that a backend is asked with: a variable, `codex login`, or whoever asks."""


class AskedBackend(msgspec.Struct, frozen=True):
    """What may be said about the backend that was asked."""

    name: str
    url: str = ""
    """Its base_url without user and query; empty if it has none."""
    key: KeySource = "none"
    key_variable: str = ""
    shows_url: bool = False
    """Whether clients may see the address: on a gateway without keys they are whoever runs it."""


def explained(failure: Failure, backend: AskedBackend) -> Failure:
    """The failure with the name of its backend and a hint, where there is one."""
    name = f"Backend `{backend.name}`"
    where = f" ({backend.url})" if backend.url and backend.shows_url else ""
    status, code, message, hint = failure.status, failure.code, failure.message, failure.hint
    if code in (NO_SUCH_ENDPOINT, WEB_PAGE):
        answer = "a web page" if code == WEB_PAGE else f"status {status}"
        message = f"base_url of backend `{backend.name}`{where} looks wrong: the server answered with {answer}."
        hint = "base_url is everything before /chat/completions, /responses or /messages, and mostly ends in /v1."
        status = 502
    elif status == 401 and failure.quoted:
        message = f"{name}{where} refused {_whose_key(backend)}: {message}"
        hint = _KEY_HINTS[backend.key].format(backend.key_variable)
    elif status == 400 and _SYSTEM_FIRST.search(message):
        hint = 'Set profile = { system = "first" } for this backend.'
    elif not failure.quoted and message.startswith("The backend"):
        message = f"{name}{where}{message.removeprefix('The backend')}"
    if hint:
        message = f"{message.rstrip('.')}. {hint}"
    return msgspec.structs.replace(failure, status=status, message=message, hint=hint, url=backend.url)


_KEY_HINTS: dict[KeySource, str] = {
    "environment": "Set {} to a key that this server takes.",
    "login": "",
    "client": "The backend has no api_key_env, so the key of the client is passed on.",
    "none": "Set api_key_env of the backend, or send a key of your own.",
}


def _whose_key(backend: AskedBackend) -> str:
    match backend.key:
        case "environment":
            return f"the key in {backend.key_variable}"
        case "login":
            return "the login of Codex"
        case "client":
            return "the key that you sent"
        case "none":
            return "a request without a key"
