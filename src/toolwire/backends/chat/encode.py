"""A request in the words of the Chat Completions API.

Entries are folded into messages: the calls of one batch stand in one assistant message, their results follow at once,
and what came between is put behind them.
"""

from typing import Any

import msgspec

from toolwire.backends.chat.profile import Profile
from toolwire.core.events import Note
from toolwire.core.history import OPENING
from toolwire.core.request import (
    NO_PARAMETERS,
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OutputFormat,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    Tool,
    ToolChoice,
    ToolsEntry,
)
from toolwire.core.text import is_blank, shortened

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode

DIALECT = "chat"
"""The dialect of clients that speak as this backend does."""


def encode_request(
    request: Request, profile: Profile, *, stream: bool, lowered: bool = False
) -> tuple[bytes, list[Note]]:
    """The body to post, and notes of what it could not hold. `lowered`: its tools are not as the client wrote them."""
    notes: list[Note] = []
    sampling, caller = request.sampling, request.caller
    asked = _asked(request)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": asked.get("messages") if _can_stand(request, profile) else None,
        "n": request.choices if request.choices > 1 else None,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream and profile.usage else None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        profile.max_tokens: sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "reasoning_effort": sampling.effort,
        "verbosity": sampling.verbosity,
        "service_tier": sampling.service_tier,
        "response_format": _format(request.output_format) if request.output_format else None,
        "user": caller.user if request.dialect == DIALECT else shortened(caller.user),
        "safety_identifier": caller.safety_identifier,
        "prompt_cache_key": caller.prompt_cache_key,
        "metadata": caller.metadata,
    }
    if body["user"] != caller.user:
        notes.append(Note("value_changed", "user"))
    if body["messages"] is None:
        body["messages"] = Fold(profile, notes).messages(request)
        if request.marks_cache:
            notes.append(Note("field_dropped", "cache_control"))
    if request.entries and not body["messages"]:
        body["messages"] = [{"role": "user", "content": OPENING}]
        notes.append(Note("message_added", "user"))
    tools = [*(_tool(tool, profile) for tool in request.allowed_tools), *(tool.raw for tool in request.hosted_tools)]
    if tools:
        body["tools"] = _declared(asked, tools) if not lowered else tools
        body["tool_choice"] = _tool_choice(request.tool_choice) if request.tool_choice else None
        body["parallel_tool_calls"] = request.parallel_calls if profile.parallel else None
        if request.parallel_calls is not None and not profile.parallel:
            notes.append(Note("field_dropped", "parallel_tool_calls"))
    if request.dialect == DIALECT:
        body = {**request.extra, **body}  # what we do not know, the server may
    dropped = [] if request.dialect == DIALECT else [*request.extra]
    dropped += [name for name in profile.refuses if body.pop(name, None) is not None]
    notes += [Note("field_dropped", name) for name in dropped]
    return _encode({name: value for name, value in body.items() if value is not None}), notes


def _asked(request: Request) -> dict[str, msgspec.Raw]:
    """The body's fields as they came, from a client that speaks as the server does."""
    if request.dialect != DIALECT or request.legacy_functions or not request.body:
        return {}
    return _fields(request.body)


def _can_stand(request: Request, profile: Profile) -> bool:
    """Whether the messages can go on as the client wrote them: unchanged, and nothing in them that servers refuse."""
    if request.instructions or not request.is_as_written:
        return False
    return all(_stands(entry, profile) for entry in request.entries)


def _stands(entry: Entry, profile: Profile) -> bool:
    match entry:
        case Message(role):
            return role != "developer" or profile.developer
        case CallEntry():
            is_plain = not is_blank(entry.arguments) and not entry.seal
            return is_plain and profile.content_beside_calls == "null"
        case ResultEntry(_, (TextPart(text),)):
            return bool(text)
        case _:
            return False


def _declared(asked: dict[str, msgspec.Raw], tools: list[Any]) -> Any:
    """The tools as the client wrote them, if they are all there, each in the form that the API documents."""
    may_lack_schema = b"null" in bytes(asked.get("tools", b""))
    written = _list(asked["tools"]) if "tools" in asked and not may_lack_schema else []
    is_sound = len(written) == len(tools) and all("function" in tool or "custom" in tool for tool in written)
    return asked["tools"] if is_sound else tools


class Fold:
    """Folds a flat history into messages."""

    def __init__(self, profile: Profile, notes: list[Note]) -> None:
        self._profile = profile
        self._notes = notes
        self._out: list[dict[str, Any]] = []
        self._assistant: dict[str, Any] | None = None  # the open message of the model
        self._seen: list[dict[str, Any]] = []  # what results show beside text, for a message behind them

    def messages(self, request: Request) -> list[dict[str, Any]]:
        if request.instructions:
            self._out.append({"role": "system", "content": request.instructions})
        for entry in request.entries:
            self._add(entry)
        self._show()
        self._close()
        return self._out

    def _add(self, entry: Entry) -> None:
        match entry:
            case CallEntry():
                self._show()
                self._call(entry)
            case ResultEntry():
                self._result(entry)
            case Message(role="assistant"):
                self._show()
                self._say(entry)
            case Message():
                self._show()
                self._close()
                self._out.append(self._message(entry))
            case ReasoningEntry():
                self._think(entry)
            case OtherEntry():
                self._notes.append(Note("item_dropped", entry.type))
            case ToolsEntry():
                pass  # declared with the others

    def _message(self, entry: Message) -> dict[str, Any]:
        role = "system" if entry.role == "developer" and not self._profile.developer else entry.role
        named = {"name": entry.name} if entry.name else {}
        return {"role": role, "content": self._content(entry.parts), **named}

    def _open(self) -> dict[str, Any]:
        if self._assistant is None:
            self._assistant = {"role": "assistant"}
        return self._assistant

    def _close(self) -> None:
        message, self._assistant = self._assistant, None
        if message is None:
            return
        if "tool_calls" in message and not message.get("content"):
            message.pop("content", None)
        if "content" not in message and "refusal" not in message:
            if "tool_calls" not in message:
                return  # reasoning alone is no message
            if self._profile.content_beside_calls != "omit":
                message["content"] = None if self._profile.content_beside_calls == "null" else ""
        self._out.append(message)

    def _say(self, entry: Message) -> None:
        message = self._open()  # what is said behind the calls stands before them here
        text = "".join(part.text for part in entry.parts if isinstance(part, TextPart))
        refusal = "".join(part.text for part in entry.parts if isinstance(part, RefusalPart))
        if text or not refusal:
            message["content"] = message.get("content", "") + text
        if refusal:
            message["refusal"] = message.get("refusal", "") + refusal

    def _call(self, entry: CallEntry) -> None:
        if entry.kind == "custom":
            written: dict[str, Any] = {"type": "custom", "custom": {"name": entry.name, "input": entry.arguments}}
        else:
            arguments = "{}" if is_blank(entry.arguments) else entry.arguments
            written = {"type": "function", "function": {"name": entry.name, "arguments": arguments}}
        if entry.seal:
            written["extra_content"] = msgspec.Raw(entry.seal.encode())
        self._open().setdefault("tool_calls", []).append({"id": entry.id, **written})

    def _think(self, entry: ReasoningEntry) -> None:
        text = "\n\n".join(entry.content or entry.summary)
        if not self._profile.reasoning or not text or (entry.seal and entry.issuer != DIALECT):
            if text or entry.seal:
                self._notes.append(Note("reasoning_dropped", entry.id))
            return
        self._show()
        message, field = self._open(), self._profile.reasoning
        message[field] = f"{message[field]}\n\n{text}" if field in message else text

    def _result(self, entry: ResultEntry) -> None:
        self._close()
        texts = [part.text for part in entry.told if isinstance(part, TextPart)]
        others = [part for part in entry.told if not isinstance(part, TextPart)]
        shown = [written for part in others if (written := self._part(part))]
        if shown:
            texts.append("\n" * bool(texts) + f"(The result of {entry.call_id} is shown in the next message.)")
            self._seen += [{"type": "text", "text": f"The result of {entry.call_id}:"}, *shown]
        text = "".join(texts) or self._profile.empty_result
        self._out.append({"role": "tool", "tool_call_id": entry.call_id, "content": text})

    def _show(self) -> None:
        """Chat tool messages are text only: what else results hold comes after all of them."""
        seen, self._seen = self._seen, []
        if seen:
            self._out.append({"role": "user", "content": seen})

    def _content(self, parts: tuple[Part, ...]) -> Any:
        if all(isinstance(part, TextPart) for part in parts):
            return "".join(part.text for part in parts if isinstance(part, TextPart))
        return [written for part in parts if (written := self._part(part))]

    def _part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart(text) | RefusalPart(text):
                return {"type": "text", "text": text}
            case ImagePart(url, detail) if url:
                return {"type": "image_url", "image_url": {"url": url, "detail": detail or "auto"}}
            case FilePart(data, id, name) if data or id:
                named = {"file_id": id, "file_data": data, "filename": name}
                return {"type": "file", "file": {key: value for key, value in named.items() if value}}
            case AudioPart(data, format):
                return {"type": "input_audio", "input_audio": {"data": data, "format": format}}
            case _:
                self._notes.append(Note("part_dropped", type(part).__name__.removesuffix("Part").lower()))
                return None


def _tool(tool: Tool, profile: Profile) -> dict[str, Any]:
    if tool.kind == "custom":
        custom = {"name": tool.name, "description": tool.description or None, "format": tool.format}
        return {"type": "custom", "custom": {key: value for key, value in custom.items() if value is not None}}
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or NO_PARAMETERS
    if tool.strict is not None and profile.strict:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.hosted is not None:
        return choice.hosted
    if choice.name:
        return {"type": choice.kind, choice.kind: {"name": choice.name}}
    return choice.mode


def _format(format: OutputFormat) -> dict[str, Any]:
    if format.schema is None:
        return {"type": "json_object"}
    schema = {
        "name": format.name or "answer",
        "schema": format.schema,
        "strict": format.strict,
        "description": format.description or None,
    }
    return {"type": "json_schema", "json_schema": {key: value for key, value in schema.items() if value is not None}}
