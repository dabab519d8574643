"""Standard error that nobody reads."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from toolwire.gateway.nonblocking_stderr import MAX_BUFFERED, StderrWriter, count_dropped_lines, write_stderr_in_thread


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def lines_of(reading: int, last: bytes) -> list[bytes]:
    received = b""
    while not received.endswith(last):
        received += os.read(reading, 65536)
    return received.splitlines()


def test_lines_are_written_in_order(pipe):
    reading, writing = pipe
    writer = StderrWriter(writing)
    for number in range(1000):
        assert writer.write(b"%d\n" % number) == len(b"%d\n" % number)
    assert lines_of(reading, b"\n999\n") == [b"%d" % number for number in range(1000)]
    assert writer.dropped == 0


def test_lines_nobody_reads_are_dropped_and_counted_and_told_of_later(pipe):
    reading, writing = pipe
    writer = StderrWriter(writing)
    line = b"x" * 99 + b"\n"
    count = 10 * MAX_BUFFERED // len(line)
    for _ in range(count):
        writer.write(line)
    dropped = writer.dropped
    assert 0 < dropped < count
    told: list[bytes] = []
    said: list[int] = []
    while sum(said) < dropped:
        told += lines_of(reading, b"\n")
        said = [json.loads(each)["lines"] for each in told if b"log_dropped" in each]
    assert (sum(said), len(told) - len(said)) == (dropped, count - dropped)
    writer.write(b"again\n")
    assert lines_of(reading, b"again\n") == [b"again"]


def test_a_pipe_whose_reader_is_gone_loses_lines_and_nothing_else(pipe):
    reading, writing = pipe
    os.close(reading)
    writer = StderrWriter(writing)
    writer.write(b"one\n")
    writer.finish(10)
    writer.write(b"two\n")
    writer.finish(10)
    assert writer.dropped == 2


def test_the_end_does_not_wait_for_a_reader(pipe):
    _, writing = pipe
    writer = StderrWriter(writing)
    writer.write(b"x" * MAX_BUFFERED)
    over = threading.Thread(target=writer.finish, args=(0.05,))
    over.start()
    over.join(10)
    assert not over.is_alive()


def test_prints_go_the_same_way(pipe, monkeypatch):
    reading, writing = pipe
    with open(writing, "w", closefd=False) as usual:
        monkeypatch.setattr(sys, "stderr", usual)
        with write_stderr_in_thread():
            print("é", file=sys.stderr)
            sys.stderr.buffer.write(b"{}\n")
            assert count_dropped_lines() == 0
        assert sys.stderr is usual
    assert lines_of(reading, b"{}\n") == ["é".encode(), b"{}"]
