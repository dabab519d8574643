"""Limits on the size of one request. A large request is read in steps, so that other tasks can run in between.

Bytes alone do not limit time: a million empty objects take seconds where one string of the same size takes
milliseconds. So the values of a large body are counted before it is decoded, entries and tools while they are decoded.
A computation in steps is a generator that yields wherever it may be suspended.
"""

import re
import sys
from collections.abc import Generator, Iterable
from itertools import islice
from typing import TypeAlias, TypeVar

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.request import Message, Request, ResultEntry

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A computation that may be suspended at each of its yields."""

LARGE_BODY_BYTES = 128 * 1024
"""A body of at least this size is read in steps."""
BYTES_PER_STEP = 1024 * 1024
"""Bytes that are scanned in one step."""
ENTRIES_PER_STEP = 100
"""Entries that are decoded in one step."""

# A string, or the beginning of an unterminated one. Nothing backtracks, so the cost is linear.
_without_strings = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL).sub


class Bounds(msgspec.Struct, frozen=True):
    """The limits of one request."""

    body: int = 32_000_000
    """Bytes of the body, decompressed."""
    values: int = 150_000
    """JSON values, counted as commas and opening brackets."""
    entries: int = 10_000
    """Messages or items, their calls and the parts of their content."""
    tools: int = 2_000
    preamble: int = 8_000_000
    """Bytes outside the conversation: instructions, tools and other fields that a response may repeat."""
    reply: int = 64_000_000
    """Bytes of a reply that is collected."""

    def check_tools(self, count: int, field: str) -> None:
        """Refuse a request with too many tools."""
        if count > self.tools:
            message = f"{field}: {count} tools are more than the limit of {self.tools} (server.max_tools)."
            raise BadRequest(message, field, "too_many_tools")

    def check_preamble(self, size: int, field: str | None = None) -> None:
        """Refuse a request with too many bytes outside its conversation."""
        if size > self.preamble:
            what = field or "The request without its conversation"
            message = f"{what} has {size} bytes, which is more than the limit of {self.preamble} (server.max_preamble)."
            raise BadRequest(message, field, "request_too_large", status=413)


UNBOUNDED = Bounds(*[sys.maxsize] * len(Bounds.__struct_fields__))


def run_steps(steps: Steps[T]) -> T:
    """Run a computation without suspending it, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def check_values(body: bytes, limit: int) -> Steps[None]:
    """Refuse a body with more values than the limit, without decoding it."""
    seen = 0
    for start in range(0, len(body), BYTES_PER_STEP):
        seen += sum(body.count(mark, start, start + BYTES_PER_STEP) for mark in (b",", b"{", b"["))
        yield
        if seen > limit:
            break
    if seen <= limit:
        return
    # Some of the marks may be inside strings.
    seen, start, inside = 0, 0, b""
    while start < len(body):
        piece = body[start : start + BYTES_PER_STEP]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
            piece = piece[:-1]  # do not cut an escape
        start += len(piece)
        # If a string is open at the end, the quote closes it; otherwise it opens one that swallows the mark.
        outside = _without_strings(b"", inside + piece + b'"\x00')
        inside = b'"' if outside.endswith(b"\x00") else b""
        seen += sum(outside.count(mark) for mark in (b",", b"{", b"["))
        if seen > limit:
            message = f"The body holds more than the limit of {limit} JSON values (server.max_values)."
            raise BadRequest(message, code="request_too_large", status=413)
        yield


def take_bounded(entries: Iterable[T], limit: int, field: str) -> Steps[tuple[T, ...]]:
    """Take all entries; refuse more than the limit."""
    yield
    source = iter(entries)
    out: list[T] = []
    while more := list(islice(source, ENTRIES_PER_STEP)):
        out += more
        check_entries(len(out), limit, field)
        yield
    return tuple(out)


def check_parts(request: Request, limit: int) -> None:
    """Refuse a request whose entries have too many parts. The first part of each counts as the entry."""
    lists = (entry.parts for entry in request.entries if isinstance(entry, Message | ResultEntry))
    check_entries(len(request.entries) + sum(len(parts) - 1 for parts in lists if parts), limit, request.history_field)


def check_entries(count: int, limit: int, field: str) -> None:
    """Refuse a request with too many entries."""
    if count > limit:
        message = f"{field}: More than {limit} messages, items, calls and parts of content (server.max_entries)."
        raise BadRequest(message, field, "too_many_entries")
