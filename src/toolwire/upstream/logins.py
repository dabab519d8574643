"""The logins that stand in place of a key: the values of `auth` in the settings."""

from collections.abc import Callable, Mapping

import msgspec

from toolwire.upstream.credentials import CodexLogin, find_login_file, has_login
from toolwire.upstream.google_login import GoogleLogin, find_google_obstacle
from toolwire.upstream.http import Credentials


class Login(msgspec.Struct, frozen=True):
    """One kind of login."""

    make: Callable[[], Credentials]
    find_obstacle: Callable[[Mapping[str, str]], str]
    """Why there is no login, with the environment; empty if there is one."""
    command: str
    """The command that logs in."""


def _find_codex_obstacle(environment: Mapping[str, str]) -> str:
    if has_login(environment):
        return ""
    return f"there is no login in {find_login_file(environment)}; run codex login"


LOGINS = {
    "codex": Login(CodexLogin, _find_codex_obstacle, "codex login"),
    "google": Login(GoogleLogin, find_google_obstacle, "gcloud auth application-default login"),
}
