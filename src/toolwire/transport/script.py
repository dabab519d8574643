"""Plays a script: the built-in models' replies, with their pauses and accidents."""

import asyncio
from collections.abc import Iterator, Mapping

from toolwire.core.backend import Break, Opening, Refuse, Script, Step, Wait
from toolwire.transport.reply import broken


class ScriptUpstream:
    """The upstream of a backend that needs no network."""

    async def open(self, opening: Opening, key: str) -> "ScriptReply":
        assert isinstance(opening, Script)
        return ScriptReply(opening)


class ScriptReply:
    def __init__(self, script: Script) -> None:
        self._steps = script.steps
        self._next: Step | None = next(self._steps, None)
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": script.content_type}
        if isinstance(self._next, Refuse):
            self.status = self._next.status
            self.headers = {"content-type": "application/json", **self._next.headers}
            self._steps: Iterator[Step] = iter((self._next.body,))
            self._next = next(self._steps)

    def read_nowait(self) -> bytes:
        pieces: list[bytes] = []
        while isinstance(self._next, bytes):
            pieces.append(self._next)
            self._next = next(self._steps, None)
        return b"".join(pieces)

    async def read(self) -> bytes:
        if isinstance(self._next, Wait):
            await asyncio.sleep(self._next.seconds)
            self._next = next(self._steps, None)
        if isinstance(self._next, Break):
            raise broken("backend_broke_off", "The connection to the backend broke.")
        return self.read_nowait()

    def is_whole(self) -> bool:
        return self._next is None

    def close(self) -> None:
        self._steps = iter(())
        self._next = None
