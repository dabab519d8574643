"""Finds markers in streamed text, and holds back exactly the characters that may begin one.

Code is not scanned: neither fenced blocks nor inline spans. A span ends with its line, so that a stray backtick cannot
hide a call in the lines after it.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

_LINE_PREFIX = re.compile(r"[\s>*+\-0-9.)]*")


@lru_cache(maxsize=64)
def _compile_specials(markers: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns for one special character, or a run: a backtick, a tilde, a line end, a marker's first character."""
    first_chars = "".join(re.escape(char) for char in sorted({marker[0] for marker in markers}))
    return re.compile(rf"[`~\n{first_chars}]"), re.compile(rf"`+|~+|\n|[{first_chars}]")


class Scanner:
    """Splits text at markers. `feed` stops at the first one; what follows it is fed again after its block."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        special, self._special = _compile_specials(self._markers)
        self._find_special = special.search
        self._held = ""
        self._run = ""  # the backtick or tilde just read, which may continue
        self._run_length = 0
        self._run_opens_line = False
        self._fence = ""  # the character of an open fence
        self._fence_length = 0
        self._inline = 0
        self._fence_line = False  # the line that opened the fence continues
        self._indented = True  # the line so far is white space and marks of lists and quotes

    @property
    def holds(self) -> bool:
        """Whether text is held back, or a run of backticks may continue."""
        return bool(self._held or self._run)

    def passes(self, text: str) -> bool:
        """Whether the text has no special character and passes unchanged, as nearly all text does."""
        if not text or self._held or self._run or self._find_special(text) is not None:
            return False
        if self._indented and not _LINE_PREFIX.fullmatch(text):
            self._indented = False
        return True

    def feed(self, text: str, start: int = 0) -> tuple[str, str, str, int]:
        """The text before a marker, the marker (or nothing), and the text and offset at which to continue."""
        if self._held:
            text, start, self._held = self._held + text[start:], 0, ""
        offset = start
        for found in self._special.finditer(text, start):
            at = found.start()
            token = found[0]
            self._read_plain(text, offset, at)
            offset = found.end()
            if token == "\n":
                self._end_run()
                self._inline = 0
                self._indented = True
                self._fence_line = False
            elif token[0] not in "`~":
                self._end_run()
                self._indented = False
                if self._fence or self._inline:
                    continue
                marker = self._find_marker(text, at)
                if marker:
                    return text[start:at], marker, text, at + len(marker)
                if self._held:
                    return text[start:at], "", text, len(text)
            else:
                if self._run != token[0]:
                    self._end_run()
                    self._run_opens_line = self._indented
                    self._indented = False
                    self._run = token[0]
                self._run_length += len(token)
        self._read_plain(text, offset, len(text))
        return text[start:], "", text, len(text)

    def end(self) -> str:
        """Release held text at the end."""
        held, self._held = self._held, ""
        self._end_run()
        return held

    def _read_plain(self, text: str, start: int, end: int) -> None:
        if start < end:
            self._end_run()
            if self._indented and not _LINE_PREFIX.fullmatch(text, start, end):
                self._indented = False

    def _end_run(self) -> None:
        run, length = self._run, self._run_length
        if not run:
            return
        self._run, self._run_length = "", 0
        if self._fence:
            if self._run_opens_line and run == self._fence and length >= self._fence_length:
                self._fence = ""
            elif self._fence_line and run == self._fence == "`":
                # Backticks again on the line of the fence: it was a span of code, not a fence.
                self._inline = 0 if length == self._fence_length else self._fence_length
                self._fence = ""
        elif self._inline:
            if run == "`" and length == self._inline:
                self._inline = 0
        elif self._run_opens_line and length >= 3:
            self._fence, self._fence_length = run, length
            self._fence_line = True
        elif run == "`":
            self._inline = length

    def _find_marker(self, text: str, start: int) -> str:
        rest = text[start : start + 64]
        for marker in self._markers:
            if rest.startswith(marker):
                return marker
            if marker.startswith(rest) and start + len(rest) == len(text):
                self._held = rest
        return ""
