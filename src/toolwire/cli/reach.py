"""The gateway of a configuration, as a client on this machine sees it: its address, its key, and whether it answers."""

import http.client
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from toolwire.config.settings import Settings

PATIENCE = 2.0
"""Seconds for an answer of a gateway, which is on this machine."""


class Access(msgspec.Struct, frozen=True):
    """What a client needs."""

    url: str
    """Without /v1."""
    key: str = ""
    key_variable: str = ""
    """The variable that holds the key, if it is in one."""


class _Health(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] = []


def access(settings: Settings) -> Access:
    """How to reach the gateway that `toolwire serve` makes of these settings, with the first of its keys."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104
    url = f"http://[{host}]:{settings.server.port}" if ":" in host else f"http://{host}:{settings.server.port}"
    if not settings.keys:
        return Access(url)
    key = settings.keys[0]
    return Access(url, settings.key_of(key), "" if key.key else key.key_env)


def version_at(url: str) -> str | None:
    """The version of the gateway that answers there; empty if something else does, None if nothing does."""
    try:
        status, body = _get(url, "/healthz")
        return msgspec.json.decode(body, type=_Health).version if status == 200 else ""
    except (msgspec.DecodeError, http.client.HTTPException, ConnectionResetError, TimeoutError):
        return ""
    except OSError:
        return None


def serves(reached: Access, model: str) -> bool:
    """Whether a gateway has this model, for its key."""
    try:
        return _get(reached.url, f"/v1/models/{quote(model, safe='/')}", reached.key)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def first_model(reached: Access) -> str:
    """The first model of a gateway that is not one of the demo models; nothing if there is none."""
    try:
        status, body = _get(reached.url, "/v1/models", reached.key, patience=10.0)
        listed = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return ""
    return next((model.id for model in listed if model.owned_by != "demo"), "")


def _get(url: str, path: str, key: str = "", patience: float = PATIENCE) -> tuple[int, bytes]:
    """The status and the body of a GET request; no proxy is asked, because the gateway is on this machine."""
    address: Any = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=patience)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        return response.status, response.read(1_000_000)
    finally:
        connection.close()
