"""Lines of `codex app-server`, made up or recorded, and a conversation that hears them.

A recording is what one client said to one process and heard from it, about any number of threads. A conversation hears
one thread of it, turn by turn, as the transport would have it.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from toolwire.backends import codex
from toolwire.core.backend import Ask, PendingTurn
from toolwire.core.collect import Turn, collect
from toolwire.core.events import Event, Note
from toolwire.core.jsonrpc import LineReader
from toolwire.core.order import TurnOrder
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart, Tool
from toolwire.core.stage import Pipeline

RECORDINGS = Path(__file__).parent.parent / "recordings" / "codex-app-server"

THREAD = "th_1"
TURN = "tu_1"
USER = Message("user", (TextPart("Go."),))
TOOLS = (Tool("f"), Tool("g"))
ASKING = Request("m", (USER,), tools=TOOLS)


# What app-server says


def told(method: str, id: int | None = None, /, **params: Any) -> bytes:
    message: dict[str, Any] = {"method": method, "params": {"threadId": THREAD, "turnId": TURN, **params}}
    return _line(message if id is None else {**message, "id": id})


def answered(name: str, **result: Any) -> bytes:
    return _line({"id": f"7.{name}", "result": result})


def refused(name: str, message: str, code: int = -32600, **data: Any) -> bytes:
    return _line({"id": f"7.{name}", "error": {"code": code, "message": message, **({"data": data} if data else {})}})


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


OPENED = answered("thread", thread={"id": THREAD})
STARTED = told("turn/started", turn={"id": TURN, "status": "inProgress", "error": None})
BEGUN = OPENED + answered("inject") + answered("turn", turn={"id": TURN}) + STARTED


def delta(text: str, item: str = "msg_1") -> bytes:
    return told("item/agentMessage/delta", itemId=item, delta=text)


def message(text: str, item: str = "msg_1") -> bytes:
    return told("item/completed", item={"type": "agentMessage", "id": item, "text": text})


def raw(**item: Any) -> bytes:
    return told("rawResponseItem/completed", item=item)


def raw_text(text: str, item: str = "msg_1", role: str = "assistant") -> bytes:
    return raw(type="message", role=role, id=item, content=[{"type": "output_text", "text": text}])


def raw_call(id: str, name: str = "f", arguments: Any = "{}", item: str = "") -> bytes:
    return raw(type="function_call", id=item or f"fc_{id}", call_id=id, name=name, arguments=arguments)


def raw_output(id: str, output: str = "…") -> bytes:
    return raw(type="function_call_output", id=f"fco_{id}", call_id=id, output=output)


def asked(number: int, id: str, name: str = "f", **more: Any) -> bytes:
    return told("item/tool/call", number, **{"callId": id, "namespace": None, "tool": name, "arguments": {}, **more})


def tokens(input: int, output: int, **more: int) -> dict[str, int]:
    return {"totalTokens": input + output, "inputTokens": input, "outputTokens": output, **more}


def completed(usage: dict[str, int] | None = None) -> bytes:
    """A response of the model's is over."""
    return told("rawResponse/completed", responseId="resp_1", usage=usage)


def counted(usage: dict[str, int]) -> bytes:
    return told("thread/tokenUsage/updated", tokenUsage={"total": usage, "last": usage})


def failing(message: str, info: Any = "other", *, again: bool = False, details: str | None = None) -> bytes:
    error = {"message": message, "codexErrorInfo": info, "additionalDetails": details}
    return told("error", error=error, willRetry=again)


def ended(status: str = "completed", error: Any = None, turn: str = TURN) -> bytes:
    return told("turn/completed", turn={"id": turn, "status": status, "error": error})


def failed(message: str, info: Any = "other") -> bytes:
    return ended("failed", {"message": message, "codexErrorInfo": info, "additionalDetails": None})


def probed(status: str) -> bytes:
    return answered("probe", thread={"id": THREAD, "status": {"type": status}})


def ids(keys: Iterable[Any]) -> list[str]:
    """The ids in the keys of calls."""
    return [key[1] for key in keys]


# Who hears it


class Talk:
    """A conversation: what it made of the lines, in legal order, and what it said in return."""

    def __init__(self, request: Request = ASKING, waiting: PendingTurn | None = None, **profile: Any) -> None:
        self._conversation = codex.Conversation(
            request, "S", codex.Profile(**profile), "me", (waiting,) if waiting is not None else ()
        )
        self.dialogue = self._conversation.start()
        self._line = Pipeline(LineReader(), self._conversation, TurnOrder())
        self._events: list[Event] = []
        self.stand_in = self._conversation.stand_in

    def hear(self, *lines: bytes) -> list[Event]:
        heard = [event for line in lines for event in self._line.feed(line)]
        self._events += heard
        return heard

    def end(self) -> list[Event]:
        """Nothing more comes."""
        rest = list(self._line.end())
        self._events += rest
        return rest

    def said(self) -> list[Any]:
        """What has been said since the last look: requests as method and parameters, answers as they are."""
        outbox = [*self.dialogue.outbox]
        self.dialogue.outbox.clear()
        return [
            (each.method, json.loads(msgspec.json.encode(each.params))) if isinstance(each, Ask) else json.loads(each)
            for each in outbox
        ]

    def answers(self) -> dict[int, Any]:
        """The answers to requests of app-server's since the last look, by their ids."""
        return {each["id"]: each.get("result", each.get("error")) for each in self.said() if isinstance(each, dict)}

    @property
    def is_over(self) -> bool:
        return self._conversation.decoder.ended

    @property
    def turn(self) -> Turn:
        return collect(self._events)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        return [(call.id, call.name, call.arguments) for call in self.turn.calls]

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(note.code, note.subject) for note in self.turn.notes]


def talk(*lines: bytes, request: Request = ASKING, **profile: Any) -> Talk:
    """A conversation that has heard a turn begin, and then these lines."""
    made = Talk(request, **profile)
    made.hear(BEGUN, *lines)
    return made


def noted(events: Iterable[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Note)]


def text_of(item: dict[str, Any]) -> str:
    """What an answer to a call says."""
    return "".join(part["text"] for part in item["contentItems"])


# What was recorded

_NAMES = {
    "thread/start": "thread",
    "thread/inject_items": "inject",
    "turn/start": "turn",
    "turn/steer": "steer",
    "turn/interrupt": "interrupt",
    "thread/read": "probe",
}
"""The requests that a conversation hears the answers of, and what it calls them."""


class Scene:
    """What is heard about one turn, and the tools that it may call."""

    def __init__(self, tools: Sequence[Any]) -> None:
        self.tools = tools
        self.lines: list[bytes] = []
        self.is_over = False

    @property
    def request(self) -> Request:
        """A request that would have led to it."""
        declared = [
            Tool(tool["name"], namespace=group.get("name", "") if "tools" in group else "")
            for group in self.tools
            for tool in group.get("tools", [group])
        ]
        return Request("mock-model", (USER,), tools=tuple(declared))

    @cached_property
    def parts(self) -> list[list[bytes]]:
        """The lines for each of the conversations that it makes."""
        parts: list[list[bytes]] = [[]]
        request = self.request
        made = Talk(request)
        for line in self.lines:
            if made.is_over and made.dialogue.waiting is not None:
                request = with_results(request, made.turn)
                made = Talk(request, made.dialogue.waiting)
                parts.append([])
            parts[-1].append(line)
            made.hear(line)
        return parts


def recorded(name: str) -> list[dict[str, Any]]:
    """The rows of a recording, by the beginning of its name."""
    [path] = RECORDINGS.glob(f"{name}-*.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@cache
def scenes(name: str) -> tuple[Scene, ...]:
    """The turns of a recording, and the requests that never led to one."""
    asked: dict[Any, tuple[str, Scene | None]] = {}
    threads: dict[Any, Scene] = {}
    found: list[Scene] = []
    for row in recorded(name):
        message = row.get("msg") or {}
        method, params = message.get("method", ""), message.get("params") or {}
        scene = threads.get(params.get("threadId"))
        if row["dir"] == "client_to_server" and "id" in message and method in _NAMES:
            if method == "thread/start":
                scene = Scene(params.get("dynamicTools") or ())
                found.append(scene)
            elif method == "turn/start" and (scene is None or scene.is_over):
                scene = threads[params["threadId"]] = Scene(scene.tools if scene is not None else ())
                scene.lines.append(answered("thread", thread={"id": str(params["threadId"])}))
                found.append(scene)
            asked[message["id"]] = _NAMES[method], scene
        elif row["dir"] == "server_to_client" and method and scene is not None:
            scene.lines.append(_line(message))
            scene.is_over = scene.is_over or method == "turn/completed"
        elif row["dir"] == "server_to_client" and not method and message["id"] in asked:
            kind, scene = asked.pop(message["id"])
            if scene is not None:
                scene.lines.append(_line({**message, "id": f"7.{kind}"}))
                if "thread" in message.get("result", {}):
                    threads[message["result"]["thread"]["id"]] = scene
    return tuple(found)


def played(scene: Scene, cut: Sequence[int] | None = None) -> list[Talk]:
    """The conversations that a scene makes: one for each response that ends in calls, and a last one.

    `cut`: where to cut what is heard; None cuts between lines.
    """
    talks: list[Talk] = []
    request, waiting = scene.request, None
    for part in scene.parts:
        made = Talk(request, waiting)
        talks.append(made)
        data = b"".join(part)
        cuts = sorted({min(place, len(data)) for place in cut or ()})
        made.hear(*part if cut is None else (data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)))
        if not made.is_over:
            made.end()
        request, waiting = with_results(request, made.turn), made.dialogue.waiting
    return talks


def with_results(request: Request, turn: Turn, text: str = "21") -> Request:
    """The request that a client sends next when it has run the calls."""
    said = (Message("assistant", (TextPart(turn.text),)),) if turn.text else ()
    calls = [CallEntry(call.id, call.name, call.arguments, call.kind, call.namespace) for call in turn.calls]
    results = [ResultEntry(call.id, (TextPart(text),), call.kind) for call in turn.calls]
    return msgspec.structs.replace(request, entries=(*request.entries, *said, *calls, *results))
