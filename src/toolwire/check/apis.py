"""The three APIs: what a probe asks, as each of them says it."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from toolwire.check.turns.loose import Json, as_object, as_text
from toolwire.check.turns.turn import Call
from toolwire.core.events import Dialect

Choice: TypeAlias = Literal["", "auto", "none", "required"]


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: Json


class User(msgspec.Struct, frozen=True):
    text: str


class Called(msgspec.Struct, frozen=True):
    """What the model did in an earlier turn."""

    calls: tuple[Call, ...]


class Result(msgspec.Struct, frozen=True):
    id: str
    text: str
    failed: bool = False


Entry: TypeAlias = User | Called | Result


class Ask(msgspec.Struct, frozen=True):
    """A request in no API's words."""

    entries: tuple[Entry, ...]
    tools: tuple[Tool, ...] = ()
    choice: Choice = ""
    named: str = ""
    """The tool that must be called."""
    parallel: bool | None = None
    stream: bool = True
    most: int = 4096
    """Tokens that the answer may have."""
    more: Json = {}
    """Fields as they are, over all others; null leaves one out."""


class Api(Protocol):
    """How one API is spoken."""

    name: Dialect
    path: str

    def headers(self, key: str) -> dict[str, str]: ...

    def body(self, ask: Ask, model: str) -> Json: ...

    error_fields: tuple[str, ...]
    """What an error has besides its message, for those who tell errors apart."""

    def error_fault(self, body: Json) -> str:
        """What is wrong with an error's form; nothing if it is sound."""
        ...


def _whole(fields: Json, ask: Ask) -> Json:
    """A body. Reports show its beginning, so what matters most stands first, and what is long last."""
    ordered = {"model": fields["model"], **ask.more, **fields, **ask.more}
    return {name: value for name, value in ordered.items() if value is not None}


class _OpenAiApi:
    """What the two APIs of OpenAI have in common."""

    error_fields: tuple[str, ...] = ("type", "param", "code")

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def error_fault(self, body: Json) -> str:
        has_message = as_text(as_object(body.get("error")).get("message"))
        return "" if has_message else "it is no object `error` with a message"


class ChatApi(_OpenAiApi):
    name: Dialect = "chat"
    path = "/chat/completions"

    def body(self, ask: Ask, model: str) -> Json:
        choice = {"type": "function", "function": {"name": ask.named}} if ask.named else ask.choice or None
        fields: Json = {
            "model": model,
            "messages": [message for entry in ask.entries for message in self._messages(entry)],
            "tool_choice": choice,
            "parallel_tool_calls": ask.parallel,
            "max_tokens": ask.most,
            "stream": ask.stream,
            "stream_options": {"include_usage": True} if ask.stream else None,
            "tools": [self._tool(tool) for tool in ask.tools] or None,
        }
        return _whole(fields, ask)

    def _tool(self, tool: Tool) -> Json:
        inner = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": inner}

    def _messages(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case User(text):
                yield {"role": "user", "content": text}
            case Called(calls):
                yield {"role": "assistant", "content": None, "tool_calls": [self._call(call) for call in calls]}
            case Result(id, text):
                yield {"role": "tool", "tool_call_id": id, "content": text}

    def _call(self, call: Call) -> Json:
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class ResponsesApi(_OpenAiApi):
    name: Dialect = "responses"
    path = "/responses"

    def body(self, ask: Ask, model: str) -> Json:
        choice = {"type": "function", "name": ask.named} if ask.named else ask.choice or None
        fields: Json = {
            "model": model,
            "input": [item for entry in ask.entries for item in self.items(entry)],
            "tool_choice": choice,
            "parallel_tool_calls": ask.parallel,
            "max_output_tokens": ask.most,
            "stream": ask.stream,
            "store": False,
            "tools": [self._tool(tool) for tool in ask.tools] or None,
        }
        return _whole(fields, ask)

    def _tool(self, tool: Tool) -> Json:
        fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", **fields, "strict": False}

    def items(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case User(text):
                yield {"role": "user", "content": text}
            case Called(calls):
                for call in calls:
                    about = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                    yield {"type": "function_call", **about}
            case Result(id, text):
                yield {"type": "function_call_output", "call_id": id, "output": text}


class MessagesApi:
    name: Dialect = "messages"
    path = "/messages"
    error_fields: tuple[str, ...] = ()

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def body(self, ask: Ask, model: str) -> Json:
        fields: Json = {
            "model": model,
            "messages": self._messages(ask.entries),
            "tool_choice": self._choice(ask),
            "max_tokens": ask.most,
            "stream": ask.stream,
            "tools": [self._tool(tool) for tool in ask.tools] or None,
        }
        return _whole(fields, ask)

    def _tool(self, tool: Tool) -> Json:
        return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}

    def _choice(self, ask: Ask) -> Json | None:
        names = {"auto": "auto", "none": "none", "required": "any", "": "auto"}
        choice: Json = {"type": "tool", "name": ask.named} if ask.named else {"type": names[ask.choice]}
        if ask.parallel is not None and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = not ask.parallel
        return choice if ask.choice or ask.named or ask.parallel is not None else None

    def _messages(self, entries: Sequence[Entry]) -> list[Json]:
        out: list[Json] = []
        for entry in entries:
            role, block = self._block(entry)
            if out and out[-1]["role"] == role:
                out[-1]["content"] += block
            else:
                out.append({"role": role, "content": block})
        return out

    def _block(self, entry: Entry) -> tuple[str, list[Json]]:
        match entry:
            case User(text):
                return "user", [{"type": "text", "text": text}]
            case Called(calls):
                return "assistant", [
                    {"type": "tool_use", "id": call.id, "name": call.name, "input": call.value or {}} for call in calls
                ]
            case Result(id, text, failed):
                block: Json = {"type": "tool_result", "tool_use_id": id, "content": text}
                return "user", [{**block, "is_error": True} if failed else block]

    def error_fault(self, body: Json) -> str:
        error = as_object(body.get("error"))
        if body.get("type") != "error" or not as_text(error.get("type")) or not as_text(error.get("message")):
            return "it is no object of the type `error` with an `error` that has type and message"
        return ""


APIS: dict[str, Api] = {"chat": ChatApi(), "responses": ResponsesApi(), "messages": MessagesApi()}
