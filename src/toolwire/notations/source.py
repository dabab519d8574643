"""The text of an open block, and ways to read it that wait for more where they must.

Readers are generators that yield when they lack text, so they read top to bottom. Nothing long is read twice.
"""

import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import TypeAlias

LIMIT = 1024 * 1024
"""Most characters one undivided piece of a block (a name, a tag, a typed value) may have."""

SHORT = 256
"""Most characters a name, a tag or a head may have."""

_SPACE = re.compile(r"\s*")

Steps: TypeAlias = Generator[None, None, None]


class Malformed(Exception):
    """The block is not a call."""


class Source:
    """Text that was fed and a place in it."""

    def __init__(self) -> None:
        self._text: str = ""
        self._place: int = 0

    def feed(self, text: str, start: int = 0) -> None:
        """More text, from this place on. Where all before it was read, nothing is copied."""
        if start == len(text):
            return
        if self._place < len(self._text):
            text, start = self._text[self._place :] + text[start:], 0
        self._text, self._place = text, start

    def where(self) -> tuple[str, int]:
        """The text and the place in it."""
        return self._text, self._place

    def unread(self) -> str:
        """What was fed and not read."""
        return self._text[self._place :]

    def back(self, text: str) -> None:
        """Put back what was read last."""
        self._place -= len(text)

    def next_char(self) -> Generator[None, None, str]:
        """The next character that is no white space. It is not read yet."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            yield

    def take(self, count: int) -> Generator[None, None, str]:
        while len(self._text) - self._place < count:
            yield
        self._place += count
        return self._text[self._place - count : self._place]

    def until(self, *markers: str) -> Generator[None, None, tuple[str, str]]:
        """Everything before the first of these markers, which must not be far, and that marker; reads past it."""
        longest = max(map(len, markers))
        while True:
            reach = self._place + SHORT + longest
            found = first_of(self._text, markers, self._place, reach)
            if found is not None:
                end, marker = found
                before = self._text[self._place : end]
                self._place = end + len(marker)
                return before, marker
            if len(self._text) >= reach:
                raise Malformed("too long")
            yield

    def one_of(self, markers: Sequence[str]) -> Generator[None, None, str]:
        """The marker that stands here; reads past it."""
        while True:
            for marker in markers:
                if self._text.startswith(marker, self._place):
                    self._place += len(marker)
                    return marker
            rest = self._text[self._place : self._place + SHORT]
            if not any(marker.startswith(rest) for marker in markers):
                raise Malformed("text between calls" if len(markers) > 1 else "text after the call")
            yield

    def find(self, pattern: re.Pattern[str], sink: list[str]) -> Generator[None, None, str]:
        """Move behind the next match, keeping what stands before it."""
        while True:
            found = pattern.search(self._text, self._place)
            end = found.start() if found else len(self._text)
            if end > self._place:
                sink.append(self._text[self._place : end])
            if found:
                self._place = found.end()
                return found[0]
            self._place = end
            yield

    def piece(self, *markers: str) -> tuple[str, str]:
        """As much text as is certain, and the marker that ended it, if one did."""
        start = self._place
        found = first_of(self._text, markers, start)
        end, marker = found or (len(self._text) - overlap(self._text, markers, start), "")
        self._place = end + len(marker)
        return self._text[start:end], marker


def first_of(text: str, markers: Sequence[str], start: int = 0, end: int | None = None) -> tuple[int, str] | None:
    """The first place of one of the markers, and that marker."""
    found: tuple[int, str] | None = None
    for marker in markers:
        # What lies behind a marker that was found is not looked at: it may be long, and is read after that one.
        place = text.find(marker, start, end if found is None else found[0] + len(marker) - 1) if marker else -1
        if place >= 0:
            found = place, marker
    return found


@lru_cache(maxsize=64)
def _any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))


def overlap(text: str, markers: Sequence[str], start: int = 0) -> int:
    """How many of the last characters could be the beginning of a marker."""
    return max((_overlap(text, marker, start) for marker in markers), default=0)


def _overlap(text: str, marker: str, start: int) -> int:
    for length in range(min(len(marker) - 1, len(text) - start), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class Until:
    """A stage that lets text flow up to the first of some markers; only what could become one waits."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._pattern = _any_of(markers)
        self._held = ""

    def feed(self, text: str, start: int = 0) -> tuple[str, str, str, int]:
        """The text before a marker, the marker (or nothing), and where to go on: a text, and the place in it."""
        if self._held:
            text, start, self._held = self._held + text[start:], 0, ""
        found = self._pattern.search(text, start)
        if found is not None:
            return text[start : found.start()], found[0], text, found.end()
        end = len(text) - overlap(text, self._markers, start)
        self._held = text[end:]
        return text[start:end], "", text, len(text)

    def end(self) -> str:
        held, self._held = self._held, ""
        return held
