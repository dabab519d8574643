"""The address and key of the gateway as a client on this machine uses them, and requests to see whether it answers."""

import http.client
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from toolwire.config.settings import Settings

GATEWAY_TIMEOUT = 2.0
"""Seconds for an answer of a gateway, which is on this machine."""
MODEL_LIST_TIMEOUT = 10.0
"""Seconds for its list of models, for which it may ask other servers."""


class GatewayAddress(msgspec.Struct, frozen=True):
    """Where a gateway is, and the key to use."""

    url: str
    """Without /v1."""
    key: str = ""
    key_variable: str = ""
    """The environment variable that holds the key, if one does."""

    @classmethod
    def of(cls, settings: Settings) -> "GatewayAddress":
        """The address at which `toolwire serve` listens with these settings, and the first of its keys."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104
        url = f"http://[{host}]:{settings.server.port}" if ":" in host else f"http://{host}:{settings.server.port}"
        if not settings.keys:
            return cls(url)
        key = settings.keys[0]
        return cls(url, settings.key_of(key), "" if key.key else key.key_env)


class _Health(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] = []


def fetch_version(url: str) -> str | None:
    """The version of the gateway at a URL; empty if another program answers, None if none does."""
    try:
        status, body = _get(url, "/healthz")
        return msgspec.json.decode(body, type=_Health).version if status == 200 else ""
    except (msgspec.DecodeError, http.client.HTTPException, ConnectionResetError, TimeoutError):
        return ""
    except OSError:
        return None


def has_model(gateway: GatewayAddress, model: str) -> bool:
    """Whether a gateway serves a model to the owner of the key."""
    try:
        return _get(gateway.url, f"/v1/models/{quote(model, safe='/')}", gateway.key)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def fetch_first_model(gateway: GatewayAddress) -> str:
    """The first model of a gateway besides the demo model; empty if there is none."""
    try:
        status, body = _get(gateway.url, "/v1/models", gateway.key, timeout=MODEL_LIST_TIMEOUT)
        listed = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return ""
    return next((model.id for model in listed if model.owned_by != "demo"), "")


def _get(url: str, path: str, key: str = "", timeout: float = GATEWAY_TIMEOUT) -> tuple[int, bytes]:
    """The status and the body of a GET request. Proxy settings are ignored: the gateway is on this machine."""
    address: Any = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        return response.status, response.read(1_000_000)
    finally:
        connection.close()
