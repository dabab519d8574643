"""Chat messages to entries: one assistant message becomes its text and its calls, in that order.

Results are paired here only where the message does not name its call: a `function` message belongs to the last
unanswered call of its name, a `tool` message without an id to the only call that has no result yet.
"""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.events import CallKind
from toolwire.core.raw import arguments_text, text_of, to_json
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherPart,
    Part,
    ReasoningEntry,
    RefusalPart,
    ResultEntry,
    TextPart,
)
from toolwire.dialects import reading
from toolwire.dialects.chat import wire

UNNAMED = "call_unnamed_"
"""The prefix of ids for calls that came without one."""


def decode_messages(messages: Sequence[wire.ChatMessage]) -> Iterator[Entry]:
    """The entries of these messages."""
    unanswered: dict[str, CallEntry] = {}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.role in ("tool", "function"):
            call_id = _answered_call(message, unanswered, path)
            call = unanswered.pop(call_id, None)
            kind: CallKind = call.kind if call is not None else "function"
            yield ResultEntry(call_id, tuple(_parts(message.content, path)), kind, message=index)
            continue
        role = wire.ROLES.get(message.role)
        if role is None:
            roles = "system, developer, user, assistant, tool or function"
            raise BadRequest(f"{path}.role must be {roles}; received {message.role!r}.", f"{path}.role")
        parts = _marked(tuple(_parts(message.content, path)), reading.given(message.cache_control))
        if message.refusal:
            parts = (*parts, RefusalPart(message.refusal))
        if role == "assistant":
            yield from _reasoning(message, index)
        if parts or role != "assistant" or _is_empty(message):
            yield Message(role, parts, message.name or "", message=index)
        for call in _calls(message, index):
            unanswered[call.id] = call
            yield call


def _is_empty(message: wire.ChatMessage) -> bool:
    """Whether a message without content holds nothing else either."""
    others = (message.audio, message.reasoning_content, message.reasoning, message.reasoning_details)
    return not message.tool_calls and message.function_call is None and not any(map(reading.given, others))


def needs_rewriting(message: wire.ChatMessage) -> bool:
    """Whether a message has calls that servers would refuse as they are: without id, or with arguments as an object."""
    return any(map(_call_needs_rewriting, message.tool_calls or ()))


def _call_needs_rewriting(call: wire.ToolCall) -> bool:
    if not call.id or not call.type or call.arguments is not msgspec.UNSET:
        return True
    arguments = call.function.arguments if call.function is not None else msgspec.UNSET
    return arguments is not msgspec.UNSET and not bytes(arguments).startswith(b'"')


def _reasoning(message: wire.ChatMessage, index: int) -> Iterator[ReasoningEntry]:
    """The reasoning of a message. Beyond a plain `reasoning_content` its fields are kept as they are."""
    given = {
        "reasoning_content": reading.given(message.reasoning_content),
        "reasoning": reading.given(message.reasoning),
        "reasoning_details": reading.given(message.reasoning_details),
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if not fields:
        return
    texts = [text_of(value) for value in fields.values() if bytes(value).startswith(b'"')]
    is_plain = [*fields] == ["reasoning_content"] and bool(texts)
    signature = "" if is_plain else to_json(fields).decode()
    yield ReasoningEntry(
        content=tuple(texts[:1]), signature=signature, origin="" if is_plain else "chat", message=index
    )


def _marked(parts: tuple[Part, ...], cache: msgspec.Raw | None) -> tuple[Part, ...]:
    """The parts, with the message's cache marker on the last text."""
    texts = [index for index, part in enumerate(parts) if isinstance(part, TextPart)]
    if cache is None or not texts:
        return parts
    marked = msgspec.structs.replace(parts[texts[-1]], cache=cache)
    return (*parts[: texts[-1]], marked, *parts[texts[-1] + 1 :])


def _answered_call(message: wire.ChatMessage, unanswered: dict[str, CallEntry], path: str) -> str:
    if message.tool_call_id:
        return message.tool_call_id
    if message.role == "function":
        named = [id for id, call in unanswered.items() if call.name == message.name]
        return named[-1] if named else f"{message.name or 'function'} ({path})"
    unnamed = [id for id in unanswered if id.startswith(UNNAMED)]
    if unnamed or len(unanswered) == 1:
        return next(iter(unnamed or unanswered))
    raise reading.required(f"{path}.tool_call_id")


def _calls(message: wire.ChatMessage, index: int) -> Iterator[CallEntry]:
    for number, call in enumerate(message.tool_calls or ()):
        path = f"messages[{index}].tool_calls[{number}]"
        id = call.id or f"{UNNAMED}{index}_{number}"
        if call.custom is not None:
            yield CallEntry(id, call.custom.name, call.custom.input, "custom", message=index)
            continue
        function = call.function
        if function is None or not function.name:
            raise BadRequest(f"{path}.function.name: A call needs a name.", f"{path}.function.name")
        arguments = arguments_text(function.arguments) or arguments_text(call.arguments)
        signed = reading.given(call.extra_content)
        signature = bytes(signed).decode() if signed is not None else ""
        yield CallEntry(id, function.name, arguments, signature=signature, message=index)
    legacy = message.function_call
    if legacy is not None and legacy.name and not message.tool_calls:
        yield CallEntry(f"call_function_{index}", legacy.name, arguments_text(legacy.arguments), message=index)


def _parts(content: str | list[wire.ContentPart | str] | None, path: str) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield TextPart(content)
        return
    for index, part in enumerate(content or ()):
        yield TextPart(part) if isinstance(part, str) else _part(part, f"{path}.content[{index}]")


def _part(part: wire.ContentPart, path: str) -> Part:
    match part.type:
        case "text" | "input_text" | "output_text":
            return TextPart(part.text or "", reading.given(part.cache_control))
        case "refusal":
            return RefusalPart(part.refusal or "")
        case "image_url" | "input_image" if part.image_url is not None:
            image = part.image_url
            return ImagePart(image) if isinstance(image, str) else ImagePart(image.url, image.detail or "")
        case "file" | "input_file" if part.file is not None:
            return FilePart(part.file.file_data or "", part.file.file_id or "", part.file.filename or "")
        case "input_audio" if part.input_audio is not None:
            return AudioPart(part.input_audio.data, part.input_audio.format)
        case "image_url" | "file" | "input_audio":
            raise reading.required(f"{path}.{part.type}")
        case _:
            return OtherPart(part.type)
