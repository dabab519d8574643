"""Stores in other processes, called like any store."""

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.store.worker import read, write
from tests.support import processes
from toolwire.memory.store import Overtaken, StoreFailed, TooLarge

ROOT = Path(__file__).parents[2]


class Process:
    """A worker process with any number of stores."""

    def __init__(self) -> None:
        self.process = processes.Popen(
            [sys.executable, "-m", "tests.store.worker"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._numbers = itertools.count()
        self._handles = itertools.count()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def make(self, kind: str, *given: Any, **named: Any) -> "RemoteStore":
        store = RemoteStore(self, next(self._handles))
        await self.call(store.handle, "make", (kind, *given), named)
        return store

    async def call(self, handle: int, method: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting[number] = loop, future
        write(self.process.stdin, (number, handle, method, given, named))  # type: ignore[arg-type]
        return await future

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._reader.join(60)
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while (answer := read(self.process.stdout)) is not None:  # type: ignore[arg-type]
            number, what, value = answer
            loop, future = self._waiting.pop(number)
            loop.call_soon_threadsafe(_settle, future, what, value)


def _settle(future: "asyncio.Future[Any]", what: str, value: Any) -> None:
    if future.done():
        return
    if what == "done":
        future.set_result(value)
    elif what == "raised":
        future.set_exception(value)
    elif what == "too_large":
        future.set_exception(TooLarge(value))
    else:
        future.set_exception(_failed(*value))


def _failed(reason: Any, detail: str) -> StoreFailed:
    failed = Overtaken.__new__(Overtaken) if reason == "overtaken" else StoreFailed.__new__(StoreFailed)
    StoreFailed.__init__(failed, reason, detail)
    return failed


class RemoteStore:
    """A store in another process."""

    def __init__(self, process: Process, handle: int) -> None:
        self.process = process
        self.handle = handle

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        def do(*given: Any, **named: Any) -> Coroutine[Any, Any, Any]:
            return self.process.call(self.handle, name, given, named)

        return do

    def dump(self) -> Any:
        return _rows(self)


async def _rows(store: RemoteStore) -> Any:
    for row in await store.process.call(store.handle, "dump", (), {}):
        yield row
