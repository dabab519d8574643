"""Asks all worker processes of a gateway the same question about their turns.

A worker that is gone, or does not answer in time, is left out with its turns.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.http import run_in_thread
from toolwire.gateway.peers import PeerFailed, PeerGone
from toolwire.gateway.process import Process

NAME = "console"
ANSWER_TIMEOUT = 10.0
"""Timeout for the answer of another worker, in seconds."""
MAX_ANSWER_SIZE = 128 * 1024 * 1024

T = TypeVar("T")
Question: TypeAlias = Callable[..., Awaitable[T | None]]
"""Takes a viewer and plain named values; returns a plain value within the viewer's rights, or None."""


class _Query(msgspec.Struct):
    question: str
    viewer: Viewer
    given: Mapping[str, Any]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Query).decode


class FanOut:
    """Asks these questions in all processes, and answers them when other processes ask."""

    def __init__(self, questions: Iterable[Question[Any]], process: Process) -> None:
        self._questions = {question.__name__: question for question in questions}
        self._colleagues = process.colleagues
        self._notices: set[asyncio.Task[list[Any]]] = set()
        if self._colleagues is not None:
            self._colleagues.server.handle(NAME, self._answer)

    async def close(self) -> None:
        """Cancel undelivered notices."""
        for task in tuple(self._notices):
            task.cancel()
        await asyncio.gather(*self._notices, return_exceptions=True)

    async def ask(self, question: Question[T], viewer: Viewer, **given: Any) -> list[T]:
        """The answers of all processes that have one, that of this process first."""
        asking = self._ask_others(question.__name__, viewer, given)
        answer, others = await asyncio.gather(question(viewer, **given), asking)
        return [each for each in (answer, *others) if each is not None]

    async def ask_one(self, question: Question[T], viewer: Viewer, **given: Any) -> T:
        """The answer of the one process that has the turn; `BadRequest` if none has it."""
        found = await self.ask(question, viewer, **given)
        if not found:
            message = "There is no such turn here; it may have been dropped for newer ones."
            raise BadRequest(message, code="not_found", status=404)
        return found[0]

    def notify(self, question: Question[Any], **given: Any) -> None:
        """Tell the other processes something, in the background."""
        if self._colleagues is not None:
            task = asyncio.create_task(self._ask_others(question.__name__, Viewer(), given))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _ask_others(self, question: str, viewer: Viewer, given: Mapping[str, Any]) -> list[Any]:
        if self._colleagues is None:
            return []
        payload, peers = _encode(_Query(question, viewer, given)), self._colleagues.peers

        async def ask(incarnation: str) -> Any:
            try:
                answer = await peers.ask_whole(incarnation, NAME, payload, MAX_ANSWER_SIZE, seconds=ANSWER_TIMEOUT)
                return await run_in_thread(msgspec.msgpack.decode, answer, strict=False)
            except (PeerGone, PeerFailed, msgspec.DecodeError, RecursionError):
                return None

        return await asyncio.gather(*map(ask, peers.list_others()))

    async def _answer(self, payload: bytes) -> AsyncGenerator[bytes]:
        """Answer a question of another process."""
        asked = _decode(payload)
        answer = await self._questions[asked.question](asked.viewer, **asked.given)
        yield await run_in_thread(_encode, answer)
