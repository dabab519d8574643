"""The key for a backend, from settings, the client or a `codex login`; and the environment of child processes."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.errors import Failure
from toolwire.memory.private_files import read_file
from toolwire.upstream.reply import Broken

Header: TypeAlias = Literal["authorization", "x-api-key", "api-key", "x-goog-api-key"]
"""The headers that may carry a key."""

NO_KEY = "unused"
"""Placeholder for clients that insist on a key where the gateway needs none. It is not passed on."""


class ApiKey(msgspec.Struct, frozen=True):
    """A key in one header: the configured one, or the client's own if none is configured. An empty key is not sent."""

    header: str = "authorization"
    key: str | None = None

    def make_headers(self, client_key: str) -> Mapping[str, str]:
        """The headers that carry the key."""
        key = client_key if self.key is None else self.key
        return {self.header: f"Bearer {key}" if self.header == "authorization" else key} if key else {}

    async def renew(self) -> None:
        """Do nothing: a key does not expire."""


class LoginTokens(msgspec.Struct):
    """The tokens of a ChatGPT login."""

    id_token: str = ""
    access_token: str = ""
    refresh_token: str = ""
    account_id: str | None = None


class Login(msgspec.Struct, rename={"api_key": "OPENAI_API_KEY"}):
    """The file of a `codex login`: tokens of ChatGPT, or an API key."""

    tokens: LoginTokens | None = None
    api_key: str | None = None


def find_login_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file in which `codex login` stores its tokens."""
    home = environment.get("CODEX_HOME")
    return (Path(home) if home else Path(environment.get("HOME") or Path.home()) / ".codex") / "auth.json"


def read_login(path: Path) -> Login:
    """Read the file of a `codex login`. Raises `OSError` or `msgspec.DecodeError`."""
    return msgspec.json.decode(read_file(path), type=Login)


def read_login_tokens() -> tuple[str, ...]:
    """The tokens and the key of a `codex login`, if there is one."""
    try:
        found = read_login(find_login_file())
    except (OSError, msgspec.DecodeError):
        return ()
    tokens = found.tokens or LoginTokens()
    return (tokens.id_token, tokens.access_token, tokens.refresh_token, found.api_key or "")


def has_login(environment: Mapping[str, str]) -> bool:
    """Whether there is a `codex login`."""
    return find_login_file(environment).is_file()


class CodexLogin:
    """The ChatGPT login in `CODEX_HOME/auth.json`, read again whenever the file changes."""

    def __init__(self) -> None:
        self._path = find_login_file()
        self._version: tuple[int, int] | None = None
        self._headers: Mapping[str, str] = {}

    def make_headers(self, client_key: str) -> Mapping[str, str]:
        """The headers that carry the login. Raises `Broken` if there is none."""
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if version != self._version:
                tokens = read_login(self._path).tokens
                if tokens is None or not tokens.access_token:
                    raise self._make_failure()
                account = {"chatgpt-account-id": tokens.account_id} if tokens.account_id else {}
                self._headers = {"authorization": f"Bearer {tokens.access_token}", **account}
                self._version = version
        except (OSError, msgspec.DecodeError) as error:
            raise self._make_failure() from error
        return self._headers

    async def renew(self) -> None:
        """Do nothing: only codex itself renews its login."""

    def _make_failure(self) -> Broken:
        message = f"There is no ChatGPT login in {self._path}. Run `codex login`."
        return Broken(Failure(401, "codex_login_required", message, "authentication_error"))


SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
"""A variable whose name contains one of these, in any case, counts as a secret."""


def inherit_environment(
    secrets: Collection[str] = (), allowed: Collection[str] = (), environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that a child process inherits: all except secrets, unless those are allowed by name."""
    return {
        name: value
        for name, value in environment.items()
        if name in allowed or not (name in secrets or any(word in name.upper() for word in SECRET_WORDS))
    }
