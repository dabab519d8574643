"""Reads the text of an open block or of open reasoning incrementally.

Readers are generators that yield when they need more text. Nothing long is scanned twice.
"""

import re
from collections.abc import Generator, Sequence
from typing import TypeAlias

MAX_UNIT_CHARS = 1024 * 1024
"""Maximum characters of one unit of a block, such as a typed value."""

MAX_NAME_CHARS = 256
"""Maximum characters of a name, a tag or a head."""

_SPACE = re.compile(r"\s*")

ReadSteps: TypeAlias = Generator[None, None, None]
"""A reader that yields when it needs more text."""


class Malformed(Exception):
    """The block is not a call."""


class Source:
    """The text that was fed and an offset in it."""

    def __init__(self) -> None:
        self._text: str = ""
        self._offset: int = 0

    def feed(self, text: str, start: int = 0) -> None:
        """Add text, from this offset on. If all earlier text was read, nothing is copied."""
        if start == len(text):
            return
        if self._offset < len(self._text):
            text, start = self._text[self._offset :] + text[start:], 0
        self._text, self._offset = text, start

    @property
    def position(self) -> tuple[str, int]:
        """The text, and the offset up to which it was read."""
        return self._text, self._offset

    @property
    def unread(self) -> str:
        """The text that was fed and not read."""
        return self._text[self._offset :]

    def step_back(self, text: str) -> None:
        """Mark this text, which was read last, as unread."""
        self._offset -= len(text)

    def peek_char(self) -> Generator[None, None, str]:
        """Skip white space and return the next character without reading it."""
        while True:
            found = _SPACE.match(self._text, self._offset)
            self._offset = found.end() if found else self._offset
            if self._offset < len(self._text):
                return self._text[self._offset]
            yield

    def read(self, count: int) -> Generator[None, None, str]:
        """Read this many characters."""
        while len(self._text) - self._offset < count:
            yield
        self._offset += count
        return self._text[self._offset - count : self._offset]

    def read_until(self, *markers: str) -> Generator[None, None, tuple[str, str]]:
        """Read a short text up to and including the first of these markers; returns both."""
        longest = max(map(len, markers))
        while True:
            reach = self._offset + MAX_NAME_CHARS + longest
            found = find_first(self._text, markers, self._offset, reach)
            if found is not None:
                end, marker = found
                before = self._text[self._offset : end]
                self._offset = end + len(marker)
                return before, marker
            if len(self._text) >= reach:
                raise Malformed("too long")
            yield

    def read_one_of(self, markers: Sequence[str]) -> Generator[None, None, str]:
        """Read the next text, which must be one of these markers."""
        while True:
            for marker in markers:
                if self._text.startswith(marker, self._offset):
                    self._offset += len(marker)
                    return marker
            rest = self._text[self._offset : self._offset + MAX_NAME_CHARS]
            if not any(marker.startswith(rest) for marker in markers):
                raise Malformed("text between calls" if len(markers) > 1 else "text after the call")
            yield

    def read_to(self, pattern: re.Pattern[str], sink: list[str]) -> Generator[None, None, str]:
        """Read up to and including the next match; the text before it goes to `sink`."""
        while True:
            found = pattern.search(self._text, self._offset)
            end = found.start() if found else len(self._text)
            if end > self._offset:
                sink.append(self._text[self._offset : end])
            if found:
                self._offset = found.end()
                return found[0]
            self._offset = end
            yield

    def read_piece(self, *markers: str) -> tuple[str, str]:
        """Read as much text as is certainly not a marker, and the marker that ends it, if it is there."""
        start = self._offset
        found = find_first(self._text, markers, start)
        end, marker = found or (len(self._text) - measure_overlap(self._text, markers, start), "")
        self._offset = end + len(marker)
        return self._text[start:end], marker


def find_first(text: str, markers: Sequence[str], start: int = 0, end: int | None = None) -> tuple[int, str] | None:
    """The offset of the first marker in the text, and that marker."""
    found: tuple[int, str] | None = None
    for marker in markers:
        # Text after a marker that was found is not searched: it may be long, and is read later.
        offset = text.find(marker, start, end if found is None else found[0] + len(marker) - 1) if marker else -1
        if offset >= 0:
            found = offset, marker
    return found


def measure_overlap(text: str, markers: Sequence[str], start: int = 0) -> int:
    """The number of characters at the end that may begin a marker."""
    longest = 0
    for marker in markers:
        offset = text.find(marker[0], max(start, len(text) - len(marker) + 1))
        while offset >= 0 and not marker.startswith(text[offset:]):
            offset = text.find(marker[0], offset + 1)
        longest = max(longest, len(text) - offset if offset >= 0 else 0)
    return longest
