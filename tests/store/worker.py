"""A process that uses stores for a test: it reads calls from its standard input and writes what came of them.

python -m tests.store.worker

A call is (number, handle, method, given, named), an answer is (number, what, value), each pickled behind its length.
"""

import asyncio
import pickle
import struct
import sys
import threading
from typing import Any, BinaryIO

from tests.store import mutants
from toolwire.memory.store import StoreFailed, TooLarge, TooManyRuns


def read(stream: BinaryIO) -> Any:
    """The next message; None at the end."""
    head = stream.read(4)
    return pickle.loads(stream.read(*struct.unpack("!I", head))) if len(head) == 4 else None


def write(stream: BinaryIO, message: Any) -> None:
    body = pickle.dumps(message)
    stream.write(struct.pack("!I", len(body)) + body)
    stream.flush()


class Worker:
    """Stores by handle, and the calls that are being made."""

    def __init__(self) -> None:
        self._stores: dict[int, Any] = {}
        self._lock = threading.Lock()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        working: set[asyncio.Task[None]] = set()
        while (message := await loop.run_in_executor(None, read, sys.stdin.buffer)) is not None:
            task = loop.create_task(self._answer(*message))
            working.add(task)
            task.add_done_callback(working.discard)
        for store in self._stores.values():
            await store.close()

    async def _answer(self, number: int, handle: int, method: str, given: Any, named: Any) -> None:
        try:
            answer = (number, "done", await self._call(handle, method, given, named))
        except TooLarge as error:
            answer = (number, "too_large", error.size)
        except TooManyRuns as error:
            answer = (number, "raised", error)
        except StoreFailed as error:
            answer = (number, "failed", (error.reason, str(error)))
        with self._lock:
            write(sys.stdout.buffer, answer)

    async def _call(self, handle: int, method: str, given: Any, named: Any) -> Any:
        if method == "make":
            kind, *rest = given
            self._stores[handle] = mutants.KINDS[kind](*rest, **named)
            return None
        if method == "close":
            return await self._stores.pop(handle).close()
        result = getattr(self._stores[handle], method)(*given, **named)
        if method == "dump":
            return [row async for row in result]
        return await result


if __name__ == "__main__":
    asyncio.run(Worker().serve())
