"""Continuing a turn that waits for results: whether a request is about it, and what to send to its thread."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from toolwire.backends.codex.protocol import failed_call
from toolwire.core import jsonrpc
from toolwire.core.backend import PendingTurn
from toolwire.core.events import Usage
from toolwire.core.jsonrpc import Id
from toolwire.core.request import (
    CallEntry,
    Entry,
    ImagePart,
    Message,
    Part,
    ReasoningEntry,
    RefusalPart,
    ResultEntry,
    TextPart,
)
from toolwire.core.text import is_blank, same_json
from toolwire.memory.call_keys import CallKey

WITHHELD = "Error: the call was not carried out. Call the tool again, by itself."
"""What a model reads about a call that its client was not shown."""


_BLOCK = re.compile(r"<(use_tool|tool_call)>.*?</\1>", re.DOTALL)

MAX_INPUT = 1_000_000
"""Most characters that a running turn can be given; app-server takes a few more."""


class ThreadState(msgspec.Struct, frozen=True):
    """What is known of a thread whose turn waits."""

    turn: str
    setting: bytes
    """A digest of what the thread was started with."""
    length: int
    history: bytes
    """How many entries the request had that led here, and their digest."""
    text: str
    calls: tuple[CallEntry, ...]
    requests: dict[str, tuple[Id, ...]]
    """The requests of app-server that wait for an answer, by call."""
    reported: Usage
    """The tokens that were reported to clients so far."""
    stand_ins: dict[str, str] = {}
    """Calls that clients know by another id: that id, and the thread's own."""


class _WrittenTurn(msgspec.Struct, frozen=True):
    """A turn that waits, as another process reads it."""

    thread: str
    calls: tuple[CallKey, ...]
    state: ThreadState


_read_turn = msgspec.json.Decoder(_WrittenTurn).decode


def write_turn(turn: PendingTurn) -> bytes | None:
    """A turn that waits, for another process; None if it holds half a character, which cannot be written."""
    try:
        return msgspec.json.encode(turn)
    except UnicodeEncodeError:
        return None


def read_turn(written: bytes) -> PendingTurn | None:
    """A turn of another process; None if another version has written it."""
    try:
        read = _read_turn(written)
    except msgspec.DecodeError:
        return None
    return PendingTurn(read.thread, read.calls, read.state)


class Continuation(msgspec.Struct, frozen=True):
    """What is sent to a thread whose turn waits."""

    turn: str
    answers: list[bytes]
    input: list[dict[str, Any]]
    """What the user says beside the results."""
    reported: Usage
    answered: frozenset[str]


def digest(entries: Sequence[Entry]) -> bytes:
    """The same for two histories that say the same."""
    return sha256(msgspec.json.encode([_gist(entry) for entry in entries])).digest()


def without_reasoning(entries: Sequence[Entry]) -> list[Entry]:
    """Not every client brings it back, and the thread has its own."""
    return [entry for entry in entries if not isinstance(entry, ReasoningEntry)]


def _gist(entry: Entry) -> Any:
    match entry:
        case Message(role, parts):
            return role, [_part_gist(part) for part in parts]
        case CallEntry(id, name, arguments, kind, namespace):
            return id, name, arguments, kind, namespace
        case ResultEntry(call_id, parts, kind):
            return call_id, [_part_gist(part) for part in parts], kind, entry.failed
        case _:
            return entry


def _part_gist(part: Part) -> Any:
    return part.text if isinstance(part, TextPart) else part


def continuation(state: ThreadState, entries: Sequence[Entry], setting: bytes) -> Continuation | None:
    """What the request sends to the thread; None if it is about another one, or about one that was otherwise."""
    history = without_reasoning(entries)
    before, after = history[: state.length], history[state.length :]
    if setting != state.setting or len(before) < state.length or digest(before) != state.history:
        return None
    text, calls, results, input = _sorted([_with_own_id(entry, state.stand_ins) for entry in after])
    if input is None or not _is_same_turn(state, text, calls):
        return None
    answered = {call: _result(result) for call, result in results.items()}
    if not answered or set(answered) != {call.id for call in calls} or None in answered.values():
        return None
    answers = [
        jsonrpc.answer(id, answered[call] if call in answered else failed_call(WITHHELD))
        for call, ids in state.requests.items()
        for id in ids
    ]
    return Continuation(state.turn, answers, input, state.reported, frozenset(state.requests))


def _with_own_id(entry: Entry, stand_ins: Mapping[str, str]) -> Entry:
    """The entry with the id under which the thread has made the call."""
    if isinstance(entry, CallEntry) and entry.id in stand_ins:
        return msgspec.structs.replace(entry, id=stand_ins[entry.id])
    if isinstance(entry, ResultEntry) and entry.call_id in stand_ins:
        return msgspec.structs.replace(entry, call_id=stand_ins[entry.call_id])
    return entry


def _sorted(after: Sequence[Entry]) -> tuple[str, list[CallEntry], dict[str, ResultEntry], list[Any] | None]:
    """The model's text, its calls, their results and what the user adds, which is None if anything else is there."""
    texts, calls, results, input = list[str](), list[CallEntry](), dict[str, ResultEntry](), list[Any]()
    for entry in after:
        if isinstance(entry, Message) and entry.role == "assistant" and not results:
            texts += [part.text for part in entry.parts if isinstance(part, TextPart | RefusalPart)]
        elif isinstance(entry, CallEntry) and not input:
            calls.append(entry)
        elif isinstance(entry, ResultEntry) and not input:
            results[entry.call_id] = entry
        elif isinstance(entry, Message) and entry.role == "user" and (parts := _shown(entry.parts, _INPUT)) is not None:
            input += parts
        else:
            return "".join(texts), calls, results, None
    fits = sum(len(part.get("text", "")) for part in input) <= MAX_INPUT
    return "".join(texts), calls, results, input if fits else None


def _is_same_turn(state: ThreadState, text: str, calls: list[CallEntry]) -> bool:
    """Whether this is what the model wrote and called. A client may leave out the text, and calls it was not shown.

    It may not have been shown the end of the text either, and blocks that are calls are text to one side only.
    White space between messages varies.
    """
    shown, known = ("".join(_BLOCK.sub(" ", each).split()) for each in (text, state.text))
    if not known.startswith(shown):
        return False
    made = {call.id: call for call in state.calls}
    return all(
        call.id in made and call.name == made[call.id].name and _is_same(call.arguments, made[call.id].arguments)
        for call in calls
    )


def _is_same(one: str, other: str) -> bool:
    return same_json(one, other) or (_is_empty(one) and _is_empty(other))


def _is_empty(arguments: str) -> bool:
    """Whether arguments say nothing: clients get an empty object then."""
    return is_blank(arguments) or same_json(arguments, "{}")


def _result(entry: ResultEntry) -> dict[str, Any] | None:
    """The answer to the request for a call; None if app-server does not take such a result."""
    items = _shown(entry.parts_with_error, _RESULT)
    if items is None:
        return None
    return {"contentItems": items or [{"type": "inputText", "text": ""}], "success": not entry.failed}


_INPUT, _RESULT = ("text", "image", "url"), ("inputText", "inputImage", "imageUrl")
"""The types of a text and of an image, and the field for its address: in a user's input, and in a result."""


def _shown(parts: Sequence[Part], words: tuple[str, str, str]) -> list[dict[str, str]] | None:
    """The parts as app-server takes them: text, and images that hold their bytes. None if anything else is there."""
    shown: list[dict[str, str]] = []
    text, image, url = words
    for part in parts:
        if isinstance(part, TextPart | RefusalPart):
            shown.append({"type": text, "text": part.text})
        elif isinstance(part, ImagePart) and part.url.startswith("data:"):
            shown.append({"type": image, url: part.url})
        else:
            return None
    return shown
