"""Encodes a request as a thread of app-server: its parameters, its history, and the turn that answers.

The whole history is injected, including the last message, and the turn is started without input. So the role of the
last message does not matter, and no limit on the length of an input applies.
"""

from hashlib import sha256
from typing import Any

import msgspec

from toolwire.adapt.history import BEGINNING
from toolwire.backends.codex.config import PROVIDER, Profile
from toolwire.backends.encoding import note_dropped_part, split_opening, without_none
from toolwire.backends.responses.encode import as_developer, drop_foreign_parts, drop_unusable_reasoning, encode_entry
from toolwire.core.events import Note
from toolwire.core.raw import Json
from toolwire.core.request import (
    NO_PARAMETERS,
    AudioPart,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OutputFormat,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
)

ONE_AT_A_TIME = "Call at most one tool at a time."
ONLY_JSON = "Answer with one JSON object and nothing else."

_TIERS = ("auto", "default")  # the same as no tier at all
_DETAILS = ("", "auto", "high", "original")  # an image of low detail would be replaced by a sentence


class ThreadOpening(msgspec.Struct, frozen=True):
    """The parameters and the history of a new thread."""

    start: Json
    """The parameters of `thread/start`."""
    turn: Json
    """The parameters of `turn/start`, except the thread."""
    items: list[Any]
    """The history, as Responses items."""
    notes: list[Note]

    @property
    def setting(self) -> bytes:
        """A digest of everything that is fixed while a turn runs."""
        return sha256(msgspec.json.encode((self.start, self.turn))).digest()


def encode_thread(request: Request, profile: Profile, provider: str = PROVIDER) -> ThreadOpening:
    """The thread for a request, with notes on what app-server has no field for.

    `provider` is the one in the workers' configuration; app-server refuses a thread with any other.
    """
    notes: list[Note] = []
    system, rest = split_opening(request.entries, "system")
    developer, rest = split_opening(rest, "system", "developer")
    base = "\n\n".join(text for text in (request.instructions, *map(_join_texts, system)) if text)
    instructions = _write_instructions(request)
    written = (*map(_join_texts, developer), *instructions.values())
    sampling = request.sampling
    tools = request.allowed_tools if request.wants_calls else ()  # the list is fixed for the thread
    if request.wants_calls and request.forced_tool:
        tools = [tool for tool in request.tools if tool.name == request.forced_tool] or request.tools
    start: Json = {
        "model": request.model,
        "modelProvider": provider,
        "ephemeral": True,
        "approvalPolicy": "never",
        "sandbox": "read-only",
        "environments": [],
        "experimentalRawEvents": True,
        "baseInstructions": base,
        "developerInstructions": "\n\n".join(filter(None, written)) or None,
        "dynamicTools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.parameters or NO_PARAMETERS,
            }
            for tool in tools
        ],
    }
    if sampling.verbosity:
        start["config"] = {"model_verbosity": sampling.verbosity}
    if sampling.service_tier and sampling.service_tier not in _TIERS:
        start["serviceTier"] = sampling.service_tier
    format = request.output_format or OutputFormat()
    turn = without_none(input=[], summary=profile.summary, effort=sampling.effort or None, outputSchema=format.schema)
    if format.schema is not None and not format.strict:
        notes.append(Note("value_changed", "strict"))  # app-server always requests it
    items: list[Any] = []
    for entry in drop_unusable_reasoning([*map(as_developer, rest)], notes):
        if isinstance(entry, ReasoningEntry) and not entry.signature:  # app-server would send an empty item for it
            notes.append(Note("reasoning_dropped", entry.id))
        elif (own := drop_foreign_parts(entry, notes)) and (fit := _fit_parts(own, notes)):
            items.append(encode_entry(fit))
    if rest and not items:
        items = [encode_entry(BEGINNING)]
        notes.append(Note("message_added", "user"))
    dropped = without_none(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop=sampling.stop or None,
        metadata=request.caller.metadata,
        prompt_cache_key=request.caller.prompt_cache_key,
        safety_identifier=request.caller.safety_identifier,
        user=request.caller.user,
        cache_control=request.marks_cache or None,
    )
    named = any(isinstance(entry, Message) and entry.name for entry in request.entries)
    names = (*dropped, *instructions, *(["messages.name"] if named else []), *request.extra)
    notes += [Note("field_dropped", name) for name in names]
    return ThreadOpening(start, turn, items, notes)


def _join_texts(message: Message) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _fit_parts(entry: Entry, notes: list[Note]) -> Entry | None:
    """An entry with only the kinds of parts that app-server has; None for a message without any."""
    if not isinstance(entry, Message | ResultEntry):
        return entry
    parts: list[Part] = []
    for part in entry.parts:
        if isinstance(part, RefusalPart):
            parts.append(TextPart(part.text))
        elif isinstance(part, ImagePart) and (part.url.startswith("data:") or not part.url):
            has_detail = part.detail in _DETAILS
            notes += [] if has_detail else [Note("value_changed", "detail")]
            parts.append(part if has_detail else msgspec.structs.replace(part, detail=""))
        elif isinstance(part, FilePart | AudioPart | ImagePart):
            notes.append(note_dropped_part(part))
        else:
            parts.append(part)
    if tuple(parts) == entry.parts:
        return entry
    if not parts and isinstance(entry, Message):
        return None
    return msgspec.structs.replace(entry, parts=tuple(parts) or (TextPart(""),), raw=None)


def _write_instructions(request: Request) -> dict[str, str]:
    """Instructions that replace fields which app-server does not have, by field."""
    lines: dict[str, str] = {}
    choice, format = request.tool_choice, request.output_format
    if request.wants_calls and choice is not None and (choice.name or choice.mode == "required"):
        tool = f"the tool {choice.name}" if choice.name else "a tool"
        lines["tool_choice"] = f"Call {tool} before you answer."
    if request.wants_calls and request.parallel_calls is False:
        lines["parallel_tool_calls"] = ONE_AT_A_TIME
    if format is not None and format.schema is None:
        lines["response_format"] = ONLY_JSON
    return lines
