"""Chat messages to entries: one assistant message becomes its text and its calls, in that order.

Results are paired here only as far as chat itself leaves it open: a `function` message belongs to the last unanswered
call of its name, a `tool` message without an id to the only call that has no result yet.
"""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.events import CallKind, Note
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    Part,
    ReasoningEntry,
    RefusalPart,
    ResultEntry,
    TextPart,
)
from toolwire.core.text import arguments_text
from toolwire.dialects import reading
from toolwire.dialects.chat import wire

_string = msgspec.json.Decoder(str).decode

UNNAMED = "call_unnamed_"
"""How the id begins of a call to which the client gave none."""


def decode_messages(messages: Sequence[wire.ChatMessage], notes: list[Note]) -> Iterator[Entry]:
    waiting: dict[str, CallEntry] = {}  # calls that have no result yet
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        if message.role in ("tool", "function"):
            call_id = _answered(message, waiting, path)
            call = waiting.pop(call_id, None)
            kind: CallKind = call.kind if call is not None else "function"
            yield ResultEntry(call_id, tuple(_parts(message.content, path, notes)), kind, message=place)
            continue
        role = wire.ROLES.get(message.role)
        if role is None:
            known = "system, developer, user, assistant, tool or function"
            raise BadRequest(f"{path}.role must be {known}; received {message.role!r}.", f"{path}.role")
        parts = _marked(tuple(_parts(message.content, path, notes)), reading.given(message.cache_control))
        if message.refusal:
            parts = (*parts, RefusalPart(message.refusal))
        if role == "assistant":
            yield from _reasoning(message, place)
        if parts or role != "assistant":
            yield Message(role, parts, message.name or "", message=place)
        for call in _calls(message, place):
            waiting[call.id] = call
            yield call


def is_odd(message: wire.ChatMessage) -> bool:
    """Whether a message has calls that servers do not take as they are written: no id, arguments that are no string."""
    return any(map(_is_odd, message.tool_calls or ()))


def _is_odd(call: wire.ToolCall) -> bool:
    if not call.id or not call.type or call.arguments is not msgspec.UNSET:
        return True
    arguments = call.function.arguments if call.function is not None else msgspec.UNSET
    return arguments is not msgspec.UNSET and not bytes(arguments).startswith(b'"')


def _reasoning(message: wire.ChatMessage, place: int) -> Iterator[ReasoningEntry]:
    """The reasoning of a message. Beyond a plain `reasoning_content` its fields are kept as they are."""
    given = {
        "reasoning_content": reading.given(message.reasoning_content),
        "reasoning": reading.given(message.reasoning),
        "reasoning_details": reading.given(message.reasoning_details),
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if not fields:
        return
    texts = [_string(value) for value in fields.values() if bytes(value).startswith(b'"')]
    is_plain = [*fields] == ["reasoning_content"] and bool(texts)
    seal = "" if is_plain else msgspec.json.encode(fields).decode()
    yield ReasoningEntry(content=tuple(texts[:1]), seal=seal, issuer="" if is_plain else "chat", message=place)


def _marked(parts: tuple[Part, ...], cache: msgspec.Raw | None) -> tuple[Part, ...]:
    """The parts, the last text of them with the mark of the whole message."""
    places = [place for place, part in enumerate(parts) if isinstance(part, TextPart)]
    if cache is None or not places:
        return parts
    marked = msgspec.structs.replace(parts[places[-1]], cache=cache)
    return (*parts[: places[-1]], marked, *parts[places[-1] + 1 :])


def _answered(message: wire.ChatMessage, waiting: dict[str, CallEntry], path: str) -> str:
    if message.tool_call_id:
        return message.tool_call_id
    if message.role == "function":
        named = [id for id, call in waiting.items() if call.name == message.name]
        return named[-1] if named else f"{message.name or 'function'} ({path})"
    unnamed = [id for id in waiting if id.startswith(UNNAMED)]
    if unnamed or len(waiting) == 1:
        return next(iter(unnamed or waiting))
    raise reading.required(f"{path}.tool_call_id")


def _calls(message: wire.ChatMessage, place: int) -> Iterator[CallEntry]:
    for number, call in enumerate(message.tool_calls or ()):
        path = f"messages[{place}].tool_calls[{number}]"
        id = call.id or f"{UNNAMED}{place}_{number}"
        if call.custom is not None:
            yield CallEntry(id, call.custom.name, call.custom.input, "custom", message=place)
            continue
        function = call.function
        if function is None or not function.name:
            raise BadRequest(f"{path}.function.name: A call needs a name.", f"{path}.function.name")
        arguments = arguments_text(function.arguments) or arguments_text(call.arguments)
        sealed = reading.given(call.extra_content)
        seal = bytes(sealed).decode() if sealed is not None else ""
        yield CallEntry(id, function.name, arguments, seal=seal, message=place)
    legacy = message.function_call
    if legacy is not None and legacy.name and not message.tool_calls:
        yield CallEntry(f"call_function_{place}", legacy.name, arguments_text(legacy.arguments), message=place)


def _parts(content: str | list[wire.ContentPart | str] | None, path: str, notes: list[Note]) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield TextPart(content)
        return
    for place, part in enumerate(content or ()):
        if isinstance(part, str):
            yield TextPart(part)
            continue
        yield from _part(part, f"{path}.content[{place}]", notes)


def _part(part: wire.ContentPart, path: str, notes: list[Note]) -> Iterator[Part]:
    match part.type:
        case "text" | "input_text" | "output_text":
            yield TextPart(part.text or "", reading.given(part.cache_control))
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
            raise reading.required(f"{path}.{part.type}")
        case _:
            notes.append(Note("part_dropped", part.type))
