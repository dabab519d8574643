"""Streams: bytes of any dialect to turn events, events to bytes, and bytes of one dialect to those of another.

Each operation has two forms: a function from an iterable to an iterator, which yields output as early as possible, and
a class with `feed` and `end` for callers with a loop of their own. The chunk boundaries do not change the result.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from toolwire.core.collect import Turn
from toolwire.core.collect import collect as fold
from toolwire.core.errors import FedAfterEnd
from toolwire.core.events import Dialect, Event, TurnEnded
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.library.options import DecodeOptions, EncodeOptions, TranslateOptions, check_options, choose_seed
from toolwire.library.reply import TurnStream, check_chunk, check_chunks, check_dialect, plan_reply
from toolwire.library.writer import TurnWriter, check_reason, make_completion_policies


class _PushObject:
    """Base of the classes with `feed` and `end`: nothing may be fed after the end."""

    _is_over = False

    def _check_open(self) -> None:
        if self._is_over:
            raise FedAfterEnd(type(self).__name__)

    def _close(self) -> None:
        self._check_open()
        self._is_over = True


class StreamDecoder(_PushObject):
    """Bytes of one stream in, turn events out.

    A fault of the stream, such as a truncation, becomes a `TurnFailed`. Bytes of another dialect raise `WrongDialect`.
    """

    def __init__(self, dialect: Dialect, **options: Unpack[DecodeOptions]) -> None:
        check_options(options, DecodeOptions)
        self._reader = TurnStream(plan_reply(dialect, options), choose_seed(options))

    @property
    def ended(self) -> bool:
        """Whether the turn is over. Later bytes are ignored."""
        return self._reader.ended

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        self._check_open()
        return [*self._reader.feed(check_chunk(data))]

    def end(self) -> list[Event]:
        """The events caused by the end of the stream. Nothing may be fed afterwards."""
        self._close()
        return [*self._reader.end()]


class StreamEncoder(_PushObject):
    """Turn events in, bytes of one stream out. Events in an illegal order raise `OutOfOrder`."""

    def __init__(self, dialect: Dialect, **options: Unpack[EncodeOptions]) -> None:
        check_options(options, EncodeOptions)
        stats = TurnStats()
        request = Request("", (), stream=True)
        self._order = TurnOrder()
        self._policies = make_completion_policies(stats)
        self._writer = TurnWriter(check_dialect(dialect), request, options, choose_seed(options), stats)

    def feed(self, event: Event) -> bytes:
        """The bytes of this event; may be empty."""
        self._check_open()
        self._order.check((event,))
        if isinstance(event, TurnEnded):
            check_reason(event.reason)
        return self._writer.feed(self._policies.feed(event))

    def end(self) -> bytes:
        """The last bytes. Raises `OutOfOrder` if the turn has not ended."""
        self._close()
        self._order.end()
        return b""


class Translator(_PushObject):
    """Bytes of a stream of one dialect in, bytes of the same turn in another dialect out.

    From a dialect to itself, fields that turn events cannot express are kept.
    """

    def __init__(self, source: Dialect, target: Dialect, **options: Unpack[TranslateOptions]) -> None:
        check_options(options, TranslateOptions)
        plan, target, seed = plan_reply(source, options), check_dialect(target), choose_seed(options)
        self._reader = TurnStream(plan, seed, target)
        self._writer = TurnWriter(target, plan.request, options, seed, self._reader.assembly.stats)

    @property
    def ended(self) -> bool:
        """Whether the turn is over. Later bytes are ignored."""
        return self._reader.ended

    def feed(self, data: bytes) -> bytes:
        """The translation of these bytes; may be empty."""
        self._check_open()
        return self._writer.feed(self._reader.feed(check_chunk(data)))

    def end(self) -> bytes:
        """The last bytes. Nothing may be fed afterwards."""
        self._close()
        return self._writer.feed(self._reader.end())


def decode_stream(dialect: Dialect, chunks: Iterable[bytes], **options: Unpack[DecodeOptions]) -> Iterator[Event]:
    """Decode a stream to turn events; each is yielded as soon as its bytes have arrived.

    Stops when the turn ends, without reading the rest of `chunks`. A fault of the stream, such as a truncation, becomes
    a `TurnFailed`. Bytes of another dialect raise `WrongDialect`.
    """
    outputs = _push_all(StreamDecoder(dialect, **options), check_chunks(chunks))
    return (event for events in outputs for event in events)


def encode_stream(dialect: Dialect, events: Iterable[Event], **options: Unpack[EncodeOptions]) -> Iterator[bytes]:
    """Encode the events of one whole turn as a stream, in pieces. Raises `OutOfOrder` for any other events."""
    encoder = StreamEncoder(dialect, **options)

    def encode() -> Iterator[bytes]:
        for event in events:
            if data := encoder.feed(event):
                yield data
        encoder.end()

    return encode()


def translate(
    source: Dialect, target: Dialect, chunks: Iterable[bytes], **options: Unpack[TranslateOptions]
) -> Iterator[bytes]:
    """Translate a stream from one dialect to another; each piece is yielded as soon as its bytes have arrived.

    The output is what the gateway would send to a client of the target dialect. Stops when the turn ends.
    """
    outputs = _push_all(Translator(source, target, **options), check_chunks(chunks))
    return (data for data in outputs if data)


def _push_all(push: StreamDecoder | Translator, chunks: Iterable[bytes]) -> Iterator[Any]:
    """The outputs of a push object for these chunks, until the turn ends."""
    for chunk in chunks:
        yield push.feed(chunk)
        if push.ended:
            return
    yield push.end()


def collect(events: Iterable[Event]) -> Turn:
    """Fold events into a turn. Raises `OutOfOrder` unless they are one turn, from its start to its end."""
    order = TurnOrder()

    def check() -> Iterator[Event]:
        for event in events:
            yield from order.feed(event)
        order.end()

    return fold(check())
