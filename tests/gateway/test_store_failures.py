"""A store that fails: nothing is told as stored that is not, whatever can be read is read, and it mends."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support import processes
from tests.support.checked import responses_faults
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import (
    Gate,
    Gateway,
    Responses,
    backend,
    error_of,
    flat,
    good,
    read_events,
    response_body,
    text_of,
    tool,
)
from tests.support.gateways import until
from tests.support.upstream import Reply, Upstream

CONFIG = '[store]\nurl = "sqlite:kept.db"\n'
FIND = [flat(tool("find", q={"type": "string"}))]
SAYS_HI = Reply([stream(created(), text("hi"), completed())])
CALLS_FIND = Reply([stream(created(), call("c1", "find", '{"q":"x"}'), completed())])


class Place:
    """A gateway with its file, which can be made to fail."""

    def __init__(self, http: httpx.Client, gateway: Gateway, folder: Path) -> None:
        self.http = http
        self.gateway = gateway
        self.file = folder / "kept.db"
        self.api = Responses(http, gateway)

    @contextmanager
    def without_room(self) -> Iterator[None]:
        """No file of the gateway may grow: what a full disk does, without one."""
        pid, (_, hard) = self.gateway.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Another process writes and does not end."""
        database = sqlite3.connect(self.file, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            database.execute("ROLLBACK")
            database.close()

    def status(self, id: str) -> str:
        """The status of a response in the file."""
        with closing(sqlite3.connect(self.file)) as database:
            return database.execute("SELECT status FROM holders WHERE id = ?", (id,)).fetchone()[0]

    def log(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.gateway.log if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def metric(self, name: str) -> float:
        lines = self.http.get(f"{self.gateway.url}/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)

    def ready(self) -> tuple[int, str]:
        response = self.http.get(f"{self.gateway.url}/readyz")
        return response.status_code, response.json()["store"]

    def conversation(self) -> str:
        return good(self.http.post(f"{self.gateway.base_url}/conversations", json={})).json()["id"]


Start = Callable[..., Place]


@pytest.fixture
def start(http: httpx.Client, upstream: Upstream, tmp_path: Path) -> Iterator[Start]:
    begun: list[Gateway] = []

    def begin(config: str = CONFIG, folder: Path = tmp_path, **environment: str) -> Place:
        begun.append(Gateway(folder, config + backend(upstream.url), **environment))
        return Place(http, begun[-1], folder)

    upstream.replies |= {"hi": SAYS_HI, "calls": CALLS_FIND}
    yield begin
    for gateway in begun:
        gateway.stop()


IMPATIENT = """
import toolwire.gateway.responses.run_task
import toolwire.memory.sqlite.engine

toolwire.gateway.responses.run_task.END_TIMEOUT = 1.2
toolwire.memory.sqlite.engine.LOCK_TIMEOUT = 0.3
"""
"""Python reads this when it starts: a gateway that does not wait long for a store that fails."""


@pytest.fixture
def impatient(start: Start, tmp_path: Path) -> Start:
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    return partial(start, PYTHONPATH=str(tmp_path))


@pytest.fixture
def fresh(start: Start) -> Place:
    """A gateway of its own, for what cannot be mended."""
    place = start()
    place.api.create("demo")  # so that there is a file
    return place


@pytest.fixture(scope="module")
def lasting(http: httpx.Client, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("failures")
    gateway = Gateway(folder, CONFIG + backend(upstream.url))
    yield Place(http, gateway, folder)
    gateway.stop()


@pytest.fixture
def place(lasting: Place, upstream: Upstream) -> Place:
    """The gateway of the module, which works."""
    upstream.replies |= {"hi": SAYS_HI, "calls": CALLS_FIND}
    assert lasting.api.create("demo")["store"] is True
    return lasting


def not_stored(response: dict[str, Any], notes: list[dict[str, str]]) -> None:
    assert response["store"] is False
    assert response["status"] == "completed"
    assert "required_action" not in response
    assert [note["code"] for note in notes] == ["not_stored"]


# How a turn ends that cannot be stored


def ask_plain(place: Place, **fields: Any) -> tuple[dict[str, Any], list[dict[str, str]]]:
    response = good(place.api.post(response_body("up/calls", tools=FIND, **fields)))
    return response.json(), json.loads(response.headers.get("x-toolwire-notes", "[]"))


def ask_streamed(place: Place, **headers: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    body = response_body("up/calls", tools=FIND, stream=True)
    events = read_events(good(place.api.post(body, **headers)))
    assert responses_faults(events.frames, done=events.done) == []
    assert "response.required_action" not in events.types
    return events.response, events.telemetry["notes"]


def ask_extended(place: Place) -> tuple[dict[str, Any], list[dict[str, str]]]:
    return ask_streamed(place, x_proxy_responses_events="extended")


def ask_by_socket(place: Place) -> tuple[dict[str, Any], list[dict[str, str]]]:
    with connect(place.gateway.url.replace("http", "ws") + "/v1/responses", proxy=None) as socket:
        socket.send(json.dumps({"type": "response.create", **response_body("up/calls", tools=FIND)}))
        while (message := json.loads(socket.recv(90)))["type"] != "response.completed":
            assert message["type"] != "error", message
    return message["response"], message["response"]["toolwire"]["notes"]


WAYS = {"plain": ask_plain, "streamed": ask_streamed, "extended": ask_extended, "socket": ask_by_socket}


def test_a_turn_that_cannot_be_stored_says_so_in_every_way_of_asking(place):
    for way, ask in WAYS.items():
        with place.without_room():
            response, notes = ask(place)
            not_stored(response, notes)
            assert place.api.get(response["id"]).status_code == 404, way
        response = place.api.create("up/hi")
        assert response["store"] is True
        assert place.api.retrieve(response["id"]) == response


def test_a_failing_store_is_told_in_the_log_the_metrics_and_the_readiness(fresh):
    assert fresh.ready() == (200, "ok")
    with fresh.without_room():
        fresh.api.create("up/hi")
        assert fresh.ready() == (200, "failing")
        assert fresh.metric("toolwire_store_failing") == 1
        assert fresh.metric('toolwire_store_failures_total{reason="io"}') >= 1
        assert fresh.metric('toolwire_notes_total{code="not_stored"}') == 1
        fresh.gateway.wait_until(lambda: bool(fresh.log("store")))
    fresh.api.create("up/hi")
    assert fresh.ready() == (200, "ok")
    assert fresh.metric("toolwire_store_failing") == 0
    fresh.gateway.wait_until(lambda: len(fresh.log("store")) == 2)
    assert [(line["state"], line["reason"]) for line in fresh.log("store")] == [("failing", "io"), ("ok", "")]
    assert fresh.gateway.wait_for_turns(3)[1]["notes"] == {"not_stored": 1}


def test_a_gateway_whose_store_must_work_is_not_ready_while_it_fails_and_finds_out_by_itself(start):
    place = start(CONFIG + "required = true\n")
    place.api.create("demo")
    with place.without_room():
        place.api.create("demo")
        assert place.ready() == (503, "failing")
    place.gateway.wait_until(lambda: place.ready() == (200, "ok"))
    assert place.ready() == (200, "ok")


def test_tool_outputs_are_taken_though_their_turn_cannot_be_stored(place):
    first = place.api.create("up/calls", tools=FIND)
    with place.without_room():
        answer = good(place.api.submit(first["id"], {"c1": "done"}))
        assert answer.json()["store"] is False
    assert place.api.retrieve(first["id"])["required_action"] is not None, "they may be submitted again"
    again = good(place.api.submit(first["id"], {"c1": "done"})).json()
    assert again["store"] is True
    assert "required_action" not in place.api.retrieve(first["id"])


def test_a_conversation_has_all_of_a_turn_or_nothing(place):
    conversation = place.conversation()
    url = f"{place.gateway.base_url}/conversations/{conversation}/items"
    with place.without_room():
        assert place.api.create("up/hi", conversation=conversation)["store"] is False
    assert place.http.get(url).json()["data"] == []
    place.api.create("up/hi", conversation=conversation)
    assert len(place.http.get(url).json()["data"]) == 2


# What can be read is read


def test_a_chain_is_continued_while_nothing_can_be_written(place, upstream):
    first = place.api.create("up/hi", "one")
    with place.without_room():
        second = place.api.create("up/hi", "two", previous_response_id=first["id"])
    not_stored(second, [{"code": "not_stored"}])
    assert len(upstream.of("hi")[-1].body["input"]) == 3


def test_a_lock_of_another_program_holds_up_no_reading(impatient):
    place = impatient()
    first = stored_again(place)
    with place.locked():
        responses = [place.api.create("up/hi", "two", previous_response_id=first["id"]) for _ in range(3)]
        assert place.api.retrieve(first["id"]) == first
        assert place.ready() == (200, "failing")
    assert [response["store"] for response in responses] == [False] * 3
    assert [text_of(response) for response in responses] == ["hi"] * 3
    assert place.metric('toolwire_store_failures_total{reason="busy"}') > 0
    assert stored_again(place)


def unavailable(response: httpx.Response) -> None:
    status, error = error_of(response)
    assert (status, error["code"], error["type"]) == (503, "store_unavailable", "server_error")
    assert int(response.headers["retry-after"]) > 0


def test_what_needs_a_write_is_503_while_there_is_none(place):
    conversations = f"{place.gateway.base_url}/conversations"
    conversation, first = place.conversation(), place.api.create("demo")
    with place.without_room():
        unavailable(place.api.post(response_body("up/hi", background=True)))
        unavailable(place.api.post(response_body("up/hi", background=True, stream=True)))
        unavailable(place.http.post(conversations, json={}))
        unavailable(place.http.post(f"{conversations}/{conversation}", json={"metadata": {"a": "b"}}))
        unavailable(
            place.http.post(f"{conversations}/{conversation}/items", json={"items": [{"role": "user", "content": "a"}]})
        )
        unavailable(place.api.delete(first["id"]))
    assert place.api.retrieve(first["id"]) == first


def damage(file: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    database = sqlite3.connect(file)
    [(page,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchall()
    [(size,)] = database.execute("PRAGMA page_size").fetchall()
    database.close()
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)


def test_a_chain_that_cannot_be_read_is_503_everywhere(fresh, start):
    conversation = fresh.conversation()
    first = fresh.api.create("up/calls", tools=FIND, conversation=conversation)
    fresh.gateway.stop()
    damage(fresh.file, "items")
    fresh = start()
    continued: dict[str, Any] = {"previous_response_id": first["id"]}
    conversations = f"{fresh.gateway.base_url}/conversations/{conversation}"
    for response in (
        fresh.api.post(response_body("up/hi", **continued)),
        fresh.api.post(response_body("up/hi", **continued, stream=True)),
        fresh.api.post(response_body("up/hi", conversation=conversation)),
        fresh.api.post(response_body("up/hi", [{"type": "item_reference", "id": first["output"][0]["id"]}])),
        fresh.api.post(response_body("up/hi", **continued), "/compact"),
        fresh.api.post(response_body("up/hi", **continued), "/input_tokens"),
        fresh.api.submit(first["id"], {"c1": "done"}),
        fresh.api.get(first["id"]),
        fresh.api.get(first["id"], stream="true"),
        fresh.api.get(f"{first['id']}/input_items"),
        fresh.http.get(f"{conversations}/items"),
    ):
        unavailable(response)
    with connect(fresh.gateway.url.replace("http", "ws") + "/v1/responses", proxy=None) as socket:
        socket.send(json.dumps({"type": "response.create", **response_body("up/hi", **continued)}))
        message = json.loads(socket.recv(90))
        assert (message["type"], message["status"], message["error"]["code"]) == ("error", 503, "store_unavailable")
    not_stored(fresh.api.create("up/hi"), [{"code": "not_stored"}])
    assert fresh.metric('toolwire_store_failures_total{reason="corrupt"}') > 10
    chat = {"model": "up/hi", "messages": [{"role": "user", "content": "Go."}]}
    assert fresh.http.post(f"{fresh.gateway.base_url}/chat/completions", json=chat).status_code == 200


# Background


def test_a_background_run_that_cannot_be_stored_says_so_to_whoever_asks(impatient, upstream):
    place = impatient(CONFIG + "lease = 120\n")
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["stopped"] = Reply(gate)
    id = place.api.create("up/stopped", background=True)["id"]
    place.api.wait_for(id, "in_progress")
    with place.without_room():
        gate.open()
        found = place.api.wait_for(id, "completed")
        not_stored(found, [{"code": "not_stored"}])
        assert text_of(found) == "Once upon"
        events = place.api.replay(id)
        assert responses_faults(events.frames, done=events.done) == []
        assert events.response["store"] is False
        assert place.api.post({}, f"/{id}/cancel").json() == found
    assert good(place.api.delete(id)).json()["deleted"] is True
    assert place.api.get(id).status_code == 404
    place.gateway.wait_for_turns(1)
    place.gateway.wait_until(lambda: place.gateway.turns()[-1]["notes"] == {"not_stored": 1})
    assert place.gateway.turns()[-1]["notes"] == {"not_stored": 1}


def test_a_cancelled_background_run_that_cannot_be_stored_is_cancelled(impatient, upstream):
    place = impatient(CONFIG + "lease = 120\n")  # a process that cannot say for long that it is there loses its runs
    upstream.replies["stopped"] = Reply(Gate(stream(created(), text("Once "))))
    id = place.api.create("up/stopped", background=True)["id"]
    place.api.wait_for(id, "in_progress")
    with place.without_room():
        cancelled = place.api.post({}, f"/{id}/cancel").json()
    assert (cancelled["status"], cancelled["store"]) == ("cancelled", False)


def test_a_background_run_that_ends_while_the_store_is_away_for_long_is_kept_and_not_repeated(impatient, upstream):
    place = impatient(CONFIG + "lease = 1\n")
    gate = Gate(stream(created()), after=(stream(text("Once upon"), completed()),))
    upstream.replies["outlasting"] = Reply(gate)
    id = place.api.create("up/outlasting", background=True)["id"]
    place.gateway.wait_until(lambda: bool(upstream.of("outlasting")))
    with place.locked():  # longer than a lease, and than the run waits for its end to be kept
        gate.open()
        shown = place.api.wait_for(id, "completed")
        assert (shown["store"], text_of(shown)) == (False, "Once upon")
    until(lambda: place.status(id) == "completed")
    assert text_of(place.api.retrieve(id)) == "Once upon"
    assert len(upstream.of("outlasting")) == 1


# The file


def stored_again(place: Place) -> dict[str, Any]:
    """A response that is stored, and can be read. The first use on each side of the store may find its file gone."""
    for _ in range(10):
        response = place.api.create("up/hi")
        if response["store"] and place.api.get(response["id"]).status_code == 200:
            return response
    raise AssertionError("nothing is stored any more")


def test_a_file_that_vanishes_is_noticed_and_begun_anew(fresh):
    first = fresh.api.create("up/hi")
    fresh.file.unlink()
    assert fresh.ready()[0] == 200  # "failing" or, if the store has noticed already, "ok"
    fresh.gateway.wait_until(lambda: bool(fresh.log("store")))
    assert fresh.log("store")[0]["reason"] == "missing"
    second = stored_again(fresh)
    assert fresh.api.retrieve(second["id"]) == second
    assert fresh.api.get(first["id"]).status_code == 404
    assert fresh.ready() == (200, "ok")
    assert fresh.file.stat().st_mode & 0o777 == 0o600


def test_a_turn_that_finds_the_file_gone_is_not_stored(place):
    """The heartbeat may find out first."""
    place.file.unlink()
    response, notes = ask_plain(place)
    if not response["store"]:
        not_stored(response, notes)
        assert notes[0]["subject"] == "missing"
    stored_again(place)


def test_a_file_that_is_replaced_is_noticed_and_used(fresh, tmp_path):
    first = fresh.api.create("up/hi")
    copy = tmp_path / "copy.db"
    source, target = sqlite3.connect(fresh.file), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    second = fresh.api.create("up/hi")
    assert fresh.api.retrieve(second["id"]) == second
    for name in ("kept.db-wal", "kept.db-shm"):
        (tmp_path / name).unlink()
    shutil.copy(copy, tmp_path / "new.db")
    os.replace(tmp_path / "new.db", fresh.file)
    third = stored_again(fresh)
    assert fresh.api.retrieve(first["id"]) == first
    assert fresh.api.get(second["id"]).status_code == 404
    assert fresh.api.retrieve(third["id"]) == third


def serve(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolwire", "serve", "--config", "toolwire.toml", "--port", "0"]
    given = {**os.environ, **environment}
    return processes.run(command, capture_output=True, text=True, cwd=folder, env=given, timeout=60, check=False)


def test_two_gateways_on_one_file_see_what_the_other_keeps(fresh, start):
    other = start()
    first = fresh.api.create("up/hi")
    assert other.api.retrieve(first["id"]) == first
    second = other.api.create("up/hi", previous_response_id=first["id"])
    assert fresh.api.retrieve(second["id"]) == second


def test_a_gateway_that_was_killed_leaves_no_lock(fresh, start):
    fresh.gateway.kill()
    assert start().api.create("up/hi")["store"] is True


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_without_a_setting_the_store_lies_in_the_state_directory_for_nobody_else_to_read(start, tmp_path):
    state = tmp_path / "state"
    before = os.umask(0)
    try:
        place = start("[store]\nurl = ''\n", XDG_STATE_HOME=str(state))
    finally:
        os.umask(before)
    place.api.create("up/hi")
    assert (state / "toolwire").stat().st_mode & 0o777 == 0o700
    names = {"toolwire.db", "toolwire.db-wal", "toolwire.db-shm", "toolwire.db-lock", "console-token"}
    assert modes(state / "toolwire") == dict.fromkeys(names, 0o600)
    assert not list(tmp_path.glob("*.db"))


def test_a_store_that_others_could_read_is_closed_to_them_with_a_line(fresh, start, tmp_path):
    fresh.gateway.stop()
    fresh.file.chmod(0o644)
    fresh = start()
    fresh.api.create("up/hi")
    assert {mode for name, mode in modes(tmp_path).items() if name.startswith("kept.db")} == {0o600}
    assert [line for line in fresh.gateway.log if f"{fresh.file} was readable by others" in line]


# A real disk


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own; only root can have one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_on_a_full_disk_nothing_is_told_as_stored_that_is_not(start, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        place = start(f'[store]\nurl = "sqlite:{disk / "kept.db"}"\n')
        said = [place.api.create("up/hi", "x" * 30_000) for _ in range(30)]
        stored = [response for response in said if response["store"]]
        assert 0 < len(stored) < 30
        for response in said:
            assert place.api.get(response["id"]).status_code == (200 if response["store"] else 404)
        assert place.metric('toolwire_store_failures_total{reason="full"}') > 0
        place.gateway.stop()
        again = start(f'[store]\nurl = "sqlite:{disk / "kept.db"}"\n')
        for response in stored:
            assert again.api.retrieve(response["id"]) == response
        again.gateway.stop()


def test_a_disk_that_cannot_be_written_to_is_one_clear_line(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        (tmp_path / "toolwire.toml").write_text(f'[store]\nurl = "sqlite:{disk / "kept.db"}"\n')
        result = serve(tmp_path)
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert "store.url" in line
