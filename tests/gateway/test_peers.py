"""Workers of one machine ask each other: streams, refusals, bounds, and peers that are gone or stand still."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support import processes
from toolwire.gateway import peers as module
from toolwire.gateway.peers import PeerFailed, PeerGone, Peers, PeerServer

OTHER = "0123456789abcdef"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: the system leaves little room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="toolwire-") as name:
        yield Path(name)


async def echo(payload: bytes) -> AsyncGenerator[bytes]:
    yield payload


async def count(payload: bytes) -> AsyncGenerator[bytes]:
    for number in range(int(payload)):
        yield str(number).encode()


async def fail(payload: bytes) -> AsyncGenerator[bytes]:
    yield b"one"
    raise ValueError("no more")


def with_server(folder: Path, talk: Callable[[PeerServer, Peers], Awaitable[None]]) -> None:
    async def main() -> None:
        server = PeerServer(folder, OTHER)
        for name, handler in (("echo", echo), ("count", count), ("fail", fail)):
            server.handle(name, handler)
        await server.start()
        try:
            await talk(server, Peers(folder, "own"))
        finally:
            await server.stop()

    asyncio.run(main())


async def whole(peers: Peers, name: str, payload: bytes = b"") -> bytes:
    return await peers.ask_whole(OTHER, name, payload, 10_000_000, seconds=60)


def test_an_answer_comes_in_pieces_as_they_were_given(folder):
    async def talk(server: PeerServer, peers: Peers) -> None:
        assert [piece async for piece in peers.ask(OTHER, "count", b"3", first=60)] == [b"0", b"1", b"2"]

    with_server(folder, talk)


def test_a_large_request_and_its_answer_arrive_whole(folder):
    large = os.urandom(3_000_000)

    async def talk(server: PeerServer, peers: Peers) -> None:
        assert await whole(peers, "echo", large) == large

    with_server(folder, talk)


def test_a_request_beyond_the_bound_is_refused_unread(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD", 10)

    async def talk(server: PeerServer, peers: Peers) -> None:
        assert await whole(peers, "echo", b"x" * 10) == b"x" * 10
        with pytest.raises(PeerFailed, match="no room"):
            await whole(peers, "echo", b"x" * 11)

    with_server(folder, talk)


def test_an_answer_beyond_the_bound_is_given_up(folder):
    async def talk(server: PeerServer, peers: Peers) -> None:
        with pytest.raises(PeerFailed, match="more than 3 bytes"):
            await peers.ask_whole(OTHER, "echo", b"four", 3, seconds=60)

    with_server(folder, talk)


def test_a_name_that_nobody_handles_and_a_handler_that_fails_are_told(folder):
    async def talk(server: PeerServer, peers: Peers) -> None:
        with pytest.raises(PeerFailed, match="no handler has this name"):
            await whole(peers, "nothing")
        with pytest.raises(PeerFailed, match="ValueError: no more"):
            await whole(peers, "fail")

    with_server(folder, talk)


def test_who_asked_and_leaves_cancels_the_handler(folder):
    async def talk(server: PeerServer, peers: Peers) -> None:
        ended = asyncio.Event()

        async def endless(payload: bytes) -> AsyncGenerator[bytes]:
            try:
                yield b"first"
                await asyncio.Event().wait()
            finally:
                ended.set()

        server.handle("endless", endless)
        async with aclosing(peers.ask(OTHER, "endless", b"", first=60)) as answer:
            assert await anext(answer) == b"first"
        await asyncio.wait_for(ended.wait(), 60)

    with_server(folder, talk)


def test_the_end_of_a_worker_breaks_off_its_answers_and_removes_its_socket(folder):
    async def talk(server: PeerServer, peers: Peers) -> None:
        async def endless(payload: bytes) -> AsyncGenerator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        server.handle("endless", endless)
        assert peers.list_others() == [OTHER]
        async with aclosing(peers.ask(OTHER, "endless", b"", first=60)) as answer:
            assert await anext(answer) == b"first"
            await server.stop()
            with pytest.raises(PeerGone):
                await anext(answer)
        assert peers.list_others() == []

    with_server(folder, talk)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"x" * 10_000, b'{"name":"echo","size":-1}\n', b""]
)
def test_what_is_no_request_is_refused_and_stops_nothing(folder, said):
    async def talk(server: PeerServer, peers: Peers) -> None:
        reader, writer = await asyncio.open_unix_connection(server.path)
        writer.write(said)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert await whole(peers, "echo", b"still here") == b"still here"

    with_server(folder, talk)


@pytest.mark.parametrize("incarnation", ["nobody", "../escape", ""])
def test_a_peer_that_is_not_there_is_gone(folder, incarnation):
    async def main() -> None:
        with pytest.raises(PeerGone):
            await Peers(folder, "own").ask_whole(incarnation, "echo", b"", 10, seconds=60)

    asyncio.run(main())


PEER = """
import asyncio, sys
from pathlib import Path
from toolwire.gateway.peers import PeerServer

async def main():
    server = PeerServer(Path(sys.argv[1]), sys.argv[2])
    await server.start()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed_is_gone(folder, number):
    """A stopped one still takes connections; a killed one leaves its socket behind."""
    process = processes.Popen([sys.executable, "-c", PEER, str(folder), OTHER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait(60)

        async def main() -> None:
            with pytest.raises(PeerGone):
                await Peers(folder, "own").ask_whole(OTHER, "echo", b"", 10, seconds=0.2)

        asyncio.run(main())
        assert Peers(folder, "own").list_others() == [OTHER]
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
