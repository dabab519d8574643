"""What a worker and its supervisor send each other arrives whole, and the numbers of all processes are added up."""

import asyncio
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from random import Random

import pytest
import uvloop
from prometheus_client import values

from toolwire.gateway.metrics import Metrics, SharedFiles
from toolwire.gateway.workers import channel as module
from toolwire.gateway.workers.channel import Channel
from toolwire.gateway.workers.messages import (
    Beat,
    Draining,
    Failed,
    LineSplitter,
    Ready,
    decode_from_worker,
    encode_line,
)
from toolwire.memory.store import StoreStats


def test_a_supervisor_that_does_not_read_gets_whole_lines_when_it_does(monkeypatch):
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.01)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    reasons = [f"reason-{number}-{'x' * 1000}" for number in range(40)]

    async def send(channel: Channel, reason: str) -> bool:
        try:
            async with asyncio.timeout(0.05):
                await channel.send(Failed(reason, is_lasting=False))
        except TimeoutError:
            return False
        return True

    async def main() -> None:
        channel = await Channel.open(ours, lambda: None)
        talking = asyncio.create_task(channel.run(lambda message: None))
        assert not all([await send(channel, reason) for reason in reasons])
        lines, received = LineSplitter(), list[object]()

        async def read_until(holds: Callable[[], bool]) -> None:
            while not holds():
                received.extend(map(decode_from_worker, lines.feed(await loop.sock_recv(theirs, 65536))))

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            await read_until(lambda: any(isinstance(each, Failed) and each.reason == reasons[-1] for each in received))
            received.clear()
            await read_until(lambda: sum(isinstance(each, Beat) for each in received) > 3)
        talking.cancel()
        await asyncio.wait((talking,))

    with ours, theirs:
        asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_message_to_a_supervisor_that_is_gone_is_an_os_error(run, monkeypatch):
    """A worker sends its last message when it drains, and finishes its turns whatever becomes of the message."""
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.01)
    ours, theirs = socket.socketpair()

    async def main() -> None:
        gone = asyncio.Event()
        channel = await Channel.open(ours, lambda: None)
        talking = asyncio.create_task(channel.run(lambda message: gone.set() if message is None else None))
        await asyncio.get_running_loop().run_in_executor(None, theirs.recv, 1, socket.MSG_PEEK)
        theirs.close()  # with a heartbeat that was not read, which resets the connection
        async with asyncio.timeout(60):
            await gone.wait()
            await talking
        with pytest.raises(OSError, match=r"gone|reset|[Bb]roken"):
            await channel.send(Draining())

    with ours:
        run(main())


def test_a_supervisor_that_ends_within_a_message_is_gone():
    ours, theirs = socket.socketpair()

    async def main() -> None:
        gone = asyncio.Event()
        channel = await Channel.open(ours, lambda: None)
        talking = asyncio.create_task(channel.run(lambda message: gone.set() if message is None else None))
        theirs.send(b'{"type":"Fle')
        theirs.close()
        async with asyncio.timeout(60):
            await gone.wait()
        talking.cancel()

    with ours:
        asyncio.run(main())


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_messages_are_read_however_they_are_cut(size):
    messages = [Beat(), Failed("line\nline", is_lasting=True), Ready(), Beat()]
    data = b"".join(map(encode_line, messages))
    lines = LineSplitter()
    read = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert list(map(decode_from_worker, read)) == messages


@pytest.fixture
def files(tmp_path) -> Iterator[SharedFiles]:
    """The files of this process and its children, which count alone again afterwards."""
    before = values.ValueClass
    yield SharedFiles(tmp_path / "metrics")
    values.ValueClass = before


def numbers_in(text: bytes) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def count(files: SharedFiles, seat: str, durations: list[float], running: int = 0) -> None:
    """Count in a process of its own, as a worker does."""

    def work() -> None:
        metrics = Metrics(files, seat)
        for seconds in durations:
            metrics.call("find", "ok")
            metrics.record_flush(seconds)
        metrics.running, metrics.stored = running, StoreStats(members=running)
        metrics.store("full")
        metrics.refresh()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_counters_are_added_up_and_gauges_leave_with_their_process(files: SharedFiles):
    count(files, "1", [0.25, 1.5], running=3)
    count(files, "2", [0.25], running=2)
    shown = numbers_in(Metrics(files, "0").encode_text())
    assert shown['toolwire_gateway_calls_total{outcome="ok",tool="find"}'] == 3
    assert shown["toolwire_flush_seconds_sum"] == 2.0
    assert shown["toolwire_turns_running"] == 5
    assert shown["toolwire_store_failing"] == 1, "it fails somewhere, not twice"
    assert shown["toolwire_store_members"] == 3, "all workers see the same store"
    files.leave("1")
    count(files, "1", [0.25], running=1)
    shown = numbers_in(Metrics(files, "0").encode_text())
    assert shown['toolwire_gateway_calls_total{outcome="ok",tool="find"}'] == 4, "the next process of a seat goes on"
    assert shown["toolwire_turns_running"] == 3


def test_one_worker_shows_what_a_process_alone_shows(files: SharedFiles):
    def shown(metrics: Metrics) -> dict[str, float]:
        metrics.call("find", "ok")
        metrics.store("full")
        metrics.record_flush(2)
        return numbers_in(metrics.encode_text())

    assert shown(Metrics()) == shown(Metrics(files, "0"))


def test_sums_of_durations_do_not_decrease_when_workers_come_and_go(files: SharedFiles):
    random, shown = Random(1), [0.0]
    for number in range(12):
        count(files, str(number % 5), [1000 * random.random()])
        shown.append(numbers_in(Metrics(files, "9").encode_text())["toolwire_flush_seconds_sum"])
        assert shown[-1] > shown[-2]


def test_numbers_of_workers_are_not_for_child_processes(files: SharedFiles, monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    metrics = Metrics(files, "0")
    metrics.call("find", "ok")
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
