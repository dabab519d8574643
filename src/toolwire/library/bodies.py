"""Plain bodies: replies without streaming, which become the same turns as streams."""

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
from toolwire.core.text import join_surrogates
from toolwire.library.options import DecodeOptions, EncodeOptions, TranslateOptions, check_options, choose_seed
from toolwire.library.reply import TurnStream, check_dialect, plan_reply
from toolwire.library.writer import TurnWriter, check_reason, make_completion_policies
from toolwire.protocols import dialects

Body: TypeAlias = bytes | str | Mapping[str, Any]
"""A JSON document: its bytes, its text, or the decoded object."""


def as_bytes(body: Body) -> bytes:
    """A body as the bytes of its JSON. Raises `TypeError` for any other type."""
    match cast("Any", body):
        case bytes() | bytearray() | memoryview():
            return bytes(cast("bytes", body))
        case str():
            return join_surrogates(cast("str", body)).encode()
        case Mapping():
            try:
                return msgspec.json.encode(body)
            except UnicodeEncodeError:  # a lone surrogate, which decoders replace
                return json.dumps(body).encode()
        case _:
            raise TypeError(f"a body must be bytes, text or a mapping, not {type(body).__name__}")


def decode_body(dialect: Dialect, body: Body, **options: Unpack[DecodeOptions]) -> Turn:
    """Decode a reply without streaming. For an error object or an empty reply the turn has a `failure`."""
    check_options(options, DecodeOptions)
    plan = plan_reply(dialect, options)
    return fold(TurnStream(plan, choose_seed(options)).feed_plain(as_bytes(body)))


def encode_body(dialect: Dialect, turn: Turn, **options: Unpack[EncodeOptions]) -> bytes:
    """Encode a turn as a reply without streaming; a failed turn becomes the dialect's error object."""
    check_options(options, EncodeOptions)
    dialect = check_dialect(dialect)
    if not isinstance(cast("object", turn), Turn):
        raise TypeError(f"a Turn is needed, not {type(turn).__name__}; `collect` makes one from events")
    check_reason(turn.reason)
    stats = TurnStats()
    whole = fold(make_completion_policies(stats).feed_all([*events_of(turn)]))
    return TurnWriter(dialect, Request("", ()), options, choose_seed(options), stats).write(whole)


def translate_body(source: Dialect, target: Dialect, body: Body, **options: Unpack[TranslateOptions]) -> bytes:
    """Translate a reply without streaming from one dialect to another."""
    check_options(options, TranslateOptions)
    plan, target, seed = plan_reply(source, options), check_dialect(target), choose_seed(options)
    stream = TurnStream(plan, seed, target)
    turn = fold(stream.feed_plain(as_bytes(body)))
    return TurnWriter(target, plan.request, options, seed, stream.assembly.stats).write(turn)


def encode_error(dialect: Dialect, failure: Failure | ToolwireError) -> bytes:
    """Encode a failure, or that of an exception, as the dialect's error object. Send it with `failure.status`."""
    if isinstance(failure, ToolwireError):
        failure = failure.failure
    return dialects()[check_dialect(dialect)].module.encode_error(failure)
