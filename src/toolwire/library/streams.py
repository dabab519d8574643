"""Streams: bytes of any dialect to turn events, events to bytes, and bytes of one dialect to those of another.

Each exists twice. A function takes an iterable and gives an iterator, which yields as soon as there is something; a
class has `feed` and `end`, for whoever owns a loop. The result is the same however the bytes are cut.
"""

from collections.abc import Iterable, Iterator
from typing import Unpack

from toolwire.core.collect import Turn
from toolwire.core.collect import collect as fold
from toolwire.core.events import Dialect, Event, TurnEnded
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.library.options import DecodeOptions, EncodeOptions, TranslateOptions, check_options
from toolwire.library.reply import Once, TurnStream, checked_chunks, checked_dialect, plan_of
from toolwire.library.writer import Heading, TurnWriter, checked_reason, completing, new_seed, written_for


class StreamDecoder(Once):
    """Bytes of one stream in, turn events out.

    A fault of the stream, such as its early end, is a `TurnFailed`. Bytes of another dialect raise `WrongDialect`.
    """

    def __init__(self, dialect: Dialect, **options: Unpack[DecodeOptions]) -> None:
        check_options(options, DecodeOptions)
        plan = plan_of(checked_dialect(dialect), options)
        self._reader = TurnStream(plan, options.get("seed") or new_seed())

    @property
    def ended(self) -> bool:
        """Whether the turn is over. Bytes that come later are not part of it, and cause nothing."""
        return self._reader.ended

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        return [*self._reader.feed(self._take(data))]

    def end(self) -> list[Event]:
        """The events that the end of the stream causes. Afterwards nothing may be fed."""
        self._finish()
        return [*self._reader.end()]


class StreamEncoder(Once):
    """Turn events in, bytes of one stream out. Events in an illegal order raise `OutOfOrder`."""

    def __init__(self, dialect: Dialect, **options: Unpack[EncodeOptions]) -> None:
        check_options(options, EncodeOptions)
        dialect = checked_dialect(dialect)
        stats = TurnStats()
        self._order = TurnOrder()
        self._policies = completing(stats)
        request = written_for(Request("", (), stream=True), options)
        self._writer = TurnWriter(dialect, request, Heading.of(dialect, options, new_seed()), stats)

    def feed(self, event: Event) -> bytes:
        """The bytes of this event, of which there may be none."""
        self._check_open()
        self._order.see((event,))
        if isinstance(event, TurnEnded):
            checked_reason(event.reason)
        return self._writer.feed(self._policies.feed(event))

    def end(self) -> bytes:
        """The last bytes. Raises `OutOfOrder` if the turn has not ended."""
        self._finish()
        self._order.end()
        return b""


class Translator(Once):
    """Bytes of a stream of one dialect in, bytes of the same turn in another dialect out.

    From a dialect to itself, fields that have no place in turn events survive.
    """

    def __init__(self, source: Dialect, target: Dialect, **options: Unpack[TranslateOptions]) -> None:
        check_options(options, TranslateOptions)
        plan, target = plan_of(checked_dialect(source), options), checked_dialect(target)
        seed = options.get("seed") or new_seed()
        self._reader = TurnStream(plan, seed, target)
        heading, request = Heading.of(target, options, seed), written_for(plan.request, options)
        self._writer = TurnWriter(target, request, heading, self._reader.assembly.stats)

    @property
    def ended(self) -> bool:
        """Whether the turn is over. Bytes that come later are not part of it, and cause nothing."""
        return self._reader.ended

    def feed(self, data: bytes) -> bytes:
        """What these bytes become, which may be nothing yet."""
        return self._writer.feed(self._reader.feed(self._take(data)))

    def end(self) -> bytes:
        """The last bytes. Afterwards nothing may be fed."""
        self._finish()
        return self._writer.feed(self._reader.end())


def decode_stream(dialect: Dialect, chunks: Iterable[bytes], **options: Unpack[DecodeOptions]) -> Iterator[Event]:
    """The turn events of a stream, each as soon as its bytes are there.

    It ends with the turn: what follows in `chunks` is not read. A fault of the stream, such as its early end, is a
    `TurnFailed`. Bytes of another dialect raise `WrongDialect`.
    """
    return _decoded(StreamDecoder(dialect, **options), checked_chunks(chunks))


def _decoded(decoder: StreamDecoder, chunks: Iterable[bytes]) -> Iterator[Event]:
    for chunk in chunks:
        yield from decoder.feed(chunk)
        if decoder.ended:
            return
    yield from decoder.end()


def encode_stream(dialect: Dialect, events: Iterable[Event], **options: Unpack[EncodeOptions]) -> Iterator[bytes]:
    """The bytes of a stream with these events, in pieces. Raises `OutOfOrder` unless they are one whole turn."""
    return _encoded(StreamEncoder(dialect, **options), events)


def _encoded(encoder: StreamEncoder, events: Iterable[Event]) -> Iterator[bytes]:
    for event in events:
        if data := encoder.feed(event):
            yield data
    encoder.end()


def translate(
    source: Dialect, target: Dialect, chunks: Iterable[bytes], **options: Unpack[TranslateOptions]
) -> Iterator[bytes]:
    """A stream of one dialect as a stream of another, each piece as soon as its bytes are there.

    It is what the gateway sends to a client of the target for such a reply. It ends with the turn.
    """
    return _translated(Translator(source, target, **options), checked_chunks(chunks))


def _translated(translator: Translator, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if data := translator.feed(chunk):
            yield data
        if translator.ended:
            return
    if data := translator.end():
        yield data


def collect(events: Iterable[Event]) -> Turn:
    """The whole turn that these events are. Raises `OutOfOrder` unless they are one, from its start to its end."""
    return fold(_in_order(events))


def _in_order(events: Iterable[Event]) -> Iterator[Event]:
    order = TurnOrder()
    for event in events:
        yield from order.feed(event)
    order.end()
