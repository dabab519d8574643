"""Continues a turn that waits for results: matches a request to it, and makes the messages for its thread."""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from toolwire.backends.codex.protocol import encode_failed_call
from toolwire.core import jsonrpc
from toolwire.core.backend import PendingTurn
from toolwire.core.events import Usage
from toolwire.core.jsonrpc import Id
from toolwire.core.raw import Json
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
from toolwire.core.text import is_blank, is_same_json
from toolwire.memory.call_keys import CallKey

WITHHELD = "Error: the call was not carried out. Call the tool again, by itself."
"""The result, for the model, of a call that was not delivered to the client."""

_BLOCK = re.compile(r"<(use_tool|tool_call)>.*?</\1>", re.DOTALL)

MAX_INPUT_CHARS = 1_000_000
"""Maximum characters of input for a running turn; app-server accepts a few more."""


class ThreadState(msgspec.Struct, frozen=True):
    """The state of a thread whose turn waits for results."""

    turn: str
    setting: bytes
    """A digest of the thread's parameters."""
    length: int
    """The number of entries of the request that began the turn."""
    history: bytes
    """The digest of these entries."""
    text: str
    calls: tuple[CallEntry, ...]
    requests: dict[str, tuple[Id, ...]]
    """The requests of app-server that wait for an answer, by call."""
    reported: Usage
    """The tokens reported to clients so far."""
    stand_ins: dict[str, str] = {}
    """The thread's ids of calls, by the ids under which clients know them, where these differ."""


class _WrittenTurn(msgspec.Struct, frozen=True):
    """A pending turn as it is passed between processes."""

    thread: str
    calls: tuple[CallKey, ...]
    state: ThreadState


_read_turn = msgspec.json.Decoder(_WrittenTurn).decode


def write_turn(turn: PendingTurn) -> bytes | None:
    """A pending turn for another process; None if it contains a lone surrogate, which cannot be encoded."""
    try:
        return msgspec.json.encode(turn)
    except UnicodeEncodeError:
        return None


def read_turn(written: bytes) -> PendingTurn | None:
    """A pending turn of another process; None if another version wrote it."""
    try:
        read = _read_turn(written)
    except msgspec.DecodeError:
        return None
    return PendingTurn(read.thread, read.calls, read.state)


class Continuation(msgspec.Struct, frozen=True):
    """The messages that continue a turn which waits for results."""

    turn: str
    answers: list[bytes]
    input: list[Json]
    """The user's input in addition to the results."""
    reported: Usage
    answered: frozenset[str]


def digest(entries: Sequence[Entry]) -> bytes:
    """A digest of a history's content, without the details that differ between clients."""

    def list_contents(parts: Sequence[Part]) -> list[Any]:
        return [part.text if isinstance(part, TextPart) else part for part in parts]

    compared: list[Any] = []
    for entry in entries:
        match entry:
            case Message(role, parts):
                compared.append((role, list_contents(parts)))
            case CallEntry(id, name, arguments, kind, namespace):
                compared.append((id, name, arguments, kind, namespace))
            case ResultEntry(call_id, parts, kind):
                compared.append((call_id, list_contents(parts), kind, entry.failed))
            case _:
                compared.append(entry)
    return sha256(msgspec.json.encode(compared)).digest()


def drop_reasoning(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without reasoning: not every client returns it, and the thread has its own."""
    return [entry for entry in entries if not isinstance(entry, ReasoningEntry)]


def find_continuation(state: ThreadState, entries: Sequence[Entry], setting: bytes) -> Continuation | None:
    """The messages that continue the thread's turn; None if the request does not continue it."""
    history = drop_reasoning(entries)
    before, after = history[: state.length], history[state.length :]
    if setting != state.setting or len(before) < state.length or digest(before) != state.history:
        return None
    for index, entry in enumerate(after):  # the thread has its own ids of some calls
        if isinstance(entry, CallEntry) and entry.id in state.stand_ins:
            after[index] = msgspec.structs.replace(entry, id=state.stand_ins[entry.id])
        elif isinstance(entry, ResultEntry) and entry.call_id in state.stand_ins:
            after[index] = msgspec.structs.replace(entry, call_id=state.stand_ins[entry.call_id])
    text, calls, results, input = _split(after)
    if input is None or not _is_same_turn(state, text, calls):
        return None
    answered: Json = {}
    for call, result in results.items():
        items = _encode_parts(result.parts_with_error, _RESULT)
        if items is None:
            return None
        items = items or [{"type": "inputText", "text": ""}]
        answered[call] = {"contentItems": items, "success": not result.failed}
    if not answered or set(answered) != {call.id for call in calls}:
        return None
    answers = [
        jsonrpc.write_answer(id, answered[call] if call in answered else encode_failed_call(WITHHELD))
        for call, ids in state.requests.items()
        for id in ids
    ]
    return Continuation(state.turn, answers, input, state.reported, frozenset(state.requests))


def _split(after: Sequence[Entry]) -> tuple[str, list[CallEntry], dict[str, ResultEntry], list[Any] | None]:
    """The model's text, its calls, their results and the user's input, which is None if there is anything else."""
    texts, calls, results, input = list[str](), list[CallEntry](), dict[str, ResultEntry](), list[Any]()
    for entry in after:
        if isinstance(entry, Message) and entry.role == "assistant" and not results:
            texts += [part.text for part in entry.parts if isinstance(part, TextPart | RefusalPart)]
        elif isinstance(entry, CallEntry) and not input:
            calls.append(entry)
        elif isinstance(entry, ResultEntry) and not input:
            results[entry.call_id] = entry
        elif (
            isinstance(entry, Message)
            and entry.role == "user"
            and (parts := _encode_parts(entry.parts, _INPUT)) is not None
        ):
            input += parts
        else:
            return "".join(texts), calls, results, None
    fits = sum(len(part.get("text", "")) for part in input) <= MAX_INPUT_CHARS
    return "".join(texts), calls, results, input if fits else None


def _is_same_turn(state: ThreadState, text: str, calls: list[CallEntry]) -> bool:
    """Whether the model wrote this text and made these calls.

    A client may omit the text or its end, and calls that it did not get. Calls written as text are ignored, because one
    side may have read them as calls. White space between messages varies.
    """
    shown, known = ("".join(_BLOCK.sub(" ", each).split()) for each in (text, state.text))
    if not known.startswith(shown):
        return False
    made = {call.id: call for call in state.calls}
    return all(
        call.id in made
        and call.name == made[call.id].name
        and is_same_json(_or_empty_object(call.arguments), _or_empty_object(made[call.id].arguments))
        for call in calls
    )


def _or_empty_object(arguments: str) -> str:
    """The arguments, or what clients get in place of blank ones."""
    return "{}" if is_blank(arguments) else arguments


_INPUT, _RESULT = ("text", "image", "url"), ("inputText", "inputImage", "imageUrl")
"""The type of a text, the type of an image, and the field of its URL: in a user's input, and in a result."""


def _encode_parts(parts: Sequence[Part], words: tuple[str, str, str]) -> list[dict[str, str]] | None:
    """The parts as app-server accepts them: text, and images with their bytes. None if there is anything else."""
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
