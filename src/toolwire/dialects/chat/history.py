"""Decodes chat messages to entries: one assistant message becomes its text and its calls, in that order.

Results are paired here only where the message does not name its call: a `function` message belongs to the last
unanswered call of its name, a `tool` message without an id to the only call that has no result yet.
"""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.events import CallKind
from toolwire.core.raw import Fields, arguments_text, text_of, to_json
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
from toolwire.dialects.openai import ROLES

UNNAMED = "call_unnamed_"
"""The prefix of ids that we give to calls without one."""


def decode_messages(messages: Sequence[wire.ChatMessage]) -> Iterator[Entry]:
    """The entries of these messages. Raises `BadRequest`."""
    unanswered: dict[str, CallEntry] = {}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.role in ("tool", "function"):
            call_id = _find_answered_call(message, unanswered, path)
            call = unanswered.pop(call_id, None)
            kind: CallKind = call.kind if call is not None else "function"
            yield ResultEntry(call_id, tuple(_decode_parts(message.content, path)), kind, message=index)
            continue
        role = ROLES.get(message.role)
        if role is None:
            roles = "system, developer, user, assistant, tool or function"
            raise BadRequest(f"{path}.role must be {roles}; received {message.role!r}.", f"{path}.role")
        parts = [*_decode_parts(message.content, path)]
        cache = reading.value_of(message.cache_control)
        if cache is not None:  # marks the last text of the message
            last = next((part for part in reversed(parts) if isinstance(part, TextPart)), None)
            parts = [msgspec.structs.replace(part, cache=cache) if part is last else part for part in parts]
        if message.refusal:
            parts.append(RefusalPart(message.refusal))
        if role == "assistant":
            yield from _decode_reasoning(message, index)
        others = (message.audio, message.reasoning_content, message.reasoning, message.reasoning_details)
        is_empty = not (message.tool_calls or message.function_call or any(map(reading.value_of, others)))
        if parts or role != "assistant" or is_empty:
            yield Message(role, tuple(parts), message.name or "", message=index)
        for call in _decode_calls(message, index):
            unanswered[call.id] = call
            yield call


def needs_rewriting(message: wire.ChatMessage) -> bool:
    """Whether a message has calls that servers would refuse as they are: without id, or with arguments as an object."""
    for call in message.tool_calls or ():
        if not call.id or not call.type or call.arguments is not msgspec.UNSET:
            return True
        arguments = call.function.arguments if call.function is not None else msgspec.UNSET
        if arguments is not msgspec.UNSET and not bytes(arguments).startswith(b'"'):
            return True
    return False


def _decode_reasoning(message: wire.ChatMessage, index: int) -> Iterator[ReasoningEntry]:
    """The reasoning of a message. Beyond a plain `reasoning_content` its fields are kept unchanged as a signature."""
    fields: Fields = {}
    for name in ("reasoning_content", "reasoning", "reasoning_details"):
        value = reading.value_of(getattr(message, name))
        if value is not None:
            fields[name] = value
    if not fields:
        return
    texts = [text_of(value) for value in fields.values() if bytes(value).startswith(b'"')]
    if texts and [*fields] == ["reasoning_content"]:
        yield ReasoningEntry(content=(texts[0],), message=index)
        return
    yield ReasoningEntry(content=tuple(texts[:1]), signature=to_json(fields).decode(), origin="chat", message=index)


def _find_answered_call(message: wire.ChatMessage, unanswered: dict[str, CallEntry], path: str) -> str:
    """The id of the call that a message answers."""
    if message.tool_call_id:
        return message.tool_call_id
    if message.role == "function":
        named = [id for id, call in unanswered.items() if call.name == message.name]
        return named[-1] if named else f"{message.name or 'function'} ({path})"
    unnamed = [id for id in unanswered if id.startswith(UNNAMED)]
    if unnamed or len(unanswered) == 1:
        return next(iter(unnamed or unanswered))
    raise reading.missing_field(f"{path}.tool_call_id")


def _decode_calls(message: wire.ChatMessage, index: int) -> Iterator[CallEntry]:
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
        signed = reading.value_of(call.extra_content)
        signature = bytes(signed).decode() if signed is not None else ""
        yield CallEntry(id, function.name, arguments, signature=signature, message=index)
    legacy = message.function_call
    if legacy is not None and legacy.name and not message.tool_calls:
        yield CallEntry(f"call_function_{index}", legacy.name, arguments_text(legacy.arguments), message=index)


def _decode_parts(content: str | list[wire.ContentPart | str] | None, path: str) -> Iterator[Part]:
    if isinstance(content, str):
        content = [content] if content else []
    for index, part in enumerate(content or ()):
        if isinstance(part, str):
            yield TextPart(part)
            continue
        match part.type:
            case "text" | "input_text" | "output_text":
                yield TextPart(part.text or "", reading.value_of(part.cache_control))
            case "refusal":
                yield RefusalPart(part.refusal or "")
            case "image_url" | "input_image" if part.image_url is not None:
                image = part.image_url
                yield ImagePart(image) if isinstance(image, str) else ImagePart(image.url, image.detail or "")
            case "file" | "input_file" if part.file is not None:
                yield FilePart(part.file.file_data or "", part.file.file_id or "", part.file.filename or "")
            case "input_audio" if part.input_audio is not None:
                yield AudioPart(part.input_audio.data, part.input_audio.format)
            case "image_url" | "file" | "input_audio":
                raise reading.missing_field(f"{path}.content[{index}].{part.type}")
            case _:
                yield OtherPart(part.type)
