"""Plays scripts: replies of the built-in models, with pauses and failures."""

import asyncio
from collections.abc import Iterator, Mapping

from toolwire.core.backend import Break, Opening, Refuse, Script, Step, Wait
from toolwire.upstream.reply import Take, Upstream, make_broken


class ScriptUpstream(Upstream):
    """The upstream of the built-in models, without a network."""

    async def open(self, opening: Opening, key: str) -> "ScriptReply":
        assert isinstance(opening, Script)
        return ScriptReply(opening)


class ScriptReply:
    """The reply that a script plays."""

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
        """The bytes up to the next pause."""
        pieces: list[bytes] = []
        while isinstance(self._next, bytes):
            pieces.append(self._next)
            self._next = next(self._steps, None)
        return b"".join(pieces)

    async def read(self, take: Take | None = None) -> bytes:
        """Wait for the next bytes; empty at the end. Raises `Broken`."""
        if isinstance(self._next, Wait):
            await asyncio.sleep(self._next.seconds)
            self._next = next(self._steps, None)
        if isinstance(self._next, Break):
            raise make_broken("backend_broke_off", "The connection to the backend broke.")
        return self.read_nowait()

    def is_whole(self) -> bool:
        """Whether the script has ended."""
        return self._next is None

    def close(self) -> None:
        """Stop the script."""
        self._steps = iter(())
        self._next = None
