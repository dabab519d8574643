"""SIGHUP reads the configuration anew: no turn is cut, nobody is refused, and a bad one changes nothing."""

import asyncio
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.fleet import PATIENCE, STORE, Asking, Fleet, loaded_at_most, signal_to, until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, backend, chat_body, read_sse
from tests.support.upstream import Reply, Upstream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

LOUD = "[server]\nkeepalive = 16.0\n"
"""Settings that differ from the others in nothing that matters."""

TOOLS = '[gateway_tools]\ntools = ["late:find"]\n'


class Streams:
    """Many streams that are read to their end, each on a connection of its own."""

    def __init__(self, url: str, model: str, count: int) -> None:
        self.begun = 0
        self.ends: list[object] = []
        self._url = url
        self._model = model
        self._count = count
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read_all()), daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    async def _read_all(self) -> None:
        await asyncio.gather(*(self._read() for _ in range(self._count)))

    async def _read(self) -> None:
        host, _, port = self._url.removeprefix("http://").partition(":")
        body = json.dumps(chat_body(self._model, stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + body)
            received = b""
            while b"[DONE]" not in received:
                data = await reader.read(65536)
                if not data:
                    break
                if b"one" not in received and b"one" in received + data:
                    self.begun += 1
                received += data
            writer.close()
            self.ends.append("done" if b"[DONE]" in received and b"error" not in received else received[-300:])
        except OSError as error:
            self.ends.append(repr(error))


UNUSABLE = '[[backends]]\nname = "keyless"\nkind = "responses"\nbase_url = "{url}"\napi_key_env = "NO_SUCH_KEY"\nmodels = ["lost"]\n'


def test_workers_start_without_a_backend_that_has_no_key_and_a_reload_takes_only_that_one_away(
    start_fleet, upstream: Upstream
):
    def ask(model: str) -> int:
        return httpx.post(f"{fleet.url}/v1/chat/completions", json=chat_body(model), timeout=PATIENCE).status_code

    upstream.replies["kept"] = upstream.replies["lost"] = Reply([stream(created(), text("hi"), completed())])
    good, unusable = backend(upstream.url, models='["kept"]'), UNUSABLE.format(url=upstream.url)
    fleet = start_fleet(unusable + good)
    assert (ask("lost"), ask("kept")) == (503, 200)
    fleet.configure(unusable.replace('api_key_env = "NO_SUCH_KEY"', "") + good)
    fleet.reload()
    fleet.wait_for("reload", state="done")
    assert (ask("lost"), ask("kept")) == (200, 200)
    fleet.configure(unusable + good)
    fleet.reload()
    fleet.wait_for("reload", count=2, state="done")
    assert (ask("lost"), ask("kept")) == (503, 200)
    fleet.configure("[server]\nstrict_start = true\n" + unusable + good)
    fleet.reload()
    [line] = fleet.wait_for("reload", state="refused")
    assert "backend keyless is unavailable: NO_SUCH_KEY is not set" in line["failure"]
    assert ask("kept") == 200


def test_a_reload_with_200_open_streams_cuts_and_refuses_nothing(start_fleet, upstream: Upstream):
    upstream.replies["gated"] = Reply(gate := Gate(stream(created(), text("one")), after=(stream(completed()),)))
    fleet = start_fleet(backend(upstream.url))
    before, [version] = fleet.pids, fleet.versions(1)
    streams = Streams(fleet.url, "up/gated", 200)
    until(lambda: streams.begun == 200, f"{streams.begun}, {streams.ends}")
    with Asking(fleet.url) as asking:
        asking.more(5)
        fleet.configure(LOUD + backend(upstream.url))
        fleet.reload()
        [line] = fleet.wait_for("reload", state="done")
        asking.more(5)
    assert line["configuration"] != version
    until(lambda: set(fleet.versions()) == {line["configuration"]})
    assert before < fleet.pids, "the old workers finish their turns"
    gate.open()
    streams.join()
    assert streams.ends == ["done"] * 200
    assert asking.failed == {}
    until(lambda: not before & fleet.pids)
    assert not fleet.lines("worker")
    assert fleet.metrics()['toolwire_reloads_total{outcome="done"}'] == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[server]\nprot = 1\n", "toolwire.toml: server.prot: unknown key"),
        ("[server", "toolwire.toml: "),
        ("a = " + "[" * 5000, "toolwire.toml: lists or tables are nested too deeply"),
        ("a = " + "1" * 5000, "toolwire.toml: "),
        ("[server]\nworkers = 1e999", "toolwire.toml: "),
        ('[server]\nhost = "127.0.0.2"\n', "server.host: cannot change from 127.0.0.1 to 127.0.0.2 by a reload"),
        ('[store]\nurl = "sqlite:none/kept.db"\n', "store.url: "),
        ('[store]\nurl = "memory:"\n', "store.url: 2 workers cannot share a store in memory"),
        ('[gateway_tools]\ntools = ["none:nothing"]\n', "gateway_tools.tools"),
    ],
)
def test_a_configuration_that_cannot_be_served_changes_nothing(shared: Fleet, config, said):
    before, [version], refusals = shared.pids, shared.versions(1), len(shared.events("reload", state="refused"))
    shared.configure(config)
    shared.reload()
    line = shared.wait_for("reload", refusals + 1, state="refused")[-1]
    assert (said in line["failure"], line["configuration"]) == (True, version), line
    assert (shared.pids, set(shared.versions())) == (before, {version})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose configuration never changes."""
    fleet = Fleet(tmp_path_factory.mktemp("shared"))
    yield fleet
    fleet.stop()


def test_workers_that_do_not_start_are_rolled_back(start_fleet, tmp_path):
    """The first worker with the new settings starts, the second does not, and the first is replaced again."""
    fleet = start_fleet(PYTHONPATH=str(tmp_path))
    before, [version] = fleet.pids, fleet.versions(1)
    (tmp_path / "late.py").write_text(loaded_at_most(2, tmp_path))  # by the check, and by the first worker
    with Asking(fleet.url) as asking:
        asking.more(5)
        fleet.configure(TOOLS)
        fleet.reload()
        [line] = fleet.wait_for("reload", state="rolling back")
        assert "worker 1 does not start: " in line["failure"]
        assert "loaded too often" in line["failure"]
        [line] = fleet.wait_for("reload", state="rolled back")
        asking.more(5)
    assert line["configuration"] == version
    assert asking.failed == {}
    until(lambda: set(fleet.versions()) == {version})  # the one that leaves may answer what it has accepted
    until(lambda: len(fleet.pids) == 2)
    assert len(fleet.pids & before) == 1, "the second worker was never replaced"


def test_a_roll_back_that_cannot_end_gives_way_to_a_good_configuration(start_fleet, tmp_path):
    """Workers with the old settings cannot start any more either."""
    (tmp_path / "old.py").write_text("def find(q: str) -> str:\n    return q\n")
    fleet = start_fleet('[gateway_tools]\ntools = ["old:find"]\n', PYTHONPATH=str(tmp_path))
    (tmp_path / "old.py").write_text("raise RuntimeError('no more')\n")
    (tmp_path / "late.py").write_text(loaded_at_most(2, tmp_path))  # by the check, and by the first worker
    fleet.configure(TOOLS)
    fleet.reload()
    fleet.wait_for("reload", state="rolling back")
    fleet.wait_for("worker", 3, worker=0, state="ended")
    fleet.configure("[server")
    fleet.reload()
    fleet.wait_for("reload", state="refused")
    fleet.wait_for("worker", 4, worker=0, state="ended")
    fleet.configure(LOUD)
    fleet.reload()
    [line] = fleet.wait_for("reload", state="done")
    until(lambda: set(fleet.versions()) == {line["configuration"]})
    assert not fleet.events("reload", state="rolled back")


def test_an_idle_websocket_is_closed_with_1012_and_one_with_a_turn_after_it(start_fleet, upstream: Upstream):
    upstream.replies["gated"] = Reply(gate := Gate(stream(created(), text("one")), after=(stream(completed()),)))
    fleet = start_fleet(backend(upstream.url))
    address = fleet.url.replace("http", "ws") + "/v1/responses"
    with connect(address, proxy=None) as idle, connect(address, proxy=None) as busy:
        busy.send(json.dumps({"type": "response.create", "model": "up/gated", "input": "Go.", "store": False}))
        assert json.loads(busy.recv(PATIENCE))["type"] == "response.created"
        fleet.reload()
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        fleet.wait_for("reload", state="done")
        gate.open()
        while json.loads(busy.recv(PATIENCE))["type"] != "response.completed":
            pass
        with pytest.raises(ConnectionClosed) as closed:
            busy.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def test_sigterm_during_a_reload_ends_everything_when_its_turns_are_over(start_fleet, upstream: Upstream, tmp_path):
    upstream.replies["gated"] = Reply(gate := Gate(stream(created(), text("one")), after=(stream(completed()),)))
    fleet = start_fleet(backend(upstream.url), PYTHONPATH=str(tmp_path))
    (tmp_path / "late.py").write_text("import time\ntime.sleep(3600)\n")  # the check never ends
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        body = chat_body("up/gated", stream=True)
        with client.stream("POST", f"{fleet.url}/v1/chat/completions", json=body) as answer:
            events = read_sse(answer)
            assert next(events)
            fleet.configure(TOOLS + backend(upstream.url))
            fleet.reload()
            fleet.wait_for("reload", state="checking")
            fleet.process.send_signal(signal.SIGTERM)
            until(lambda: len(fleet.pids) == 1, "the idle worker ends, and the check")
            gate.open()
            assert "[DONE]" in [value for _, value in events]
    assert fleet.process.wait(PATIENCE) == 0


def test_a_worker_that_is_killed_during_a_reload_is_replaced(start_fleet, tmp_path):
    fleet = start_fleet(PYTHONPATH=str(tmp_path))
    (tmp_path / "late.py").write_text("import time\ntime.sleep(3600)\n")
    fleet.configure(TOOLS)
    before = fleet.pids
    fleet.reload()
    fleet.wait_for("reload", state="checking")
    for pid in before:
        signal_to(pid, signal.SIGKILL)
    fleet.wait_for("worker", 2, state="ended")
    until(lambda: fleet.all_ready(2))


def keep_idle(idle: dict[int, socket.socket], host: str, port: int) -> None:
    """Ask on a new connection, and keep it open as that of the worker that answers, unless there is one."""
    connection = socket.create_connection((host, port), PATIENCE)
    connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    worker = json.loads(answer.partition(b"\r\n\r\n")[2])["worker"]
    if worker in idle:
        connection.close()
    else:
        idle[worker] = connection


def test_a_draining_worker_is_not_ready_for_those_who_still_ask_it(start_fleet):
    """A request that has begun when its worker is replaced is answered with the truth, and is the last."""
    fleet = start_fleet("[server]\nheader_timeout = 300.0\n")
    host, port = fleet.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as asking:
        asking.sendall(b"GET /readyz HTTP/1.1\r\n")
        idle: dict[int, socket.socket] = {}
        until(lambda: keep_idle(idle, host, int(port)) or len(idle) == 2)  # each has accepted later ones
        fleet.reload()
        for connection in idle.values():
            assert connection.recv(1) == b"", "closed by a worker that drains"
            connection.close()
        asking.sendall(b"host: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: asking.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer
    assert b'"status":"draining"' in answer
    assert fleet.readiness()[0] == 200


def test_the_default_configuration_is_read_again_from_where_it_was_read(start_fleet):
    fleet = start_fleet()
    [version] = fleet.versions(1)
    fleet.configure("[debug]\nlevel = 'error'\n" + STORE)
    fleet.reload()
    until(lambda: set(fleet.versions(4)) != {version} and version not in fleet.versions())
    assert not fleet.events("reload", state="done"), "what is in force decides what is logged"


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (600, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


def files_allowed(pid: int) -> int:
    [line] = [
        line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open files")
    ]
    return int(line.split()[3])


def test_more_connections_come_with_more_files(start_fleet):
    fleet = start_fleet("[server]\nmax_connections = 10\n", patch=FEW_FILES)
    before = fleet.pids
    assert {files_allowed(pid) for pid in before} == {600}
    fleet.configure("[server]\nmax_connections = 1000\n")
    fleet.reload()
    fleet.wait_for("reload", state="done")
    assert {files_allowed(pid) for pid in fleet.pids - before} == {2512}
