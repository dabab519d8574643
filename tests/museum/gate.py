"""The real gateway between real clients of all dialects and a scripted upstream that speaks as any kind of server."""

import contextlib
import itertools
import json
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

import httpx
import msgspec
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.museum.clients import (
    Json,
    Received,
    Said,
    read_frames,
    received,
    received_messages,
    said_by_message,
    said_by_response,
    said_in_chat,
    sound_response,
)
from tests.museum.messages_client import Blocks, received_blocks, said_by_blocks, sound_message
from tests.museum.routes import KINDS, Kind
from tests.support.fold import fold_chat
from tests.support.gateway import Gateway, backend, tool
from tests.support.upstream import Asked, Reply, Upstream

_numbers = itertools.count(1)

Tools: TypeAlias = Sequence[str | Json]
"""Tools by name, or whole."""

CLOSINGS = ("response.completed", "response.incomplete", "response.failed")


class Streamed(msgspec.Struct, frozen=True):
    """A stream's answer, whole: either frames or, before anything was committed, an error with its status."""

    status: int
    headers: httpx.Headers
    raw: bytes

    @property
    def said(self) -> Said:
        raise NotImplementedError

    @property
    def error(self) -> Json | None:
        return json.loads(self.raw)["error"] if self.status != 200 else self.said.error

    @property
    def comments(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def telemetry(self) -> Json:
        [last] = [comment for comment in self.comments if comment.startswith("{")]
        return json.loads(last)

    @property
    def notes(self) -> list[str]:
        return [note["code"] for note in self.telemetry["notes"]]

    @property
    def keepalives(self) -> int:
        return self.comments.count("keepalive")


class ChatStream(Streamed, frozen=True):
    @property
    def folded(self) -> Json:
        return fold_chat(read_frames(self.raw))

    @property
    def message(self) -> Json:
        return self.folded["message"]

    @property
    def said(self) -> Said:
        return said_in_chat(self.raw)

    @property
    def comments(self) -> Sequence[str]:
        return [value for kind, value in read_frames(self.raw) if kind == "comment"]


class ResponsesStream(Streamed, frozen=True):
    @property
    def received(self) -> Received:
        return received(self.raw)

    @property
    def response(self) -> Json:
        return self.received.response

    @property
    def said(self) -> Said:
        return self.received.said

    @property
    def comments(self) -> Sequence[str]:
        return self.received.comments


class MessagesStream(Streamed, frozen=True):
    @property
    def blocks(self) -> Blocks:
        return received_blocks(self.raw)

    @property
    def said(self) -> Said:
        return self.blocks.said

    @property
    def comments(self) -> Sequence[str]:
        return self.blocks.comments


AnyStream = TypeVar("AnyStream", bound=Streamed)


class Door:
    """One endpoint of a gateway with the scripted upstream behind it."""

    path = ""

    def __init__(self, gateway: Gateway, upstream: Upstream, http: httpx.Client) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.http = http

    @property
    def url(self) -> str:
        return f"{self.gateway.base_url}/{self.path}"

    def script(self, *replies: Reply | bytes) -> str:
        """A model that answers like this: one reply, or several in turn."""
        model = f"museum-{next(_numbers)}"
        made = [Reply([reply]) if isinstance(reply, bytes) else reply for reply in replies]
        self.upstream.replies[model] = made
        return f"up/{model}"

    def asked(self, model: str) -> list[Asked]:
        return self.upstream.of(model.removeprefix("up/"))

    def body(self, model: str, tools: Tools = (), **fields: Any) -> Json:
        raise NotImplementedError

    def said(self, plain: httpx.Response) -> Said:
        """What a plain answer says."""
        raise NotImplementedError

    def plain(self, model: str, tools: Tools = (), *, headers: Any = None, **fields: Any) -> httpx.Response:
        return self.http.post(self.url, json=self.body(model, tools, **fields), headers=headers)

    def stream(self, model: str, tools: Tools = (), *, headers: Any = None, **fields: Any) -> Streamed:
        raise NotImplementedError

    def _streamed(self, kind: type[AnyStream], body: Json, headers: Any) -> AnyStream:
        with self.http.stream("POST", self.url, json={**body, "stream": True}, headers=headers) as response:
            return kind(response.status_code, response.headers, response.read())


class Wire(Door):
    """The chat endpoint, and beside it the Responses endpoint of the same gateway."""

    path = "chat/completions"

    @property
    def responses(self) -> "ResponsesDoor":
        return ResponsesDoor(self.gateway, self.upstream, self.http)

    @property
    def doors(self) -> tuple[Door, Door]:
        return self, self.responses

    def body(self, model: str, tools: Tools = (), **fields: Any) -> Json:
        body: Json = {"model": model, "messages": [{"role": "user", "content": "Go."}], **fields}
        made = [tool(each) if isinstance(each, str) else each for each in tools]
        return {**body, "tools": made} if tools else body

    def said(self, plain: httpx.Response) -> Said:
        [choice] = plain.json()["choices"]
        return said_by_message(choice["message"], choice["finish_reason"])

    def stream(self, model: str, tools: Tools = (), *, headers: Any = None, **fields: Any) -> ChatStream:
        return self._streamed(ChatStream, self.body(model, tools, **fields), headers)


class ResponsesDoor(Door):
    path = "responses"

    def body(self, model: str, tools: Tools = (), **fields: Any) -> Json:
        body: Json = {"model": model, "input": "Go.", **fields}
        made = [{"type": "function", **tool(each)["function"]} if isinstance(each, str) else each for each in tools]
        return {**body, "tools": made} if tools else body

    def said(self, plain: httpx.Response) -> Said:
        return said_by_response(sound_response(plain.json()))

    def stream(self, model: str, tools: Tools = (), *, headers: Any = None, **fields: Any) -> ResponsesStream:
        return self._streamed(ResponsesStream, self.body(model, tools, **fields), headers)

    @contextlib.contextmanager
    def socket(self) -> Generator["Socket"]:
        with connect(self.url.replace("http", "ws", 1), proxy=None, max_size=None) as connection:
            yield Socket(connection)


class MessagesDoor(Door):
    path = "messages"

    def body(self, model: str, tools: Tools = (), **fields: Any) -> Json:
        body: Json = {"model": model, "max_tokens": 99, "messages": [{"role": "user", "content": "Go."}], **fields}
        made = [{"name": each, "input_schema": {"type": "object"}} if isinstance(each, str) else each for each in tools]
        return {**body, "tools": made} if tools else body

    def said(self, plain: httpx.Response) -> Said:
        """What a plain answer says."""
        return said_by_blocks(sound_message(plain.json()))

    def stream(self, model: str, tools: Tools = (), *, headers: Any = None, **fields: Any) -> MessagesStream:
        return self._streamed(MessagesStream, self.body(model, tools, **fields), headers)


class Socket:
    """A WebSocket client: asks for turns, one after the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def turn(self, **fields: Any) -> Received:
        """One turn, from its request to its closing event."""
        messages = self.ask(**fields)
        return received_messages(messages)

    def refused(self, **fields: Any) -> Json:
        """The error that is all of the answer."""
        [message] = self.ask(**fields)
        return json.loads(message)

    def begin(self, **fields: Any) -> None:
        """Ask for a turn, and wait until it talks."""
        self._connection.send(json.dumps({"type": "response.create", **fields}))
        while "output_text.delta" not in str(self._connection.recv(timeout=10)):
            pass

    def ask(self, **fields: Any) -> list[str]:
        self._connection.send(json.dumps({"type": "response.create", **fields}))
        messages: list[str] = []
        while True:
            message = self._connection.recv(timeout=10)
            assert isinstance(message, str)
            messages.append(message)
            type = json.loads(message)["type"]
            if type in CLOSINGS or (type == "error" and len(messages) == 1):
                return messages


_TYPES = {True: "text/event-stream", False: "application/json"}


class Routes:
    """Nine routes through one gateway."""

    def __init__(self, gateway: Gateway, upstream: Upstream, http: httpx.Client) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.http = http
        self.chat = Wire(gateway, upstream, http)
        self.responses = ResponsesDoor(gateway, upstream, http)
        self.messages = MessagesDoor(gateway, upstream, http)

    @property
    def doors(self) -> tuple[Wire, ResponsesDoor, MessagesDoor]:
        return self.chat, self.responses, self.messages

    def script(self, kind: Kind, *replies: Reply | bytes) -> str:
        """A model behind a backend of this kind that answers like this: one reply, or several in turn."""
        name = f"routes-{next(_numbers)}"
        made = [
            Reply([each], content_type=_TYPES[b"data: " in each]) if isinstance(each, bytes) else each
            for each in replies
        ]
        self.upstream.replies[name] = made
        return f"{kind}/{name}"

    def asked(self, model: str) -> list[Asked]:
        return self.upstream.of(model.partition("/")[2])


def tables(url: str) -> str:
    """Backends of all kinds before the same upstream, each named as its kind."""
    return "\n".join(backend(url, kind).replace('kind = "responses"', f'kind = "{kind}"') for kind in KINDS)
