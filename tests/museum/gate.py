"""The real gateway between a real client and a scripted upstream."""

import itertools
import json
from typing import Any

import httpx
import msgspec

from tests.museum.lines import read_frames
from tests.support.fold import fold_chat
from tests.support.gateway import Gateway, tool
from tests.support.upstream import Asked, Reply, Upstream

_numbers = itertools.count(1)


class Streamed(msgspec.Struct, frozen=True):
    """A stream's answer, whole: either frames or, before anything was committed, an error with its status."""

    status: int
    headers: httpx.Headers
    raw: bytes

    @property
    def folded(self) -> dict[str, Any]:
        return fold_chat(read_frames(self.raw))

    @property
    def message(self) -> dict[str, Any]:
        return self.folded["message"]

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.raw)["error"] if self.status != 200 else self.folded["error"]

    @property
    def telemetry(self) -> dict[str, Any]:
        [last] = [value for kind, value in read_frames(self.raw) if kind == "comment" and value.startswith("{")]
        return json.loads(last)

    @property
    def notes(self) -> list[str]:
        return [note["code"] for note in self.telemetry["notes"]]

    @property
    def keepalives(self) -> int:
        return sum(kind == "comment" and value == "keepalive" for kind, value in read_frames(self.raw))


class Wire:
    """A gateway with the scripted upstream behind it."""

    def __init__(self, gateway: Gateway, upstream: Upstream, http: httpx.Client) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.http = http

    @property
    def url(self) -> str:
        return f"{self.gateway.base_url}/chat/completions"

    def script(self, *replies: Reply | bytes) -> str:
        """A model that answers like this: one reply, or several in turn."""
        model = f"museum-{next(_numbers)}"
        made = [Reply([reply]) if isinstance(reply, bytes) else reply for reply in replies]
        self.upstream.replies[model] = made
        return f"up/{model}"

    def asked(self, model: str) -> list[Asked]:
        return self.upstream.of(model.removeprefix("up/"))

    def body(self, model: str, tools: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Go."}], **fields}
        return {**body, "tools": [tool(name) for name in tools]} if tools else body

    def stream(self, model: str, tools: tuple[str, ...] = (), *, headers: Any = None, **fields: Any) -> Streamed:
        body = self.body(model, tools, stream=True, **fields)
        with self.http.stream("POST", self.url, json=body, headers=headers) as response:
            return Streamed(response.status_code, response.headers, response.read())

    def plain(self, model: str, tools: tuple[str, ...] = (), *, headers: Any = None, **fields: Any) -> httpx.Response:
        return self.http.post(self.url, json=self.body(model, tools, **fields), headers=headers)
