"""Plain bodies: an answer in one piece, which is the same turn as its stream."""

from collections.abc import Mapping
from typing import Any, TypeAlias, Unpack

import msgspec

from toolwire.core.collect import Turn, events_of
from toolwire.core.collect import collect as fold
from toolwire.core.errors import Failure
from toolwire.core.events import Dialect
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.dialects import chat, messages, responses
from toolwire.library.options import DecodeOptions, EncodeOptions, TranslateOptions, check_names
from toolwire.library.reply import TurnReader, checked_dialect, plan_of
from toolwire.library.writer import Heading, completing, new_seed, write_turn, written_for

Body: TypeAlias = bytes | str | Mapping[str, Any]
"""A JSON document: its bytes, its text, or the object that was read from it."""


def as_bytes(body: Body) -> bytes:
    """A body as the bytes of its JSON."""
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def decode_body(dialect: Dialect, body: Body, **options: Unpack[DecodeOptions]) -> Turn:
    """The turn in an answer that is not streamed. That of an error object, or of no answer at all, has a `failure`."""
    check_names(options, DecodeOptions)
    plan = plan_of(checked_dialect(dialect), options)
    return fold(TurnReader(plan, options.get("seed") or new_seed()).feed_plain(as_bytes(body)))


def encode_body(dialect: Dialect, turn: Turn, **options: Unpack[EncodeOptions]) -> bytes:
    """A turn as an answer that is not streamed; one that failed as the error object of the dialect."""
    check_names(options, EncodeOptions)
    dialect = checked_dialect(dialect)
    heading = Heading.of(dialect, options, new_seed())
    whole = fold(completing(TurnStats()).feed_all([*events_of(turn)]))
    return write_turn(dialect, whole, written_for(Request("", ()), options), heading)


def translate_body(source: Dialect, target: Dialect, body: Body, **options: Unpack[TranslateOptions]) -> bytes:
    """An answer of one dialect, not streamed, as that of another."""
    check_names(options, TranslateOptions)
    plan, target = plan_of(checked_dialect(source), options), checked_dialect(target)
    seed = options.get("seed") or new_seed()
    turn = fold(TurnReader(plan, seed, target).feed_plain(as_bytes(body)))
    return write_turn(target, turn, written_for(plan.request, options), Heading.of(target, options, seed))


def encode_error(dialect: Dialect, failure: Failure) -> bytes:
    """The error object of a dialect, for an answer with the status of the failure."""
    return {"chat": chat, "responses": responses, "messages": messages}[checked_dialect(dialect)].encode_error(failure)
