"""The APIs that can be checked: how requests are written in each, and how turns are read.

A new API is a module in `turns`, a class here and its rules in rules.toml.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec

from toolwire.check.turns import chat, gemini, messages, responses
from toolwire.check.turns.loose import Json, as_list, as_number, as_object, as_objects, as_text
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

    call: ObservedCall
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

    def find_base(self, base: str) -> str:
        """The base URL of this API, from that of the endpoint."""
        return base

    def serves(self, path: str) -> bool:
        """Whether turns are requested at a path."""
        return path.endswith(self.path)

    def split_body(self, body: Json) -> tuple[str, Json]:
        """The path to which a body is sent, and what is sent of it."""
        return self.path, body

    def list_models(self, fields: Json) -> list[str]:
        """The names in the list of models."""
        return [as_text(each.get("id")) for each in as_objects(fields.get("data"))]

    def make_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def make_body(self, request: ProbeRequest, model: str) -> Json:
        """The JSON body of a request, with the tools last: reports show only the beginning."""
        fields: Json = {
            self.history_field: self.make_history(request.entries),
            **self.make_choice(request),
            **self.make_settings(request),
            "stream": request.stream,
            "tools": self.make_tools(request.tools) or None,
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

    def make_tools(self, tools: Sequence[ProbeTool]) -> list[Json]:
        """The declarations of tools."""
        return [self.make_tool(tool) for tool in tools]

    def make_choice(self, request: ProbeRequest) -> Json:
        """The fields for the tool choice and for parallel calls."""
        choice = self.make_function({"name": request.named}) if request.named else request.choice or None
        return {"tool_choice": choice, "parallel_tool_calls": request.parallel}

    def make_allowed(self, name: str) -> Json:
        """The fields for a choice that allows only one of the tools."""
        allowed = {"mode": "auto", "tools": [self.make_function({"name": name})]}
        return {"tool_choice": {"type": "allowed_tools", **self.allow(allowed)}}

    def allow(self, allowed: Json) -> Json:
        """The fields of a choice that allows only some of the tools."""
        return allowed

    def make_settings(self, request: ProbeRequest) -> Json:
        """The token limit, and fields that only this API has."""
        return {self.limit_field: request.max_tokens}

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
        options = {"include_usage": True} if request.stream else None
        return {**super().make_settings(request), "stream_options": options}

    def make_items(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case UserMessage(text):
                yield {"role": "user", "content": text}
            case AssistantCalls(calls):
                yield {"role": "assistant", "content": None, "tool_calls": [self._make_call(call) for call in calls]}
            case ToolResult(call, text):
                yield {"role": "tool", "tool_call_id": call.id, "content": text}

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
        return {**super().make_settings(request), "store": False}

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
            case ToolResult(call, text):
                yield {"type": "function_call_output", "call_id": call.id, "output": text}


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
            case ToolResult(call, text, failed):
                block: Json = {"type": "tool_result", "tool_use_id": call.id, "content": text}
                yield {"role": "user", "content": [{**block, "is_error": True} if failed else block]}

    def _make_call(self, call: ObservedCall) -> Json:
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.value or {}}

    def find_error_fault(self, body: Json) -> str:
        error = as_object(body.get("error"))
        if body.get("type") != "error" or not as_text(error.get("type")) or not as_text(error.get("message")):
            return "it is not an object of the type `error` whose `error` has type and message"
        return ""


UNSIGNED = "skip_thought_signature_validator"
"""Stands for the signature of a call that has none, such as that of another model."""


class GeminiApi(Api):
    """Google's Gemini API, which has the model and the method in its paths."""

    name = "gemini"
    path = ":generateContent"
    form = gemini.FORM
    history_field = "contents"
    error_fields = ()

    def find_base(self, base: str) -> str:
        return re.sub(r"/v1$", "/v1beta", base)

    def serves(self, path: str) -> bool:
        return path.endswith((self.path, ":streamGenerateContent"))

    def split_body(self, body: Json) -> tuple[str, Json]:
        sent = {name: value for name, value in body.items() if name not in ("model", "stream")}
        method = "streamGenerateContent?alt=sse" if body.get("stream") else "generateContent"
        return f"/models/{quote(as_text(body.get('model')), safe='/:')}:{method}", sent

    def list_models(self, fields: Json) -> list[str]:
        listed = as_objects(fields.get("models"))
        usable = (each for each in listed if "generateContent" in as_list(each.get("supportedGenerationMethods")))
        return [as_text(each.get("name")).removeprefix("models/") for each in usable]

    def make_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def make_settings(self, request: ProbeRequest) -> Json:
        return {"generationConfig": {"maxOutputTokens": request.max_tokens}}

    def make_function(self, fields: Json) -> Json:
        return {"functionDeclarations": [fields]}

    def make_tools(self, tools: Sequence[ProbeTool]) -> list[Json]:
        declared = [msgspec.structs.asdict(tool) for tool in tools]
        for each in declared:
            if not each["parameters"]["properties"]:  # some servers refuse an object without properties
                del each["parameters"]
        return [{"functionDeclarations": declared}] if declared else []

    def make_choice(self, request: ProbeRequest) -> Json:
        mode = "ANY" if request.named or request.choice == "required" else request.choice.upper()
        return _configure_calling(mode, request.named) if mode else {}

    def make_allowed(self, name: str) -> Json:
        return _configure_calling("VALIDATED", name)

    def make_history(self, entries: Sequence[Entry]) -> list[Json]:
        out: list[Json] = []
        for content in super().make_history(entries):
            if out and all("functionResponse" in each["parts"][-1] for each in (out[-1], content)):
                out[-1]["parts"] += content["parts"]  # all results of a turn are in one content
            else:
                out.append(content)
        return out

    def make_items(self, entry: Entry) -> Iterable[Json]:
        match entry:
            case UserMessage(text):
                yield {"role": "user", "parts": [{"text": text}]}
            case AssistantCalls(calls):
                first, *others = calls
                signed = msgspec.structs.replace(first, signature=first.signature or UNSIGNED)
                yield {"role": "model", "parts": [self._make_call(call) for call in (signed, *others)]}
            case ToolResult(call, text, failed):
                result = {**_identify(call), "response": {"error" if failed else "output": text}}
                yield {"role": "user", "parts": [{"functionResponse": result}]}

    def _make_call(self, call: ObservedCall) -> Json:
        signed = {"thoughtSignature": call.signature} if call.signature else {}
        return {"functionCall": {**_identify(call), "args": call.value or {}}, **signed}

    def find_error_fault(self, body: Json) -> str:
        error = as_object(body.get("error"))
        if (
            as_number(error.get("code")) is None
            or not as_text(error.get("status"))
            or not as_text(error.get("message"))
        ):
            return "it has no object `error` with a numeric code, a status and a message"
        return ""


def _identify(call: ObservedCall) -> Json:
    return {"id": call.id, "name": call.name} if call.id else {"name": call.name}


def _configure_calling(mode: str, name: str) -> Json:
    names = {"allowedFunctionNames": [name]} if name else {}
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, **names}}}


APIS: dict[str, Api] = {api.name: api for api in (ChatApi(), ResponsesApi(), MessagesApi(), GeminiApi())}


EVENTS_HEADER = "x-proxy-responses-events"
"""Its value `extended` asks for events beyond the protocol."""


def make_facts(api: Dialect, body: Json, headers: Iterable[tuple[str, str]] = ()) -> RequestFacts:
    """The facts about a request that the rules depend on."""
    extended = (EVENTS_HEADER, "extended") in ((name.lower(), value.strip().lower()) for name, value in headers)
    if not body:
        return RequestFacts(api, extended=extended)
    tools = as_objects(body.get("tools"))
    names = [_name_of(each) for tool in tools for each in as_objects(tool.get("functionDeclarations", [tool]))]
    asks_for_usage = bool(as_object(body.get("stream_options")).get("include_usage"))
    usage = asks_for_usage if APIS[api].form.usage_on_request and body.get("stream") else None
    forced = bool(_name_of(as_object(body.get("tool_choice"))))
    return RequestFacts(api, tuple(names) if all(names) else None, usage, forced=forced, extended=extended, fields=body)


def _name_of(tool: Json) -> str:
    return as_text(as_object(tool.get("function") or tool.get("custom") or tool).get("name"))
