"""What goes wrong in the supervisor itself costs no turn: it tries again, or lets its workers finish."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fleet import PATIENCE, Fleet, signal_to, until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, backend, chat_body, read_sse
from tests.support.upstream import Reply, Upstream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

FULL = """
import errno, os, socket
from pathlib import Path
supervisor = os.getpid()
def unless_full(function):
    def called(*args):
        if os.getpid() == supervisor and Path("full").exists():
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return function(*args)
    return called
"""
"""Something that the system has no room for while there is a file `full`."""
NO_PROCESS = FULL + "os.fork = unless_full(os.fork)"
NO_SOCKET = FULL + "socket.socketpair = unless_full(socket.socketpair)"

FULL_AFTER_CHECK = (
    FULL
    + """
import toolwire.gateway.workers.fork as fork
from toolwire.gateway.workers.worker_pool import WorkerPool
fork.fork = unless_full(fork.fork)
fork_helper = WorkerPool.fork_helper
def last_helper(self, body):
    made = fork_helper(self, body)
    if self.started:
        Path("full").touch()
    return made
WorkerPool.fork_helper = last_helper
"""
)

BROKEN = """
from pathlib import Path
from toolwire.gateway.workers.worker_pool import WorkerPool
whole = WorkerPool.tick
def tick(self):
    assert not Path("broken").exists()
    whole(self)
WorkerPool.tick = tick
"""
"""A supervisor that fails as soon as there is a file `broken`."""

UNREADABLE = """
import sys
from pathlib import Path
import toolwire.cli.serve
command = sys.modules["toolwire.cli.serve"]
load = command.load_for_serving
def load_whole(path):
    assert not Path("broken").exists()
    return load(path)
command.load_for_serving = load_whole
"""
"""Settings that cannot be read, for whatever reason, as soon as there is a file `broken`."""


def descriptors(fleet: Fleet) -> int:
    return len(list(Path(f"/proc/{fleet.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("patch", [NO_PROCESS, NO_SOCKET], ids=["no process", "no socket"])
def test_a_system_that_is_full_for_a_while_costs_nothing_but_the_while(start_fleet, tmp_path, patch: str):
    fleet = start_fleet(patch=patch)
    opened = descriptors(fleet)
    [victim, other] = fleet.pids
    (tmp_path / "full").touch()
    signal_to(victim, signal.SIGKILL)
    line = fleet.wait_for("worker", 2, state="not forked")[-1]
    assert "Resource temporarily unavailable" in line["failure"]
    fleet.reload()
    [line] = fleet.wait_for("reload", state="refused")
    assert "Resource temporarily unavailable" in line["failure"]
    (tmp_path / "full").unlink()
    until(lambda: fleet.all_ready(2))
    assert other in fleet.pids
    assert descriptors(fleet) == opened


def test_a_reload_on_a_system_that_is_full_waits(start_fleet, tmp_path):
    """The check is forked, and then there is no room for workers."""
    fleet = start_fleet(patch=FULL_AFTER_CHECK)
    fleet.reload()
    fleet.wait_for("worker", 2, state="not forked")
    assert not fleet.events("reload", state="rolling back")
    (tmp_path / "full").unlink()
    fleet.wait_for("reload", state="done")


def test_whatever_goes_wrong_while_settings_are_read_the_old_ones_stay_in_force(start_fleet, tmp_path):
    fleet = start_fleet(patch=UNREADABLE)
    before, [version] = fleet.pids, fleet.versions(1)
    (tmp_path / "broken").touch()
    fleet.reload()
    [line] = fleet.wait_for("reload", state="refused")
    assert ("AssertionError" in line["failure"], line["configuration"]) == (True, version)
    assert (fleet.pids, set(fleet.versions())) == (before, {version})


@pytest.fixture
def gate(upstream: Upstream) -> Gate:
    """The model `up/gated`, which ends when the gate is opened."""
    gate = Gate(stream(created(), text("one")), after=(stream(completed()),))
    upstream.replies["gated"] = Reply(gate)
    return gate


@pytest.fixture
def events(
    start_fleet, tmp_path, upstream: Upstream, gate: Gate
) -> Iterator[tuple[Fleet, Iterator[tuple[str, object]]]]:
    """A turn of a fleet whose supervisor has failed meanwhile."""
    fleet = start_fleet(backend(upstream.url), patch=BROKEN)
    body = chat_body("up/gated", stream=True)
    with (
        httpx.Client(trust_env=False, timeout=PATIENCE) as client,
        client.stream("POST", f"{fleet.url}/v1/chat/completions", json=body) as answer,
    ):
        events = read_sse(answer)
        assert next(events)
        (tmp_path / "broken").touch()
        [line] = fleet.wait_for("supervisor", state="failed")
        assert "AssertionError" in line["failure"]
        until(lambda: len(fleet.pids) == 1, "the idle worker ends")
        yield fleet, events


def test_workers_of_a_supervisor_that_fails_finish_their_turns(events, gate: Gate):
    fleet, received = events
    gate.open()
    assert "[DONE]" in [value for _, value in received]
    assert fleet.process.wait(PATIENCE) == 1


def test_a_supervisor_that_has_failed_is_ended_by_a_signal(events):
    fleet, _ = events
    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.process.wait(PATIENCE) == 1
