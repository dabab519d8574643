"""Several workers: they share a port, are replaced when they end or hang, and end together."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.agent.terminal import Terminal
from tests.support import processes
from tests.support.fleet import PATIENCE, STORE, Asking, Fleet, ask, loaded_at_most, signal_to, until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, backend, chat_body, read_sse
from tests.support.upstream import Reply, Upstream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

TURNS = 'toolwire_turns_total{backend="demo",dialect="chat",status="200"}'
QUICK = "import toolwire.gateway.workers.supervisor as supervisor; supervisor.TICK = 0.7"
"""A worker is hung after seven seconds."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Fleet]:
    """Three workers, for all tests that leave three behind."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), backend(upstream.url), workers=3)
    yield fleet
    fleet.stop()


def serve(folder: Path, *options: str, patch: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """A start that fails."""
    command = [*Fleet.program, "serve", "-c", "toolwire.toml", "--port", "0", *options]
    return processes.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **environment},
    )


# How they start


def test_workers_share_a_port_and_say_so_once(fleet: Fleet):
    seen: set[int] = set()

    def all_seen() -> bool:
        status, body = fleet.readiness()
        assert (status, body["status"], body["workers"]) == (200, "ready", {"count": 3, "ready": 3})
        seen.add(body["worker"])
        return seen == {0, 1, 2}

    until(all_seen)
    assert fleet.log == [f"toolwire ready on {fleet.url}"]


@pytest.mark.parametrize(
    ("config", "workers", "said"),
    [
        ('[store]\nurl = "memory:"\n', "2", "store.url: 2 workers cannot share a store in memory"),
        (STORE, "0", "--workers: at least one is needed"),
        ("[server]\nworkers = 0\n", "2", "server.workers: it must be at least 1; received 0"),
        ('[store]\nurl = "sqlite:none/kept.db"\n', "2", "store.url: "),
        (STORE + '[gateway_tools]\ntools = ["none:nothing"]\n', "2", "gateway_tools.tools"),
    ],
)
def test_what_cannot_be_served_is_one_clear_line_and_exit_2(tmp_path, config, workers, said):
    (tmp_path / "toolwire.toml").write_text(config)
    result = serve(tmp_path, "--workers", workers)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert said in result.stderr


def test_a_worker_that_never_starts_stops_the_start_with_its_reason(tmp_path):
    """The number of workers is a setting too."""
    (tmp_path / "late.py").write_text(loaded_at_most(2, tmp_path))  # by the check, and by one of the workers
    tools = '[gateway_tools]\ntools = ["late:find"]\n'
    (tmp_path / "toolwire.toml").write_text(f"[server]\nworkers = 2\n{tools}{STORE}")
    result = serve(tmp_path, PYTHONPATH=str(tmp_path))
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert " does not start: " in result.stderr
    assert "loaded too often" in result.stderr


def test_a_port_that_others_listen_on_is_refused(fleet: Fleet, tmp_path):
    """Two programs of one user could share it unnoticed."""
    port = fleet.url.rpartition(":")[2]
    (tmp_path / "toolwire.toml").write_text(STORE)
    result = serve(tmp_path, "--port", port, "--workers", "2")
    assert (result.returncode, f"cannot listen on 127.0.0.1:{port}" in result.stderr) == (2, True), result.stderr


def test_limits_of_the_machine_are_divided_among_its_workers(start_fleet):
    fleet = start_fleet("[server]\nmax_connections = 4\n" + STORE)
    host, port = fleet.url.removeprefix("http://").split(":")
    open_ones = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(24)]
    try:
        for each in open_ones:
            each.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answers = [each.recv(12) for each in open_ones]
        assert 0 < answers.count(b"HTTP/1.1 200") <= 4
        assert answers.count(b"HTTP/1.1 503") >= 20
    finally:
        for each in open_ones:
            each.close()


# What they say


def test_every_line_names_its_worker_and_is_whole(fleet: Fleet):
    wild = "demo/" + "x" * 20_000
    with Asking(fleet.url) as asking:
        for _ in range(30):
            ask(fleet.url, wild)
        asking.more(20)
    until(lambda: len(fleet.turns()) >= 50)
    lines = [json.loads(line) for line in fleet.log[1:]]
    assert {line["worker"] for line in lines} <= {0, 1, 2}
    assert len({line["worker"] for line in lines}) > 1


def check_counters(fleet: Fleet, kills: int) -> None:
    """Whatever is killed, what was shown once never becomes less.

    Workers export within a second, so the turns of an earlier test may be counted here, too.
    """
    shown = [fleet.metrics().get(TURNS, 0.0)]

    def look() -> float:
        shown.append(fleet.metrics().get(TURNS, 0.0))
        assert shown[-1] >= shown[-2], shown
        return shown[-1]

    for _ in range(12):
        assert ask(fleet.url) == 200
    until(lambda: look() >= shown[0] + 12)
    for number in range(1, kills + 1):
        [victim, *_] = fleet.pids
        signal_to(victim, signal.SIGKILL)
        until(lambda pid=victim: look() and fleet.events("worker", state="ended", pid=pid))
        assert ask(fleet.url) == 200
        until(lambda count=number: look() >= shown[0] + 12 + count)


def test_the_counters_of_all_workers_are_added_up_and_never_go_back(fleet: Fleet):
    check_counters(fleet, 3)
    numbers = fleet.metrics()
    assert numbers['toolwire_turn_seconds_bucket{backend="demo",dialect="chat",le="+Inf"}'] == numbers[TURNS]
    until(lambda: fleet.metrics()["toolwire_workers"] == 3)


FORGETFUL = """
from toolwire.gateway.metrics import SharedFiles
def leave(self, seat):
    for path in self._folder.glob(f"*_{seat}.db"):
        path.unlink()
SharedFiles.leave = leave
"""


def test_the_check_of_counters_notices_when_those_of_the_dead_are_forgotten(start_fleet):
    fleet = start_fleet(patch=FORGETFUL)
    with pytest.raises(AssertionError):
        check_counters(fleet, 2)


MANY_NUMBERS = """
from toolwire.gateway.metrics import Metrics
started = Metrics.__init__
def count_many(self, *shared):
    started(self, *shared)
    for number in range(20_000):
        self.call("x" * 100 + str(number), "ok")
Metrics.__init__ = count_many
"""


def test_more_numbers_than_the_files_first_have_room_for_are_added_up(start_fleet):
    fleet = start_fleet(patch=MANY_NUMBERS)
    numbers = fleet.metrics()
    assert len(numbers) > 20_000
    assert {value for name, value in numbers.items() if name.startswith("toolwire_gateway_calls")} == {2.0}


# How they are replaced


def test_nothing_is_refused_while_workers_are_killed(start_fleet):
    fleet = start_fleet()
    with Asking(fleet.url) as asking:
        for number in range(1, 3):
            asking.more(10)
            [victim, *_] = fleet.pids
            signal_to(victim, signal.SIGKILL)
            fleet.wait_for("worker", number, state="ended", ending="SIGKILL")
            until(lambda: fleet.all_ready(2))
        asking.more(10)
    assert not any("Refused" in str(answer) for answer in asking.failed), asking.failed
    assert sum(asking.failed.values()) <= 8, f"only what the killed workers had accepted: {asking.failed}"


def check_stopped_supervisor(fleet: Fleet) -> None:
    """A supervisor that did not run itself for longer than a worker may be silent kills nobody."""
    before = fleet.pids
    fleet.process.send_signal(signal.SIGSTOP)
    ends = time.monotonic() + 8
    while time.monotonic() < ends:
        assert ask(fleet.url) == 200, "workers need no supervisor to serve"
        time.sleep(0.1)
    fleet.process.send_signal(signal.SIGCONT)
    until(lambda: fleet.metrics()["toolwire_workers"] == 2)
    for _ in range(20):
        assert fleet.metrics()
    assert (fleet.pids, fleet.lines("worker")) == (before, [])


def test_hung_workers_are_killed_and_what_waits_for_them_is_answered_by_others(start_fleet):
    fleet = start_fleet(patch=QUICK)
    check_stopped_supervisor(fleet)
    [victim, *_] = fleet.pids
    signal_to(victim, signal.SIGSTOP)
    waiting = [http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=PATIENCE) for _ in range(16)]
    for each in waiting:
        each.request("GET", "/healthz")
    [line] = fleet.wait_for("worker", state="hung")
    assert (line["pid"], line["ending"]) == (victim, "SIGKILL")
    assert [each.getresponse().status for each in waiting] == [200] * 16
    for each in waiting:
        each.close()
    until(lambda: fleet.all_ready(2))
    assert fleet.metrics()['toolwire_worker_restarts_total{reason="hung"}'] == 1


SECONDS = """
import time
import toolwire.gateway.workers.worker_pool as worker_pool
before = [time.monotonic()]
def tick(self):
    now = time.monotonic()
    for worker in self.workers:
        worker.silent += int((now - before[0]) / supervisor.TICK)
        if worker.silent >= worker_pool.HANG_TICKS:
            worker.fate = "hung"
            worker.kill()
    before[0] = now
worker_pool.WorkerPool.tick = tick
"""


def test_the_check_of_a_stopped_supervisor_notices_one_that_counts_in_seconds(start_fleet):
    fleet = start_fleet(patch=QUICK + SECONDS)
    with pytest.raises((AssertionError, OSError, http.client.HTTPException)):
        check_stopped_supervisor(fleet)


def test_a_worker_that_ends_again_and_again_is_waited_for_longer(start_fleet):
    fleet = start_fleet()
    for number in range(1, 5):
        until(lambda: fleet.all_ready(2) and len(fleet.pids) == 2)
        for pid in fleet.pids:
            signal_to(pid, signal.SIGKILL)
        fleet.wait_for("worker", 2 * number, state="ended")
    assert [line["pause"] for line in fleet.events("worker", worker=0)] == [0.0, 0.5, 1.0, 2.0]
    until(lambda: fleet.all_ready(2))


# How they end


@pytest.fixture
def gate(upstream: Upstream) -> Gate:
    """The model `up/gated`, which ends when the gate is opened."""
    gate = Gate(stream(created(), text("one")), after=(stream(completed()),))
    upstream.replies["gated"] = Reply(gate)
    return gate


@pytest.fixture
def open_stream() -> Iterator[Callable[[Fleet], Iterator[tuple[str, object]]]]:
    """Begins a turn of `up/gated` that is under way."""
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:

        def begin(fleet: Fleet) -> Iterator[tuple[str, object]]:
            body = chat_body("up/gated", stream=True)
            request = client.build_request("POST", f"{fleet.url}/v1/chat/completions", json=body)
            events = read_sse(client.send(request, stream=True))
            assert next(events)
            return events

        yield begin


def is_done(events: Iterator[tuple[str, object]]) -> bool:
    return ("data", "[DONE]") in list(events)


def test_a_worker_that_is_told_to_end_is_replaced_before_its_turns_are_over(fleet: Fleet, gate, open_stream):
    until(lambda: fleet.all_ready(3))
    workers = fleet.pids
    events = open_stream(fleet)
    for pid in workers:
        signal_to(pid, signal.SIGTERM)
    until(lambda: len(fleet.pids - workers) == 3 and fleet.all_ready(3))
    assert fleet.pids & workers, "the turn runs on"
    gate.open()
    assert is_done(events)
    until(lambda: not fleet.pids & workers)


def test_workers_end_with_a_supervisor_that_is_killed(start_fleet, upstream: Upstream, gate, open_stream):
    with tempfile.TemporaryDirectory(prefix="run-") as folder:  # a short path
        fleet = start_fleet(backend(upstream.url), XDG_RUNTIME_DIR=folder)
        [made] = Path(folder).iterdir()
        assert os.stat(made).st_mode & 0o777 == 0o700
        assert len(list(made.glob("*.sock"))) == 2
        workers = fleet.pids
        events = open_stream(fleet)
        fleet.process.kill()
        fleet.process.wait(PATIENCE)
        gate.open()
        assert is_done(events), "the turn is finished first"
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert not list(Path(folder).iterdir()), "nothing is left of their sockets"


def test_turns_are_finished_on_sigterm_and_a_second_one_ends_them(start_fleet, upstream: Upstream, gate, open_stream):
    fleet = start_fleet(backend(upstream.url))
    events = open_stream(fleet)
    until(lambda: fleet.metrics()["toolwire_turns_running"] == 1)
    fleet.process.send_signal(signal.SIGTERM)
    until(lambda: any("1 turn is still running" in line for line in fleet.log))
    fleet.process.send_signal(signal.SIGTERM)
    with suppress(httpx.HTTPError):
        assert any("error" in str(value) for _, value in events), "it is cut, or told that it is"
    assert fleet.process.wait(PATIENCE) == 0


def test_turns_that_a_drain_cuts_are_lines_of_the_log_and_nothing_else_is(
    start_fleet, upstream: Upstream, gate, open_stream
):
    fleet = start_fleet("[server]\ndrain = 1\n" + backend(upstream.url))
    events = open_stream(fleet)
    assert fleet.stop() == 0
    assert any("shutting_down" in str(value) for _, value in events)
    [line] = fleet.turns()
    assert (line["error"], line["worker"] in (0, 1)) == ("shutting_down", True)
    assert [line for line in fleet.log if not line.startswith(("{", "toolwire"))] == []


def test_a_terminal_that_is_gone_ends_it_and_the_banner_is_told_once(tmp_path):
    """Whoever has a terminal gets SIGHUP from it, and did not ask for a reload."""
    (tmp_path / "toolwire.toml").write_text(STORE)
    command = [*Fleet.program, "serve", "-c", "toolwire.toml", "--port", "0", "--workers", "2"]
    environment = {**os.environ, "NO_COLOR": "1"}
    with Terminal(command, environment, cwd=tmp_path, columns=300, rows=40) as terminal:
        terminal.until("built in")
        assert sum("toolwire ready on" in line for line in terminal.lines) == 1
        os.kill(terminal.process.pid, signal.SIGHUP)
        terminal.process.wait(PATIENCE)
        assert terminal.process.returncode == 0


STRANGERS = """
import os
from pathlib import Path
kill = os.kill
def noted(pid, number):
    if not Path(f"/proc/{pid}").exists():
        Path("strangers").touch()
    kill(pid, number)
os.kill = noted
"""


def test_nobody_is_killed_who_has_ended_long_ago(tmp_path):
    """The process id may be that of another program by then: of what told the banner, and of what checked settings."""
    (tmp_path / "toolwire.toml").write_text(STORE)
    program = (sys.executable, "-c", f"{STRANGERS}\nfrom toolwire.cli import main; main()")
    command = [*program, "serve", "-c", "toolwire.toml", "--port", "0", "--workers", "2"]
    with Terminal(command, {**os.environ, "NO_COLOR": "1"}, cwd=tmp_path, columns=300, rows=40) as terminal:
        terminal.until("built in")
        tasks = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children")
        until(lambda: len(tasks.read_text().split()) == 2)  # what told the banner has ended
        terminal.process.terminate()
        terminal.process.wait(PATIENCE)
    fleet = Fleet(tmp_path, patch=STRANGERS)
    fleet.reload()
    fleet.wait_for("reload", state="done")
    assert fleet.stop() == 0
    assert not (tmp_path / "strangers").exists()


def test_sighup_that_was_ignored_stays_ignored(tmp_path):
    (tmp_path / "toolwire.toml").write_text(STORE)
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    fleet = Fleet(tmp_path, patch=ignoring)
    try:
        fleet.reload()
        for _ in range(3):
            assert ask(fleet.url) == 200
        assert fleet.process.poll() is None
        assert not fleet.lines("reload")
    finally:
        fleet.stop()
