"""Reads the content of one block incrementally, for any notation.

The name is available as soon as it is complete, argument text as soon as it is certain; only a possible marker is held
back. A block may hold several calls: `made` is set after each, before the next starts.
"""

from toolwire.notations.draft import Draft
from toolwire.notations.json_body import read_arguments, read_object
from toolwire.notations.source import Malformed, ReadSteps, Source
from toolwire.notations.table import Channel, Head, Notation, Opener, Wrapper
from toolwire.notations.tag_body import read_tags
from toolwire.notations.values import Schemas


class Block:
    """One open block and the call in it that is being read."""

    def __init__(self, opener: Opener, schemas: Schemas, names: frozenset[str] | None) -> None:
        self._schemas = schemas
        self._names = names
        self._source = Source()
        self._ending = ""  # the closing marker of a list of calls, while the reader is between two calls
        self.call = Draft(schemas, names)
        self.made = False  # the call is whole, and the next one has not started
        self.closed = False
        self.channel: Channel | None = None  # set if the block is not a call but decides where text after it goes
        self._steps = self._read_wrapped(opener) if isinstance(opener, Wrapper) else self._read_single(opener)

    def feed(self, text: str, start: int = 0) -> None:
        """Continue until more text is needed, a call is made or the block is closed. Raises `Malformed`."""
        self._source.feed(text, start)
        if self.made:
            self.made = False
            self.call = Draft(self._schemas, self._names)
        try:
            next(self._steps)
        except StopIteration:
            self.closed = True

    @property
    def position(self) -> tuple[str, int]:
        """The text that was fed last, and the offset up to which it was read."""
        return self._source.position

    @property
    def is_complete_row(self) -> bool:
        """Whether only the end of a list of calls is missing."""
        return bool(self._ending) and self._ending.startswith(self._source.unread)

    def _read_single(self, notation: Notation) -> ReadSteps:
        """Read one call, or a list of calls."""
        source = self._source
        first = yield from source.peek_char()
        if first != "[" or not notation.listed:
            yield from self._read_call(notation, first)
            self.made = self.channel is None
            return
        yield from source.read(1)
        while (char := (yield from source.peek_char())) != "]":
            if char == "{":
                self._ending = ""
                yield from read_object(source, self.call)
                self._complete()
                yield from self._finish_call_in_row("]")
            elif char == "," and self._ending:
                yield from source.read(1)
            else:
                raise Malformed("not a list of calls")
        yield from source.read(1)
        if not self._ending:
            raise Malformed("no call")

    def _read_wrapped(self, wrapper: Wrapper) -> ReadSteps:
        calls = {each.open: each for each in wrapper.calls}
        markers = (wrapper.close, *calls)
        while True:
            yield from self._source.peek_char()
            marker = yield from self._source.read_one_of(markers)
            if marker == wrapper.close:
                break
            self._ending = ""
            yield from self._read_call(calls[marker], (yield from self._source.peek_char()))
            yield from self._finish_call_in_row(wrapper.close)
        if not self._ending:
            raise Malformed("no call")

    def _finish_call_in_row(self, ending: str) -> ReadSteps:
        """Mark the call as made; another may follow."""
        self._ending = ending
        self.made = True
        yield

    def _read_call(self, notation: Notation, first: str) -> ReadSteps:
        source, call = self._source, self.call
        if first == "{" and notation.json:
            yield from read_object(source, call)
        elif first == "<" and notation.tags:
            yield from read_tags(source, call, notation.tags, notation.close)
        elif notation.head is not None and (self._names is not None or not notation.head.declared):
            yield from self._read_head(notation, notation.head)
            if self.channel is not None:
                return
        else:
            raise Malformed("no name")
        self._complete()
        if not notation.close:
            return
        if (yield from source.peek_char()) in "}]>":  # a stray bracket
            yield from source.read(1)
            call.repaired = True
            yield from source.peek_char()
        yield from source.read_one_of((notation.close,))

    def _complete(self) -> None:
        if not self.call.name:
            raise Malformed("no name")
        self.call.whole = True

    def _read_head(self, notation: Notation, head: Head) -> ReadSteps:
        source, call = self._source, self.call
        text, marker = yield from source.read_until(head.end, head.stop)
        if marker == head.stop:
            source.step_back(marker)
        found = head.pattern.fullmatch(text)
        if found is None:
            raise Malformed("no name")
        if not found["name"] and head.channels:
            self.channel = head.channels.get(found["channel"] or "")
            if self.channel is None:
                raise Malformed("no such channel")
            return
        first = yield from source.peek_char()
        if first == "{" and head.json:
            call.settle_name(found["name"])
            yield from read_arguments(source, call, first)
        elif first == "<" and head.tags is not None:
            call.settle_name(found["name"])
            yield from read_tags(source, call, (head.tags,), notation.close)
        else:
            raise Malformed("no arguments")
