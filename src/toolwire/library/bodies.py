"""Plain bodies: an answer in one piece, which is the same turn as its stream."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, Unpack, cast

import msgspec

from toolwire.core.collect import Turn, events_of
from toolwire.core.collect import collect as fold
from toolwire.core.errors import Failure, ToolwireError
from toolwire.core.events import Dialect
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.core.surrogates import join_surrogates
from toolwire.library.options import DecodeOptions, EncodeOptions, TranslateOptions, check_options
from toolwire.library.reply import TurnStream, checked_dialect, plan_of
from toolwire.library.writer import Heading, checked_reason, completing, new_seed, write_turn, written_for
from toolwire.protocols import dialects

Body: TypeAlias = bytes | str | Mapping[str, Any]
"""A JSON document: its bytes, its text, or the object that was read from it."""


def as_bytes(body: Body) -> bytes:
    """A body as the bytes of its JSON. Raises `TypeError` for what is none."""
    match cast("Any", body):
        case bytes() | bytearray() | memoryview():
            return bytes(cast("bytes", body))
        case str():
            return join_surrogates(cast("str", body)).encode()
        case Mapping():
            return _encoded(cast("Mapping[str, Any]", body))
        case _:
            raise TypeError(f"a body must be bytes, text or a mapping, not {type(body).__name__}")


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # half a character, which a reader of the bytes replaces
        return json.dumps(body).encode()


def decode_body(dialect: Dialect, body: Body, **options: Unpack[DecodeOptions]) -> Turn:
    """The turn in an answer that is not streamed. That of an error object, or of no answer at all, has a `failure`."""
    check_options(options, DecodeOptions)
    plan = plan_of(checked_dialect(dialect), options)
    return fold(TurnStream(plan, options.get("seed") or new_seed()).feed_plain(as_bytes(body)))


def encode_body(dialect: Dialect, turn: Turn, **options: Unpack[EncodeOptions]) -> bytes:
    """A turn as an answer that is not streamed; one that failed as the error object of the dialect."""
    check_options(options, EncodeOptions)
    dialect = checked_dialect(dialect)
    if not isinstance(cast("object", turn), Turn):
        raise TypeError(f"a Turn is needed, not {type(turn).__name__}; `collect` makes one of events")
    heading = Heading.of(dialect, options, new_seed())
    checked_reason(turn.reason)
    whole = fold(completing(TurnStats()).feed_all([*events_of(turn)]))
    return write_turn(dialect, whole, written_for(Request("", ()), options), heading)


def translate_body(source: Dialect, target: Dialect, body: Body, **options: Unpack[TranslateOptions]) -> bytes:
    """An answer of one dialect, not streamed, as that of another."""
    check_options(options, TranslateOptions)
    plan, target = plan_of(checked_dialect(source), options), checked_dialect(target)
    seed = options.get("seed") or new_seed()
    turn = fold(TurnStream(plan, seed, target).feed_plain(as_bytes(body)))
    return write_turn(target, turn, written_for(plan.request, options), Heading.of(target, options, seed))


def encode_error(dialect: Dialect, failure: Failure | ToolwireError) -> bytes:
    """The error object of a dialect for a failure, or for an error, for an answer with the status of its failure."""
    said = failure.failure if isinstance(failure, ToolwireError) else failure
    return dialects()[checked_dialect(dialect)].module.encode_error(said)
