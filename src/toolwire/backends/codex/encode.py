"""A request as a thread of app-server: what it is started with, its history, and the turn that answers.

The whole history is injected, the last message too, and the turn is started without input of its own: so nothing
depends on who spoke last, and no limit on the length of a message applies.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from toolwire.adapt.history import BEGINNING
from toolwire.backends.codex.profile import Profile
from toolwire.backends.encoding import given, split_opening
from toolwire.backends.responses.encode import as_developer, encoded_entry, returnable, without_foreign_parts
from toolwire.core.events import Note
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
    Tool,
)

PROVIDER = "toolwire"
"""The model provider in the configuration that workers run with, unless the operator names another."""

ONE_AT_A_TIME = "Call at most one tool at a time."
ONLY_JSON = "Answer with one JSON object and nothing else."

_TIERS = ("auto", "default")  # the same as no tier at all
_DETAILS = ("", "auto", "high", "original")  # an image of low detail would be replaced by a sentence
_KINDS: dict[type[Part], str] = {FilePart: "file", AudioPart: "audio", ImagePart: "image"}


class Opening(msgspec.Struct, frozen=True):
    """What a thread begins with."""

    start: dict[str, Any]
    """The parameters of `thread/start`."""
    turn: dict[str, Any]
    """Those of `turn/start`, but for the thread."""
    items: list[Any]
    """The history, as Responses items."""
    notes: list[Note]

    @property
    def setting(self) -> bytes:
        """A digest of all that cannot be changed while a turn runs."""
        return sha256(msgspec.json.encode((self.start, self.turn))).digest()


def opening(request: Request, profile: Profile, provider: str = PROVIDER) -> Opening:
    """The thread for a request, with notes of what app-server has no field for.

    `provider` is the one that the workers are configured with: app-server refuses a thread of any other.
    """
    notes: list[Note] = []
    base, developer, rest = _instructions(request)
    spelled_out = _spelled_out(request)
    sampling = request.sampling
    start: dict[str, Any] = {
        "model": request.model,
        "modelProvider": provider,
        "ephemeral": True,
        "approvalPolicy": "never",
        "sandbox": "read-only",
        "environments": [],
        "experimentalRawEvents": True,
        "baseInstructions": base,
        "developerInstructions": "\n\n".join((*developer, *spelled_out.values())) or None,
        "dynamicTools": [_tool(tool) for tool in _shown(request)],
    }
    if sampling.verbosity:
        start["config"] = {"model_verbosity": sampling.verbosity}
    if sampling.service_tier and sampling.service_tier not in _TIERS:
        start["serviceTier"] = sampling.service_tier
    format = request.output_format or OutputFormat()
    turn = given(input=[], summary=profile.summary, effort=sampling.effort or None, outputSchema=format.schema)
    if format.schema is not None and not format.strict:
        notes.append(Note("value_changed", "strict"))  # app-server asks for it always
    items = [
        encoded_entry(fit)
        for entry in _signed(returnable(rest, notes), notes)
        if (own := without_foreign_parts(entry, notes)) and (fit := _fitting(own, notes))
    ]
    if rest and not items:
        items = [encoded_entry(BEGINNING)]
        notes.append(Note("message_added", "user"))
    notes += [Note("field_dropped", name) for name in _dropped(request, spelled_out)]
    return Opening(start, turn, items, notes)


def _instructions(request: Request) -> tuple[str, list[str], list[Entry]]:
    """What the system says, what developers say before anybody else speaks, and the rest of the history."""
    system, rest = split_opening(request.entries, "system")
    others, rest = split_opening(rest, "system", "developer")
    base = "\n\n".join(text for text in (request.instructions, *map(_text, system)) if text)
    return base, [text for text in map(_text, others) if text], [*map(as_developer, rest)]


def _text(message: Message) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _signed(entries: Sequence[Entry], notes: list[Note]) -> Iterator[Entry]:
    """The entries without reasoning that has no signature: app-server would send an empty item for it."""
    for entry in entries:
        if isinstance(entry, ReasoningEntry) and not entry.signature:
            notes.append(Note("reasoning_dropped", entry.id))
        else:
            yield entry


def _fitting(entry: Entry, notes: list[Note]) -> Entry | None:
    """An entry with the kinds of parts that app-server knows; None for a message without any."""
    if not isinstance(entry, Message | ResultEntry):
        return entry
    parts = tuple(fit for part in entry.parts if (fit := _part(part, notes)) is not None)
    if parts == entry.parts:
        return entry
    if not parts and isinstance(entry, Message):
        return None
    return msgspec.structs.replace(entry, parts=parts or (TextPart(""),), raw=None)


def _part(part: Part, notes: list[Note]) -> Part | None:
    if isinstance(part, RefusalPart):
        return TextPart(part.text)
    if isinstance(part, ImagePart) and (part.url.startswith("data:") or not part.url):
        if part.detail in _DETAILS:
            return part
        notes.append(Note("value_changed", "detail"))
        return msgspec.structs.replace(part, detail="")
    if isinstance(part, FilePart | AudioPart | ImagePart):
        notes.append(Note("part_dropped", _KINDS[type(part)]))
        return None
    return part


def _shown(request: Request) -> Sequence[Tool]:
    """The tools of a thread: those that may be called. The list cannot be changed later."""
    if not request.wants_calls:
        return ()
    if request.forced_tool:
        return [tool for tool in request.tools if tool.name == request.forced_tool] or request.tools
    return request.allowed_tools


def _tool(tool: Tool) -> dict[str, Any]:
    schema = tool.parameters or NO_PARAMETERS
    return {"type": "function", "name": tool.name, "description": tool.description, "inputSchema": schema}


def _spelled_out(request: Request) -> dict[str, str]:
    """Instructions in place of fields that app-server does not have, by field."""
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


def _dropped(request: Request, spelled_out: Iterable[str]) -> list[str]:
    sampling, caller = request.sampling, request.caller
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stop": sampling.stop or None,
        "metadata": caller.metadata,
        "prompt_cache_key": caller.prompt_cache_key,
        "safety_identifier": caller.safety_identifier,
        "user": caller.user,
        "cache_control": request.marks_cache or None,
    }
    named = any(isinstance(entry, Message) and entry.name for entry in request.entries)
    names = ["messages.name"] if named else []
    return [*(name for name, value in fields.items() if value is not None), *spelled_out, *names, *request.extra]
