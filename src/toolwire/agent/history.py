"""The history of a conversation: its items in order, every call with its result.

An item is a struct that keeps its original JSON and is sent in that form. The format is that of the Responses API,
because every backend's turn can be expressed in it. Items of unknown types are kept unchanged.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.backends.responses.encode import encode_entry
from toolwire.core.raw import arguments_text
from toolwire.core.request import ImagePart, Message, ResultEntry, TextPart
from toolwire.core.text import join_surrogates
from toolwire.turns.tools.call import LOCAL_SHELL, CustomPayload, FunctionPayload, LocalShellPayload, ToolCall
from toolwire.turns.tools.calls import failure, shorten
from toolwire.turns.tools.registry import Result


class Item(msgspec.Struct, frozen=True):
    """The base class of all items."""

    raw: msgspec.Raw


class MessageItem(Item, frozen=True):
    """A message."""

    role: str
    text: str


class ReasoningItem(Item, frozen=True):
    """Reasoning of the model."""

    id: str
    summary: tuple[str, ...]
    encrypted_content: str = ""


class ToolCallItem(Item, frozen=True):
    """A call of a function, a custom tool or the `local_shell` tool, with the tool's name as the model wrote it."""

    call: ToolCall
    namespace: str = ""
    is_cut: bool = False
    """Whether the call was truncated and must not run."""


class OutputItem(Item, frozen=True):
    """The result of a call."""

    call_id: str
    text: str


class OtherItem(Item, frozen=True):
    """An item of any other type."""

    type: str


AnyItem: TypeAlias = MessageItem | ReasoningItem | ToolCallItem | OutputItem | OtherItem


class _Part(msgspec.Struct):
    text: str | None = None


class _Fields(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    status: str | None = None
    role: str | None = None
    content: list[_Part] | str | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    output: Any = None
    action: dict[str, Any] | None = None


class _Typed(msgspec.Struct):
    type: str = ""


_decode = msgspec.json.Decoder(_Fields).decode

OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def read_item(raw: bytes | msgspec.Raw) -> AnyItem:
    """Read an item of any type; a malformed one becomes an `OtherItem`."""
    raw = raw if isinstance(raw, msgspec.Raw) else msgspec.Raw(raw)
    try:
        return _item(raw, _decode(raw))
    except msgspec.ValidationError:
        with suppress(msgspec.ValidationError):
            return OtherItem(raw, msgspec.json.decode(raw, type=_Typed).type)
        return OtherItem(raw, "")


def _item(raw: msgspec.Raw, fields: _Fields) -> AnyItem:
    call_id, is_cut = fields.call_id or "", fields.status == "incomplete"
    match fields.type:
        case "message":
            parts = fields.content
            text = parts if isinstance(parts, str) else "".join(part.text or "" for part in parts or ())
            return MessageItem(raw, fields.role or "", text)
        case "reasoning":
            summary = tuple(part.text or "" for part in fields.summary or ())
            return ReasoningItem(raw, fields.id or "", summary, fields.encrypted_content or "")
        case "function_call":
            call = ToolCall(fields.name or "", call_id, FunctionPayload(arguments_text(fields.arguments)))
            return ToolCallItem(raw, call, fields.namespace or "", is_cut)
        case "custom_tool_call":
            call = ToolCall(fields.name or "", call_id, CustomPayload(arguments_text(fields.input)))
            return ToolCallItem(raw, call, is_cut=is_cut)
        case "local_shell_call" if fields.action is not None:
            given = {name: value for name, value in fields.action.items() if value is not None}
            command = msgspec.convert(given, LocalShellPayload)
            return ToolCallItem(raw, ToolCall(LOCAL_SHELL, call_id or fields.id or "", command), is_cut=is_cut)
        case type if type in OUTPUTS:
            output = fields.output
            text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
            return OutputItem(raw, call_id or fields.id or "", text)
        case type:
            return OtherItem(raw, type)


def user_message(text: str, images: tuple[str, ...] = ()) -> MessageItem:
    """A user message, with images as URLs."""
    raw = _encode(encode_entry(Message("user", (TextPart(text), *map(ImagePart, images)))))
    return MessageItem(raw, "user", text)


def output_item(call: ToolCall, result: Result) -> OutputItem:
    """The result of a call, as the item type that matches the call."""
    fields: dict[str, Any]
    if isinstance(call.payload, LocalShellPayload):
        fields = {"type": "local_shell_call_output", "id": call.call_id, "output": result.text}
    else:
        kind = "custom" if isinstance(call.payload, CustomPayload) else "function"
        fields = encode_entry(ResultEntry(call.call_id, result.parts, kind))
    if result.failed:
        fields["status"] = "incomplete"
    return OutputItem(_encode(fields), call.call_id, result.text)


def _encode(fields: Mapping[str, object]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(fields))


ABORTED = failure("aborted")
"""The result of a call whose outcome is unknown."""


class History:
    """The items of a session."""

    def __init__(self, items: Iterable[AnyItem] = ()) -> None:
        self.items = list(items)
        """The items in order."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[AnyItem]:
        return iter(self.items)

    @property
    def raw(self) -> list[msgspec.Raw]:
        """The items as JSON."""
        return [item.raw for item in self.items]

    def close_calls(self) -> list[OutputItem]:
        """Add a result to every call that has none, after the calls of the same batch, and return the added results."""
        waiting: dict[int, ToolCall] = {}
        early: list[str] = []  # ids of results that precede their calls
        for index, item in enumerate(self.items):
            if isinstance(item, ToolCallItem):
                waiting[index] = item.call
            elif isinstance(item, OutputItem):  # belongs to the first waiting call with its id
                answered = next((at for at, call in waiting.items() if call.call_id == item.call_id), None)
                if answered is None:
                    early.append(item.call_id)
                else:
                    del waiting[answered]
        for index, call in [*waiting.items()]:
            if call.call_id in early:
                early.remove(call.call_id)
                del waiting[index]
        made = {index: output_item(call, ABORTED) for index, call in waiting.items()}
        closed: list[AnyItem] = []
        for _, batch in groupby(enumerate(self.items), lambda each: isinstance(each[1], ToolCallItem | OutputItem)):
            indexes, items = zip(*batch, strict=True)
            closed += [*items, *(made[index] for index in indexes if index in made)]
        self.items = closed
        return [*made.values()]

    def tail(self) -> list[AnyItem]:
        """The items from the last user message on."""
        prompts = [index for index, item in enumerate(self.items) if _is_prompt(item)]
        return self.items[prompts[-1] :] if prompts else []


LEFT_OUT = user_message("(The beginning of this conversation is left out, because it is too long.)")


def size_of(items: Iterable[AnyItem]) -> int:
    """The size of items in bytes, as they are sent."""
    return sum(len(bytes(item.raw)) for item in items)


def newest_items(items: Sequence[AnyItem], max_chars: int) -> list[AnyItem]:
    """The last items that fit, from the start of a turn on, so that calls keep their reasoning and results.

    Long results are shortened in the middle.
    """
    items = list(items)
    for index, item in enumerate(items):
        if isinstance(item, OutputItem) and len(bytes(item.raw)) > max_chars // 4:
            text = shorten(item.text, max_chars // 4)
            fields = {**msgspec.json.decode(item.raw), "output": text}
            items[index] = OutputItem(_encode(fields), item.call_id, text)
    start, size = len(items), 0
    for index in range(len(items) - 1, 0, -1):
        size += size_of(items[index : index + 1])
        if size > max_chars and start < len(items):
            break
        before, item = items[index - 1 : index + 1]
        follows_input = isinstance(before, OutputItem) or _is_prompt(before)
        if _is_prompt(item) or (follows_input and not isinstance(item, OutputItem)):  # a turn begins
            start = index
    return items[start:] if start < len(items) and _is_prompt(items[start]) else [LEFT_OUT, *items[start:]]


def _is_prompt(item: AnyItem) -> bool:
    return isinstance(item, MessageItem) and item.role == "user"


def given_item(fields: Mapping[str, Any], index: int) -> AnyItem:
    """An item that a program passed in; a message may lack its `type`. Raises `ValueError`, which names the item."""
    if not isinstance(cast("object", fields), Mapping) or not (fields.get("type") or fields.get("role")):
        raise ValueError(f"items[{index}]: a message with a role, or another item with a type, is needed")
    text = join_surrogates(json.dumps({"type": "message", **fields}, ensure_ascii=False))
    return read_item(text.encode())


def read_items(raw: Iterable[bytes | msgspec.Raw]) -> list[AnyItem]:
    """Read items of any kind from JSON."""
    return [read_item(each) for each in raw]
