"""What a worker and its supervisor tell each other arrives whole, also when nobody has listened for a while."""

import asyncio
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from toolwire.gateway.metrics import Metrics
from toolwire.gateway.process import Unanswered
from toolwire.gateway.workers import link as module
from toolwire.gateway.workers.counters import Family, Sample, Snapshot, lasting, merged, snapshot_of, text
from toolwire.gateway.workers.link import Link
from toolwire.gateway.workers.messages import AllNumbers, Beat, Fleet, Lines, Numbers, decode_from_worker, line_of


def test_a_supervisor_that_does_not_listen_gets_whole_lines_when_it_does(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(module, "BEAT", 0.01)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)

    async def main(folder: Path) -> None:
        link = Link(ours, 0, folder, "0123456789abcdef", Fleet(2, 2, started=True))
        link.metrics = Metrics()
        await link.open(lambda message: None)
        for number in range(40):
            link.metrics.gateway_call(f"tool-{number}", "ok")  # so that there is something new to report
            with pytest.raises(Unanswered):
                await link.numbers()
        lines, received = Lines(), list[object]()

        async def read_until(holds: Callable[[], bool]) -> None:
            while not holds():
                received.extend(map(decode_from_worker, lines.feed(await loop.sock_recv(theirs, 65536))))

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            await read_until(lambda: any(isinstance(each, Numbers) and "tool-39" in str(each) for each in received))
            received.clear()
            await read_until(lambda: sum(isinstance(each, Beat) for each in received) > 3)
        await link.close()

    with tempfile.TemporaryDirectory(prefix="run-") as name, ours, theirs:
        asyncio.run(main(Path(name)))


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_messages_are_read_however_they_are_cut(size):
    counted = Metrics()
    counted.gateway_call("find", "ok")
    messages = [Numbers(1, snapshot_of(counted)), Numbers(2, [])]
    data = b"".join(map(line_of, messages))
    lines = Lines()
    read = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert list(map(decode_from_worker, read)) == messages
    assert line_of(AllNumbers(3, [])).endswith(b"\n")


def sample(value: float, **labels: str) -> Sample:
    return Sample("a_total", tuple(labels.items()), value)


def test_counters_are_added_up_by_their_labels_and_gauges_leave_with_their_process():
    one = [
        Family("a", "counter", "A.", (sample(1, x="1"), sample(2, x="2"))),
        Family("toolwire_turns_running", "gauge", "G.", (Sample("toolwire_turns_running", (), 3),)),
        Family("toolwire_store_failing", "gauge", "F.", (Sample("toolwire_store_failing", (), 1),)),
        Family("toolwire_store_members", "gauge", "M.", (Sample("toolwire_store_members", (), 2),)),
    ]
    two = [Family("a", "counter", "A.", (sample(10, x="2"),)), *one[1:]]
    both = {family.name: {each.labels: each.value for each in family.samples} for family in merged([one, two])}
    assert both["a"] == {(("x", "1"),): 1, (("x", "2"),): 12}
    assert both["toolwire_turns_running"] == {(): 6}
    assert both["toolwire_store_failing"] == {(): 1}, "it fails somewhere, not twice"
    assert both["toolwire_store_members"] == {(): 2}, "both workers see the same store"
    assert [family.name for family in lasting(one)] == ["a"]


def test_the_numbers_of_one_process_are_shown_as_it_would_show_them_itself():
    counted = Metrics()
    counted.gateway_call("find", "ok")
    counted.store("full")
    assert text(merged([snapshot_of(counted)])) == counted.text()


def flushed(seconds: float) -> Metrics:
    counted = Metrics()
    counted.flushed(seconds)
    return counted


def sum_in(*snapshots: Snapshot) -> float:
    [line] = [
        row for row in text(merged(snapshots)).decode().splitlines() if row.startswith("toolwire_flush_seconds_sum")
    ]
    return float(line.partition(" ")[2])


def over_the_link(counted: Metrics) -> Snapshot:
    [line] = Lines().feed(line_of(Numbers(0, snapshot_of(counted))))
    message = decode_from_worker(line)
    assert isinstance(message, Numbers)
    return message.snapshot


def test_sums_of_durations_do_not_become_less_when_a_worker_leaves():
    """Whoever leaves is added first instead of last, and fractions would be rounded otherwise."""
    random = Random(1)
    for _ in range(200):
        one, two, gone = (over_the_link(flushed(1000 * random.random())) for _ in range(3))
        assert sum_in(two, merged([gone, lasting(one)])) == sum_in(one, two, gone)


def test_sums_of_durations_are_shown_in_seconds():
    assert sum_in(over_the_link(flushed(0.25)), over_the_link(flushed(1.5))) == 1.75
