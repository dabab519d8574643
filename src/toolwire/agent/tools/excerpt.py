"""Keeps the beginning and the end of long output, within a token budget."""

BYTES_PER_TOKEN = 4
"""How Codex estimates tokens."""
MAX_TOKENS = 10_000
"""Tokens of one result, as in Codex."""
MAX_EXCERPT_BYTES = MAX_TOKENS * BYTES_PER_TOKEN


class Excerpt:
    """Text of any length in bounded memory: its beginning and its end."""

    def __init__(self, limit: int = MAX_EXCERPT_BYTES) -> None:
        self.size = 0  # bytes of all output
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._newlines = 0
        self._is_open_line = False

    def add(self, text: str) -> None:
        """Add output."""
        data = text.encode()
        self.size += len(data)
        self._newlines += data.count(b"\n")
        self._is_open_line = not text.endswith("\n") if text else self._is_open_line
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -self._half]

    @property
    def tokens(self) -> int:
        """The estimated tokens of all output."""
        return tokens(self.size)

    @property
    def lines(self) -> int:
        """The number of lines of all output."""
        return self._newlines + self._is_open_line

    def fits(self, budget: int) -> bool:
        """Whether all output fits into this many bytes."""
        return self.size <= min(budget, 2 * self._half)

    def text(self, budget: int = MAX_EXCERPT_BYTES) -> str:
        """All output, or as much of both ends as the budget in bytes allows. Characters are not split."""
        kept = bytes(self._head + self._tail)
        if self.fits(budget):
            return kept.decode()
        half = min(budget // 2, self._half)
        head = kept[:half].decode(errors="ignore")
        tail = kept[len(kept) - half :].decode(errors="ignore")
        lost = self.size - len(head.encode()) - len(tail.encode())
        return f"{head}…{tokens(lost)} tokens truncated…{tail}"


def tokens(size: int) -> int:
    """The estimated tokens of this many bytes."""
    return -(-size // BYTES_PER_TOKEN)
