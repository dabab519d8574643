"""Access tokens of Google Cloud, for Vertex AI.

They come from the application default credentials: the file of a service account that GOOGLE_APPLICATION_CREDENTIALS
names, `gcloud auth application-default login`, or the metadata server of the machine. The package google-auth, an
extra, finds and renews them. It blocks, so it runs in a thread.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolwire.core.errors import Failure
from toolwire.imports import missing_extra
from toolwire.upstream.reply import Broken

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
RENEW_TIMEOUT = 30.0
"""Seconds in which a token must be renewed."""


def find_google_obstacle(environment: Mapping[str, str]) -> str:
    """Why there can be no login, as far as this machine knows; empty if there may be one."""
    path = environment.get(_FILE, "")
    if path and not Path(path).is_file():
        return f"there is no file {path}, which {_FILE} names"
    return missing_extra("google")


class GoogleLogin:
    """The token of the application default credentials, renewed before it expires."""

    def __init__(self) -> None:
        self._credentials: Any = None
        self._lock = asyncio.Lock()

    def make_headers(self, client_key: str) -> Mapping[str, str]:
        """The headers that carry the token: none before the first renewal."""
        headers: dict[str, str] = {}
        if self._credentials is not None:
            self._credentials.apply(headers)
        return headers

    async def renew(self) -> None:
        """Renew the token if it expires soon. Raises `Broken`."""
        if self._is_valid():
            return
        async with self._lock:
            if self._is_valid():
                return
            try:
                async with asyncio.timeout(RENEW_TIMEOUT):
                    self._credentials = await asyncio.to_thread(_renew, self._credentials)
            except TimeoutError as error:
                message = "Google's token server does not answer."
                raise Broken(Failure(504, "google_login_timeout", message, retryable=True)) from error

    def _is_valid(self) -> bool:
        return self._credentials is not None and bool(self._credentials.valid)


def _renew(credentials: Any) -> Any:
    """The credentials with a new token; those of the environment, if there are none yet."""
    if missing := missing_extra("google"):
        raise Broken(Failure(401, "google_login_required", missing, "authentication_error"))
    from google import auth  # noqa: PLC0415 - an extra installs it
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415
    from google.auth.transport.requests import Request  # noqa: PLC0415

    library: Any = auth  # which has types for some of it
    try:
        made: Any = library.default(scopes=_SCOPES, request=Request())[0] if credentials is None else credentials
        made.refresh(Request())
    except TransportError as error:
        message = f"Google's token server cannot be reached: {error}"
        raise Broken(Failure(502, "google_login_unreachable", message, retryable=True)) from error
    except (GoogleAuthError, OSError, ValueError) as error:
        reason = str(error.args[0]) if error.args else type(error).__name__
        message = f"There is no login of Google Cloud: {reason}"
        hint = f"Run `gcloud auth application-default login`, or set {_FILE} to the file of a service account."
        raise Broken(Failure(401, "google_login_required", message, "authentication_error", hint=hint)) from error
    return made
