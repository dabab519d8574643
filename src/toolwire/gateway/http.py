"""HTTP helpers: answers in one piece, disconnects, query values, paths, ids."""

import asyncio
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from secrets import token_hex

from starlette.requests import Request
from starlette.types import Receive, Send

from toolwire.core.errors import BadRequest
from toolwire.protocols import dialects
from toolwire.upstream.scheduling import Ticker

Headers = Iterable[tuple[bytes, bytes]]

EXPOSED = (
    "x-request-id",
    "x-upstream-request-id",
    "x-proxy-output-mode",
    "x-codex-tool-call-count",
    "x-codex-tool-call-truncated",
    "x-codex-stop-after-tools-mode",
    "x-toolwire-backend",
    "x-toolwire-notes",
    "retry-after",
)
"""The gateway's headers that a page in a browser may read."""

PIECE = 128 * 1024
"""Bytes of each slice of a large write, and of unsent data in a socket before writing pauses."""
WHOLE = 2 * PIECE
"""Bytes up to which a write is not split. Most reads of a backend lead to less."""

OUTPUT_MODE = "toolwire.output_mode"
"""Scope key for the output mode that the path's prefix selects."""
DRAIN = "websocket.drain"
"""The type of a message to the application, not part of ASGI: finish the current turn, then close the WebSocket."""
PREFIX = "toolwire.prefix"
"""Scope key for the prefix that the gateway is mounted at."""


class ClientGone(Exception):
    """The client closed the connection."""


class UntilClientGone:
    """Runs a block, and cancels it when the client disconnects. A short block ends before the watch begins.

    Raises `ClientGone` at the end of a cancelled block.
    """

    def __init__(self, receive: Receive, ticker: Ticker) -> None:
        self._receive = receive
        self._ticker = ticker
        task = asyncio.current_task(ticker.loop)
        assert task is not None
        self._owner = task
        self._gone = False
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._ticker.join(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ticker.leave(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._gone and kind is asyncio.CancelledError and self._owner.uncancel() == 0:
            raise ClientGone

    def tick(self, now: float) -> None:
        """Begin the watch: the block is still running at the first tick."""
        self._ticker.leave(self)
        self._watch = self._ticker.loop.create_task(self._watch_client())

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._owner.cancel()


def read_number(request: Request, name: str, default: int, least: int) -> int:
    """A number of the query, at least `least`. Raises `BadRequest`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < least:
        raise BadRequest(f"{name} must be an integer of at least {least}; received {text!r}.", name)
    return int(text)


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", b"%d" % len(body))
    start = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send_pieces(send, (body,), last=True)


async def send_pieces(send: Send, pieces: Sequence[bytes], *, last: bool) -> None:
    """Send a part of a body in one write; a large part in slices, each after the previous one has drained.

    For a large part it returns only when all of it has drained, so that nothing is produced ahead of a slow client.
    """
    size = sum(map(len, pieces))
    if size <= WHOLE:
        await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": not last})
    else:
        for piece in cut_into_slices(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    if size > (WHOLE if last else PIECE):
        await send({"type": "http.response.body", "body": b"", "more_body": not last})


def cut_into_slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in slices of similar size, without joining them all."""
    some: list[bytes] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), PIECE):
            some.append(piece[start : start + PIECE])
            size += len(some[-1])
            if size >= PIECE:
                yield b"".join(some)
                some, size = [], 0
    if some:
        yield b"".join(some)


# Paths

HEALTH_PATHS = ("/healthz", "/readyz", "/metrics")
BASE = "/v1/"
_BASE_WORDS = frozenset(("api", "openai", "anthropic", "v1"))
"""The words that base URLs end in."""
MAX_PATH_LENGTH = 1000
"""Longer paths are not corrected."""


def remove_prefix(path: str, prefix: str) -> str:
    """The part of a path after the prefix that an application is mounted at."""
    rest = path.removeprefix(prefix.rstrip("/"))
    return rest if rest.startswith("/") else path if rest else "/"


def correct_path(path: str) -> str:
    """The path meant by `/chat/completions`, `/v1/v1/messages`, `/v1/messages/v1/messages`, `//messages/`, …"""
    if len(path) > MAX_PATH_LENGTH or path.startswith(f"{BASE}models/"):  # model names may contain anything
        return path
    words = [word for word in path.split("/") if word]
    while length := _count_base_words(words):
        del words[:length]
    return BASE + "/".join(words) if _find_operation(words) else path


def _count_base_words(words: Sequence[str]) -> int:
    """The number of leading words that belong to the base URL, which may be the URL of an operation."""
    if words and words[0] in _BASE_WORDS:
        return 1
    operation = _find_operation(words)
    rest = words[len(operation) :]
    return len(operation) if operation and rest and (rest[0] == "v1" or _find_operation(rest)) else 0


def _find_operation(words: Sequence[str]) -> Sequence[str]:
    paths = (side.module.PATH for side in dialects().values())
    operations = (*(path.removeprefix(BASE).split("/") for path in paths), ["models"], ["conversations"])
    return next((each for each in operations if words[: len(each)] == each), ())


def find_nearest_path(path: str, served: Collection[str]) -> str:
    """The served path that is most similar to this one, or an empty string."""
    return next(iter(get_close_matches(path[:MAX_PATH_LENGTH], served, n=1)), "")


# Ids

RANDOM_BATCH = 8192
"""Random bytes that are read at once, to save system calls."""


class RandomHex:
    """Unpredictable hexadecimal digits, each returned once. Randomness is read in batches to save system calls."""

    def __init__(self) -> None:
        self._digits = ""
        self._used = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)  # two processes must not return the same digits

    def take(self, count: int) -> str:
        """The next digits."""
        start = self._used
        self._used = start + count
        if self._used > len(self._digits):
            self._digits, start, self._used = token_hex(max(RANDOM_BATCH, count)), 0, count
        return self._digits[start : self._used]

    def forget(self) -> None:
        """Drop the digits that were read in advance."""
        self._digits, self._used = "", 0


random_hex = RandomHex()
