"""The three APIs that are checked: how a probe's request is written in each of them."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from toolwire.check.turns.loose import Json, as_object, as_text
from toolwire.check.turns.turn import ObservedCall
from toolwire.core.events import Dialect

Choice: TypeAlias = Literal["", "auto", "none", "required"]


class ProbeTool(msgspec.Struct, frozen=True):
    """A tool that a probe declares."""

    name: str
    description: str
    parameters: Json


class UserMessage(msgspec.Struct, frozen=True):
    """A message of the user."""

    text: str


class AssistantCalls(msgspec.Struct, frozen=True):
    """The calls that the model made in an earlier turn."""

    calls: tuple[ObservedCall, ...]


class ToolResult(msgspec.Struct, frozen=True):
    """The result of one call."""

    id: str
    text: str
    failed: bool = False


Entry: TypeAlias = UserMessage | AssistantCalls | ToolResult


class ProbeRequest(msgspec.Struct, frozen=True):
    """A request of a probe, independent of the API that it is sent to."""

    entries: tuple[Entry, ...]
    tools: tuple[ProbeTool, ...] = ()
    choice: Choice = ""
    named: str = ""
    """The tool that must be called."""
    parallel: bool | None = None
    stream: bool = True
    max_tokens: int = 4096
    more: Json = {}
    """Fields added to the body as they are; they replace others, and null removes one."""


class Api(Protocol):
    """How requests and errors are written in one API."""

    name: Dialect
    path: str

    def headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        ...

    def body(self, request: ProbeRequest, model: str) -> Json:
        """The JSON body of a request."""
        ...

    error_fields: tuple[str, ...]
    """The fields of an error besides its message, by which clients distinguish errors."""

    def error_fault(self, body: Json) -> str:
        """What is wrong with the form of an error; empty if it is well formed."""
        ...


def _ordered_body(fields: Json, request: ProbeRequest) -> Json:
    """The body of a request, with long fields last: reports show only the beginning."""
    ordered = {"model": fields["model"], **request.more, **fields, **request.more}
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
    """OpenAI Chat Completions."""

    name: Dialect = "chat"
    path = "/chat/completions"

    def body(self, request: ProbeRequest, model: str) -> Json:
        """The JSON body of a request."""
        choice = {"type": "function", "function": {"name": request.named}} if request.named else request.choice or None
        fields: Json = {
            "model": model,
            "messages": [message for entry in request.entries for message in self._messages(entry)],
            "tool_choice": choice,
            "parallel_tool_calls": request.parallel,
            "max_tokens": request.max_tokens,
            "stream": request.stream,
            "stream_options": {"include_usage": True} if request.stream else None,
            "tools": [self._tool(tool) for tool in request.tools] or None,
        }
        return _ordered_body(fields, request)

    def _tool(self, tool: ProbeTool) -> Json:
        inner = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": inner}

    def _messages(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case UserMessage(text):
                yield {"role": "user", "content": text}
            case AssistantCalls(calls):
                yield {"role": "assistant", "content": None, "tool_calls": [self._call(call) for call in calls]}
            case ToolResult(id, text):
                yield {"role": "tool", "tool_call_id": id, "content": text}

    def _call(self, call: ObservedCall) -> Json:
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class ResponsesApi(_OpenAiApi):
    """OpenAI Responses."""

    name: Dialect = "responses"
    path = "/responses"

    def body(self, request: ProbeRequest, model: str) -> Json:
        """The JSON body of a request."""
        choice = {"type": "function", "name": request.named} if request.named else request.choice or None
        fields: Json = {
            "model": model,
            "input": [item for entry in request.entries for item in self.items(entry)],
            "tool_choice": choice,
            "parallel_tool_calls": request.parallel,
            "max_output_tokens": request.max_tokens,
            "stream": request.stream,
            "store": False,
            "tools": [self._tool(tool) for tool in request.tools] or None,
        }
        return _ordered_body(fields, request)

    def _tool(self, tool: ProbeTool) -> Json:
        fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", **fields, "strict": False}

    def items(self, entry: Entry) -> Iterable[Json]:
        """The input items of one entry."""
        match entry:
            case UserMessage(text):
                yield {"role": "user", "content": text}
            case AssistantCalls(calls):
                for call in calls:
                    about = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                    yield {"type": "function_call", **about}
            case ToolResult(id, text):
                yield {"type": "function_call_output", "call_id": id, "output": text}


class MessagesApi:
    """Anthropic Messages."""

    name: Dialect = "messages"
    path = "/messages"
    error_fields: tuple[str, ...] = ()

    def headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def body(self, request: ProbeRequest, model: str) -> Json:
        """The JSON body of a request."""
        fields: Json = {
            "model": model,
            "messages": self._messages(request.entries),
            "tool_choice": self._choice(request),
            "max_tokens": request.max_tokens,
            "stream": request.stream,
            "tools": [self._tool(tool) for tool in request.tools] or None,
        }
        return _ordered_body(fields, request)

    def _tool(self, tool: ProbeTool) -> Json:
        return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}

    def _choice(self, request: ProbeRequest) -> Json | None:
        names = {"auto": "auto", "none": "none", "required": "any", "": "auto"}
        choice: Json = {"type": "tool", "name": request.named} if request.named else {"type": names[request.choice]}
        if request.parallel is not None and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = not request.parallel
        return choice if request.choice or request.named or request.parallel is not None else None

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
            case UserMessage(text):
                return "user", [{"type": "text", "text": text}]
            case AssistantCalls(calls):
                return "assistant", [
                    {"type": "tool_use", "id": call.id, "name": call.name, "input": call.value or {}} for call in calls
                ]
            case ToolResult(id, text, failed):
                block: Json = {"type": "tool_result", "tool_use_id": id, "content": text}
                return "user", [{**block, "is_error": True} if failed else block]

    def error_fault(self, body: Json) -> str:
        """What is wrong with the form of an error; empty if it is well formed."""
        error = as_object(body.get("error"))
        if body.get("type") != "error" or not as_text(error.get("type")) or not as_text(error.get("message")):
            return "it is no object of the type `error` with an `error` that has type and message"
        return ""


APIS: dict[str, Api] = {"chat": ChatApi(), "responses": ResponsesApi(), "messages": MessagesApi()}
