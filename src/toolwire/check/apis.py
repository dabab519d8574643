"""The APIs that can be checked: how requests are written in each, and how turns are read.

A new API is a module in `turns`, a class here and its rules in rules.toml.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.check.turns import chat, messages, responses
from toolwire.check.turns.loose import Json, as_object, as_objects, as_text
from toolwire.check.turns.rule import RequestFacts
from toolwire.check.turns.turn import ObservedCall, TurnForm
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


class Api:
    """How requests and errors are written in one API. The defaults are those of OpenAI's APIs."""

    name: Dialect
    path: str
    form: TurnForm
    history_field = "messages"
    limit_field = "max_tokens"
    error_fields: tuple[str, ...] = ("type", "param", "code")
    """The fields besides the message by which clients distinguish errors."""

    def make_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def make_body(self, request: ProbeRequest, model: str) -> Json:
        """The JSON body of a request, with the tools last: reports show only the beginning."""
        fields: Json = {
            self.history_field: self.make_history(request.entries),
            **self.make_choice(request),
            self.limit_field: request.max_tokens,
            "stream": request.stream,
            **self.make_settings(request),
            "tools": [self.make_tool(tool) for tool in request.tools] or None,
        }
        ordered = {"model": model, **request.more, **fields, **request.more}
        return {name: value for name, value in ordered.items() if value is not None}

    def make_history(self, entries: Sequence[Entry]) -> list[Json]:
        """The messages or items of a request."""
        return [item for entry in entries for item in self.make_items(entry)]

    def make_items(self, entry: Entry) -> Iterable[Json]:
        """The messages or items of one entry."""
        raise NotImplementedError

    def make_function(self, fields: Json) -> Json:
        """A tool with these fields, as it is declared, chosen and called."""
        return {"type": "function", "function": fields}

    def make_tool(self, tool: ProbeTool) -> Json:
        """The declaration of a tool."""
        return self.make_function(msgspec.structs.asdict(tool))

    def make_choice(self, request: ProbeRequest) -> Json:
        """The fields for the tool choice and for parallel calls."""
        choice = self.make_function({"name": request.named}) if request.named else request.choice or None
        return {"tool_choice": choice, "parallel_tool_calls": request.parallel}

    def allow(self, allowed: Json) -> Json:
        """The fields of a choice that allows only some of the tools."""
        return allowed

    def make_settings(self, request: ProbeRequest) -> Json:
        """Fields that only this API has."""
        return {}

    def find_error_fault(self, body: Json) -> str:
        """The fault in the form of an error; empty if it is well formed."""
        has_message = as_text(as_object(body.get("error")).get("message"))
        return "" if has_message else "it has no object `error` with a message"


class ChatApi(Api):
    """OpenAI Chat Completions."""

    name = "chat"
    path = "/chat/completions"
    form = chat.FORM

    def allow(self, allowed: Json) -> Json:
        return {"allowed_tools": allowed}

    def make_settings(self, request: ProbeRequest) -> Json:
        return {"stream_options": {"include_usage": True} if request.stream else None}

    def make_items(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case UserMessage(text):
                yield {"role": "user", "content": text}
            case AssistantCalls(calls):
                yield {"role": "assistant", "content": None, "tool_calls": [self._make_call(call) for call in calls]}
            case ToolResult(id, text):
                yield {"role": "tool", "tool_call_id": id, "content": text}

    def _make_call(self, call: ObservedCall) -> Json:
        return {"id": call.id, **self.make_function({"name": call.name, "arguments": call.arguments})}


class ResponsesApi(Api):
    """OpenAI Responses."""

    name = "responses"
    path = "/responses"
    form = responses.FORM
    history_field = "input"
    limit_field = "max_output_tokens"

    def make_settings(self, request: ProbeRequest) -> Json:
        return {"store": False}

    def make_function(self, fields: Json) -> Json:
        return {"type": "function", **fields}

    def make_tool(self, tool: ProbeTool) -> Json:
        return {**super().make_tool(tool), "strict": False}

    def make_items(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case UserMessage(text):
                yield {"role": "user", "content": text}
            case AssistantCalls(calls):
                for call in calls:
                    fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                    yield {"type": "function_call", **fields}
            case ToolResult(id, text):
                yield {"type": "function_call_output", "call_id": id, "output": text}


class MessagesApi(Api):
    """Anthropic Messages."""

    name = "messages"
    path = "/messages"
    form = messages.FORM
    error_fields = ()

    def make_headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def make_function(self, fields: Json) -> Json:
        return {"input_schema" if name == "parameters" else name: value for name, value in fields.items()}

    def make_choice(self, request: ProbeRequest) -> Json:
        names = {"auto": "auto", "none": "none", "required": "any", "": "auto"}
        choice: Json = {"type": "tool", "name": request.named} if request.named else {"type": names[request.choice]}
        if request.parallel is not None and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = not request.parallel
        return {"tool_choice": choice} if request.choice or request.named or request.parallel is not None else {}

    def make_history(self, entries: Sequence[Entry]) -> list[Json]:
        out: list[Json] = []
        for message in super().make_history(entries):
            if out and out[-1]["role"] == message["role"]:
                out[-1]["content"] += message["content"]
            else:
                out.append(message)
        return out

    def make_items(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case UserMessage(text):
                yield {"role": "user", "content": [{"type": "text", "text": text}]}
            case AssistantCalls(calls):
                yield {"role": "assistant", "content": [self._make_call(call) for call in calls]}
            case ToolResult(id, text, failed):
                block: Json = {"type": "tool_result", "tool_use_id": id, "content": text}
                yield {"role": "user", "content": [{**block, "is_error": True} if failed else block]}

    def _make_call(self, call: ObservedCall) -> Json:
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.value or {}}

    def find_error_fault(self, body: Json) -> str:
        error = as_object(body.get("error"))
        if body.get("type") != "error" or not as_text(error.get("type")) or not as_text(error.get("message")):
            return "it is not an object of the type `error` whose `error` has type and message"
        return ""


APIS: dict[str, Api] = {api.name: api for api in (ChatApi(), ResponsesApi(), MessagesApi())}


EVENTS_HEADER = "x-proxy-responses-events"
"""Its value `extended` asks for events beyond the protocol."""


def make_facts(api: Dialect, body: Json, headers: Iterable[tuple[str, str]] = ()) -> RequestFacts:
    """The facts about a request that the rules depend on."""
    extended = (EVENTS_HEADER, "extended") in ((name.lower(), value.strip().lower()) for name, value in headers)
    if not body:
        return RequestFacts(api, extended=extended)
    names = [_name_of(tool) for tool in as_objects(body.get("tools"))]
    asks_for_usage = bool(as_object(body.get("stream_options")).get("include_usage"))
    usage = asks_for_usage if APIS[api].form.usage_on_request and body.get("stream") else None
    forced = bool(_name_of(as_object(body.get("tool_choice"))))
    return RequestFacts(api, tuple(names) if all(names) else None, usage, forced=forced, extended=extended, fields=body)


def _name_of(tool: Json) -> str:
    return as_text(as_object(tool.get("function") or tool.get("custom") or tool).get("name"))
