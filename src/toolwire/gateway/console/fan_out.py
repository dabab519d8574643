"""Asks all worker processes of a gateway what they know of their turns, over their sockets.

What one process is asked by its own routes and by another worker is the same, and so is the answer. A worker that is
gone, or does not answer in time, is left out: what it kept in memory is gone with it.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.local import Local
from toolwire.gateway.console.threads import in_thread
from toolwire.gateway.peers import PeerFailed, PeerGone
from toolwire.gateway.process import Process

NAME = "console"
PATIENCE = 10.0
"""Seconds that another worker may take."""
LARGEST = 128 * 1024 * 1024
"""Bytes of its answer."""


class _Asked(msgspec.Struct):
    question: str
    viewer: Viewer
    given: dict[str, Any]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Asked).decode


class Everyone:
    """This process and its colleagues."""

    def __init__(self, local: Local, process: Process) -> None:
        self._local = local
        self._colleagues = process.colleagues
        self._telling: set[asyncio.Task[list[Any]]] = set()
        if self._colleagues is not None:
            self._colleagues.server.handle(NAME, self._answer)

    async def close(self) -> None:
        for task in tuple(self._telling):
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)

    async def ask(self, question: str, viewer: Viewer, **given: Any) -> list[Any]:
        """What every process answers, this one first; those that have nothing to say are left out."""
        own = self._local.answer(question, viewer, given)
        found = await asyncio.gather(own, self._ask_others(question, viewer, given))
        return [each for each in (found[0], *found[1]) if each is not None]

    def captured(self, name: str) -> None:
        """Tell the others that one of the turns that were asked for is kept here."""
        if self._colleagues is not None:
            task = asyncio.create_task(self._ask_others("captured", Viewer(), {"name": name}))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def one(self, question: str, viewer: Viewer, **given: Any) -> Any:
        """The answer of the one process that has one."""
        found = await self.ask(question, viewer, **given)
        if not found:
            message = "There is no such turn here; it may have made room for newer ones."
            raise BadRequest(message, code="not_found", status=404)
        return found[0]

    async def _ask_others(self, question: str, viewer: Viewer, given: dict[str, Any]) -> list[Any]:
        payload = _encode(_Asked(question, viewer, given))
        others = self._colleagues.peers.others() if self._colleagues is not None else []
        return await asyncio.gather(*(self._ask_peer(each, payload) for each in others))

    async def _ask_peer(self, incarnation: str, payload: bytes) -> Any:
        assert self._colleagues is not None
        peers = self._colleagues.peers
        try:
            answer = await peers.ask_whole(incarnation, NAME, payload, LARGEST, patience=PATIENCE)
            return await in_thread(msgspec.msgpack.decode, answer, strict=False)
        except (PeerGone, PeerFailed, msgspec.DecodeError, RecursionError):
            return None

    async def _answer(self, payload: bytes) -> AsyncGenerator[bytes]:
        """For a colleague."""
        asked = _decode(payload)
        yield await in_thread(_encode, await self._local.answer(asked.question, asked.viewer, asked.given))
